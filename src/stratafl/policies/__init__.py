"""Policies: the steps that fill the slots, one file per slot."""

from stratafl.policies.krum import Krum
from stratafl.policies.merge import Increment, Mean, ServerOptimizer, StoreRows
from stratafl.policies.mix import Adopt, Fresh, Prepare, Remember, Take
from stratafl.policies.private import PrivateMean
from stratafl.policies.robust import ClippedMean, Median, TrimmedMean
from stratafl.policies.schedules import Constant, Cosine, Exponential, Stepped, Warmup
from stratafl.policies.send import Upload
from stratafl.policies.serve import Broadcast, Deliver, MeanOfRows
from stratafl.policies.train import Accuracy, Clamp, Copy, LocalTraining, Pull

__all__ = [
    "Accuracy",
    "Adopt",
    "Broadcast",
    "Clamp",
    "ClippedMean",
    "Constant",
    "Copy",
    "Cosine",
    "Deliver",
    "Exponential",
    "Fresh",
    "Increment",
    "Krum",
    "LocalTraining",
    "Mean",
    "MeanOfRows",
    "Median",
    "Prepare",
    "PrivateMean",
    "Pull",
    "Remember",
    "ServerOptimizer",
    "Stepped",
    "StoreRows",
    "Take",
    "TrimmedMean",
    "Upload",
    "Warmup",
]
