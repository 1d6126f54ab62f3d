"""The matrix and the waist: layers, layout and parcels, and all that an executor knows of an algorithm.

Rows are clients, columns are parameters, columns are grouped into named layers. Everybody may import this package; it
imports nothing but torch, numpy and `stratafl.errors`.
"""
