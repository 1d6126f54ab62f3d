"""The rules of tools/ find what they are for, and budgets fail a run only beyond three times their size."""

import ast
import sys
from pathlib import Path
from typing import Any

import pytest

import budgets

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tools"))

import house_rules as rules  # noqa: E402
import messages  # noqa: E402


def source(**texts: str) -> list[rules.Module]:
    """Modules of a made-up source: `report__gains="…"` is report/gains.py."""
    paths = {rules.SOURCE / f"{name.replace('__', '/')}.py": text for name, text in texts.items()}
    return [(path, ast.parse(text), text) for path, text in paths.items()]


def test_a_name_stands_for_one_class_one_module_and_one_public_function() -> None:
    clean = source(a="class A: ...\ndef f(): ...\ndef _g(): ...", b="class B: ...\ndef _g(): ...\ndef main(): ...")
    assert not list(rules.repeated_names(clean))
    for again in ("class A: ...", "def f(): ..."):
        assert len(list(rules.repeated_names([*clean, *source(c=again)]))) == 1
    assert len(list(rules.repeated_names([*clean, *source(other__a="")]))) == 1


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("found = 1", 1),
        ("def f(given): ...", 1),
        ("for each in x:\n    pass", 1),
        ("y = [each for each in x]", 0),
        ("y = [found for found in x]", 1),
        ("MOST = 3", 1),
        ("_MOST = 3", 1),
        ("uploads = 1\nMAX_BYTES = 2", 0),
        ("class A:\n    own: float", 0),
        ("def f(*, own, given): ...", 1),
    ],
)
def test_vague_names_are_found_where_they_are_given(text: str, count: int) -> None:
    assert len(list(rules.vague_names(source(a=text)))) == count


def test_code_lines_are_counted_without_comments_docstrings_and_blank_lines() -> None:
    text = '"""Doc."""\n\nimport os  # why\n\n\ndef f():\n    """Two\n    lines."""\n    # why\n    return """a\nb"""\n'
    assert rules.code_lines(ast.parse(text), text) == 4


def test_a_short_module_that_one_neighbour_uses_is_a_fragment() -> None:
    whole = "import stratafl.p.part\n"
    used_here = source(p__part="x = 1\n", p__whole=whole)
    assert len(list(rules.fragments(used_here))) == 1
    assert not list(rules.fragments([*used_here, *source(q__other=whole)]))
    assert not list(rules.fragments(source(p__part="x = 1\n" * rules.MIN_HELPER_LINES, p__whole=whole)))


def test_a_file_has_a_largest_length() -> None:
    assert len(list(rules.long_files(source(a="x = 1\n" * (rules.MAX_FILE_LINES + 1))))) == 1
    assert not list(rules.long_files(source(a="x = 1\n" * rules.MAX_FILE_LINES)))


def test_every_package_has_a_budget_of_lines() -> None:
    packages = {path.parent.name for path in rules.SOURCE.glob("*/__init__.py")}
    assert set(rules.line_budgets()) == packages | {"stratafl"}


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("import subprocess\nsubprocess.run(command, env=safe_environment())", 0),
        ("import subprocess\nsubprocess.run(command)", 1),
        ("import subprocess\nsubprocess.Popen(command, env=os.environ)", 1),
        ("import subprocess\nsubprocess.Popen([sys.executable, '-m', 'x'], env=safe_environment())", 1),
        ("from subprocess import run", 1),
        ("import os\nos.execv(path, words)", 1),
        ("import os\nos.system('ls')", 1),
        ("import multiprocessing", 1),
        ("from torch.multiprocessing import spawn", 1),
        ("from concurrent.futures import ProcessPoolExecutor\nProcessPoolExecutor()", 1),
    ],
)
def test_processes_that_are_not_started_safely_are_found(text: str, count: int) -> None:
    assert len(list(rules.unsafe_processes(source(a=text)))) == count


@pytest.mark.slow  # `make lint` asks the same
def test_every_process_of_the_source_is_started_safely() -> None:
    assert not list(rules.unsafe_processes(rules.modules()))


def test_sentences_in_assertions_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "ROOT", tmp_path)
    lines = ["assert 'the run is not there any more' in text", "assert 'lr' in text", "x = 'a b c d e f'"]
    (tmp_path / "test_a.py").write_text("\n".join(lines))
    assert len(list(rules.sentences_in_tests(tmp_path))) == 1


def test_the_snapshot_has_sentences_and_no_docstrings() -> None:
    lines = ('"""A docstring of words."""', "raise E(f'layer {name!r} of {a(\"of the net\")}: not there')", "x = 'ab'")
    assert list(messages.sentences(ast.parse("\n".join(lines)))) == ["layer {} of {}: not there", "of the net"]


def ledger(*rows: dict[str, Any]) -> budgets.Ledger:
    kept = budgets.Ledger()
    usual = {"tier": "fast", "budget": budgets.TEST_SECONDS, "reference": budgets.REFERENCE_SECONDS, "first_use": False}
    kept.rows = [usual | {"test": f"tests/unit/test_a.py::test_{number}"} | row for number, row in enumerate(rows)]
    return kept


def test_a_test_over_its_budget_is_reported_and_one_far_over_it_fails_the_run() -> None:
    class Session:
        exitstatus = pytest.ExitCode.OK

    for seconds, over, code in ((0.4, 0, 0), (2.4, 1, 0), (2.6, 1, 1)):
        session, kept = Session(), ledger({"cpu": seconds})
        kept.pytest_sessionfinish(session)  # type: ignore[arg-type]
        assert (len(kept.over()), session.exitstatus) == (over, code)
    assert not ledger({"cpu": 1.1, "budget": 2.0}).over()
    assert not ledger({"cpu": 1.1, "tier": "slow"}).over()
    assert not ledger({"cpu": 1.1, "first_use": True}).over()


def test_budgets_follow_the_speed_of_the_machine_and_never_shrink() -> None:
    twice = {"reference": 2 * budgets.REFERENCE_SECONDS}
    assert not ledger({"cpu": 0.9, **twice}).over()
    assert ledger({"cpu": 1.1, **twice}).over()
    assert not ledger({"cpu": 0.45, "reference": budgets.REFERENCE_SECONDS / 2}).over()


def test_a_directory_has_a_sum() -> None:
    many = [{"cpu": 0.4}] * int(budgets.DIRECTORY_SECONDS["unit"] / 0.4 + 2)
    assert [name for name, _, _ in ledger(*many).over()] == ["unit"]
    assert [name for name, _, _ in ledger({"cpu": 0.1, "test": "tests/elsewhere/test_a.py::test"}).over()] == [
        "elsewhere"
    ]
