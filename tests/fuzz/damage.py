"""Ways to damage a run directory: bytes, values, links, files that are exchanged, and forgeries with new checksums.

Each is given the folder, a canary outside of it that links may lead to, and a generator; it says what it did.
"""

import json
import os
import shutil
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from stratafl.runs.checkpoint import _body_digest, _file_digest

JOURNALS = ("rounds.jsonl", "clients.jsonl", "layers.jsonl")
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    7,
    10**30,
    2**63,
    0.5,
    1e308,
    "",
    "x",
    "../canary",
    [],
    {},
    [[1]],
    {"a": 1},
)
Damage = Callable[[Path, Path, Random], str]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def generations(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "checkpoint").iterdir() if path.name.isdigit())


def some_bytes(folder: Path, canary: Path, draw: Random) -> str:
    """Bytes that are changed, lost, inserted or repeated."""
    path = draw.choice(files(folder))
    data = bytearray(path.read_bytes())
    at, length = draw.randrange(len(data) + 1), draw.randint(1, 40)
    kind = draw.choice(("flip", "cut", "lose", "insert", "repeat"))
    if kind == "flip" and at < len(data):
        data[at] ^= 1 << draw.randrange(8)
    elif kind == "cut":
        del data[at:]
    elif kind == "lose":
        del data[at : at + length]
    elif kind == "insert":
        data[at:at] = draw.randbytes(length)
    else:
        data[at:at] = data[at : at + length]
    path.write_bytes(data)
    return f"{kind} at {at} of {path.name}"


def _changed(value: Any, draw: Random) -> Any:
    """A JSON value with something else somewhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key, kind = draw.choice(list(value)), draw.random()
        if kind < 0.15:
            return {k: v for k, v in value.items() if k != key}
        if kind < 0.25:
            return {**value, draw.choice(("extra", "round", "")): draw.choice(ODD)}
        return {**value, key: _changed(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.7:
        at = draw.randrange(len(value))
        return [*value[:at], _changed(value[at], draw), *value[at + 1 :]]
    return draw.choice(ODD)


def a_value(folder: Path, canary: Path, draw: Random) -> str:
    """Another value in a JSON file, or one that no reader should have to bear."""
    path = draw.choice([path for path in files(folder) if path.suffix == ".json"])
    kind = draw.random()
    if kind < 0.05:
        path.write_text("[" * 100_000)
    elif kind < 0.1:
        path.write_text(
            path.read_text().replace(": 1", f": {draw.choice(('NaN', 'Infinity', '1e999', '9' * 5000))}", 1)
        )
    else:
        path.write_text(json.dumps(_changed(json.loads(path.read_text()), draw)))
    return f"a value of {path.parent.name}/{path.name}"


def lines(folder: Path, canary: Path, draw: Random) -> str:
    """Lines of a journal that are edited, lost, exchanged, repeated, stripped of their checksums, or torn."""
    path = folder / draw.choice(JOURNALS)
    found = path.read_text().splitlines()
    at, kind = draw.randrange(len(found)), draw.choice(("edit", "lose", "swap", "repeat", "strip", "torn", "last"))
    if kind == "edit":
        line = json.loads(found[at])
        key = draw.choice([key for key, value in line.items() if isinstance(value, int | float)])
        line[key] = draw.choice((0.939, line[key] + 1, None))
        found[at] = json.dumps(line, separators=(",", ":"))
    elif kind == "lose":
        del found[at]
    elif kind == "swap":
        other = draw.randrange(len(found))
        found[at], found[other] = found[other], found[at]
    elif kind == "repeat":
        found.insert(at, found[at])
    elif kind == "strip":
        found = [json.dumps({k: v for k, v in json.loads(x).items() if k != "checksum"}) for x in found]
    elif kind == "last":
        del found[-draw.randint(1, len(found)) :]
    torn = '{"round": 9' if kind == "torn" else ""
    path.write_text("".join(f"{line}\n" for line in found) + torn)
    return f"{kind} line {at} of {path.name}"


def a_link(folder: Path, canary: Path, draw: Random) -> str:
    """A file or a folder that is a link: to a file elsewhere, a folder, nothing, a device, or a second name."""
    path = draw.choice([path for path in sorted(folder.rglob("*")) if not path.is_symlink()])
    kind = draw.choice(("copy", "other", "folder", "nothing", "zero", "hard"))
    target = canary / f"{len(os.listdir(canary))}-{path.name}"
    if kind in ("copy", "hard") and path.is_file():
        shutil.copyfile(path, target)
    elif kind == "copy":
        shutil.copytree(path, target)
    elif kind == "folder":
        target.mkdir()
    elif kind in ("other", "hard"):
        target.write_text("years of work\n")
    _remove(path)
    if kind == "hard":
        os.link(target, path)
    else:
        path.symlink_to("/dev/zero" if kind == "zero" else target)
    return f"{path.name} is a link ({kind})"


def another_kind(folder: Path, canary: Path, draw: Random) -> str:
    """A pipe, a folder, a socket or a file without end where something else was."""
    path = draw.choice(sorted(folder.rglob("*")))
    kind = draw.choice(("pipe", "folder", "socket", "endless", "empty"))
    _remove(path)
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        here = os.open(path.parent, os.O_RDONLY)
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{here}/{path.name}" if os.path.exists("/proc/self/fd") else str(path))
        os.close(here)
    else:
        path.touch()
        os.truncate(path, 0 if kind == "empty" else 10 << 30)
    return f"{path.name} is {kind}"


def exchanged(folder: Path, canary: Path, draw: Random) -> str:
    """Files that are missing, exchanged or copied over another, and generations under another number."""
    kind = draw.choice(("missing", "swap", "over", "renumber", "copy", "mixed"))
    first, second = draw.sample(files(folder), 2)
    if kind == "missing":
        first.unlink()
    elif kind == "swap":
        spare = first.with_name("spare")
        first.rename(spare)
        second.rename(first)
        spare.rename(second)
    elif kind == "over":
        shutil.copyfile(first, second)
    elif kind in ("renumber", "copy"):
        old = draw.choice(generations(folder))
        name = draw.choice(("000999", "000005", "0000004", "000001", "999999999999999999", "000000", "٠٠٠٠٠٩"))
        new = old.with_name(name)
        if not new.exists():
            (old.rename if kind == "renumber" else lambda target: shutil.copytree(old, target))(new)
    else:
        older, newer = generations(folder)[:2]
        name = draw.choice(sorted(os.listdir(older)))
        shutil.copyfile(older / name, newer / name)
    return f"{kind} {first.name} {second.name}"


def a_forged_manifest(folder: Path, canary: Path, draw: Random) -> str:
    """Manifests with other rounds, lengths or checksums, and their own checksum computed anew."""
    chosen = _one_or_all(folder, draw)
    return f"{[_forged_manifest(generation, draw) for generation in chosen]} of manifests forged"


def _forged_manifest(generation: Path, draw: Random) -> str:
    path = generation / "manifest.json"
    body = json.loads(path.read_text())
    body.pop("manifest_sha256")
    key = draw.choice(sorted(body))
    kind = draw.random()
    if kind < 0.15:
        body.pop(key)
    elif kind < 0.6 or not isinstance(body[key], dict):
        body[key] = draw.choice((*ODD, 3, 5, 999))
    else:
        inner = draw.choice(sorted(body[key]))
        body[key][inner] = draw.choice((*ODD, 2, 3, 10**9, "00000000", "0" * 64))
    _manifest(generation, body)
    number = body.get("round")
    if draw.random() < 0.3 and type(number) is int and 0 <= number < 10**9:
        new = generation.with_name(f"{number:06d}")
        if not new.exists():
            generation.rename(new)
    return key


def a_forged_state(folder: Path, canary: Path, draw: Random) -> str:
    """States with other names, shapes, types, slots, clients or another round, and all checksums computed anew."""
    return str([_forged_state(generation, draw) for generation in _one_or_all(folder, draw)])


def _forged_state(generation: Path, draw: Random) -> str:
    body = json.loads((generation / "manifest.json").read_text())
    body.pop("manifest_sha256")
    there = [name for name in ("state.safetensors", "selected.safetensors") if (generation / name).exists()]
    name = draw.choice(there)
    tensors = load_file(generation / name)
    said = _forged(tensors, draw)
    save_file({key: x.contiguous() for key, x in tensors.items()}, generation / name)
    told = body if name == "state.safetensors" else body["selected"]
    told |= {"sha256": _file_digest(generation / name), "bytes": (generation / name).stat().st_size}
    _manifest(generation, body)
    return f"{said} in {generation.name}/{name}"


def _one_or_all(folder: Path, draw: Random) -> list[Path]:
    return draw.choice(([draw.choice(generations(folder))], generations(folder)))


def _forged(tensors: dict[str, Any], draw: Random) -> str:
    key, kind = draw.choice(sorted(tensors)), draw.choice(("lose", "rename", "shape", "type", "add", "client", "round"))
    tensor = tensors[key]
    slots = "memories/slots"
    if slots in tensors and draw.random() < 0.5:
        at = draw.randrange(len(tensors[slots]))
        odd = (-2, 10**9, 2**62, -(2**63), int(tensors[slots][at - 1]))
        tensors[slots][at] = draw.choice([each for each in odd if each != int(tensors[slots][at])])
        return "a slot"
    if kind == "lose":
        del tensors[key]
    elif kind == "rename":
        tensors[draw.choice(("server/x", "x", "client/x/y", "client/0", "", "memories/slots"))] = tensors.pop(key)
    elif kind == "shape":
        tensors[key] = draw.choice((tensor.reshape(-1)[:0], tensor[None], torch.zeros(1000, dtype=tensor.dtype)))
    elif kind == "type":
        tensors[key] = tensor.to(torch.float64 if tensor.dtype != torch.float64 else torch.int8)
    elif kind == "add":
        tensors[draw.choice(("server/x", "extra", "t/x", "server/theta/x"))] = torch.zeros(3)
    elif kind == "client":
        where = draw.choice(("99", "-1", "01", "٣", "1" * 300, "x", ""))
        tensors[f"client/{where}/theta/fc.bias"] = torch.zeros(10)
    else:
        tensors["t"] = draw.choice((torch.tensor(5), torch.tensor(-1), torch.tensor(2**62), torch.tensor([4.0])))
    return f"{kind} {key}"


def forged_lines(folder: Path, canary: Path, draw: Random) -> str:
    """Lines with other values and new checksums: nothing can tell, but nothing may break either."""
    path = folder / draw.choice(JOURNALS)
    found = [json.loads(line) for line in path.read_text().splitlines()]
    at = draw.randrange(len(found))
    found[at] = _changed({key: value for key, value in found[at].items() if key != "checksum"}, draw)
    texts, checksum = [], 0
    for line in found:
        plain = {k: v for k, v in line.items() if k != "checksum"} if isinstance(line, dict) else line
        body = json.dumps(plain, separators=(",", ":")).encode()[:-1]
        checksum = zlib.crc32(body, checksum)
        texts.append(body + f',"checksum":"{checksum:08x}"}}\n'.encode())
    path.write_bytes(b"".join(texts))
    if draw.random() < 0.8:
        for generation in generations(folder):  # up to where the manifests say, or to the end
            body = json.loads((generation / "manifest.json").read_text())
            body.pop("manifest_sha256")
            body["journals"][path.stem], body["checksums"][path.stem] = path.stat().st_size, f"{checksum:08x}"
            _manifest(generation, body)
    return f"line {at} of {path.name} forged"


def _manifest(generation: Path, body: dict[str, Any]) -> None:
    (generation / "manifest.json").write_text(json.dumps({**body, "manifest_sha256": _body_digest(body)}))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


VALUES_DIFFER: tuple[Damage, ...] = (forged_lines,)
DAMAGES: tuple[Damage, ...] = (
    some_bytes,
    a_value,
    lines,
    a_link,
    another_kind,
    exchanged,
    a_forged_manifest,
    a_forged_state,
    forged_lines,
)
