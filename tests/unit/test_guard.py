"""The guard's statistics against numbers worked out by hand, and its edges."""

from dataclasses import replace
from math import inf, isclose, sqrt
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import Tensor

from simulations import finished
from stratafl.config.setting_tables import EvaluateTable
from stratafl.errors import DataError, UnknownNameError
from stratafl.evaluation import guard
from stratafl.evaluation.candidates import GuardCandidates
from stratafl.evaluation.guard import (
    Gain,
    between_variance,
    calibrated,
    choose,
    placements,
    shrink,
    shrunk_gains,
    utility,
)
from stratafl.evaluation.metrics import METRICS, named_metric
from stratafl.evaluation.predictions import Predictions
from stratafl.evaluation.trial import RoundLines, Trial
from stratafl.execute import Progress
from stratafl.runs.guard_files import run_to_end, train_alone

F64 = torch.float64


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def sure(client: list[int], correct: list[bool]) -> Predictions:
    """Predictions of class 0 or 1 without a doubt, of samples that are all of class 0."""
    wrong = torch.tensor([not each for each in correct], dtype=torch.int64)
    scores = torch.nn.functional.one_hot(wrong, 2).float()
    return Predictions(torch.tensor(client), torch.zeros(len(client), dtype=torch.int64), scores)


def test_shrinkage_of_two_clients_by_hand() -> None:
    """The variance of 0.4 and 0 is 0.08, so τ² = 0.08 − 0.01 = 0.07 and b = 0.07 / 0.08 = 0.875."""
    mean, error = tensor(0.4, 0.0), tensor(0.1, 0.1)
    assert isclose(between_variance(mean, error.square()), 0.07)
    shrunk, shrunk_error = shrink(mean, error)
    assert torch.allclose(shrunk, tensor(0.375, 0.025))  # 0.2 ± 0.875 · 0.2
    assert torch.allclose(shrunk_error, tensor(*[sqrt(0.875 * 0.01 + 0.125**2 / 25)] * 2))  # Σ v = 2 / 0.08


def test_shrinkage_with_unequal_errors_by_hand() -> None:
    """The variance ½ is below the mean of ¼ and 1, so τ² = 0: all have the mean by weights 4 and 1, of variance 1/5."""
    shrunk, shrunk_error = shrink(tensor(1.0, 0.0), tensor(0.5, 1.0))
    assert torch.allclose(shrunk, tensor(0.8, 0.8))
    assert torch.allclose(shrunk_error, tensor(sqrt(0.2), sqrt(0.2)))


def test_the_spread_of_clients_with_unequal_errors_by_hand() -> None:
    """The variance of 2, 0 and 1 is 1, and the mean of 0.04, 0.01 and 0.25 is 0.1."""
    assert isclose(between_variance(tensor(2, 0, 1), tensor(0.04, 0.01, 0.25)), 0.9)


def test_clients_with_little_data_are_shrunk_most() -> None:
    mean = tensor(0.5, 0.5, -0.1, -0.1)
    shrunk, _ = shrink(mean, tensor(0.05, 0.3, 0.05, 0.05))
    assert shrunk[0] > shrunk[1] > 0.1
    assert shrunk[2] == shrunk[3] < 0


def test_standard_errors_by_hand() -> None:
    """d = 1, 0, 1, 1 of client 5 and 0, 0 of client 7: s² = 0.75 / 4; the sums of squares are 0.75 and 0."""
    gains = shrunk_gains(tensor(1, 0, 1, 0, 1, 0), torch.tensor([5, 5, 5, 7, 5, 7]), [5, 7])
    assert (gains[0].mean, gains[1].mean) == (0.75, 0.0)
    assert gains[0].error is not None
    assert isclose(gains[0].error, sqrt((4 * 0.1875 + 0.75) / 7 / 4))
    assert gains[1].error is not None
    assert isclose(gains[1].error, sqrt(4 * 0.1875 / 5 / 2))


def test_a_variance_of_zero_is_not_believed() -> None:
    """Every sample of every client is better: the variance is at least the mean square over the number of samples."""
    gains = shrunk_gains(tensor(1, 1, 1, 1), torch.tensor([0, 0, 1, 1]), [0, 1])
    assert gains[0].error is not None
    assert isclose(gains[0].error, sqrt(4 * 0.25 / 5 / 2))


def test_one_client_is_its_own_federation() -> None:
    (gain,) = shrunk_gains(tensor(1, 1, 1, 0), torch.zeros(4, dtype=torch.int64), [0])
    assert gain.mean == 0.75
    assert gain.error is not None
    assert gain.shrunk is not None
    assert isclose(gain.shrunk, 0.75)
    assert gain.shrunk_error is not None
    assert isclose(gain.shrunk_error, gain.error)


def test_a_client_without_samples_gets_the_mean_of_the_federation() -> None:
    gains = shrunk_gains(tensor(1, 0, 1, 1), torch.tensor([0, 0, 1, 1]), [0, 1, 2])
    assert (gains[2].mean, gains[2].error) == (None, None)
    assert gains[2].shrunk is not None
    assert 0.5 < gains[2].shrunk < 1


def test_effect_sizes_are_shrunk_by_hand() -> None:
    """d = 1, 3 of client 0 and −2, 10 of client 1: s² = (2 + 72) / 2, and their own s² = (4·37 + 2 or 72) / 5.

    z = 2 / √30 and 4 / √44, of variance 1/2 each; they differ by less than that, so τ² = 0 and both are shrunk to their
    mean, of variance 1/4.
    """
    gains = shrunk_gains(tensor(1, 3, -2, 10), torch.tensor([0, 0, 1, 1]), [0, 1])
    first, second = sqrt(30), sqrt(44)
    effect = (2 / first + 4 / second) / 2
    for gain, deviation in zip(gains, (first, second), strict=True):
        assert gain.error == pytest.approx(deviation / sqrt(2))
        assert gain.shrunk == pytest.approx(deviation * effect)
        assert gain.shrunk_error == pytest.approx(deviation / 2)


def test_clients_whose_models_hardly_differ_do_not_hide_the_gain_of_the_others() -> None:
    """Ten clients gain 0.2 ± 0.13 each; for twenty others both models give the same, so their errors are small."""
    generator = torch.Generator().manual_seed(0)
    some = 0.2 + 0.4 * torch.randn(100, generator=generator, dtype=F64)
    none = 0.001 * torch.randn(200, generator=generator, dtype=F64)
    gains = shrunk_gains(torch.cat([some, none]), torch.arange(30).repeat_interleave(10), range(30))
    assert all(each.convincing for each in gains[:10])
    assert min(each.shrunk or 0 for each in gains[:10]) > 0.04


@pytest.mark.parametrize("gain", [-0.01, 0.01])
def test_one_client_with_many_samples_that_agree_does_not_decide_how_much_all_differ(gain: float) -> None:
    """19 clients of 20 samples lose 0.05 ± 0.07 each; one has 1,000 samples with hardly any variance."""
    generator, taken = torch.Generator().manual_seed(0), 0
    client = torch.cat([torch.arange(19).repeat_interleave(20), torch.full((1000,), 19)])
    for _ in range(100):
        some = -0.05 + 0.3 * torch.randn(380, generator=generator, dtype=F64)
        many = gain + 0.001 * torch.randn(1000, generator=generator, dtype=F64)
        taken += sum(each.convincing for each in shrunk_gains(torch.cat([some, many]), client, range(20))[:19])
    assert taken / 1900 < 0.03  # by precision it was 0.035 and 0.044


@pytest.mark.parametrize("client", [[], [3]])
def test_without_a_variance_everybody_is_safe(client: list[int]) -> None:
    """No sample at all, or one: nobody can tell."""
    found = choose(
        {"tuned": sure(client, [True] * len(client)), "local": sure(client, [False] * len(client))}, clients=[3]
    )
    assert found[3].candidate == "local"
    assert found[3].samples == len(client)
    assert found[3].gains["tuned"].shrunk is None


def test_equal_candidates_are_not_better() -> None:
    same = sure([0, 0, 1, 1], [True, False, True, True])
    found = choose({"received": same, "tuned": same, "local": same})
    assert [each.candidate for each in found.values()] == ["local", "local"]
    assert found[0].gains["tuned"] == Gain(0.0, 0.0, 0.0, found[0].gains["tuned"].shrunk_error)
    assert found[0].gain == Gain(0.0, 0.0, 0.0, 0.0)


def test_the_safe_choice_alone() -> None:
    found = choose({"local": sure([4, 4], [True, False])})
    assert (found[4].candidate, found[4].samples, dict(found[4].gains)) == ("local", 2, {})


def test_every_client_takes_what_is_best_for_it() -> None:
    """Ten samples each: candidate `a` is right for client 0 alone, `b` for client 1 alone, none for client 2."""
    client = [i for i in range(3) for _ in range(10)]
    right = {name: [each == i for each in client] for i, name in enumerate(("a", "b"))}
    base = sure(client, [each == 2 or at % 10 < 3 for at, each in enumerate(client)])
    found = choose({name: sure(client, hits) for name, hits in right.items()} | {guard.SAFE: base})
    assert {i: choice.candidate for i, choice in found.items()} == {0: "a", 1: "b", 2: guard.SAFE}
    assert found[0].gain.convincing


def with_client(predictions: Predictions, client: int, scores: list[list[float]], y: list[int]) -> Predictions:
    more = torch.tensor(scores, dtype=torch.float32)
    clients = torch.cat([predictions.client, torch.full((len(y),), client)])
    return Predictions(clients, torch.cat([predictions.y, torch.tensor(y)]), torch.cat([predictions.scores, more]))


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "log_loss", "auroc"])
def test_a_client_whose_models_are_not_finite_changes_nothing_for_the_others(metric: str) -> None:
    random = torch.Generator().manual_seed(0)
    client, y = torch.arange(5).repeat_interleave(12), torch.arange(60) % 2
    noise = torch.rand(2, 60, generator=random)
    right = torch.nn.functional.one_hot(y, 2)[:, 1]
    first, second = (share * right + (1 - share) * noise[at] for at, share in enumerate((0.1, 0.6)))
    alone, better = (Predictions(client, y, torch.stack([1 - each, each], 1)) for each in (first, second))
    nan, sound = [[torch.nan] * 2] * 8, [[0.5, 0.5]] * 8
    labels = [0] * 7 + [1]
    expected = choose({"local": alone, "received": better}, METRICS[metric])
    for scores in ((nan, nan), (nan, sound), (sound, nan)):
        both = {
            "local": with_client(alone, 9, scores[0], labels),
            "received": with_client(better, 9, scores[1], labels),
        }
        choices = choose(both, METRICS[metric])
        assert {each: choices[each] for each in expected} == expected
        assert choices[9].candidate == ("received" if scores == (nan, sound) else "local")


def test_a_client_takes_no_model_that_is_not_finite_though_all_others_gain_by_it() -> None:
    client = [0] * 9 + [1] * 9
    alone, better = sure(client, ([True] * 2 + [False]) * 6), sure(client, [True] * 17 + [False])
    nan, sound = [[torch.nan] * 2] * 3, [[1.0, 0.0]] * 3
    candidates = {"local": with_client(alone, 2, sound, [0] * 3), "received": with_client(better, 2, nan, [0] * 3)}
    assert [each.candidate for each in choose(candidates).values()] == ["received", "received", "local"]


def test_a_small_common_gain_convinces_a_client_that_could_not_tell_alone() -> None:
    """Each of 40 clients has five samples, one better in every other client: 0.1 in the mean, and τ² = 0."""
    client = [i for i in range(40) for _ in range(5)]
    base = [at % 5 > 1 for at in range(200)]
    better = [hit or (at % 10 == 0) for at, hit in enumerate(base)]
    found = choose({"tuned": sure(client, better), "local": sure(client, base)})
    assert {choice.candidate for choice in found.values()} == {"tuned"}
    alone = choose({"tuned": sure(client[:5], better[:5]), "local": sure(client[:5], base[:5])})
    assert alone[0].candidate == "local"


def test_utility_is_a_brier_score_of_calibrated_probabilities() -> None:
    """Three of four are right at 90 %: with β = ½ it is 75 %, since the odds are 9 and 3, so (1 − p)² = 0.0625."""
    scores = torch.tensor([[0.9, 0.1]]).repeat(4, 1)
    y = torch.tensor([0, 0, 0, 1])
    given = Predictions(torch.zeros(4, dtype=torch.int64), y, scores)
    assert torch.allclose(calibrated(given)[:, 0], tensor(0.75, 0.75, 0.75, 0.75), atol=0.01)  # a grid of β
    assert torch.allclose(utility(given), tensor(0.9375, 0.9375, 0.9375, 0.4375), atol=0.01)


def test_confidence_alone_is_no_gain() -> None:
    """The same answers, with more confidence: the same utility."""
    torch.manual_seed(0)
    logits, client = torch.randn(300, 5), torch.arange(300) % 3
    y = torch.where(torch.arange(300) % 4 == 0, torch.arange(300) % 5, logits.argmax(1))
    plain, sharp = (Predictions(client, y, torch.softmax(power * logits, 1)) for power in (0.5, 2.0))
    assert (plain.losses().mean() - sharp.losses().mean()).abs() > 0.05
    assert (utility(plain) - utility(sharp)).abs().max() < 0.02


def test_calibration_of_few_samples_follows_the_federation() -> None:
    """Client 0 has a wrong answer at 90 %, 200 others are right in three of four: it is still called 72 % or so."""
    client = torch.tensor([0] + [1] * 200)
    y = torch.tensor([1] + [int(at % 4 == 0) for at in range(200)])
    given = Predictions(client, y, torch.tensor([[0.9, 0.1]]).repeat(201, 1))
    found = calibrated(given)
    assert 0.6 < float(found[0, 0]) < 0.72
    assert isclose(float(found[1, 0]), 0.75, abs_tol=0.015)


def test_utility_of_numbers_is_minus_the_squared_error() -> None:
    given = Predictions(torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, 2.0]), torch.tensor([[1.5], [2.0]]))
    assert torch.allclose(utility(given), tensor(-0.25, 0))


def one_in_ten(minority: float, majority: float, client: int = 0) -> Predictions:
    """100 samples, ten of class 1, of which these shares of both classes are recognised at odds of 9 to 1."""
    y = torch.tensor([1] * 10 + [0] * 90)
    right = torch.tensor([at < 10 * minority for at in range(10)] + [at < 90 * majority for at in range(90)])
    answer = torch.where(right, y, 1 - y)
    scores = 0.1 + 0.8 * torch.nn.functional.one_hot(answer, 2).float()
    return Predictions(torch.full((100,), client), y, scores)


def test_the_metric_decides_whether_a_rare_class_counts() -> None:
    """One candidate finds 80 % of the rare class at the price of 20 % of the other; local training finds none of it."""
    validation = {"received": one_in_ten(0.8, 0.8), "local": one_in_ten(0.0, 1.0)}
    for name, taken in {"accuracy": "local", "balanced_accuracy": "received", "auroc": "received"}.items():
        assert choose(validation, METRICS[name])[0].candidate == taken, name


def test_a_constant_answer_gains_nothing_where_classes_count_alike() -> None:
    """At 90 % or at 60 %: calibrated for classes of equal weight, both say that they do not know."""
    sure_of_it = one_in_ten(0.0, 1.0)
    unsure = replace(sure_of_it, scores=torch.tensor([[0.6, 0.4]]).repeat(100, 1))
    found = [utility(each, METRICS["balanced_accuracy"]).mean() for each in (sure_of_it, unsure)]
    assert abs(found[0] - found[1]) < 0.03
    assert abs(found[0] - 0.75) < 0.03


def test_confidence_counts_where_the_metric_is_of_probabilities() -> None:
    given = one_in_ten(0.5, 0.9)
    assert torch.allclose(utility(given, METRICS["brier"]), 1 - (given.scores.double()[range(100), given.y] - 1) ** 2)


@pytest.mark.parametrize("classes", [2, 4])
def test_placements_have_the_mean_that_the_metric_has(classes: int) -> None:
    torch.manual_seed(1)
    scores, y = torch.softmax(torch.randn(120, classes), 1).mul(20).round() / 20, torch.randint(classes, (120,))
    given = Predictions(torch.arange(120) % 3, y, scores)  # with ties
    found = utility(given, METRICS["auroc"])
    for client, value in given.by_client(METRICS["auroc"]).items():
        assert isclose(float(found[given.client == client].mean()), value, rel_tol=1e-9)
    assert torch.equal(utility(given, named_metric("sensitivity@0.8")), found)


def test_placements_by_hand() -> None:
    """Positives at 0.4 and 0.8, negatives at 0.2 and 0.6: V = ½ and 1 of positives, 1 and ½ of negatives, A = ¾."""
    one = torch.tensor([0.4, 0.8, 0.2, 0.6])
    given = Predictions(torch.zeros(4, dtype=torch.int64), torch.tensor([1, 1, 0, 0]), torch.stack([1 - one, one], 1))
    far = 0.25 * 4 / sqrt(2)
    assert torch.allclose(placements(given), 0.75 + far * tensor(-1, 1, 1, -1))
    delong = 2 * (2 * 0.25**2 / 2)  # the variance of the V of positives over their number, and of negatives
    assert isclose(float((placements(given) - 0.75).square().mean()) / 4, delong)


def test_one_positive_sample_tells_nothing_of_the_order() -> None:
    given = Predictions(torch.zeros(4, dtype=torch.int64), torch.tensor([1, 0, 0, 0]), torch.rand(4, 2))
    assert bool(placements(given).isnan().all())
    assert choose({"received": given, "local": given}, METRICS["auroc"])[0].gains["received"].mean is None


def test_utility_of_the_absolute_error() -> None:
    given = Predictions(torch.zeros(2, dtype=torch.int64), torch.tensor([1.0, 2.0]), torch.tensor([[1.5], [2.0]]))
    assert torch.allclose(utility(given, METRICS["mae"]), tensor(-0.5, 0))


def test_scale_does_not_matter() -> None:
    """Of numbers in another unit, the same choice."""
    d, client = tensor(0.5, 0.1, -0.2, 0.4, 0.6, 0.1), torch.tensor([0, 0, 0, 1, 1, 1])
    ones, thousands = shrunk_gains(d, client, [0, 1]), shrunk_gains(1000 * d, client, [0, 1])
    for one, many in zip(ones, thousands, strict=True):
        assert one.shrunk is not None
        assert many.shrunk is not None
        assert isclose(many.shrunk, 1000 * one.shrunk)
        assert one.convincing == many.convincing


def test_different_samples_are_refused() -> None:
    with pytest.raises(DataError, match="different samples"):
        choose({"tuned": sure([0, 1], [True, True]), "local": sure([0, 0], [True, True])})
    with pytest.raises(UnknownNameError, match="candidate"):
        choose({"tuned": sure([0], [True])})


def test_an_infinite_error_has_no_weight() -> None:
    shrunk, shrunk_error = shrink(tensor(0.4, 0.0, 9.9), tensor(0.1, 0.1, inf))
    assert torch.allclose(shrunk, tensor(0.375, 0.025, 0.2))
    assert isclose(float(shrunk_error[2]), sqrt(0.07 + 1 / 25))
    assert guard.SAFE == "local"


def test_of_two_convincing_candidates_the_better_one_is_taken() -> None:
    client = [0] * 20 + [1] * 20
    candidates = {
        "local": sure(client, [i % 2 == 0 for i in range(40)]),
        "good": sure(client, [i % 5 > 0 for i in range(40)]),
        "better": sure(client, [True] * 40),
    }
    choices = choose(candidates)
    assert all(choices[0].gains[name].convincing for name in ("good", "better"))
    assert [choice.candidate for choice in choices.values()] == ["better", "better"]


def test_fine_tuning_starts_from_the_received_model_whatever_stage_counts() -> None:
    sim, progress = finished("fedavgft", rounds=1)
    ids = torch.arange(2)
    by_stage = [GuardCandidates(sim, progress, stage=stage, epochs=1) for stage in ("received", "deployed")]
    tuned = [candidates.rows("fine-tuned", ids)["fc.weight"] for candidates in by_stage]
    assert torch.equal(*tuned)
    assert not torch.equal(tuned[0], by_stage[1].rows("deployed", ids)["fc.weight"])


class ScriptedTrial:
    """A trial whose rounds have these accuracies on validation samples."""

    def __init__(self, *accuracies: float) -> None:
        self.accuracies = accuracies
        self.sim = SimpleNamespace(start=lambda: Progress(0, {}, {}))

    def round(self, progress: Progress) -> tuple[Progress, RoundLines]:
        accuracy = self.accuracies[progress.t]
        after = replace(progress, t=progress.t + 1)
        scores = {"validation.deployed.accuracy": accuracy, "validation.deployed.loss": 1 - accuracy}
        return after, RoundLines({"round": after.t, **scores})


@pytest.mark.parametrize(("accuracies", "best"), [((0.5, 0.9, 0.7), 2), ((0.5, 0.9, 0.9), 3), ((0.1, 0.2, 0.3), 3)])
def test_local_models_are_those_of_the_best_round(accuracies: tuple[float, ...], best: int) -> None:
    trial = cast(Trial, ScriptedTrial(*accuracies))
    assert run_to_end(train_alone(trial, EvaluateTable(metric="accuracy"), rounds=3)).t == best
