"""A client's model outside of stratafl: with its preprocessing, and in files that other programs read."""

from stratafl.export.predictor import Predictor
from stratafl.export.writing import to_onnx, to_safetensors

__all__ = ["Predictor", "to_onnx", "to_safetensors"]
