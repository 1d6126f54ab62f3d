"""Compositions: parts on a method, by a name such as `fedper+flayer` or `fedala+prior+flayer`.

A part is FLAYER's, LAG, ConFREE, a class prior, compression or a robust merge; several act in the order of the name. A
composition takes the options of the method and those of its parts. The parts are functions from record to record, of
use without a name: `with_flayer(my_method())`. They refuse what makes no sense and say why.
"""

import inspect
import typing
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from stratafl.algorithms.compress_on import describe_compression, with_q4, with_q8, with_topk
from stratafl.algorithms.confree import with_confree
from stratafl.algorithms.declaration import GIVEN, METHODS, Method
from stratafl.algorithms.fedprior import with_prior
from stratafl.algorithms.field_meanings import meaning_of
from stratafl.algorithms.flayer_on import acting, with_flayer
from stratafl.algorithms.lag_on import with_lag
from stratafl.algorithms.private_on import with_private as with_private
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed
from stratafl.core.phased import records_of
from stratafl.core.records import validated
from stratafl.errors import RecordError, check_known, unknown
from stratafl.policies.krum import Keep, Wrong
from stratafl.policies.merge import Positive
from stratafl.policies.robust import Factor, Share, robust

PLUS = "+"
SAFE = Fixed("protection from faulty clients: with honest ones a tuner would switch it off")


# Merges that replace a mean. `server.merge` sets one for a whole configuration, beside any composition (`fedper+q8`);
# by name, several merges can be compared. A server that does more with uploads than a private mean would tell other
# clients about them without noise, so such methods are refused.


@validated
def with_median(host: Algorithm) -> Algorithm:
    """The server takes the median of each column over the clients that sent it, each client once."""
    return robust(host, "median")


@validated
def with_trimmed(host: Algorithm, *, trim: Annotated[Share, SAFE] = 0.2) -> Algorithm:
    """The server drops the share `trim` of the smallest and of the largest values of each column."""
    return robust(host, "trimmed", share=trim)


@validated
def with_clipped(
    host: Algorithm, *, norm: Annotated[Positive, SAFE] | None = None, factor: Annotated[Factor, SAFE] = 1.0
) -> Algorithm:
    """No update is longer than `norm`, or without it than `factor` times the cohort's median."""
    return robust(host, "clipped", factor=factor, norm=norm)


@validated
def with_krum(host: Algorithm, *, f: Annotated[Wrong, SAFE] = 1, keep: Annotated[Keep, SAFE] = 1) -> Algorithm:
    """The server takes the `keep` uploads that lie nearest to the others; up to `f` clients may be wrong."""
    return robust(host, "krum", f=f, keep=keep)


# The parts by name


@dataclass(frozen=True)
class Addition:
    """What follows the `+`: a function from record to record, and the method of its paper, which it makes of FedAvg.

    With the options `off`, if there are such, it changes nothing; with `soon` it acts from the first round on.
    """

    label: str
    on: Callable[..., Algorithm]
    method: str | None  # None: it is of no paper's method
    idea: Callable[[Method], str]
    off: Mapping[str, Any] | None
    soon: Mapping[str, Any] = field(default_factory=dict)
    sends: Callable[[Method], str] = lambda host: host.sends
    new_client: Callable[[Method], str] = lambda host: host.new_client


def _flayer_idea(host: Method) -> str:
    parts = acting(host.builder())
    acts = " and ".join(name for name, reason in parts.items() if reason is None)
    left = "".join(f"; no {reason}" for reason in parts.values() if reason is not None)
    return f"{host.label} with FLAYER's {acts}{left}."


def _flayer_sends(host: Method) -> str:
    masked = acting(host.builder())["mask"] is None
    return f"{host.sends}; only the largest changes of each layer" if masked else host.sends


def _lag_idea(host: Method) -> str:
    return f"{host.label} in which layers with conflicting updates become personal."


def _prior_sends(host: Method) -> str:
    """A method that sends class counts itself, as FedPAC, still does."""
    names = {name for record in records_of(host.builder()) for step in record.send for name in step.writes}
    counted = any(meaning_of("up", name.removeprefix("up.")).kind == "class counts" for name in names)
    return host.sends if counted else f"{host.sends}, without class frequencies"


def _compression(label: str, on: Callable[..., Algorithm], off: Mapping[str, Any], how: str, does: str) -> Addition:
    return Addition(
        label,
        on,
        None,
        lambda host: f"{host.label} whose uploads {does}.",
        off,
        soon={"min_size": 1},  # the models of the contract are small
        sends=lambda host: f"{host.sends}; {describe_compression(on(host.builder()))}, {how}",
    )


def _merge(label: str, on: Callable[..., Algorithm], off: Mapping[str, Any] | None, does: str) -> Addition:
    return Addition(label, on, None, lambda host: f"{host.label} whose server {does}.", off)


ENDLESS = {"min_size": 2**62}  # every tensor is sent as it is
PARTS = {
    "flayer": Addition(
        "FLAYER",
        with_flayer,
        "flayer",
        _flayer_idea,
        off={"guide": False, "rates": False, "mask": False},
        sends=_flayer_sends,
    ),
    "lag": Addition(
        "LAG", with_lag, "fedlag", _lag_idea, off={"k": 0, "warmup": 0}, soon={"k": 2, "xi": 0.0, "warmup": 0}
    ),
    "confree": Addition(
        "ConFREE",
        with_confree,
        "confree",
        lambda host: f"{host.label} whose server removes what conflicts between updates, layer by layer.",
        off=None,
    ),
    "prior": Addition(
        "class prior",
        with_prior,
        "fedprior",
        lambda host: f"{host.label} whose logits are shifted by the log of each client's own class frequencies.",
        off=None,
        sends=_prior_sends,
        new_client=lambda host: f"{host.new_client}, with its own class frequencies",
    ),
    "q8": _compression("8-bit uploads", with_q8, ENDLESS, "8 bits per number", "take a quarter of the bytes"),
    "q4": _compression("4-bit uploads", with_q4, ENDLESS, "4 bits per number", "take an eighth of the bytes"),
    "topk": _compression(
        "top-k uploads",
        with_topk,
        {"keep": 1.0, "min_size": 1},
        "only those furthest from 0",
        "hold only the largest changes",
    ),
    "median": _merge("median", with_median, None, "takes the median of each column"),
    "trimmed": _merge("trimmed mean", with_trimmed, {"trim": 0.0}, "leaves out the extremes of each column"),
    "clipped": _merge("clipped updates", with_clipped, {"norm": 1e30}, "shortens updates that are too long"),
    "krum": _merge("Krum", with_krum, {"f": 0, "keep": 2**62}, "takes the uploads nearest to others"),
    "private": _merge("differential privacy", with_private, None, "clips updates and adds noise to their mean"),
}


def is_composition(name: str) -> bool:
    """Whether a name is written as one; a path `package.module:name` is not."""
    return PLUS in name and ":" not in name


def parse_composition(name: str) -> tuple[str, tuple[str, ...]]:
    """The method and its parts; names that do not exist are refused with the nearest match."""
    host, *parts = (each.strip() for each in name.split(PLUS))
    if not host or not all(parts):
        raise RecordError(f"'{name}' is incomplete: write a method and a part, such as fedper+flayer")
    if host not in METHODS:
        raise unknown("algorithm", host, sorted(METHODS))
    for part in parts:
        if part not in PARTS:
            raise unknown(f"part of '{name}'", part, PARTS)
        if parts.count(part) > 1:
            raise RecordError(f"'{name}' adds {part} twice: leave one out")
    return host, tuple(parts)


def composition(name: str) -> Method:
    """A composition as the catalogue describes methods; refused with the reason if it makes no sense."""
    host, parts = parse_composition(name)
    composed(name)()  # or it is refused
    described = METHODS[host]
    for place, part_name in enumerate(parts, 1):
        part, whole = PARTS[part_name], PLUS.join((host, *parts[:place]))
        paper = described if part.method is None else METHODS[part.method]
        idea, sends, new_client = part.idea(described), part.sends(described), part.new_client(described)
        label = f"{described.label} + {part.label}"
        described = Method(
            whole, composed(whole), described.kind, label, idea, paper.paper, paper.title, sends, new_client
        )
    return replace(described, name=name)


def composed(name: str) -> Callable[..., Algorithm]:
    """A function of the options of the method and its parts that builds the composition."""
    host, parts = parse_composition(name)
    builders = {host: METHODS[host].builder, **{part: PARTS[part].on for part in parts}}
    options = {each: _options(builder) for each, builder in builders.items()}
    for part in parts:
        del options[part][next(iter(options[part]))]  # the method itself
    taken = {option: parameter for each in options.values() for option, parameter in each.items()}
    owners = Counter(option for each in options.values() for option in each)
    both = sorted(option for option, count in owners.items() if count > 1)

    def build(**values: Any) -> Algorithm:
        check_known(f"option of {name}", values, taken)
        built = METHODS[host].builder(**{o: value for o, value in values.items() if o in options[host]})
        try:
            for part in parts:
                built = PARTS[part].on(built, **{o: value for o, value in values.items() if o in options[part]})
        except RecordError as error:
            raise RecordError(f"{name}: {error}") from error
        if both:
            raise RecordError(f"{name}: two of its parts have an option '{both[0]}'")
        return built

    build.__name__ = build.__qualname__ = name
    build.__doc__ = builders[(host, *parts)[-1]].__doc__
    hints = {o: hint for each in builders.values() for o, hint in _hints(each).items()}
    last = {GIVEN: taken.pop(GIVEN)} if GIVEN in taken else {}
    taken |= last
    build.__annotations__ = {option: hints[option] for option in taken if option in hints}
    build.__signature__ = inspect.Signature(list(taken.values()))  # type: ignore[attr-defined]
    return build


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    return typing.get_type_hints(function, include_extras=True)
