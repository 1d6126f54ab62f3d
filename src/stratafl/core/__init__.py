"""Layers, layouts, parcels, and the narrow interface between executors and algorithms.

Rows are clients, columns are parameters, columns are grouped into named layers. Every package may import this one; it
imports nothing but torch, numpy and `stratafl.errors`.
"""
