"""From settings to objects: tables of checked settings, named protocols, trust in imported code, and `assemble`.

Runs, reports, recipes and the command import it; algorithms and executors do not.
"""
