"""From settings to objects: tables of checked settings, named protocols, whose code may be imported, what is built.

Imported by runs, reports, recipes and the command; algorithms and executors know nothing of it.
"""
