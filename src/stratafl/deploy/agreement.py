"""The agreement of host and sites before the first round: the format of samples, the client numbers, sample counts.

A site introduces itself with the format of its samples and their numbers. From all introductions the host makes the
agreement, of which every site gets what concerns it; of others it is told how many samples the largest has, if they are
less than a batch (`Roster.widest`). No sample leaves a site for it. A table that is encoded needs sums over training
samples, column by column (data/tables/column_sums.py); of a table of numbers, no mean or deviation leaves a site.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from stratafl.core.reprs import short_repr
from stratafl.data.preprocessing import Standardisation
from stratafl.data.sample_format import SampleFormat
from stratafl.data.tables.introduced_columns import IntroducedColumn, common_columns
from stratafl.data.tables.table_encoding import TableEncoding
from stratafl.data.texts import LENGTH
from stratafl.errors import DamagedError, DataError, WireError, choices, printable, shown
from stratafl.execute.roster import Roster, RosterEntry
from stratafl.files import read_plain, write_atomically

MAX_AGREEMENT_BYTES = 1 << 22  # bytes of an agreement
MAX_CLASSES, MAX_NAME_LETTERS = 10_000, 200  # of classes, and letters of one
DTYPES = (torch.float32, torch.float64)  # in which sites compute


@short_repr
@dataclass(frozen=True)
class Introduction:
    """What a site says of itself."""

    format: SampleFormat
    samples: int
    validation: int
    columns: tuple[IntroducedColumn, ...] = ()  # of a table that is encoded
    pooled: bool = False  # whether its numbers are standardised by the sums of all sites

    def to_table(self) -> dict[str, Any]:
        table = {"format": self.format.to_table(), "samples": self.samples, "validation": self.validation}
        columns = [column.to_table() for column in self.columns]
        return {**table, "columns": columns, "pooled": self.pooled} if columns else table

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "Introduction":
        with _reading("an introduction"):
            format = check_names(_checked(SampleFormat.from_table(table["format"])))
            columns = tuple(IntroducedColumn.from_table(entry) for entry in table.get("columns", ()))
            _check_texts("column", [name for entry in columns for name in (entry.column.name, *entry.sums.values)])
            return Introduction(format, *_counts(table), columns, table.get("pooled") is True)


@short_repr
@dataclass(frozen=True)
class Agreement:
    """The format of everybody's samples, and who takes part as which client."""

    format: SampleFormat
    roster: Roster

    def of_site(self, name: str) -> "Agreement":
        """What concerns this site."""
        return replace(self, roster=Roster.of(self.roster.clients, [self.roster.entry(name)]))

    def to_table(self) -> dict[str, Any]:
        entries = [[each.name, each.client, each.samples, each.validation] for each in self.roster.entries]
        return {"format": self.format.to_table(), "clients": self.roster.clients, "sites": entries}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "Agreement":
        with _reading("an agreement"):
            entries = [RosterEntry(*entry) for entry in table["sites"]]
            format = _checked(SampleFormat.from_table(table["format"]))
            return Agreement(format, Roster.of(int(table["clients"]), entries))

    def save(self, path: Path) -> None:
        data = json.dumps(self.to_table()).encode()
        if len(data) > MAX_AGREEMENT_BYTES // 2:  # it must be read again here, and with more around it at every site
            raise DataError(f"the agreement would take {len(data):,} bytes: use fewer or shorter class names")
        write_atomically(path, data)

    @staticmethod
    def load(path: Path) -> "Agreement | None":
        """The agreement that was saved; None if there is none."""
        if not path.exists():
            return None
        try:
            return Agreement.from_table(json.loads(read_plain(path, MAX_AGREEMENT_BYTES)))
        except (WireError, ValueError) as error:
            raise DamagedError(f"'{path}' is damaged ({error}): restore a copy") from error


@short_repr
@dataclass(frozen=True)
class Offer:
    """What a host sends for a site to agree with: the agreement, the largest client's samples, digests of settings."""

    agreement: Agreement
    widest: Mapping[str, int]
    digests: Mapping[str, str]

    def to_table(self, site: str) -> dict[str, Any]:
        entry = self.agreement.of_site(site).to_table()
        return {"agreement": entry, "widest": dict(self.widest), "digests": dict(self.digests)}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> "Offer":
        widest, digests = table.get("widest"), table.get("digests")
        if not isinstance(widest, dict) or not all(type(each) is int and each >= 0 for each in widest.values()):
            raise WireError("this is not an agreement: it lacks the sample count of the largest client")
        if not isinstance(digests, dict) or not all(isinstance(each, str) for each in digests.values()):
            raise WireError("this is not an agreement: its digests are missing")
        if not isinstance(table.get("agreement"), dict):
            raise WireError("this is not an agreement: it has no table")
        return Offer(Agreement.from_table(table["agreement"]), widest, digests)


def agreement(introductions: Mapping[str, Introduction], numbers: Mapping[str, int], clients: int) -> Agreement:
    """The agreement of sites that have introduced themselves; an error names the first that does not fit."""
    common = _encoded_format(introductions, common_format({site: each.format for site, each in introductions.items()}))
    entries = [RosterEntry(site, numbers[site], each.samples, each.validation) for site, each in introductions.items()]
    return Agreement(common, Roster.of(clients, sorted(entries, key=lambda entry: entry.client)))


def _encoded_format(introductions: Mapping[str, Introduction], common: SampleFormat) -> SampleFormat:
    """The format with the encoding of a table, from the sums of all sites."""
    plain = [site for site, each in introductions.items() if not each.columns]
    tables = [site for site in introductions if site not in plain]
    if not tables:
        return common
    if plain:
        wrong = f"'{plain[0]}' has numbers alone, but '{tables[0]}' has a table with more than numbers"
        raise DataError(f"{wrong}: name the kinds of columns in the federation's file, data.columns = 'age:number,…'")
    columns, sums = common_columns({site: each.columns for site, each in introductions.items()})
    table = TableEncoding.fitted(columns, sums)
    pooled = all(each.pooled for each in introductions.values())
    standardisation = Standardisation(*table.moments(sums)) if pooled else None
    encoded = replace(common.preprocessing, shape=(len(columns),), columns=standardisation, table=table)
    return replace(common, columns=table.names, preprocessing=encoded)


def introduced_format(format: SampleFormat) -> SampleFormat:
    """What a site says of its samples besides its columns: of a table that is encoded, nothing of its own encoding."""
    if format.preprocessing.table is None:
        return format
    bare = replace(format.preprocessing, shape=(1,), columns=None, table=None)
    return replace(format, columns=(), preprocessing=bare)


def with_listed_classes(format: SampleFormat, listed: Sequence[str]) -> SampleFormat:
    """The format with all classes of the invitation, so that a site does not say which of them it holds."""
    if not listed:
        return format
    if format.classes is None:
        raise DataError(f"the labels here are numbers to predict, but the invitation lists {len(listed)} classes")
    present, named = format.class_names, bool(format.preprocessing.classes)
    for name in present:
        if name not in listed:
            wrong = f"class '{shown(name)}' of the samples is not in the invitation, which lists: {_few(listed)}"
            raise DataError(f"{wrong}; correct the labels, or ask the host for an invitation with this class")
    if not named and present != tuple(listed[: len(present)]):
        raise DataError(f"labels are numbers from 0 to {len(present) - 1}, but the invitation lists {_few(listed)}")
    return replace(format, classes=len(listed), preprocessing=replace(format.preprocessing, classes=tuple(listed)))


def _few(names: Sequence[str]) -> str:
    return ", ".join(map(shown, names[:8])) + (", …" if len(names) > 8 else "")


def common_format(formats: Mapping[str, SampleFormat]) -> SampleFormat:
    """The format that all sites can read."""
    (first, common), *rest = formats.items()
    for site, other in rest:
        for what, a, b in compared_facts(common, other):
            if a != b:
                raise DataError(f"'{site}' has {what} {shown(b)}, but '{first}' has {shown(a)}: prepare both alike")
    text = common.preprocessing.text
    if text is None:
        return common
    length = max(each.shape[0] for each in formats.values())  # shorter texts are padded
    read = replace(common.preprocessing, shape=(length,), text=replace(text, length=length))
    return replace(common, preprocessing=read)


def compared_facts(a: SampleFormat, b: SampleFormat, listed: bool = True) -> list[tuple[str, object, object]]:
    """What the samples of all sites must have alike: what it is, and how both have it.

    Classes only if the invitation `listed` them; in federations that began earlier, sites named their own.
    """
    tables = a.preprocessing.table is not None, b.preprocessing.table is not None
    a, b = introduced_format(a), introduced_format(b)  # all sites together agree on the columns of an encoded table
    return [
        ("a table with more than numbers:", tables[0], tables[1]),
        *([("samples of shape", a.shape, b.shape)] if a.preprocessing.text is None else []),
        ("texts read as", _any_length(a), _any_length(b)),
        ("samples of type", a.preprocessing.dtype, b.preprocessing.dtype),
        ("numbers computed as", a.dtype, b.dtype),
        ("the scaling", a.preprocessing.scaling, b.preprocessing.scaling),
        ("targets of shape", a.target, b.target),
        ("targets that are", _kind_of_targets(a), _kind_of_targets(b)),
        *([("the classes", a.class_names, b.class_names)] if listed else []),
        ("the columns", sorted(a.columns), sorted(b.columns)),
        ("columns standardised by its own samples:", a.own_columns, b.own_columns),
    ]


def _any_length(format: SampleFormat) -> object:
    text = format.preprocessing.text
    return text and replace(text, length=LENGTH)


def _kind_of_targets(format: SampleFormat) -> str:
    return "numbers" if format.classes is None else "classes"


def shareable_format(format: SampleFormat) -> SampleFormat:
    """A site's format without what its samples are like: means and deviations of columns stay with it."""
    if format.preprocessing.targets is not None:
        raise DataError(
            "data.targets = 'scaled' would need a mean over all sites: use 'numbers', and scale them before"
        )
    if format.preprocessing.table is not None:
        return format
    standardised = format.own_columns or format.preprocessing.columns is not None
    return replace(format, own_columns=standardised, preprocessing=replace(format.preprocessing, columns=None))


def _checked(format: SampleFormat) -> SampleFormat:
    """Without what others must not choose: how samples are read at a site."""
    read = format.preprocessing
    if (read.columns is not None and read.table is None) or read.targets is not None:
        raise ValueError("it contains means and deviations, which must stay at each site")
    if format.dtype not in DTYPES:
        raise ValueError(f"it computes in {shown(format.dtype)}; {choices(map(str, DTYPES))}")
    return format


def check_names(format: SampleFormat) -> SampleFormat:
    """Refuse names of classes that would harm where they are shown, which is at other sites, too."""
    names = format.preprocessing.classes
    if len(names) > MAX_CLASSES:
        raise DataError(f"there are {len(names):,} class names, but at most {MAX_CLASSES:,} are allowed")
    _check_texts("class", names)
    table = format.preprocessing.table
    _check_texts("column", [] if table is None else table.inputs)
    return format


def _check_texts(what: str, names: Sequence[str]) -> None:
    odd = next((name for name in names if len(name) > MAX_NAME_LETTERS or printable(name) != name), None)
    if odd is not None:
        raise DataError(f"the {what} name '{shown(odd)}' must have at most {MAX_NAME_LETTERS} letters, all printable")


def _counts(table: Mapping[str, Any]) -> tuple[int, int]:
    samples, validation = table["samples"], table["validation"]
    if not all(type(each) is int and 0 <= each < 1 << 40 for each in (samples, validation)):
        raise ValueError("its numbers of samples are not whole numbers of at least 0")
    return samples, validation


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Whatever a table from outside makes fail is a `WireError`."""
    try:
        yield
    except (KeyError, TypeError, ValueError, DataError) as error:
        raise WireError(f"this is not {what}: {shown(error, 200)}") from error


def check_digests(ours: Mapping[str, str], theirs: Mapping[str, str]) -> str:
    """What two members do not agree on; "" if that is nothing, or only the last bits of the initial weights."""
    wrong = [part for part in ours if part != "weights" and ours[part] != theirs.get(part)]
    if wrong == ["frozen"]:
        return "host and site have different frozen tensors, which no round carries: load the same base at both"
    return f"host and site differ in {', '.join(wrong)}: use the same file for both" if wrong else ""
