"""What gains say, in words, for the console and for the page."""

from collections.abc import Sequence
from math import isfinite

from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report.formats import NOTHING, apart_by, listed
from stratafl.report.gains.client_gains import ALONE
from stratafl.report.gains.gain_records import ClientGain, Gains
from stratafl.report.ranking import Rank

_OVER = {"samples": "over all test samples", "clients": "over clients"}


def signed(value: float | None, metric: Metric) -> str:
    """A difference with its sign."""
    return NOTHING if value is None or not isfinite(value) else apart_by(value, metric, "+")


def with_ends(client: ClientGain, metric: Metric) -> str:
    """A client's difference, and its interval if there is one."""
    ends = "" if client.low is None else f" ({signed(client.low, metric)} to {signed(client.high, metric)})"
    return f"{signed(client.difference, metric)}{ends}"


def unit(metric: Metric) -> str:
    turned = "" if metric.larger_is_better else ", turned so that + is better"
    return f"{metric.title}, {'percentage points' if metric.percent else 'difference'}{turned}"


def shares(all_: float, sure: float, gains: Gains) -> str:
    return f"{100 * all_:.0f} % ({100 * sure:.0f} % sure)" if gains.sure else f"{100 * all_:.0f} %"


def how_to_get(ranks: Sequence[Rank]) -> str:
    """How to see who gains, for several methods without training alone; a guarded method is no other one."""
    names = {str(rank.settings["algorithm.name"]) for rank in ranks if rank.members and not rank.is_guarded}
    if len(names) < 2 or ALONE in names:
        return ""
    return f"To see which clients gain, add {ALONE} to --algorithms: every method is then compared with it."


def mean_words(found: Gains) -> str:
    """The mean difference, which is that of the ranking; that over clients too where it points the other way."""
    mean, each = signed(found.mean, found.metric), signed(found.client_mean, found.metric)
    other = f", but over clients {each}" if {mean[0], each[0]} == {"+", "−"} else ""
    return f"the mean {_OVER[found.average]} is {mean}{' points' if found.metric.percent else ''}{other}"


def reading(found: Sequence[Gains]) -> list[str]:
    """What the numbers mean, and what they leave out, in sentences."""
    found = [each for each in found if each.clients]
    said = [f"Mean: {_OVER[each.average]}, as in the ranking." for each in found[:1]]
    once = all(len(client.seeds) == 1 for each in found for client in each.clients)
    partitions = max((each.partitions for each in found), default=1)
    if any(each.sure for each in found):
        over = "its test samples" if once else "its test samples and the seeds"
        chance = "by chance alone about 2.5 % of clients are surely better and 2.5 % surely worse"
        said.append(f"Sure: the 95 % interval of the client's difference over {over} excludes 0; {chance}.")
    if partitions > 1:
        apart = "client 0 of one is not client 0 of another: each is counted with its partition"
        said.append(f"There are {partitions} partitions, so {apart}.")
    if once and any(each.sure for each in found):
        said.append("Each client has one seed, so intervals leave out the noise of training.")
    undefined = max((each.undefined for each in found), default=0)
    if undefined:
        have = "has" if undefined == 1 else "have"
        said.append(f"{counted(undefined, 'client')} {have} no {found[0].metric.title} and {have} no difference.")
    return said


def unpaired(found: Sequence[Gains]) -> list[str]:
    """Why some methods have no differences or no intervals, each reason once."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for each in found:
        reasons.setdefault((each.alone, each.why), []).append(each.label)
    return [f"{listed(labels)} against {alone}: {why}." for (alone, why), labels in reasons.items() if why]
