"""Policies: the steps that fill the slots."""

from stratafl.policies.exchange import Broadcast, Deliver, Mean, Remember, Take, TakeNumber, Upload
from stratafl.policies.train import SGD, Accuracy, Constant, Cosine, Exponential, Pull

__all__ = ["SGD", "Accuracy", "Broadcast", "Constant", "Cosine", "Deliver", "Exponential", "Mean", "Pull"]
__all__ += ["Remember", "Take", "TakeNumber", "Upload"]
