"""Whether a run diverged: a few broken clients do not make it so, and many, or clients that were well before, do."""

from random import Random

import pytest

from stratafl.evaluation import flags
from stratafl.evaluation.divergence import Divergence, divergence
from stratafl.evaluation.flags import Notices
from stratafl.runs.summary import quality, selected
from stratafl.tuning.trials import why_diverged
from wording import mentions

NAN = "its upload is not finite in field 'theta'"


def line(number, lost=(), cohort=20, reason=NAN, **more):
    left_out = {"left_out": [{"client": client, "reason": reason} for client in lost], "clients": 20} if lost else {}
    return {"round": number, "cohort": cohort, "test.deployed.loss": 0.5, "train.loss": 0.5, **left_out, **more}


def test_nineteen_of_twenty_from_a_round_on():
    lines = [line(1), line(2), line(3, range(1, 20)), line(4, range(1, 20))]
    assert divergence(lines) == Divergence(19, 20, 3)
    assert divergence(lines[:2]) is None
    assert mentions(why_diverged(lines), "19 of 20", "round 3", "learning rate")


@pytest.mark.parametrize(
    ("lost", "expected"),
    [
        ([(7,)] * 3, None),  # its data may be broken
        ([(3, 5, 7, 9)] * 3, None),  # the data of four may be
        ([range(5)] * 3, Divergence(5, 20, 1)),  # a quarter of all
        ([(), (7,), (7,)], None),  # one that trained before, of twenty
        ([(), (7,), (7, 9)], Divergence(2, 20, 2)),  # a tenth that trained before
        ([(3,), (3, 7), (3, 7, 9)], Divergence(3, 20, 2)),
        ([range(20), range(20), ()], None),  # it has recovered
        ([(), (), range(20)], Divergence(20, 20, 3)),
    ],
)
def test_many_or_clients_that_trained_before(lost, expected):
    lines = [line(number + 1, clients) for number, clients in enumerate(lost)]
    assert divergence(lines) == expected


def test_clients_that_are_left_out_for_another_reason_have_not_diverged():
    assert divergence([line(1), line(2, range(19), reason="it reports 3 training samples, but holds 4")]) is None


def test_with_cohorts_of_two_the_rounds_that_asked_as_many_as_there_are_count():
    """One broken client is half of its cohort and a twentieth of all; ten diverging ones are half of all."""
    broken = [line(t, (7,) if t % 10 == 0 else (), cohort=2, clients=20) for t in range(1, 41)]
    assert divergence(broken) is None
    diverging = [line(t, (t % 10,) if t > 20 else (), cohort=2, clients=20) for t in range(1, 41)]
    assert divergence(diverging) == Divergence(10, 20, 25)


@pytest.mark.parametrize("share", [0.1, 0.3, 0.5])
def test_a_client_with_broken_data_that_is_not_always_asked_has_not_diverged(share):
    """Many stretches of rounds do not ask it at all, but it never trained well."""
    draw = Random(0)
    cohorts = [draw.sample(range(10), round(10 * share)) for _ in range(60)]
    lines = [line(t + 1, [7] * (7 in ids), cohort=len(ids), clients=10) for t, ids in enumerate(cohorts)]
    assert all(divergence(lines[: end + 1]) is None for end in range(len(lines)))
    later = [line(t + 1, [7] * (7 in ids and t > 45), cohort=len(ids), clients=10) for t, ids in enumerate(cohorts)]
    assert any(divergence(later[: end + 1]) for end in range(46, len(lines)))  # it trained well for many rounds


def test_of_some_clients_that_are_evaluated_those_count():
    """Five of a hundred clients are evaluated and all are broken: that is not five of a hundred."""
    place = "validation.deployed"
    scores = {f"{place}.accuracy": 0.1, f"{place}.loss": 2.3, "clients": 100, "evaluated.clients": 5}
    lines = [line(t, **scores, **{f"{place}.not_finite": 5}) for t in (1, 2)]
    assert divergence(lines) == Divergence(5, 5, 1)
    assert quality(lines[-1], place) == -float("inf")
    assert divergence([line(t, **scores, **{f"{place}.not_finite": 1}) for t in (1, 2)]) is None


def test_models_that_are_not_finite_count_like_uploads():
    def ended(*counts):
        return [line(t + 1, **{"test.deployed.not_finite": n, "clients": 12}) for t, n in enumerate(counts)]

    assert divergence(ended(1, 1, 1)) is None
    assert divergence(ended(0, 0, 2)) == Divergence(2, 12, 3)
    assert divergence(ended(12, 12)) == Divergence(12, 12, 1)
    assert divergence(ended(12, 0)) is None


def test_that_a_run_diverges_is_said_once_and_its_clients_are_not_named():
    lines = [line(1), line(2, range(1, 20)), line(3, range(20)), line(4, range(20))]
    (said,) = Notices().of(lines)
    assert mentions(said, "19 of 20", "round 2", "learning rate")
    few = list(Notices().of([line(1, (7,)), line(2, (7,))]))
    assert len(few) == 1
    assert mentions(few[0], "client 7", NAN)
    (model,) = Notices().of([line(t, **{"test.deployed.not_finite": 1, "clients": 12}) for t in (1, 2)])
    assert mentions(model, "round 1", "1 client")


def test_a_sound_round_does_not_look_through_all_rounds_before(monkeypatch):
    """A run of thousands of rounds would otherwise spend minutes on them."""
    looked = []
    monkeypatch.setattr(flags, "divergence", lambda lines: looked.append(len(lines)))
    list(Notices().of([line(t, (7,) if t == 30 else ()) for t in range(1, 51)]))
    assert looked == [30]


def test_a_round_with_sound_models_is_selected_before_one_without():
    """Guessing may be better than a round at the beginning, but a model that is not finite can be used by nobody."""
    place = "validation.deployed"
    sound = {"round": 1, f"{place}.accuracy": 0.05, f"{place}.loss": 9.0}
    broken = {"round": 2, f"{place}.accuracy": 0.1, f"{place}.loss": 2.3, f"{place}.not_finite": 11, "clients": 20}
    assert selected([sound, broken])["round"] == 1
    assert quality(broken, place) == -float("inf")
    assert selected([sound, {**broken, f"{place}.not_finite": 1}])["round"] == 2
