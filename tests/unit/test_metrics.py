"""Every metric against scikit-learn, on random and on degenerate clients, one by one, side by side and pooled."""

import warnings
from functools import partial

import numpy as np
import pytest
import torch

from stratafl.errors import DataError, RecordError, StrataError
from stratafl.evaluation.metrics import METRICS, Metric, confusion, named_metric, own_metric
from stratafl.evaluation.predictions import Predictions

NAN = float("nan")


class ScikitLearn:
    """The metrics of scikit-learn, which takes two seconds to import."""

    def __getattr__(self, name):
        if name.startswith("_"):  # pytest asks every name of a module whether it is a fixture
            raise AttributeError(name)
        from sklearn import metrics

        return getattr(metrics, name)


sk = ScikitLearn()


def reference(name, y, p):
    """scikit-learn's value; NaN where it raises, or warns that it is not defined."""
    from sklearn.exceptions import UndefinedMetricWarning

    if len(y) == 0:
        return NAN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", UndefinedMetricWarning)
        warnings.filterwarnings("error", message="No positive class")
        try:
            return float(REFERENCES[name](y, p))
        except (ValueError, UserWarning):
            return NAN


def one_by_one(binary, y, p):
    """The mean over classes that some samples have and some do not; for two classes that of class 1."""
    if p.shape[1] == 2:
        return binary(y == 1, p[:, 1])
    each = [binary(y == k, p[:, k]) for k in range(p.shape[1]) if 0 < (y == k).sum() < len(y)]
    return np.mean(each) if each else NAN


def sensitivity(specificity, y, p):
    fpr, tpr, _ = sk.roc_curve(y, p, drop_intermediate=False)
    return tpr[1 - fpr >= specificity - 1e-12].max()


def calibration_error(y, p):
    """15 bins, sample by sample."""
    total = 0.0
    for low in range(15):
        inside = [i for i in range(len(y)) if low / 15 < p[i].max() <= (low + 1) / 15]
        if inside:
            confidence = sum(p[i].max() for i in inside) / len(inside)
            right = sum(p[i].argmax() == y[i] for i in inside) / len(inside)
            total += len(inside) / len(y) * abs(confidence - right)
    return total


REFERENCES = {
    "accuracy": lambda y, p: sk.accuracy_score(y, p.argmax(1)),
    "balanced_accuracy": lambda y, p: sk.balanced_accuracy_score(y, p.argmax(1)),
    "macro_f1": lambda y, p: sk.f1_score(y, p.argmax(1), average="macro"),
    "auroc": lambda y, p: one_by_one(sk.roc_auc_score, y, p),
    "auprc": lambda y, p: one_by_one(sk.average_precision_score, y, p),
    "sensitivity": partial(one_by_one, partial(sensitivity, 0.9)),
    "sensitivity@0.75": partial(one_by_one, partial(sensitivity, 0.75)),
    "log_loss": lambda y, p: sk.log_loss(y, p, labels=range(p.shape[1])),
    "brier": lambda y, p: sk.brier_score_loss(y, p, labels=range(p.shape[1])),
    "ece": calibration_error,
    "mse": lambda y, p: sk.mean_squared_error(y, p[:, 0]),
    "rmse": lambda y, p: sk.root_mean_squared_error(y, p[:, 0]),
    "mae": lambda y, p: sk.mean_absolute_error(y, p[:, 0]),
    "r2": lambda y, p: sk.r2_score(y, p[:, 0]),
}
OF_LABELS = [name for name in REFERENCES if named_metric(name).classes]
OF_NUMBERS = [name for name in REFERENCES if not named_metric(name).classes]


def probabilities(rng, n, classes, ties):
    given = rng.gamma(1.0, size=(n, classes)) + 1e-3
    given = np.round(given, 1) + 0.1 if ties else given
    return given / given.sum(1, keepdims=True)


def clients(classes, ties, seed=0):
    """Targets and scores of clients of many kinds."""
    rng = np.random.default_rng(seed)
    kinds = [rng.integers(0, classes, n) for n in (0, 1, 2, 7, 40, 41)]
    kinds += [np.full(9, label) for label in (0, 1, classes - 1)]  # one class alone
    kinds += [np.arange(classes), np.r_[np.zeros(30, int), 1], rng.integers(0, 2, 25)]
    found = [(y, probabilities(rng, len(y), classes, ties)) for y in kinds]
    same = np.tile(probabilities(rng, 1, classes, ties), (12, 1))
    found += [(rng.integers(0, classes, 12), same)]  # one answer, all scores tied
    found += [(y, np.eye(classes)[y]) for y in (rng.integers(0, classes, 12),)]  # sure and right
    found += [(y, np.eye(classes)[(y + 1) % classes]) for y in (rng.integers(0, classes, 12),)]  # sure and wrong
    return found


def numbers(seed=0):
    rng = np.random.default_rng(seed)
    found = [(rng.normal(5, 2, n), rng.normal(5, 2, (n, 1))) for n in (0, 1, 2, 7, 40)]
    found += [(np.full(6, 2.0), rng.normal(size=(6, 1))), (np.full(6, 2.0), np.full((6, 1), 2.0))]
    return [*found, (y := rng.normal(size=8), y[:, None])]


def padded(found, rng):
    """All clients side by side; what is in padded places must not matter."""
    longest, classes = max(len(y) for y, _ in found), found[0][1].shape[1]
    labels = found[0][0].dtype.kind != "f"
    y = rng.integers(0, max(classes, 2), (len(found), longest)).astype(found[0][0].dtype)
    scores, weight = rng.random((len(found), longest, classes)), np.zeros((len(found), longest))
    for i, (mine, given) in enumerate(found):
        y[i, : len(mine)], scores[i, : len(mine)], weight[i, : len(mine)] = mine, given, 1
    scores[weight == 0] = 7.0 if labels else np.nan
    return tuple(map(torch.from_numpy, (y, scores, weight)))


def assert_same(given, expected):
    np.testing.assert_allclose(given, expected, rtol=0, atol=1e-9, equal_nan=True)


@pytest.mark.slow
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("classes", [2, 3, 5])
@pytest.mark.parametrize("name", OF_LABELS)
def test_a_metric_of_labels_is_that_of_scikit_learn_for_every_client(name, classes, ties):
    found = clients(classes, ties, seed=classes)
    given = named_metric(name)(*padded(found, np.random.default_rng(1)))
    assert given.dtype == torch.float64
    assert_same(given.numpy(), [reference(name, y, p) for y, p in found])


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_NUMBERS)
def test_a_metric_of_numbers_is_that_of_scikit_learn_for_every_client(name):
    found = numbers()
    assert_same(
        named_metric(name)(*padded(found, np.random.default_rng(1))), [reference(name, *each) for each in found]
    )


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("name", OF_LABELS)
def test_pooled_it_is_that_of_all_samples(name, classes):
    found = clients(classes, ties=True, seed=9)
    y, p = np.concatenate([y for y, _ in found]), np.concatenate([p for _, p in found])
    owner = np.repeat(np.arange(len(found)), [len(y) for y, _ in found])
    given = Predictions(torch.from_numpy(owner), torch.from_numpy(y), torch.from_numpy(p))
    metric = named_metric(name)
    assert_same(given.value(metric), reference(name, y, p))
    defined = {i: value for i, each in enumerate(found) if not np.isnan(value := reference(name, *each))}
    by_client = given.by_client(metric)
    assert list(by_client) == list(defined)
    assert_same(list(by_client.values()), list(defined.values()))
    assert_same(given.average(metric, "clients"), np.mean(list(defined.values())))


@pytest.mark.slow
def test_the_whole_of_more_classes_is_scikit_learns_one_against_rest():
    rng = np.random.default_rng(4)
    y, p = rng.integers(0, 4, 60), probabilities(rng, 60, 4, ties=False)
    given = [torch.from_numpy(x)[None] for x in (y, p, np.ones(60))]
    assert_same(METRICS["auroc"](*given), [sk.roc_auc_score(y, p, multi_class="ovr")])
    assert_same(METRICS["auprc"](*given), [sk.average_precision_score(np.eye(4)[y], p, average="macro")])


@pytest.mark.slow
def test_a_confusion_matrix_has_classes_in_rows_and_answers_in_columns():
    found = clients(3, ties=True)
    expected = [sk.confusion_matrix(y, p.argmax(1), labels=range(3)) if len(y) else np.zeros((3, 3)) for y, p in found]
    assert_same(confusion(*padded(found, np.random.default_rng(1))), expected)


def of_one(metric, y, scores):
    return float(metric(torch.tensor([y]), torch.tensor([scores], dtype=torch.float64), torch.ones(1, len(y))))


def test_values_worked_by_hand():
    # Two answers with confidence 0.9 (bin 14), of which one is right; one with 0.6 (bin 9), right.
    scores = [[0.9, 0.1], [0.9, 0.1], [0.4, 0.6]]
    assert of_one(METRICS["ece"], [0, 1, 1], scores) == pytest.approx((2 * (0.9 - 0.5) + (1 - 0.6)) / 3)
    # A positive above, one tied with, and one below the only negative.
    assert of_one(METRICS["auroc"], [1, 1, 1, 0], [[0.2, 0.8], [0.5, 0.5], [0.7, 0.3], [0.5, 0.5]]) == 0.5
    # Half of the sum for two classes; the whole sum for three.
    assert of_one(METRICS["brier"], [1], [[0.2, 0.8]]) == pytest.approx(0.04)
    assert of_one(METRICS["brier"], [1], [[0.2, 0.7, 0.1]]) == pytest.approx(0.04 + 0.09 + 0.01)
    # One of ten negatives may be above: the second positive is found, the third is not.
    negatives = [0.9, *np.linspace(0.01, 0.5, 8), 0.65]
    scores = [[1 - s, s] for s in (0.95, 0.7, 0.6, *negatives)]
    assert of_one(METRICS["sensitivity"], [1] * 3 + [0] * 10, scores) == pytest.approx(2 / 3)


# What a model that is not finite counts as, for 3 samples of class 0, 1 and 1 of two classes, worked by hand.
GUESSED = {
    "accuracy": 1 / 2,
    "balanced_accuracy": 1 / 2,
    "macro_f1": (2 * 0.5 / (1.5 + 1) + 2 * 1 / (1.5 + 2)) / 2,  # half of each row of the confusion in each column
    "auroc": 0.5,
    "auprc": 2 / 3,  # the share of positives
    "sensitivity": 0.0,  # as every score that is the same for all samples
    "log_loss": np.log(2),
    "brier": 0.25,
    "ece": 0.5,  # sure, and right half of the time
}


@pytest.mark.parametrize("wrong", [NAN, float("inf")])
@pytest.mark.parametrize("name", sorted({name.partition("@")[0] for name in OF_LABELS}))
def test_a_model_that_is_not_finite_counts_as_a_guess_and_not_as_absent(name, wrong):
    y, weight = torch.tensor([[0, 1, 1], [0, 1, 1]]), torch.ones(2, 3)
    scores = torch.tensor([[[0.9, 0.1], [0.2, 0.8], [0.3, 0.7]], [[wrong, 0.1]] * 3])
    sound, guessed = named_metric(name)(y, scores, weight).tolist()
    assert guessed == pytest.approx(GUESSED[name])
    assert sound == named_metric(name)(y[:1], scores[:1], weight[:1]).item()


def test_numbers_that_are_not_finite_count_as_the_mean_of_all_targets():
    """The mean of 0, 2, 5 and 5 is 3: errors 9 and 1 of the guesses, and 4 and 4 of the others; the variance is 4.5.

    The client's own mean would make a model that is not finite perfect for a client with one sample.
    """
    client, y = torch.tensor([0, 0, 1, 1]), torch.tensor([0.0, 2.0, 5.0, 5.0])
    found = Predictions(client, y, torch.tensor([[NAN], [NAN], [3.0], [7.0]]))
    by_hand = {"mse": (5.0, 4.5), "mae": (2.0, 2.0), "rmse": (5**0.5, 4.5**0.5), "r2": (-4.0, 0.0)}
    for name, (of_client, pooled) in by_hand.items():
        assert found.by_client(METRICS[name])[0] == pytest.approx(of_client)
        assert found.value(METRICS[name]) == pytest.approx(pooled)
    assert found.losses().tolist() == [9.0, 1.0, 4.0, 4.0]


def test_over_all_samples_a_guess_is_right_with_the_chance_of_a_class():
    """Four samples of three classes: two right ones, and two guesses, which are right with probability 1/3."""
    scores = torch.tensor([[1.0, 0, 0], [0, 1, 0], [NAN] * 3, [NAN] * 3])
    found = Predictions(torch.tensor([0, 0, 4, 4]), torch.tensor([0, 1, 0, 0]), scores)
    assert found.value(METRICS["accuracy"]) == pytest.approx((2 + 2 / 3) / 4)
    assert found.hits().tolist() == pytest.approx([1, 1, 1 / 3, 1 / 3])
    assert found.losses()[2:].tolist() == pytest.approx([np.log(3)] * 2)
    assert found.not_finite == [4]
    sums = found.summed(torch.tensor([4, 0]))
    assert (sums.hits.tolist(), sums.finite.tolist()) == ([pytest.approx(2 / 3), 2], [False, True])


def test_your_own_metric_is_given_guesses_and_asked_again_where_it_has_no_value():
    """A client without a value with one model would be absent from its mean, and not from those of others."""

    def confident(y, scores):
        return float("nan") if scores.max() > 0.9 else scores[:, 1].mean()

    y, weight = torch.tensor([[0, 1]] * 3), torch.ones(3, 2)
    scores = torch.tensor([[[0.4, 0.6], [0.4, 0.6]], [[NAN, NAN]] * 2, [[0.0, 1.0]] * 2])
    assert own_metric(confident)(y, scores, weight).tolist() == pytest.approx([0.6, 0.5, 0.5])


def test_clients_in_several_portions_have_the_same_values(monkeypatch):
    found = clients(3, ties=False, seed=2)
    y, p = (torch.from_numpy(np.concatenate(x)) for x in zip(*found, strict=True))
    owner = torch.arange(len(found)).repeat_interleave(torch.tensor([len(y) for y, _ in found]))
    mixed = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    given = Predictions(owner, y, p).at(mixed)
    at_once = given.by_client(METRICS["auroc"])
    monkeypatch.setattr("stratafl.evaluation.predictions.BLOCK_SCORES", 50)
    assert Predictions(owner, y, p).at(mixed).by_client(METRICS["auroc"]) == pytest.approx(at_once, abs=1e-12)
    assert len(at_once) > 5


@pytest.mark.parametrize("name", ["auroc", "auprc", "sensitivity"])
def test_classes_in_several_portions_have_the_same_values(monkeypatch, name):
    generator = torch.Generator().manual_seed(0)
    y = torch.randint(0, 4, (5, 30), generator=generator)  # nobody has the fifth class
    scores, weight = torch.rand((5, 30, 5), generator=generator), torch.rand((5, 30), generator=generator) > 0.2
    at_once = METRICS[name](y, scores, weight)
    for most in (1, 2 * 5 * 30):  # one class, two classes at a time
        monkeypatch.setattr("stratafl.evaluation.metrics.CHUNK_SCORES", most)
        assert torch.equal(METRICS[name](y, scores, weight), at_once)
    assert at_once.isfinite().all()


def test_predictions_of_one_client_sums_and_losses():
    client, y = torch.tensor([4, 2, 4]), torch.tensor([1, 0, 0])
    given = Predictions(client, y, torch.tensor([[0.25, 0.75], [0.5, 0.5], [0.1, 0.9]]))
    assert (given.clients, len(given.of(4)), len(given.of(3))) == ([2, 4], 2, 0)
    assert given.hits().tolist() == [True, True, False]
    assert given.losses().tolist() == pytest.approx([-np.log(0.75), -np.log(0.5), -np.log(0.1)], abs=1e-7)
    scores = given.summed(torch.tensor([4, 3, 2]))
    assert (scores.hits.tolist(), scores.count.tolist()) == ([1, 0, 1], [2, 0, 1])
    assert scores.loss.tolist() == pytest.approx([-np.log(0.75) - np.log(0.1), 0, -np.log(0.5)], abs=1e-7)
    assert given.of(4).confusion().tolist() == [[0, 1], [0, 1]]
    numbers = Predictions(client, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[1.0], [4.0], [2.5]]))
    assert (numbers.losses().tolist(), numbers.hits().tolist()) == ([0, 4, 0.25], [False] * 3)


def test_one_answer_for_all_is_told_of_clients_with_several_classes():
    client, y = torch.tensor([0, 0, 1, 1, 2, 2]), torch.tensor([0, 1, 0, 1, 1, 1])
    scores = torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.9, 0.1], [0.4, 0.6], [0.1, 0.9], [0.1, 0.9]])
    assert Predictions(client, y, scores).one_answer() == {0: True, 1: False}


def test_a_metric_of_the_other_kind_is_refused():
    labels = Predictions(torch.tensor([0]), torch.tensor([1]), torch.tensor([[0.5, 0.5]]))
    with pytest.raises(DataError, match="mae "):
        labels.value(METRICS["mae"])
    numbers = Predictions(torch.tensor([0]), torch.tensor([1.0]), torch.tensor([[0.5]]))
    with pytest.raises(DataError, match="auroc "):
        numbers.by_client(METRICS["auroc"])
    with pytest.raises(DataError, match="confusion"):
        numbers.confusion()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("aurok", "auroc"),
        ("sensitivity@", "between 0 and 1"),
        ("sensitivity@1", "between 0 and 1"),
        ("f1@0.9", "f1@0.9"),
    ],
)
def test_a_name_that_is_no_metric_is_refused(name, message):
    with pytest.raises(StrataError, match=message):
        named_metric(name)


def test_anybodys_function_is_called_with_a_clients_samples():
    def cost(y, p):
        """A missed positive costs ten false alarms."""
        answer = p[:, 1] > 0.5
        return (10 * ((y == 1) & ~answer).sum() + ((y == 0) & answer).sum()) / len(y)

    cost.larger_is_better = False
    metric = own_metric(cost, "hospital.costs:cost")
    assert isinstance(metric, Metric)
    assert (metric.name, metric.title, metric.larger_is_better) == ("hospital.costs:cost", "cost", False)
    found = clients(2, ties=False)
    expected = [cost(y, p) if len(y) else NAN for y, p in found]
    assert_same(metric(*padded(found, np.random.default_rng(0))), expected)
    assert metric.better(1.0, 2.0)
    assert METRICS["auroc"].better(2.0, 1.0)

    def fails(y, p):
        raise KeyError("dose")

    with pytest.raises(RecordError, match="metric 'fails' failed: KeyError"):
        own_metric(fails)(*padded(found, np.random.default_rng(0)))
