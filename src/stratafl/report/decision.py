"""The decision that a study supports, in plain words: what to use and why, who gains, how sure."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from stratafl.algorithms.methods import KINDS, METHODS
from stratafl.core.reprs import short_repr
from stratafl.errors import counted
from stratafl.evaluation.metrics import Metric
from stratafl.report.bootstrap import ALPHA
from stratafl.report.chance import NoChoice, common_folder, how_to_rank
from stratafl.report.doubts import doubts, of_learning
from stratafl.report.formats import apart_by, listed, score, size
from stratafl.report.gains import ALONE, ClientGain, Gains
from stratafl.report.gains.words import mean_words
from stratafl.report.outcome import OF_ANSWERS
from stratafl.report.paired import Paired
from stratafl.report.ranking import Rank, winner
from stratafl.report.study import Study

POINT = 0.01  # methods that differ by less, and that cannot be told apart, are equally good
MOST = 4  # doubts in a decision; the notes have all of them


@short_repr
@dataclass(frozen=True)
class Decision:
    """What to use (None if nothing can be recommended), as a headline and answers by question; doubts come first."""

    use: Rank | None
    headline: str
    answers: tuple[tuple[str, str], ...] = ()
    cautions: tuple[str, ...] = ()


def decision(study: Study) -> Decision:
    if not study.ranks:
        return Decision(None, "This report has verdicts but no runs.")
    found = [said for said in doubts(study) if study.no_choice is None or said not in of_learning(study)]
    more = len(found) - MOST
    said = (*found[:MOST], *((f"{counted(more, 'more note')} under Ranking.",) if more > 0 else ()))
    rivals = [rank for rank in study.ranks if not rank.leaks and "score" in rank.numbers]
    first = winner(study.ranks)
    if first is None:
        return Decision(None, "No method can be recommended: no run has a result that can be ranked.", (), said)
    if study.no_choice is not None:
        return _by_probabilities(study.no_choice, study, said)
    unsure = study.chance.unsure if study.chance else frozenset[str]()
    learned = [rank for rank in rivals if not rank.one_answer and rank.label not in unsure]
    compared = study.pairs
    best = learned[0]
    ahead = rivals[: rivals.index(best)]  # their answers show nothing
    use = _to_use(best, learned, compared)
    others = [rank for rank in rivals if rank is not use]
    answers = (
        ("Why", _why(use, best, ahead, others, study)),
        ("Who gains", _gains(use, study)),
        ("How sure", _sure(use, others, compared)),
        ("What would change it", _change(use, others, compared)),
    )
    return Decision(
        use, _headline(use, first, others, compared), tuple((title, text) for title, text in answers if text), said
    )


def _by_probabilities(found: NoChoice, study: Study, cautions: tuple[str, ...]) -> Decision:
    """No recommendation, because the scores are chance: what the probabilities of the same runs show instead."""
    metric, shown = study.measured, found.shown
    why = f"{found.why[0].upper()}{found.why[1:]}."
    if metric.name not in OF_ANSWERS or (shown is not None and shown.at_chance):
        said = shown.sentences if shown else []
        return Decision(
            None, "Use none of these models: they are not better than chance.", _answers(why, said), cautions
        )
    if shown is None:
        again = "These runs have no stored predictions that show more. Compare again with --metric auroc."
        headline = f"Use none of these models: their {metric.title} shows nothing."
        return Decision(None, headline, _answers(why, [again]), cautions)
    folders = common_folder([one.folder for one in study.outcomes])
    answers = (*_answers(why, shown.sentences), ("What to do", how_to_rank(folders, metric)))
    but = "the answers of these models show nothing" if found.all_at_chance else "the probabilities say otherwise"
    return Decision(None, f"Do not choose by {metric.title}: {but}.", answers, cautions)


def _answers(why: str, shown: Sequence[str]) -> tuple[tuple[str, str], ...]:
    return ("Why", why), *((("What the probabilities show", " ".join(shown)),) if shown else ())


def _to_use(best: Rank, rivals: Sequence[Rank], pairs: Sequence[Paired]) -> Rank:
    """The best, or the one that costs least among those that are as good as it and cost less."""
    cheaper = [rank for rank in rivals if _cost(rank) < _cost(best) < (inf,) and _as_good(rank, best, pairs)]
    return min([best, *cheaper], key=_cost)


def _as_good(rank: Rank, first: Rank, pairs: Sequence[Paired]) -> bool:
    """Whether they differ by less than a point, or a hundredth of the score, and it cannot be told that they differ."""
    own, best = rank.numbers["score"].mean, first.numbers["score"].mean
    metric = first.members[0].metric
    near = abs(own - best) < POINT * (1 if metric.percent else abs(best))
    found = _between(rank, first, pairs)
    return near and (found is None or found.verdict == "unclear")


def _cost(rank: Rank) -> tuple[float, bool]:
    """What it sends; at the same bytes the guard costs local training besides."""
    return _bytes(rank), rank.is_guarded


def _bytes(rank: Rank) -> float:
    return rank.numbers["bytes"].mean if "bytes" in rank.numbers else inf


def _between(rank: Rank, other: Rank, compared: Sequence[Paired]) -> Paired | None:
    """The comparison of two methods, whichever comes first in it."""
    return next((pair for pair in compared if {pair.first, pair.second} == {rank.label, other.label}), None)


def _headline(use: Rank, first: Rank, others: Sequence[Rank], compared: Sequence[Paired]) -> str:
    """What to use; that its lead may be chance, whichever method leads."""
    if not others:
        return _alone(use)
    name, next_ = str(use.settings["algorithm.name"]), _between(use, others[0], compared)
    chance = " Its lead may be chance." if use is first and (next_ is None or next_.verdict == "unclear") else ""
    if name == ALONE:
        found = [_between(use, rank, compared) for rank in others]
        sure = all(pair is not None and _seen_from(use, pair) == "better" for pair in found)
        what = "every federated method here is worse" if sure else "no federated method here is clearly better"
        return f"Train every client alone ({use.label}): {what}.{chance}"
    known = METHODS.get(name)
    what = f": {KINDS[known.kind]}" if known and known.kind != "controls" else ""
    return f"Use {use.label}{what}.{chance}"


def _alone(use: Rank) -> str:
    return f"There is nothing to choose from: {use.label} is the only method."


def _why(use: Rank, best: Rank, ahead: Sequence[Rank], others: Sequence[Rank], study: Study) -> str:
    """The scores of what to use and of those `ahead` of the best, whose answers show nothing; what it sends."""
    metric = study.measured
    reached, top = (score(rank.numbers["score"].mean, metric) for rank in (use, best))
    if not others:
        return f"It reaches a test {metric.title} of {reached}."
    said = _not_chosen(ahead, metric)
    behind = [rank for rank in others if rank not in ahead]
    if use is not best:
        said.append(
            f"{'Of the others, ' if ahead else ''}{best.label} has the best test {metric.title} ({top}), but that "
            f"cannot be told from the {reached} of {use.label}, which {_saves(use, best)}."
        )
        return " ".join(said)
    said.append(f"It has the best test {metric.title}{' of the others' if ahead else ''}: {reached}.")
    said += [f"{rank.label} follows with {score(rank.numbers['score'].mean, metric)}." for rank in behind[:1]]
    if _bytes(use) < inf:
        cost = f"All clients together send and receive {size(_bytes(use))}." if _bytes(use) else "It sends nothing."
        said.append(cost)
    return " ".join(said)


def _saves(use: Rank, best: Rank) -> str:
    if _bytes(use) == _bytes(best):
        return "sends as much and needs no guard"
    return f"sends less: {size(_bytes(use))} against {size(_bytes(best))} in all"


def _not_chosen(ahead: Sequence[Rank], metric: Metric) -> list[str]:
    """Why methods that are ahead in the ranking are not considered."""
    named = [f"{rank.label} ({score(rank.numbers['score'].mean, metric)})" for rank in ahead]
    verb = "comes" if len(ahead) == 1 else "come"
    why = "cannot be told from always giving the most frequent class"
    return [f"{listed(named, 3)} {verb} first in the ranking, but {why}."] if ahead else []


def _gains(use: Rank, study: Study) -> str:
    """Which clients are better off than alone, by name; if alone is best, what the next method would do for them."""
    alone = str(use.settings["algorithm.name"]) == ALONE
    found = next((each for each in study.gains if alone or each.label == use.label), None)
    if found is None:
        return "" if alone else f"Unknown, because no run trains every client alone. Add {ALONE} to the methods."
    if not found.clients:
        return f"Unknown: {found.why}."
    said = _counts(found, f"With {found.label}, compared with" if alone else "Compared with")
    return " ".join([*said, *([] if alone else _joining(use, study))])


def _counts(found: Gains, start: str) -> list[str]:
    """How many clients surely gain and lose, with their names and what chance gives; then all."""
    better = [each for each in found.clients if each.difference > 0]
    worse = sorted((each for each in found.clients if each.difference < 0), key=lambda each: each.difference)
    total = counted(len(found.clients), "client")
    several = f" in {found.partitions} partitions" if found.partitions > 1 else ""
    scores = f"{len(better)} score better and {len(worse)} worse, and {mean_words(found)}"
    if not found.sure:
        named = f" Lower scores: {_named(worse, found)}." if worse else ""
        return [f"{start} training alone, of {total}{several} {scores}; which of these are chance is unknown.{named}"]
    sure = {word: [each for each in found.clients if each.verdict == word] for word in ("gains", "loses")}
    gain = sorted(sure["gains"], key=lambda each: -each.difference)
    loss = sorted(sure["loses"], key=lambda each: each.difference)
    gaining = f"{len(gain) or 'none'} of {total}{several} surely {'gain' if len(gain) > 1 else 'gains'}"
    winners = f": {_named(gain, found)};" if gain else " and"
    losing = f"{len(loss)} {'lose' if len(loss) > 1 else 'loses'}: {_named(loss, found)}" if loss else "none loses"
    said = f"{start} training alone, {gaining}{winners} {losing}."
    return [said, *([_by_chance(found)] if gain or loss else []), f"In all, {scores}."]


def _by_chance(found: Gains) -> str:
    """How many clients would seem to gain, and as many to lose, if none did: intervals are of one client alone."""
    many = round(ALPHA / 2 * sum(each.low is not None for each in found.clients))
    return f"By chance alone {f'about {many}' if many else 'fewer than one'} would gain, and as many lose."


def _named(clients: Sequence[ClientGain], found: Gains) -> str:
    named = [f"{found.client_label(each)} ({apart_by(each.difference, found.metric, '+')})" for each in clients]
    return listed(named, 4)


def _joining(use: Rank, study: Study) -> list[str]:
    new = use.numbers.get("new_trained")
    reached = score(new.mean, study.measured) if new else ""
    return [f"Clients that join later reach {reached} after one round of training."] if new else []


def _sure(use: Rank, others: Sequence[Rank], compared: Sequence[Paired]) -> str:
    """What the paired comparisons say of the method against each of the others."""
    found = [(rank.label, _between(use, rank, compared)) for rank in others]
    known = [(label, pair, _seen_from(use, pair)) for label, pair in found if pair is not None and pair.seeds]
    if not known:
        return "Unknown: the methods have no seed in common." if others else ""
    judged = {
        word: [label for label, _, verdict in known if verdict == word] for word in ("better", "unclear", "worse")
    }
    said = []
    if judged["better"]:
        every = len(judged["better"]) == len(others) > 1
        said.append(f"It is better than {'all the others' if every else listed(judged['better'], 6)}, beyond chance.")
    said += [f"It cannot be told from {listed(judged['unclear'], 6)}."] if judged["unclear"] else []
    said += [f"It is worse than {listed(judged['worse'], 6)}, beyond chance."] if judged["worse"] else []
    seeds, clients = (max(getattr(pair, name) for _, pair, _ in known) for name in ("seeds", "clients"))
    basis = f"This rests on {counted(seeds, 'seed')} and {counted(clients, 'client')}"
    here = all(pair.about_these_clients for _, pair, _ in known)
    whom = " and is about these clients, not about others" if here else ""
    return " ".join([*said, f"{basis}{whom}{'; other seeds may differ' if seeds == 1 else ''}."])


def _seen_from(use: Rank, pair: Paired) -> str:
    turned = {"better": "worse", "worse": "better"}
    return pair.verdict if pair.first == use.label else turned.get(pair.verdict, pair.verdict)


def _change(use: Rank, others: Sequence[Rank], compared: Sequence[Paired]) -> str:
    """How many more seeds would tell the method from training alone, or else from the next that is unclear."""
    ordered = sorted(others, key=lambda rank: str(rank.settings["algorithm.name"]) != ALONE)
    found = [(rank.label, _between(use, rank, compared)) for rank in ordered]
    open_ = [(label, pair) for label, pair in found if pair is not None and pair.seeds and pair.verdict == "unclear"]
    if not open_:
        return ""
    label, pair = open_[0]
    if pair.seeds == 1:
        return f"More seeds may tell it from {label}: repeat with --seeds 3."
    if pair.limited:
        why = (
            "test samples are too few; more test samples might"
            if pair.about_these_clients
            else "clients differ too much; more clients might"
        )
        return f"More seeds may not tell it from {label}, because {why}."
    if pair.difference.low == pair.difference.high:
        return f"Nothing tells it from {label} here: all their scores differ by the same amount."
    if pair.more_seeds is None:
        return f"Only far more seeds than are sensible would tell it from {label}: the difference is too small."
    return (
        f"About {counted(pair.more_seeds, 'more seed')} would tell it from {label}, if the difference stays as it is."
    )
