"""Secure sums: the sums of a round as whole numbers, which can be masked so that a server learns nothing but the total.

A client folds its own upload and writes what comes out in fixed point, modulo 2^64. These numbers add up to the same
bits in any order, with masks that cancel or without. So a simulation adds them up unmasked, and a deployment
(`deploy/secure/`) has the simulation's bits.

A client folds with a server state that has no values. So a method is eligible only if its merges add up uploads without
a look at the server's state, and if every upload counts in every sum: an entry in which one client counts alone would
be that client's value.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from stratafl.core.algorithm import COUNT, Algorithm, Total
from stratafl.core.form import DTYPES, FieldForm, Form, TensorForm
from stratafl.core.layerwise import Layerwise
from stratafl.core.layout import Layout
from stratafl.core.parcel import Bytes, Field, Parcel
from stratafl.core.phased import Phased
from stratafl.core.reprs import holder
from stratafl.core.round import Round, Setup
from stratafl.core.state import State, Value, flatten, moved, tensors, unflatten
from stratafl.core.steps import MergeRows, MergeSums
from stratafl.errors import RecordError, WireError

log = logging.getLogger("stratafl")
MIN_SITES = 3  # of a sum that is opened: of two, each would know the other's
COMPLETE = 50  # sites up to which each shares masks with all others; of more, with some (deploy/secure/group.py)
MARKED = 5  # of more, one in five may work for a lying host
SUM_BITS = 62  # of the largest total
PROBES = (1, 0, 2)  # values of an upload: a sum that is the same with all of them follows from the number of samples
VALUE_BITS = 16  # values up to 65,536 …
SAMPLE_BITS = 16  # … of a client with as many samples always fit; more of one if there is less of the other
BYTES_PER_NUMBER = 8


def opening_threshold(cohort: int) -> int:
    """The least number of clients whose sum is opened: more than two thirds of the cohort.

    Two sums of one round would then share more than a third of the clients. A deployed site takes part in opening one
    sum of a round, so a second one is never opened, even if a third of the sites help a lying host.
    """
    return max(MIN_SITES, 2 * cohort // 3 + 1)


def most_colluding(cohort: int) -> int:
    """The largest number of clients with whose help a lying host cannot open two sums of a round.

    It needs a threshold of clients for each, and all but those who help it take part in opening one.
    """
    return cohort // MARKED if cohort > COMPLETE else max(0, 2 * opening_threshold(cohort) - cohort - 1)


def too_few(present: int, cohort: int) -> str:
    """Why the sum of these clients stays closed; "" if it is opened."""
    least = opening_threshold(cohort)
    if present >= least:
        return ""
    return f"only {present} of {cohort} clients are in the secure sum, which is opened from {least} on"


# Which methods


def check_secure(algorithm: Algorithm, setup: Setup) -> None:
    """Raise, in one line that says why, unless all that clients send can be summed without looking at one upload."""
    server = algorithm.init(setup)
    for rnd in _phases(algorithm, setup):
        why = _obstacle(algorithm, rnd, server)
        if why:
            raise RecordError(
                f"server.secure hides single uploads, but {why}: choose another method, or set it to false"
            )
        cohort = setup.clients if rnd.plan.participation == "all" else setup.cohort
        if cohort < MIN_SITES and rnd_sends(algorithm, rnd, server):
            raise RecordError(
                f"server.secure opens sums of at least {MIN_SITES} clients, but a round has {cohort}: add clients, or "
                "raise run.participation"
            )


def rnd_sends(algorithm: Algorithm, rnd: Round, server: State) -> bool:
    """Whether clients upload anything in this round."""
    return bool(algorithm.upload_form(rnd, server).fields)


def _phases(algorithm: Algorithm, setup: Setup) -> Iterator[Round]:
    """The first round of each phase."""
    seen = set[int]()
    for t in range(max(setup.rounds, 1) + algorithm.requires.extra_rounds):
        plan = algorithm.plan(t, setup.rounds)
        if plan.phase not in seen:
            seen.add(plan.phase)
            yield Round(setup, t, plan)


def _obstacle(algorithm: Algorithm, rnd: Round, server: State) -> str:
    """Why the uploads of a round cannot be summed unseen; "" if they can."""
    record = algorithm.records[rnd.plan.phase] if isinstance(algorithm, Phased) else algorithm
    if not isinstance(record, Layerwise):
        return f"{type(algorithm).__name__} is not a record of steps, so its sums are not known"
    if record.pack:
        return f"{type(record.pack[0]).__name__} packs them, and packed numbers do not add up"
    for step in record.merge:
        if isinstance(step, MergeRows):
            return f"{type(step).__name__} needs each of them"
    form = record.upload_form(rnd, server)
    masked = next((name for name, field in form.fields.items() if field.mask != "none"), None)
    if masked is not None:
        return f"each client chooses what it sends of '{masked}', and a column that one client sent is its value"
    served = record.download_form(rnd, torch.tensor([0]))
    personal = next((name for name, field in served.fields.items() if not field.common), None)
    if personal is not None:
        return f"each client is sent a '{personal}' of its own, so none could tell whether a server singles it out"
    for trained in (*record.train, *record.send):
        if trained.repeats_absent_classes:
            return f"of a class that one client alone has, {type(trained).__name__} lets the sum tell what it sent"
    upload, without_values = _least_upload(form), _without_values(server)
    for step in record.merge:
        if isinstance(step, MergeSums) and (why := _obstacle_of(step, rnd, without_values, upload)):
            return why
    return ""


def _obstacle_of(step: MergeSums, rnd: Round, server: State, upload: Parcel) -> str:
    try:
        sums = step.fold(rnd, server, {}, upload, torch.tensor([0]))
        read = any(x.is_meta for x in tensors(sums))
    except Exception:  # a tensor without values may fail in any way
        read = True
    if read:
        return f"{type(step).__name__} compares each of them with the server's state"
    if any(bool((x == 0).any()) for x in tensors(sums)):
        return f"{type(step).__name__} does not count every client in every sum, and one that counts alone is seen"
    return ""


def _without_values(server: State) -> State:
    return moved(server, torch.device("meta"))


def _least_upload(form: Form, samples: int = 1) -> Parcel:
    """An upload with the least weights that its form allows, and 1 wherever a value may have any sign."""
    least = {name: int(field.bound != "nonnegative") for name, field in form.fields.items()}
    return _filled(form, least | {COUNT: samples})


def _filled(form: Form, numbers: Mapping[str, int]) -> Parcel:
    """An upload in which all values of a field are the same number."""

    def value(name: str, field: FieldForm) -> Value:
        number = numbers[name]
        if isinstance(field.value, TensorForm):
            return _full(field.value, number, field.common)
        return {key: _full(block, number, field.common) for key, block in field.value.items()}

    return Parcel({name: Field(value(name, field), field.common) for name, field in form.fields.items()})


def _full(form: TensorForm, number: int, common: bool) -> Tensor:
    return torch.full(form.shape if common else (1, *form.shape), number, dtype=DTYPES[form.dtype])


# Fixed point


@holder
class SumEntry:
    """One tensor of the sums: of which merge, its name, its shape, and its unit.

    The unit is 2^-`bits`; where clients add noise to the whole numbers, the method says what it is, `noisy_unit`.
    """

    merge: int
    name: str
    shape: torch.Size
    bits: int
    noisy_unit: float | None = None

    @property
    def unit(self) -> float:
        return 2.0**-self.bits if self.noisy_unit is None else self.noisy_unit


@holder
class SecureSums:
    """What uploads of one phase come to, as a vector of whole numbers; `SecureSums.of` makes it."""

    algorithm: Algorithm
    server: State  # without values
    cohort: int
    entries: tuple[SumEntry, ...]

    @staticmethod
    def of(algorithm: Algorithm, rnd: Round, server: State, cohort: int) -> "SecureSums":
        """The sums of the round's phase. A bit is spent where values of many samples, or many clients, need it.

        Every member of a federation finds the same, because it follows from the form of uploads.
        """
        blank, form = _without_values(server), algorithm.upload_form(rnd, server)
        if not form.fields:
            return SecureSums(algorithm, blank, cohort, ())
        upload = _least_upload(form, samples=1 << SAMPLE_BITS)
        total = algorithm.fold(rnd, blank, Total(), upload, torch.tensor([0]))
        unit = algorithm.secure_unit(rnd)
        entries = [
            SumEntry(merge, name, x.shape, limit_bits(cohort) - VALUE_BITS - _bits_of(x), unit)
            for merge, sums in enumerate(total.sums)
            for name, x in flatten(sums).items()
        ]
        return SecureSums(algorithm, blank, cohort, tuple(entries))

    @property
    def size(self) -> int:
        """How many numbers travel."""
        return sum(entry.shape.numel() for entry in self.entries)

    def contribution(self, rnd: Round, upload: Parcel, client: int) -> Tensor:
        """What this client adds to the sums, with its noise: int64 `[size]`."""
        numbers = self.numbers(rnd, upload, client)
        noisy = self.algorithm.secure_unit(rnd) is not None
        return numbers + self.algorithm.secure_noise(rnd, client, numbers) if noisy else numbers

    def numbers(self, rnd: Round, upload: Parcel, client: int) -> Tensor:
        """The same without noise, which never leaves a client. A value that could overflow is a `WireError`."""
        parts = list(map(self._fixed, self.entries, self._folded(rnd, upload, client)))
        return torch.cat(parts) if parts else torch.empty(0, dtype=torch.int64)

    def _folded(self, rnd: Round, upload: Parcel, client: int) -> list[Tensor]:
        """What an upload comes to in each entry."""
        total = self.algorithm.fold(rnd, self.server, Total(), upload, torch.tensor([client]))
        sums = [flatten(state) for state in total.sums]
        return [sums[entry.merge][entry.name] for entry in self.entries]

    def check_total(self, rnd: Round, form: Form, total: Tensor, samples: Tensor) -> None:
        """A `WireError` if clients with these numbers of samples cannot come to this total, whatever they trained.

        The numbers of a site are masked, so it could send any. In a sum of random ones about half are out of range.
        """
        if bool(((total > 1 << SUM_BITS) | (total < -(1 << SUM_BITS))).any()):
            raise WireError("the sum is out of range, so a site sent something else than its numbers")
        if self.algorithm.secure_unit(rnd) is not None or not self.entries:  # then weights, if any, have noise
            return
        expected = dict[int, Tensor]()
        for count, clients in Counter(samples.tolist()).items():
            for place, weight in self._weights(rnd, form, count).items():
                expected[place] = expected.get(place, torch.zeros_like(weight)) + clients * weight
        parts = self._parts(total)
        if any(bool(((parts[place] - x).abs() > len(samples)).any()) for place, x in expected.items()):  # rounded
            raise WireError("weights do not add up to the sites' numbers of samples, so a site sent other ones")

    def _weights(self, rnd: Round, form: Form, samples: int) -> dict[int, Tensor]:
        """What a client adds to the entries that follow from its number of samples alone, by place."""
        uploads = (_filled(form, dict.fromkeys(form.fields, value) | {COUNT: samples}) for value in PROBES)
        folded = zip(*(self._folded(rnd, upload, 0) for upload in uploads), strict=True)
        return {
            place: self._fixed(self.entries[place], x)
            for place, (x, *others) in enumerate(folded)
            if all(torch.equal(x, other) for other in others)
        }

    def _parts(self, total: Tensor) -> Sequence[Tensor]:
        return total.split([entry.shape.numel() for entry in self.entries]) if self.entries else ()

    def opened(self, total: Tensor, device: torch.device) -> Total:
        """The sums in floating point, as `Algorithm.absorb` takes them."""
        sums: list[dict[str, Tensor]] = [{} for _ in range(1 + max((e.merge for e in self.entries), default=-1))]
        for entry, part in zip(self.entries, self._parts(total), strict=True):
            sums[entry.merge][entry.name] = (part.double() * entry.unit).reshape(entry.shape).to(device)
        return Total(tuple(unflatten(rows) for rows in sums))

    def sent(self, layout: Layout, clients: int) -> Bytes:
        """What clients send, in bytes: a number of 64 bits for each number of the sums."""
        layers, other = torch.zeros(len(layout.layers), dtype=torch.int64), 0
        for entry in self.entries:
            tensor = entry.name.partition("/")[2]
            if tensor in layout.specs:
                layers[layout.specs[tensor].layer] += entry.shape.numel() * clients
            else:
                other += entry.shape.numel() * clients * BYTES_PER_NUMBER
        per_client = torch.full((clients,), self.size * BYTES_PER_NUMBER)
        return Bytes(per_client, layers * BYTES_PER_NUMBER, other, layers)

    def _fixed(self, entry: SumEntry, x: Tensor) -> Tensor:
        """In fixed point, to the nearest: half a unit is the largest error.

        The server is told the refusal, so its text is the same whatever the value is.
        """
        scaled = (x.to("cpu", torch.float64) / entry.unit).round_().reshape(-1)
        if not bool((scaled.abs() <= 2.0 ** limit_bits(self.cohort)).all()):
            largest = float(x.abs().max())
            most = 2.0 ** limit_bits(self.cohort) * entry.unit
            log.warning("'%s' reaches %.3g, but a secure sum takes %.3g of a client", entry.name, largest, most)
            raise WireError("one of its values is too large for a secure sum; its own log says which")
        return scaled.to(torch.int64)


def limit_bits(cohort: int) -> int:
    """A client's numbers are at most 2^this, so that those of a whole cohort do not overflow."""
    return SUM_BITS - (cohort - 1).bit_length()


def _bits_of(x: Tensor) -> int:
    """The bits of the largest number of a tensor, which is what an upload of ones came to."""
    return max(0, int(x.abs().max().item()) - 1).bit_length() if x.numel() else 0
