"""Evaluation: the scores of clients' models round by round, and diagnostics of their layers.

`evaluate` gives models at their stages and their scores, `measure` the lines that a run records of a round, `trial` a
simulation that is evaluated as it goes, `diagnostics` and `cka` the layer diagnostics (`--lab`), and `flags` the
clients that a run left out. It stands on `execute` and knows no settings: `config` and packages above import it.
"""

from stratafl.evaluation.cka import cka
from stratafl.evaluation.diagnostics import LayerDiagnostics

__all__ = ["LayerDiagnostics", "cka"]
