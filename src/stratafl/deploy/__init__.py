"""A federation on Flower: its processes, certificates and keys, and the gate that lets only sites in.

`host.py` starts what the server needs, `site.py` what a site needs; `rounds.py` is for a ServerApp, `certificates.py`
comes before all of them. Only this package imports flwr (`pip install 'stratafl[flower]'`). docs/flower.md has the
facts about Flower that it relies on.
"""
