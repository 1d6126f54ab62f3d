"""Compositions: FLAYER's parts, LAG, compression or a robust merge on a method, by a name such as `fedper+flayer`.

A composition takes the options of the method and those of the part. The parts are functions from record to record, of
use without a name: `with_flayer(my_method())`. They refuse what makes no sense and say why.
"""

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from stratafl.algorithms.compress_on import describe_compression, with_q4, with_q8, with_topk
from stratafl.algorithms.declaration import GIVEN, METHODS, Method
from stratafl.algorithms.flayer_on import acting, with_flayer
from stratafl.algorithms.lag_on import with_lag
from stratafl.core.algorithm import Algorithm
from stratafl.core.annotations import Fixed
from stratafl.core.fields import Start
from stratafl.core.layers import Select, select
from stratafl.core.layerwise import Layerwise
from stratafl.core.records import validated
from stratafl.errors import RecordError, check_known, unknown
from stratafl.policies.krum import Keep, Wrong
from stratafl.policies.merge import Mean, Positive
from stratafl.policies.private import Delta, Noise, PrivateMean
from stratafl.policies.robust import Factor, Share, robust

PLUS = "+"
SAFE = Fixed("protection from faulty clients: with honest ones a tuner would switch it off")
PROMISED = Fixed("the promised privacy: a tuner would give it up, and each of its runs costs privacy")


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


@validated
def with_private(
    host: Algorithm,
    *,
    norm: Annotated[Positive, PROMISED] = 1.0,
    noise: Annotated[Noise, PROMISED] = 1.0,
    dp_delta: Annotated[Delta, PROMISED] = 1e-5,
) -> Algorithm:
    """Updates are at most `norm` long, every client counts once, and the sum gets noise of `noise` times `norm`."""
    if not isinstance(host, Layerwise):
        raise RecordError(
            "a private mean needs a method of one phase whose rounds share only a model: choose another method"
        )
    mean = host.merge[0] if len(host.merge) == 1 else None
    if type(mean) is not Mean:
        steps = ", ".join(type(step).__name__ for step in host.merge) or "nothing"
        raise RecordError(
            f"a private mean replaces one plain mean (Mean), but this method merges by {steps}, which adds no noise: "
            "choose a method such as fedavg, fedper or fedrep"
        )
    if not _is_model(host, mean.field):
        raise RecordError(f"a private mean averages a model, but '{mean.field}' is not one: choose another method")
    if mean.unsent != "held" or mean.clip is not None:
        raise RecordError(
            "a private mean clips updates itself and counts unsent columns as unchanged: leave out clip and unsent"
        )
    private = PrivateMean(mean.field, clip=norm, noise=noise, delta=dp_delta, layers=_sent(host, mean.field))
    return replace(host, merge=(private,))


def _is_model(host: Layerwise, field: str) -> bool:
    """Whether the server keeps one model for all clients, which this mean writes."""
    spec = host.server_fields[field]
    return isinstance(spec, Start) and not spec.per_client and spec.copies is None


def _sent(host: Layerwise, field: str) -> Select:
    """The layers that clients send."""
    layers = [getattr(step, "layers", None) for step in host.send if f"up.{field}" in step.writes]
    return layers[0] if len(layers) == 1 and isinstance(layers[0], Select) else select("all")


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


def parse_composition(name: str) -> tuple[str, str]:
    """The method and the part; names that do not exist are refused with the nearest match."""
    host, _, part = (each.strip() for each in name.partition(PLUS))
    if not host or not part:
        raise RecordError(f"'{name}' is incomplete: write a method and a part, such as fedper+flayer")
    if host not in METHODS:
        raise unknown("algorithm", host, sorted(METHODS))
    if part not in PARTS:
        if PLUS in part:
            raise RecordError(f"'{name}' adds several parts: write one method and one of {', '.join(PARTS)}")
        raise unknown(f"part of '{name}'", part, PARTS)
    return host, part


def composition(name: str) -> Method:
    """A composition as the catalogue describes methods; refused with the reason if it makes no sense."""
    host_name, part_name = parse_composition(name)
    host, part, built = METHODS[host_name], PARTS[part_name], composed(name)
    built()  # or it is refused
    paper = host if part.method is None else METHODS[part.method]
    idea, sends, label = part.idea(host), part.sends(host), f"{host.label} + {part.label}"
    return Method(name, built, host.kind, label, idea, paper.paper, paper.title, sends, host.new_client)


def composed(name: str) -> Callable[..., Algorithm]:
    """A function of the options of both that builds the composition."""
    host_name, part_name = parse_composition(name)
    host, part = METHODS[host_name].builder, PARTS[part_name].on
    host_options, part_options = (_options(each) for each in (host, part))
    del part_options[next(iter(part_options))]  # the method itself

    def build(**options: Any) -> Algorithm:
        check_known(f"option of {name}", options, {**host_options, **part_options})
        built = host(**{option: value for option, value in options.items() if option in host_options})
        try:
            combination = part(built, **{o: value for o, value in options.items() if o not in host_options})
        except RecordError as error:
            raise RecordError(f"{name}: {error}") from error
        if both := host_options.keys() & part_options.keys():
            raise RecordError(f"{name}: the method and the part both have an option '{min(both)}'")
        return combination

    build.__name__ = build.__qualname__ = name
    build.__doc__ = part.__doc__
    hints = {**typing.get_type_hints(host, include_extras=True), **typing.get_type_hints(part, include_extras=True)}
    taken = {**host_options, **part_options, **({GIVEN: host_options[GIVEN]} if GIVEN in host_options else {})}
    build.__annotations__ = {option: hints[option] for option in taken if option in hints}
    build.__signature__ = inspect.Signature([taken[option] for option in taken])  # type: ignore[attr-defined]
    return build


def _options(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(function).parameters)
