"""A deployed federation: host and sites (`hosting.py`, `member.py`), and the Flower processes that connect them.

`host.py` and `site_processes.py` start the processes of a host and of a site. `gate.py` is the only port that others
can reach. Only this package imports flwr (`pip install 'stratafl[flower]'`); docs/design/flower.md has the facts about
Flower that it relies on.
"""
