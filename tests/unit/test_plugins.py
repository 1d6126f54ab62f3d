"""A person's own model or algorithm, by its path: found, called with what it takes, refused in one sentence."""

import itertools
import math
import sys
from dataclasses import replace

import pytest
from torch import nn

from stratafl.config.trust import Trust, accepted, called, imported, typed
from stratafl.errors import DataError, RecordError, StrataError, TrustError, UnknownNameError, first_line
from wording import mentions

_numbers = itertools.count()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Writes a module into the current folder and gives its name, which no other module ever had."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    written = []

    def write(source):
        written.append(f"own_module_{next(_numbers)}")
        (tmp_path / f"{written[-1]}.py").write_text(source, encoding="utf-8")
        return written[-1]

    yield write
    for name in written:
        sys.modules.pop(name, None)


def refusal(kind, function, *arguments):
    with pytest.raises(kind) as error:
        function(*arguments)
    assert "\n" not in str(error.value)
    return str(error.value)


# Imported

NET = "from torch import nn\nclass Net(nn.Module): pass\ndef net(): return Net()\n"


def trusting(kind, path):
    return imported(kind, path, trust=True)


def test_a_name_in_a_file_of_the_current_folder(own):
    name = own(NET)
    assert trusting("model", f"{name}:Net").__name__ == "Net"
    assert trusting("model", f"{name}:net").__name__ == "net"


def test_the_current_folder_comes_first_and_once(own, tmp_path):
    name = own(NET)
    for _ in range(2):
        trusting("model", f"{name}:Net")
    assert sys.path[0] == str(tmp_path)
    assert sys.path.count(str(tmp_path)) == 1


def test_a_name_in_an_installed_package():
    assert trusting("model", "torch.nn:Linear") is nn.Linear
    assert trusting("algorithm", "stratafl.algorithms:fedavg").__name__ == "fedavg"


# What may be imported, and what may be called


def test_a_path_that_nobody_typed_or_trusts_is_not_imported(own):
    name = own("raise AssertionError('it was imported')")
    says = refusal(TrustError, imported, "model", f"{name}:Net")
    assert mentions(says, f"model '{name}:Net'", f"{name}.py'", "--trust")
    assert name not in sys.modules


def test_a_path_that_was_typed_is_imported_and_no_other(own):
    name = own(NET)
    trust = typed([f"{name}:Net", "fedavg"])
    assert trust.names == {f"{name}:Net"}
    assert imported("model", f"{name}:Net", trust).__name__ == "Net"
    assert f"'{name}:net'" in refusal(TrustError, imported, "model", f"{name}:net", trust)


def test_what_is_trusted_is_said_before_it_is_imported(own, caplog):
    name = own("raise ValueError('at once')")
    trust = Trust(everything=True).asked_by("sent.toml")
    refusal(RecordError, imported, "model", f"{name}:Net", trust)
    assert mentions(caplog.messages[0], f"model '{name}:Net'", f"{name}.py'", "'sent.toml'")


def test_a_folder_that_a_file_names_is_searched_only_where_it_is_trusted(own, tmp_path, monkeypatch):
    name = own(NET)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    asked = Trust(frozenset({f"{name}:Net"})).asked_by("config.toml", str(tmp_path))
    refusal(UnknownNameError, imported, "model", f"{name}:Net", asked)
    assert str(tmp_path) not in sys.path
    assert imported("model", f"{name}:Net", replace(asked, everything=True)).__name__ == "Net"
    assert sys.path[-1] == str(tmp_path)


@pytest.mark.parametrize("path", ["os:system", "builtins:exit", "subprocess:run", "os.path:join", "math:pi"])
def test_nothing_of_the_standard_library_makes_a_model_or_a_method(path):
    for kind in ("model", "algorithm"):
        says = refusal(RecordError, imported, kind, path, Trust(frozenset({path}), everything=True))
        assert mentions(says, f"{kind} '{path}'", f"'{path.partition(':')[0]}'", "Python")


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("thing = 42", "is int, not "),
        ("from os import system as thing", "is builtin_function_or_method, not "),
        ("from functools import partial; import os; thing = partial(os.system, 'false')", "is builtin_function"),
        ("from subprocess import run as thing", "'subprocess'"),
        ("from functools import partial; from subprocess import run; thing = partial(run, 'false')", "'subprocess'"),
        ("class thing: pass", "class thing, not "),
        ("from pathlib import Path as thing", "class Path, not "),
        ("from torch import nn; thing = nn.Linear(1, 1)", "is Linear, not "),
    ],
)
def test_what_is_imported_must_be_of_its_kind(own, line, says):
    name = own(line)
    assert says in refusal(RecordError, trusting, "model", f"{name}:thing")


def test_a_function_that_exits_is_an_error():
    def leave():
        raise SystemExit(0)

    assert refusal(RecordError, called, "model own:leave", leave, {}, {}).endswith("SystemExit: 0")


@pytest.mark.parametrize("path", ["fedpre", "package.module", ":name", "module:", ":", ""])
def test_a_path_has_a_module_and_a_name(path):
    says = refusal(RecordError, imported, "algorithm", path)
    assert mentions(says, f"algorithm '{path}'", "package.module:name")


def test_a_module_that_is_not_there(own):
    says = refusal(UnknownNameError, trusting, "model", "nowhere_at_all:Net")
    assert mentions(says, "model 'nowhere_at_all:Net'", "'nowhere_at_all'")


def test_a_file_is_named_as_a_module(own):
    name = own("class Net: pass")
    says = refusal(UnknownNameError, trusting, "model", f"{name}.py:Net")
    assert mentions(says, f"model '{name}.py:Net'", f"'{name}.py'", f"{name}:Net")


def test_a_folder_is_no_module(own, tmp_path, monkeypatch):
    (tmp_path / "only_a_folder").mkdir()
    monkeypatch.chdir(tmp_path)
    says = refusal(UnknownNameError, trusting, "metric", "only_a_folder:cost")
    assert mentions(says, "metric 'only_a_folder:cost'", "'only_a_folder'", "folder")


def test_a_module_that_needs_another_one(own):
    name = own("import nowhere_at_all")
    says = refusal(UnknownNameError, trusting, "model", f"{name}:Net")
    assert mentions(says, f"model '{name}:Net'", "'nowhere_at_all'")


def test_a_name_that_is_not_in_the_module(own):
    name = own("class Network: pass\n_hidden = 1\n")
    says = refusal(UnknownNameError, trusting, "model", f"{name}:Netwrk")
    assert mentions(says, name, "'Netwrk'", "'Network'", ": Network")


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("raise ValueError('seven\\nof nine')", "ValueError: seven"),
        ("raise RuntimeError", "RuntimeError"),
        ("def f(:", "SyntaxError: invalid syntax"),
        ("from math import nothing_such", "ImportError: cannot import name 'nothing_such' from 'math'"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_fails_while_it_is_imported(own, source, says):
    name = own(source)
    assert mentions(refusal(RecordError, trusting, "model", f"{name}:Net"), f"model '{name}:Net'", says)


def test_a_relative_module():
    assert mentions(refusal(RecordError, trusting, "model", ".models:Net"), "'.models:Net'", "TypeError")


def test_a_script_that_exits(own):
    name = own("import sys\nsys.exit(0)\n")
    assert "SystemExit" in refusal(RecordError, trusting, "model", f"{name}:Net")


# Called


def free(**options):
    return options


def strict(first, *, second=2):
    return first, second


OFFERED = {"shape": (3,), "classes": 2}


def test_a_maker_gets_the_options_and_what_it_takes_of_the_offer():
    def shaped(shape, width=1):
        return shape, width

    assert called("m", shaped, {"width": 5}, OFFERED) == ((3,), 5)
    assert called("m", strict, {"first": 1}, OFFERED) == (1, 2)
    assert called("m", strict, {"first": 1, "second": 3}, {}) == (1, 3)


def test_a_maker_that_takes_anything_gets_everything():
    assert called("m", free, {"width": 5}, OFFERED) == {"shape": (3,), "classes": 2, "width": 5}


def test_classes_are_called_as_functions_are():
    class Made:
        def __init__(self, classes, width=1):
            self.given = classes, width

    assert called("m", Made, {}, OFFERED).given == (2, 1)


def test_an_unknown_option_is_refused_with_the_nearest_of_its_own():
    def shaped(shape, classes, width=1, depth=1):
        return None

    says = refusal(UnknownNameError, called, "model own", shaped, {"widht": 5}, OFFERED)
    assert mentions(says, "model own", "'widht'", "'width'", "width, depth")


def test_what_the_maker_raises_is_told_with_its_options():
    def picky(width=1, name="a"):
        raise TypeError("unsupported\nfor many reasons")

    says = refusal(RecordError, called, "picky", picky, {"width": "x", "name": 3}, {})
    assert says.startswith("picky ")
    assert says.endswith("(width='x', name=3): TypeError: unsupported")


def test_an_argument_that_nobody_gives():
    says = refusal(RecordError, called, "strict", strict, {}, {})
    assert mentions(says, "strict ", "(): TypeError: ")


def test_errors_of_the_library_pass_as_they_are():
    def refuses(width=1):
        raise DataError("too wide")

    assert refusal(DataError, called, "m", refuses, {"width": 9}, {}) == "too wide"


def test_what_cannot_be_called_is_refused():
    says = refusal(RecordError, called, "model math:pi", math.pi, {}, OFFERED)
    assert mentions(says, "model math:pi", "float")


def test_what_hides_its_arguments_is_called_or_refused():
    refusal(StrataError, called, "model builtins:range", range, {}, OFFERED)


# Accepted and said


def test_the_arguments_that_can_be_named():
    def every(a, /, b, *args, c, d=1):
        return None

    assert accepted(every) == ["b", "c", "d"]
    assert accepted(lambda: None) == []
    assert accepted(free) is None


def test_a_module_without_a_constructor_of_its_own_takes_nothing():
    class Plain(nn.Module):
        """torch's own constructor says that it takes anything."""

    assert accepted(Plain) == []
    assert isinstance(called("m", Plain, {}, OFFERED), Plain)
    says = refusal(UnknownNameError, called, "model own:Plain", Plain, {"width": 5}, OFFERED)
    assert mentions(says, "model own:Plain", "'width'")


def test_an_error_is_one_line():
    assert first_line(ValueError("  first\nsecond"), typed=True) == "ValueError: first"
    assert first_line(ValueError("\n  \n"), typed=True) == "ValueError"
    assert first_line(KeyError("name"), typed=True) == "KeyError: 'name'"
