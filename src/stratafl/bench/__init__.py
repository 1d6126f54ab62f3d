"""Speed: rounds of the engine against loops written by hand, on the same batches, in one run.

python -m stratafl.bench --help      needs torch and numpy alone; `strata bench` is the same with tables and charts

Times on a shared machine are noisy; ratios of what was measured in turns in one process are the figures to look at.
"""
