"""The README's code runs as it is printed."""

import re
from dataclasses import replace
from pathlib import Path

from stratafl.algorithms import fedavg
from stratafl.testing import check_algorithm

README = Path(__file__).parents[2] / "README.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)


def test_the_example_runs_and_learns(capsys):
    space = {}
    exec(compile(blocks()[0].replace("rounds=10", "rounds=3"), "README", "exec"), space)  # our own text
    assert 50 < float(capsys.readouterr().out.split("%")[0]) <= 100
    assert "fc.weight" in space["model_of_client_3"]


def test_the_record_is_fedavg_and_the_step_keeps_the_contract():
    space = {}
    for block in blocks()[1:]:
        exec(compile(block, "README", "exec"), space)
    assert space["fedavg"]() == fedavg()
    check_algorithm(replace(fedavg(), train=(space["SignDescent"](),)), settings=[("follow", 0.5)])
