"""Policies: the steps that fill the slots, one idea per file."""

from stratafl.policies.accuracy import Accuracy
from stratafl.policies.edits import Pull
from stratafl.policies.merge import Mean
from stratafl.policies.mix import Remember, Take, TakeNumber
from stratafl.policies.schedules import Constant, Cosine, Exponential
from stratafl.policies.send import Upload
from stratafl.policies.serve import Broadcast, Deliver
from stratafl.policies.train import SGD

__all__ = [
    "SGD",
    "Accuracy",
    "Broadcast",
    "Constant",
    "Cosine",
    "Deliver",
    "Exponential",
    "Mean",
    "Pull",
    "Remember",
    "Take",
    "TakeNumber",
    "Upload",
]
