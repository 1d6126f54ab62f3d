"""Steps are compiled beside the rounds and found again on disk; whatever goes wrong is one line and no error."""

import errno
import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from stratafl.errors import ModelError
from stratafl.runtime import compiler_process, compiling
from stratafl.runtime.compiled_step import DONE, MODULE, REQUEST, is_done, load_step
from stratafl.runtime.compiling import Compiler

# In place of the compiler: a module written by hand, as soon as there is a file `go` beside the entries.
WRITES = """
import hashlib, json, os, pathlib, sys, time
folder = pathlib.Path(sys.argv[1])
def write(name, text):  # at once, as the compiler does: another process may read it
    (folder / f"{os.getpid()}.partial").write_text(text)
    os.replace(folder / f"{os.getpid()}.partial", folder / name)
while not (folder.parent / "go").exists():
    time.sleep(0.01)
write("step.py", "def call(args): args[0].mul_(2).add_(args[1])")
(folder / "torch").mkdir(exist_ok=True)
write("torch/kernel.so", "library")
names = ("request.json", "step.py", "torch/kernel.so")
key, made, library = (hashlib.sha256((folder / n).read_bytes()).hexdigest() for n in names)
done = {"key": key, "sha256": made, "libraries": {"torch/kernel.so": library}}
write("done.json", json.dumps(done))
"""
DIES = "import sys; print('first words'); sys.exit('no g++')"
IS_KILLED = "import os; os.kill(os.getpid(), 9)"
WAITS = "import sys; sys.stdin.read()"
NEVER_ENDS = "import time; time.sleep(600)"


def step(x, y):
    x.mul_(2).add_(y)


def tensors():
    return torch.ones(4), torch.arange(4.0)


@pytest.fixture(autouse=True)
def hand_written(monkeypatch):
    """Modules are executed without torch's compiler, which takes seconds to import."""

    def load(file):
        names = {}
        exec(file.read_text(), names)
        return lambda *given: names["call"](list(given))

    monkeypatch.setattr(compiling, "load_step", load)
    monkeypatch.setattr(compiling, "GENERATED_IMPORTS", ("json",))
    monkeypatch.setattr(compiling, "_import_thread", None)


@pytest.fixture
def compiles_as(monkeypatch):
    def use(script):
        monkeypatch.setattr(compiling, "compiler_command", lambda folder: [sys.executable, "-c", script, str(folder)])

    use(WRITES)
    return use


@pytest.fixture
def made(tmp_path, compiles_as):
    """A cache with the compiled step."""
    (tmp_path / "go").touch()
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    assert compiler.wait("a") is not None
    compiler.close()
    return tmp_path / compiler_key(tmp_path)


@pytest.fixture(autouse=True)
def waiting_is_not_said(monkeypatch):
    """A busy machine may take longer than usual."""
    monkeypatch.setattr(compiling, "QUIET_SECONDS", 3600.0)


def compiler_key(cache):
    (done,) = cache.glob(f"*/{DONE}")
    return done.parent.name


def no_process(*given, **options):
    raise AssertionError("a process was started or waited for")


def test_a_step_is_compiled_while_others_wait_for_nothing(tmp_path, compiles_as):
    compiler = Compiler(tmp_path)
    x, y = tensors()
    compiler.start("a", step, (x, y))
    assert compiler.ready("a") is None
    (tmp_path / "go").touch()
    run = compiler.wait("a")
    assert compiler.ready("a") is run
    x.fill_(1)
    run(x, y)
    assert x.tolist() == [2, 3, 4, 5]
    assert compiler.key("a") == compiler_key(tmp_path)


def test_a_second_run_starts_no_process(made, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", no_process)
    again = Compiler(made.parent)
    again.start("another name", step, tensors())
    assert again.wait("another name") is not None
    assert again.key("another name") == made.name


def test_torchs_compiler_is_imported_beside_the_rounds(made, monkeypatch):
    go, interval, seen = threading.Event(), sys.getswitchinterval(), []

    def slow(name):
        seen.append((name, sys.getswitchinterval()))
        assert go.wait(60)

    monkeypatch.setattr(compiling, "GENERATED_IMPORTS", ("large", "larger"))
    monkeypatch.setattr(compiling, "import_module", slow)
    again = Compiler(made.parent)
    again.start("a", step, tensors())
    assert again.ready("a") is None
    assert again.ready("a") is None
    go.set()
    assert again.wait("a") is not None
    assert [name for name, _ in seen] == ["large", "larger"]
    assert max(each for _, each in seen) < interval == sys.getswitchinterval()


def test_a_step_that_nobody_wants_yet_is_neither_compiled_nor_loaded(made, monkeypatch):
    monkeypatch.setattr(compiling, "load_step", no_process)
    again = Compiler(made.parent)
    again.start("a", step, tensors(), launch=False)
    assert again.cached
    assert again.ready("a") is None


def change(file, text):
    file.write_text(text)


@pytest.mark.parametrize(
    "damage",
    [
        lambda made: change(made / MODULE, "def call(args): args[0].zero_()"),
        lambda made: change(made / DONE, (made / DONE).read_text()[:-9]),
        lambda made: change(made / DONE, "[]"),
        lambda made: change(made / "torch" / "kernel.so", "libr"),
        lambda made: (made / "torch" / "kernel.so").unlink(),
        lambda made: change(made / REQUEST, (made / REQUEST).read_text().replace("aten::mul_", "aten::add_")),
        lambda made: (made / MODULE).unlink(),
        lambda made: change(made / DONE, json.dumps(json.loads((made / DONE).read_text()) | {"key": "0" * 64})),
        lambda made: (shutil.move(made / MODULE, made / "x"), (made / MODULE).symlink_to(made / "x")),
    ],
    ids=["code", "half", "other", "half a library", "no library", "request", "missing", "key", "link"],
)
def test_a_damaged_entry_is_made_again(made, damage):
    """The name of a folder is believed in nothing."""
    damage(made)
    assert not is_done(made, request_of(made.parent))
    (made / MODULE).unlink(missing_ok=True)  # the real process renames a new file over it
    again = Compiler(made.parent)
    again.start("a", step, tensors())
    run = again.wait("a")
    x, y = tensors()
    run(x, y)
    assert x.tolist() == [2, 3, 4, 5]


def request_of(cache):
    return Compiler(cache)._job(step, tensors()).request


@pytest.mark.parametrize(
    ("script", "reason"),
    [(DIES, "no g++"), (IS_KILLED, "the compiler ended with code -9"), ("", "the compiler ended with code 0")],
    ids=["fails", "killed", "nothing"],
)
def test_a_compiler_that_dies_is_one_line(tmp_path, compiles_as, caplog, script, reason):
    compiles_as(script)
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    assert compiler.wait("a") is None
    compiler.start("a", step, tensors())  # not tried again in this run
    assert compiler.ready("a") is None
    (line,) = caplog.messages
    assert line.endswith(reason)


def test_a_step_that_cannot_be_described_is_one_line(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", no_process)
    compiler = Compiler(tmp_path)
    compiler.start("a", lambda x: x.mul_(x.sum().item()), (torch.ones(3),))
    assert compiler.ready("a") is None
    assert [m for m in caplog.messages if "reads a value back" in m] == caplog.messages
    assert len(caplog.messages) == 1


def test_a_module_that_does_not_load_is_one_line_and_compiled_again_next_time(made, monkeypatch, caplog):
    def broken(file):
        raise ImportError("undefined symbol")

    with monkeypatch.context() as patch:
        patch.setattr(compiling, "load_step", broken)
        compiler = Compiler(made.parent)
        compiler.start("a", step, tensors())
        assert compiler.wait("a") is None
    (line,) = caplog.messages
    assert line.endswith("ImportError: undefined symbol")
    again = Compiler(made.parent)
    again.start("a", step, tensors())
    assert again.wait("a") is not None


def test_a_cache_that_cannot_be_used_is_one_line(tmp_path, compiles_as, caplog):
    file = tmp_path / "file"
    file.touch()
    for folder in (file, file / "below"):
        compiler = Compiler(folder)
        compiler.start("a", step, tensors())
        assert compiler.ready("a") is None
    assert len(caplog.messages) == 2


@pytest.mark.skipif(os.name == "nt", reason="Windows has other permissions")
def test_code_is_not_executed_from_a_folder_that_others_may_write_to(made, caplog):
    assert made.stat().st_mode & 0o777 == 0o700
    made.chmod(0o770)
    compiler = Compiler(made.parent)
    compiler.start("a", step, tensors())
    assert compiler.ready("a") is None
    assert "chmod 700" in caplog.text


def test_compiled_code_sees_only_tensors_it_was_made_for(made):
    compiler = Compiler(made.parent)
    compiler.start("a", step, tensors())
    run = compiler.wait("a")
    x, y = tensors()
    far = torch.zeros(9)
    for others in ((x.double(), y), (x[:3], y), (far[::2][:4], y), (far[1:5], y), (x,)):
        with pytest.raises(ModelError, match="shapes"):
            run(*others)
    assert x.tolist() == [1] * 4


@pytest.mark.parametrize("script", [WAITS, NEVER_ENDS])
def test_closing_ends_the_process(tmp_path, compiles_as, script, monkeypatch):
    monkeypatch.setattr(compiling, "CLOSING_SECONDS", 0.2 if script is NEVER_ENDS else 60.0)
    compiles_as(script)
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    process = compiler._jobs["a"].process
    assert process.poll() is None
    compiler.close()
    assert process.returncode is not None


@pytest.mark.slow
def test_a_compiler_that_nobody_closes_ends_its_processes(tmp_path, compiles_as):
    compiles_as(WAITS)
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    process = compiler._jobs["a"].process
    del compiler
    gc.collect()
    assert process.returncode is not None


def test_without_a_home_there_is_no_cache_and_one_line(monkeypatch, caplog):
    def homeless():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(compiling, "cache_folder", homeless)
    compiler = Compiler()
    compiler.start("a", step, tensors())
    assert compiler.ready("a") is None
    assert len(caplog.messages) == 1


def test_waiting_has_an_end(tmp_path, compiles_as):
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    assert compiler.wait("a", 0.01) is None
    compiler.close()


def test_a_run_that_waits_long_says_so(tmp_path, compiles_as, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "QUIET_SECONDS", 0.01)
    monkeypatch.setattr(compiling, "MAX_WAIT_SECONDS", 0.02)
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    assert compiler.wait("a") is None
    assert "run.compile=auto" in caplog.messages[0]
    (tmp_path / "go").touch()
    compiler.close()


def test_nobody_waits_twice_for_a_step_that_takes_too_long(tmp_path, compiles_as, monkeypatch, caplog):
    monkeypatch.setattr(compiling, "MAX_WAIT_SECONDS", 0.01)
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    assert compiler.wait("a") is None
    with monkeypatch.context() as patch:
        patch.setattr(compiler._jobs["a"].process, "wait", no_process)
        assert compiler.wait("a") is None
    (line,) = caplog.messages
    assert " 0 s" in line
    (tmp_path / "go").touch()
    compiler._jobs["a"].process.wait()
    assert compiler.wait("a") is not None


def test_a_cache_that_cannot_be_written_to_serves_what_it_holds(made, monkeypatch, caplog):
    def read_only(*given, **options):
        raise OSError(errno.EROFS, "Read-only file system")

    for module, name in ((os, "utime"), (compiling, "write_atomically"), (subprocess, "Popen")):
        monkeypatch.setattr(module, name, read_only)
    again = Compiler(made.parent)
    again.start("a", step, tensors())
    assert again.wait("a") is not None
    again.start("another step", lambda x, y: x.sub_(y), tensors())
    assert again.ready("another step") is None
    reason = "OSError: [Errno 30] Read-only file system"
    (line,) = caplog.messages
    assert line.endswith(reason)


def test_a_step_that_does_not_run_here_is_refused(made, caplog):
    compiler = Compiler(made.parent)
    compiler.start("a", step, tensors())
    assert compiler.wait("a") is not None
    compiler.refuse("a", RuntimeError("no memory"))
    assert compiler.ready("a") is None
    assert compiler.wait("a") is None
    (line,) = caplog.messages
    assert line.endswith("RuntimeError: no memory")
    assert (made / DONE).exists()  # it may run the next time


def test_a_process_that_cannot_be_killed_is_left(tmp_path, compiles_as, monkeypatch):
    compiles_as(WAITS)
    compiler = Compiler(tmp_path)
    compiler.start("a", step, tensors())
    process = compiler._jobs["a"].process

    def stuck(seconds):
        raise subprocess.TimeoutExpired("waits for a driver", seconds)

    with monkeypatch.context() as patch:
        patch.setattr(process, "wait", stuck)
        compiler.close()
    process.wait()
    assert compiler.ready("a") is None


def test_two_names_of_one_step_share_an_entry(tmp_path, compiles_as):
    (tmp_path / "go").touch()
    compiler = Compiler(tmp_path)
    for name in ("a", "b"):
        compiler.start(name, step, tensors())
    assert all(compiler.wait(name) is not None for name in ("a", "b"))
    assert compiler.key("a") == compiler.key("b")


def test_a_few_processes_run_at_a_time(tmp_path, compiles_as):
    compiler, sizes = Compiler(tmp_path), range(4, 8)
    for size in sizes:
        compiler.start(size, step, (torch.ones(size), torch.ones(size)))
    assert [job.process is not None for job in compiler._jobs.values()] == [True, True, False, False]
    assert all(compiler.ready(size) is None for size in sizes)
    (tmp_path / "go").touch()
    assert compiler.wait(7) is not None  # a step that somebody waits for is not kept in the queue
    assert all(compiler.wait(size) is not None for size in sizes)


CHANGES = {
    "torch": lambda m: m.setattr(torch, "__version__", "2.99"),
    "triton": lambda m: m.setattr(compiling, "version", lambda name: "9.9"),
    "GPU": lambda m: m.setattr(compiling, "_gpu", lambda device: ["NVIDIA H200", 9, 0]),
    "processor": lambda m: m.setattr(compiling, "processor", lambda: "another"),
    "precision": lambda m: m.setattr(torch, "get_float32_matmul_precision", lambda: "high"),
    "threads": lambda m: m.setattr(torch, "get_num_threads", lambda: 77),
    "deterministic": lambda m: m.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True),
    "setting": lambda m: m.setenv("TORCHINDUCTOR_MAX_AUTOTUNE", "1"),
    "format": lambda m: m.setattr(compiling, "FORMAT", 99),
}


@pytest.mark.parametrize("name", CHANGES)
def test_the_key_holds_everything_compiled_code_depends_on(tmp_path, monkeypatch, name):
    before = request_of(tmp_path)
    assert request_of(tmp_path) == before
    CHANGES[name](monkeypatch)
    assert request_of(tmp_path) != before


def test_where_torch_keeps_its_caches_is_no_part_of_the_key(tmp_path, monkeypatch):
    before = request_of(tmp_path)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    assert request_of(tmp_path) == before


def test_the_entries_used_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(compiler_process, "MAX_ENTRIES", 2)
    for age, name in enumerate("abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / DONE).touch()
        os.utime(tmp_path / name / DONE, (1000 - age, 1000 - age))
    (tmp_path / "under way").mkdir()
    (tmp_path / "never finished").mkdir()
    os.utime(tmp_path / "never finished", (500, 500))
    compiler_process._remove_oldest(tmp_path / "d")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a", "under way"]


def test_a_drive_without_locks_is_used_without(tmp_path, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def none(file, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", none)
    with compiler_process._locked(tmp_path / "lock"):
        pass


def test_processes_take_turns_at_an_entry(tmp_path):
    inside, order = threading.Event(), []

    def second():
        with compiler_process._locked(tmp_path / "lock"):
            order.append("second")

    with compiler_process._locked(tmp_path / "lock"):
        thread = threading.Thread(target=second)
        thread.start()
        inside.wait(0.1)
        order.append("first")
    thread.join()
    assert order == ["first", "second"]


needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.nightly
@needs_compiler
@pytest.mark.filterwarnings("ignore")  # torch's compiler warns of other parts of torch
def test_the_compiled_step_gives_the_bits_of_torchs_compiler(tmp_path, monkeypatch):
    """A descent of stacked clients, compiled here and by another process; two of them at once share the work."""
    from torch._inductor.compile_fx import compile_fx

    from stratafl.runtime.step_graph import build_step, describe_step

    from test_step_graph import descend, given  # isort: skip

    monkeypatch.setattr(compiling, "load_step", load_step)
    compilers = [Compiler(tmp_path) for _ in range(2)]
    for compiler in compilers:
        compiler.start("a", descend, given())
    runs = [compiler.wait("a") for compiler in compilers]
    assert all(run is not None for run in runs)
    described, constants = describe_step(descend, given())
    here, plain, others = given(), given(), [given() for _ in runs]
    compile_fx(build_step(described), [*given(), *constants])(*here, *constants)
    descend(*plain)
    for run, there in zip(runs, others, strict=True):
        run(*there)
        assert all(torch.equal(a, b) for a, b in zip(here, there, strict=True))
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(plain, there, strict=True))
    for compiler in compilers:
        compiler.close()


@pytest.mark.slow
def test_without_a_cpp_compiler_the_process_ends_with_one_line(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("CC", "CXX"):
        monkeypatch.delenv(name, raising=False)
    compiler = Compiler(tmp_path / "cache")
    compiler.start("a", step, tensors())
    assert compiler.wait("a") is None
    assert len(caplog.messages) == 1
    assert not list((tmp_path / "cache").glob(f"*/{DONE}"))


@pytest.mark.nightly  # slow: with what it has started
def test_the_process_ends_with_its_parent():
    script = "import time; from stratafl.runtime.compiler_process import _end_with_parent as f; f(); time.sleep(600)"
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE)
    process.stdin.close()
    assert process.wait(300) == 1


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="there are no groups of processes")
def test_what_the_process_has_started_ends_with_it(tmp_path):
    script = (
        "import subprocess, sys, time; from stratafl.runtime.compiler_process import _end_with_parent as f; f();"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']);"
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid) + '.'); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, start_new_session=True)
    while not ((tmp_path / "pid").exists() and (tmp_path / "pid").read_text().endswith(".")):
        assert process.poll() is None
        time.sleep(0.05)
    process.stdin.close()
    assert process.wait(300) != 0
    other = int((tmp_path / "pid").read_text()[:-1])
    for _ in range(600):
        if not is_running(other):
            return
        time.sleep(0.1)
    raise AssertionError("a process that the compiler has started goes on")


def is_running(pid):
    """Whether it is there and not only waits to be noticed."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_libraries_are_recorded_and_damaged_ones_are_not_taken_up_again(tmp_path, monkeypatch):
    """Torch takes a library that is there as it is, and half of one ends the process with a bus error."""
    request, library = request_of(tmp_path), tmp_path / "torch" / "ab" / "kernel.so"

    def build(folder, request):
        assert not library.exists()
        library.parent.mkdir(parents=True)
        library.write_bytes(b"library")
        (folder / MODULE).write_text("made")

    monkeypatch.setattr(compiler_process, "_build", build)
    monkeypatch.setattr(compiler_process, "_set_up", lambda environment: None)
    (tmp_path / REQUEST).write_bytes(request)
    for _ in range(2):
        compiler_process._compile(tmp_path, json.loads(request), hashlib.sha256(request).hexdigest())
        assert is_done(tmp_path, request)
        library.write_bytes(b"libr")
        assert not is_done(tmp_path, request)


def test_hand_written_entries_are_like_those_of_the_compiler(tmp_path, monkeypatch):
    """What the tests above write by hand is what the process writes."""
    monkeypatch.setattr(compiler_process, "_build", lambda folder, request: None)
    monkeypatch.setattr(compiler_process, "_set_up", lambda environment: None)
    request = request_of(tmp_path)
    (tmp_path / REQUEST).write_bytes(request)
    (tmp_path / MODULE).write_text("made")
    compiler_process._compile(tmp_path, json.loads(request), hashlib.sha256(request).hexdigest())
    assert is_done(tmp_path, request)
