"""Speed: rounds of the engine against loops written by hand, on the same batches, in one process.

It needs torch and numpy alone; `strata bench` adds tables and charts.

Times on a shared machine are noisy, so compare ratios: what they compare was measured in turns.
Start with `options.py` (what can be asked for) and `measurement.py` (how a row is measured).
"""
