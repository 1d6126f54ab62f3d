"""Gains in words, for the console and for the page."""

from collections.abc import Sequence
from math import isfinite

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report import sentences as say
from stratafl.report.formats import NO_VALUE, apart_by
from stratafl.report.gains.client_gains import TRAINS_ALONE
from stratafl.report.gains.gain_records import ClientGain, Gains, Outlook
from stratafl.report.ranking import Rank
from stratafl.report.sentences import Finding, finding

AVERAGES = {"samples": "over all test samples", "clients": "over clients"}


def signed(value: float | None, metric: Metric) -> str:
    """A difference with its sign."""
    return NO_VALUE if value is None or not isfinite(value) else apart_by(value, metric, "+")


def with_ends(client: ClientGain, metric: Metric) -> str:
    """A client's difference, and its interval if there is one."""
    ends = "" if client.low is None else f" ({signed(client.low, metric)} to {signed(client.high, metric)})"
    return f"{signed(client.difference, metric)}{ends}"


def gain_unit(metric: Metric) -> str:
    turned = "" if metric.larger_is_better else ", with signs such that + is better"
    return f"{metric.title}, {'percentage points' if metric.percent else 'difference'}{turned}"


def share_text(everyone: float, outlook: Outlook, gains: Gains) -> str:
    """The share of clients, and of those that are sure, if they are more than chance gives."""
    sure = len(gains.surely(outlook)) / len(gains.clients)
    return f"{100 * everyone:.0f} % ({100 * sure:.0f} % sure)" if sure else f"{100 * everyone:.0f} %"


def mean_text(gains: Gains) -> str:
    """The mean difference, which is that of the ranking; that over clients too where it points the other way."""
    mean, over_clients = signed(gains.mean, gains.metric), signed(gains.client_mean, gains.metric)
    unit = " points" if gains.metric.percent else ""
    opposed = f", but over clients {over_clients}" if {mean[0], over_clients[0]} == {"+", "−"} else ""
    return f"The mean {AVERAGES[gains.average]} is {mean}{unit}{opposed}"


def how_to_see_gains(ranks: Sequence[Rank]) -> list[Finding]:
    """How to see who gains, for several methods without training alone; a guarded method is no other one."""
    names = {rank.method for rank in ranks if rank.members and not rank.is_guarded}
    return [finding(say.ADD_LOCAL, local=TRAINS_ALONE)] if len(names) > 1 and TRAINS_ALONE not in names else []


def reading(all_gains: Sequence[Gains]) -> list[Finding]:
    """What the numbers mean, and what they leave out."""
    shown = [gains for gains in all_gains if gains.clients]
    if not shown:
        return []
    is_once = all(len(client.seeds) == 1 for gains in shown for client in gains.clients)
    is_sure = any(gains.surely("gains") or gains.surely("loses") for gains in shown)
    partitions, undefined = max(gains.partitions for gains in shown), max(gains.undefined for gains in shown)
    noise = "its test samples" if is_once else "its test samples and the seeds"
    notes = [
        (True, finding(say.MEAN_OVER, average=AVERAGES[shown[0].average])),
        (is_sure, finding(say.SURE_MEANS, noise=noise)),
        (partitions > 1, finding(say.PARTITIONS, partitions=partitions)),
        (is_once and is_sure, finding(say.ONE_SEED_EACH)),
        (undefined, finding(say.UNDEFINED, metric=shown[0].metric.title, clients=counted(undefined, "client"))),
    ]
    return [note for applies, note in notes if applies]


def unpaired(all_gains: Sequence[Gains]) -> list[Finding]:
    """Why some methods have no differences or no intervals, each reason once."""
    methods: dict[tuple[str, str], list[str]] = {}
    for gains in all_gains:
        methods.setdefault((gains.alone, gains.why), []).append(gains.label)
    reasons = {key: labels for key, labels in methods.items() if key[1]}
    return [finding(say.UNPAIRED, methods=m, alone=alone, reason=why) for (alone, why), m in reasons.items()]
