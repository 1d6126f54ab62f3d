"""What a host could learn from the uploads of a run: attacks on every layer, each beside what guessing comes to.

`replay.py` repeats rounds of a run and keeps what the host sees, `attacks.py` has the formulas, `leakage.py` measures
them over clients and rounds, and `leakage_picture.py` draws layers × attacks, methods side by side.
"""
