"""Policies: the steps that fill the slots, one file per slot."""

from stratafl.policies.merge import Mean
from stratafl.policies.mix import Remember, Take, TakeNumber
from stratafl.policies.robust import ClippedMean, Median, TrimmedMean
from stratafl.policies.schedules import Constant, Cosine, Exponential
from stratafl.policies.send import Upload
from stratafl.policies.serve import Broadcast, Deliver
from stratafl.policies.train import SGD, Accuracy, Pull

__all__ = ["SGD", "Accuracy", "Broadcast", "Constant", "Cosine", "Deliver", "Exponential", "Mean", "Pull"]
__all__ += ["ClippedMean", "Median", "Remember", "Take", "TakeNumber", "TrimmedMean", "Upload"]
