"""Advice: whether a federation should federate, with which method and which personal layers, and who gains.

`look` finds the facts, `candidates` makes a short list of methods, `tryout` tries it at equal small budgets on
validation samples, `advice` decides, and `advice_text` says it. It stands on `report`; only `cli` imports it.
"""

from stratafl.advice.advice import BUDGET, Advice, Expectation, advice_on

__all__ = ["BUDGET", "Advice", "Expectation", "advice_on"]
