"""The matrix and the waist: layers, layout and parcels, and all that an executor knows of an algorithm.

Rows are clients, columns are parameters, columns are grouped into named layers. Every package may import this one; it
imports nothing but torch, numpy and `stratafl.errors`.
"""
