"""Personalised federated learning, layer by layer.

A federation is a matrix: rows are clients, columns are parameters, and columns are grouped into named layers.
"""

__version__ = "0.1.0.dev0"
