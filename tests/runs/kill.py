"""What a run came to, and a driver that kills the command again and again before it lets it finish.

python kill.py DIR SEED SETTING...    prints {"kills": [[aim, during], ...], "code": of the last child, "rounds": its}
python kill.py DIR few SETTING...     the same after three kills: in a journal, in round 3, and while that is saved
python kill.py DIR disk SETTING...    the same after kills while states are written to the disk

The driver imports everything once and forks a child for each attempt, which runs `strata run` or `strata resume`, tells
through a pipe what it is doing, and is sent SIGKILL by the driver. No tensor is touched before the fork.
"""

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from stratafl.cli import main as command
from stratafl.core.state import flatten
from stratafl.evaluation import evaluate
from stratafl.execute import Simulation
from stratafl.execute.disk import OnDisk, StateFile
from stratafl.runs import Run, checkpoint, read_run
from stratafl.runs.json_files import Journal

PATIENCE = 900  # seconds until a child that nobody killed ends: one that hangs
MOMENTS: dict[str, tuple[Any, str]] = {
    "training": (Simulation, "round"),
    "evaluation": (evaluate, "score_stages"),
    "saving": (checkpoint, "save"),
    "creating": (Run, "create"),
    "opening": (Run, "open"),
    "keeping": (OnDisk, "updated"),
    "settling": (StateFile, "sync"),
}
EACH = 4  # kills inside each kind of moment
DELAYS = {"training": 0.04, "evaluation": 0.01, "saving": 0.004}  # up to so many seconds after the moment began
OPERATIONS = (
    "mkdir",
    "fsync",
    "rename",
    "replace",
    "unlink",
    "rmdir",
    "pwrite",
)  # of `os`: between two of them a kill may fall


def lines(folder: Path, name: str) -> list[dict[str, Any]]:
    """A journal, without what depends on the clock."""
    text = (folder / f"{name}.jsonl").read_text()
    parsed = [json.loads(line) for line in text.splitlines()]
    return [{k: v for k, v in x.items() if not k.startswith("seconds.") and k != "checksum"} for x in parsed]


def outcome(folder: Path) -> dict[str, object]:
    """All that a run recorded and the bits of its last state: what two runs of the same experiment have in common."""
    newest = max((folder / "checkpoint").glob("[0-9]*"))
    state = _state(newest / "state.safetensors", folder, "newest")
    selected = state
    if (newest / "selected.safetensors").exists():
        selected = _state(newest / "selected.safetensors", folder, "selected")
    return {name: lines(folder, name) for name in ("rounds", "clients", "layers")} | {
        "saved": newest.name,
        "state": state,
        "selected": selected,
    }


def _state(path: Path, folder: Path, kept: str) -> dict[str, tuple[str, bytes]]:
    """The bits of a state."""
    state = load_file(path)
    if state.pop("memories/slots", None) is not None:  # what is in which slot depends on what was before
        for client, memory in read_run(folder, kept)[1].clients.items():
            state |= flatten(memory, f"client/{client}/")
    return {name: (str(x.dtype), x.numpy().tobytes()) for name, x in state.items()}


class Child:
    """What happens in a child: it says when a moment begins and ends, and may stop dead at a place."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say

    def moment(self, name: str, owner: Any, attribute: str) -> None:
        """Say when a function is at work."""
        function = getattr(owner, attribute)

        def told(*given: Any, **named: Any) -> Any:
            self._say(f"+{name}")
            try:
                return function(*given, **named)
            finally:
                self._say(f"-{name}")

        setattr(owner, attribute, told)

    def stop(self) -> None:
        """Wait for the end."""
        self._say("!")
        time.sleep(PATIENCE)

    def stop_at_operation(self, number: int, owner: Any, attribute: str) -> None:
        """Stop before the so many-th file operation inside a function."""
        function, count = getattr(owner, attribute), -1  # -1: not inside

        def counting(operation: Callable[..., Any]) -> Callable[..., Any]:
            def counted(*given: Any, **named: Any) -> Any:
                nonlocal count
                count += count >= 0
                if count == number:
                    self.stop()
                return operation(*given, **named)

            return counted

        def inside(*given: Any, **named: Any) -> Any:
            nonlocal count
            count = 0
            try:
                return function(*given, **named)
            finally:
                count = -1

        for name in OPERATIONS:
            setattr(os, name, counting(getattr(os, name)))
        setattr(owner, attribute, inside)

    def stop_at_call(self, number: int, owner: Any, attribute: str) -> None:
        """Stop at the so many-th call inside a function, and say how many there were if there are fewer."""
        function, count = getattr(owner, attribute), 0

        def counted(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ("call", "c_call")
            if count == number:
                sys.setprofile(None)
                self.stop()

        def inside(*given: Any, **named: Any) -> Any:
            nonlocal count
            count = 0
            sys.setprofile(counted)
            try:
                return function(*given, **named)
            finally:
                sys.setprofile(None)
                self._say(f"={count}")

        setattr(owner, attribute, inside)

    def stop_in_journal(self, name: str) -> None:
        """Stop when half of what goes into a journal is written."""
        append = Journal.append

        def torn(journal: Any, given: Any) -> None:
            size = journal.size
            append(journal, given)
            if journal.path.stem == name:
                os.truncate(journal.path, (size + journal.size) // 2)
                self.stop()

        Journal.append = torn  # type: ignore[method-assign]

    def stop_in_record(self) -> None:
        """Stop when half of a record is written."""
        write = os.pwrite

        def torn(handle: int, data: Any, place: int) -> int:
            write(handle, data[: len(data) // 2], place)
            self.stop()
            return 0

        os.pwrite = torn


class Driver:
    """Attempts at a run, one after the other."""

    def __init__(self, folder: Path, settings: list[str]) -> None:
        for module in ("torch._dynamo", "stratafl.cli.app", "stratafl.cli.run_command"):
            import_module(module)  # or else every child would
        torch.set_num_threads(1)
        self.folder, self.settings = folder, settings
        self.kills: list[tuple[str, str | None]] = []

    def attempt(self, aim: str, prepare: Callable[[Child], None], strike: Callable[[str], float | None]) -> int | None:
        """Run a child; `strike` says for each word from it how many seconds later it is killed, None: not yet.

        The exit code of a child that ended by itself.
        """
        child, words = self._forked(prepare)
        inside: list[str] = []
        for word in words:
            inside = _follow(inside, word)
            delay = strike(word)
            if delay is not None:
                time.sleep(delay)
                os.kill(child, signal.SIGKILL)
                break
        for word in words:  # what it said until it was dead
            inside = _follow(inside, word)
        _, status = os.waitpid(child, 0)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
            self.kills.append((aim, inside[-1] if inside else None))
            return None
        return os.waitstatus_to_exitcode(status)

    def _forked(self, prepare: Callable[[Child], None]) -> tuple[int, Iterator[str]]:
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = 70
            signal.alarm(PATIENCE)
            try:
                os.close(reading)
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                told = Child(lambda word: os.write(writing, f"{word}\n".encode()) and None)
                prepare(told)
                for name, (owner, attribute) in MOMENTS.items():
                    told.moment(name, owner, attribute)
                code = command(self._arguments())
            finally:
                os._exit(code)
        os.close(writing)
        return child, _words(reading)

    def _arguments(self) -> list[str]:
        if self.folder.exists():
            return ["resume", str(self.folder)]
        return ["run", "--out", str(self.folder), *(part for s in self.settings for part in ("--set", s))]

    # Aims

    def at_every_operation(self, moment: str) -> None:
        """Kill before each file operation of a moment, the first, the second …, until there is no further one."""
        number, there = 1, True
        while there and not (moment == "creating" and self.folder.exists()):
            there = self.at_operation(moment, number)
            number += 1

    def in_round(self, number: int) -> None:
        """Kill when a round begins."""
        begun = count(1)
        self.attempt(
            f"in round {number}",
            lambda _: None,
            lambda word: 0.0 if word == "+training" and next(begun) == number else None,
        )

    def at_operation(self, moment: str, number: int) -> bool:
        """Kill before the so many-th file operation of a moment; False if it has fewer."""
        met = False

        def strike(word: str) -> float | None:
            nonlocal met
            met |= word == "!"
            return 0.0 if word in ("!", f"-{moment}") else None

        self.attempt(
            f"{moment}, operation {number}",
            lambda child: child.stop_at_operation(number, *MOMENTS[moment]),
            strike,
        )
        return met

    def in_every_journal(self) -> None:
        """Kill in the middle of writing to each journal."""
        for name in ("rounds", "clients", "layers"):
            self.in_journal(name)

    def in_journal(self, name: str) -> None:
        """Kill in the middle of writing to a journal."""
        self.attempt(
            f"half of {name}",
            lambda child: child.stop_in_journal(name),
            lambda word: 0.0 if word == "!" else None,
        )

    def in_a_record(self) -> None:
        """Kill in the middle of writing a memory."""
        self.attempt("half of a record", Child.stop_in_record, lambda word: 0.0 if word == "!" else None)

    def at_some_call(self, draw: random.Random) -> None:
        """Kill at calls that are drawn, inside each kind of moment: where depends on the draw, not on the machine."""
        for moment in DELAYS:
            calls = self._at_call(moment, sys.maxsize)
            for _ in range(3 * EACH):  # the next such moment may have fewer calls
                if self.kills.count(("at some call", moment)) < EACH:
                    self._at_call(moment, draw.randint(1, calls))

    def _at_call(self, moment: str, number: int) -> int:
        """Kill at the so many-th call inside a moment, or after it; how many calls there were in it."""
        calls = 0

        def strike(word: str) -> float | None:
            nonlocal calls
            calls = int(word[1:]) if word[0] == "=" else calls
            return 0.0 if word in ("!", f"-{moment}") else None

        self.attempt("at some call", lambda child: child.stop_at_call(number, *MOMENTS[moment]), strike)
        return calls

    def at_some_time(self, draw: random.Random) -> None:
        """Kill some time after a moment began, wherever that is on this machine."""
        for moment, longest in DELAYS.items():
            delay = draw.uniform(0, longest)
            begun = f"+{moment}"
            self.attempt("at some time", lambda _: None, lambda word, b=begun, d=delay: d if word == b else None)

    def to_the_end(self) -> tuple[int | None, int]:
        """Let it finish; its exit code, and how many rounds were left to it."""
        rounds = 0

        def count(word: str) -> None:
            nonlocal rounds
            rounds += word == "+training"

        return self.attempt("none", lambda child: None, count), rounds


def _follow(inside: list[str], word: str) -> list[str]:
    """The moments that a child is in."""
    return [*inside, word[1:]] if word[0] == "+" else inside[:-1] if word[0] == "-" else inside


def _words(reading: int) -> Iterator[str]:
    """What comes through a pipe until its other end is closed."""
    with os.fdopen(reading) as pipe:
        for line in pipe:
            yield line.strip()


def main(folder: str, seed: str, *settings: str) -> None:
    """Kill, then finish."""
    driver = Driver(Path(folder), list(settings))
    if seed == "few":
        driver.in_journal("clients")
        driver.in_round(3)
        driver.at_operation("saving", 5)
    elif seed == "disk":
        _kill_at_disk(driver)
    else:
        _kill_everywhere(driver, random.Random(int(seed)), settings)
    code, rounds = driver.to_the_end()
    print(json.dumps({"kills": driver.kills, "code": code, "rounds": rounds}))


def _kill_everywhere(driver: Driver, draw: random.Random, settings: tuple[str, ...]) -> None:
    driver.at_every_operation("creating")
    driver.at_some_call(draw)
    driver.at_some_time(draw)
    driver.in_every_journal()
    driver.at_every_operation("opening")
    driver.at_every_operation("saving")
    if "run.store=disk" in settings:
        _kill_at_disk(driver)


def _kill_at_disk(driver: Driver) -> None:
    for moment in ("keeping", "settling"):
        driver.at_every_operation(moment)
    driver.in_a_record()


if __name__ == "__main__":
    main(*sys.argv[1:])
