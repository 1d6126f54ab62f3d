"""Metrics of predictions, for all clients at once and in float64; each gives the same value as scikit-learn.

A metric takes targets `[C, n]`, scores `[C, n, K]` and weights `[C, n]` (1 for a sample, 0 for padding), and gives one
number per client, NaN where it is not defined. Scores are probabilities of K classes, or for numbers the outputs
`[C, n, 1]`. Over all samples, it is the same function with C = 1. `predictions.py` says where scores come from.

Whether a metric is defined depends on the targets alone, so that every model is scored on the same clients. A sample
whose scores are not finite counts as a guess: as an answer that is any class with probability 1/K, by a metric of
probabilities or of order as the probabilities 1/K, and among numbers as the mean of all targets.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import isfinite

import numpy as np
import torch
from torch import Tensor

from stratafl.errors import RecordError, StrataError, first_line, shown, unknown

Compute = Callable[[Tensor, Tensor, Tensor], Tensor]  # targets, scores, and which places hold a sample
Binary = Callable[[Tensor, Tensor, Tensor], Tensor]  # which samples are positive, which negative, and their scores
BINS = 15  # of the calibration error
CHUNK_SCORES = 1 << 22  # scores of several classes that are taken together
SPECIFICITY = 0.9  # at which sensitivity is taken, unless its name says another one
_EPS = float(np.finfo(np.float64).eps)  # probabilities are kept that far from 0 and 1, as scikit-learn does
_TOLERANCE = 1e-9  # of a number of samples, because 1 − 0.9 is not 0.1


@dataclass(frozen=True)
class Metric:
    """A number that tells how good predictions are."""

    name: str
    title: str
    compute: Compute
    says: str = ""  # what it is, in one line
    larger_is_better: bool = True
    classes: bool | None = True  # whether targets are labels or numbers; None: either
    pooled: bool = True  # whether it is by default taken over all samples, or else its mean over clients
    percent: bool = True  # whether it is a share, written in per cent
    summed: bool = False  # whether each client's hits and loss are enough to know it
    of_answers: bool = False  # whether it sees which class is given, and counts guesses itself: their scores are NaN

    @property
    def key(self) -> str:
        """What lines of rounds and clients call it: `test.deployed.auroc`."""
        return "loss" if self.name == "mse" else self.name

    @property
    def sign(self) -> int:
        """1 or −1: times this, larger values are better."""
        return 1 if self.larger_is_better else -1

    def __call__(self, y: Tensor, scores: Tensor, weight: Tensor) -> Tensor:
        """The metric of each client, float64 `[C]`."""
        real = weight > 0
        if y.shape != real.shape or scores.shape[:-1] != real.shape:
            shapes = ", ".join(str(list(x.shape)) for x in (y, scores, weight))
            raise RecordError(f"{self.name} needs targets [C, n], scores [C, n, K] and weights [C, n], not {shapes}")
        scores = scores.double().masked_fill(~real.unsqueeze(-1), 0)
        y = (y.double() if y.is_floating_point() else y).masked_fill(~real, 0)
        scores = scores.masked_fill(is_guess(scores).unsqueeze(-1), float("nan"))
        values = self.compute(y, scores if self.of_answers else with_guesses(y, scores, real), real)
        return values.double().masked_fill(~real.any(1), float("nan"))

    def better(self, value: float, than: float) -> bool:
        return self.sign * value > self.sign * than


def is_guess(scores: Tensor) -> Tensor:
    """Which samples count as guesses, `[…]` of scores `[…, K]`: those of a model that is not finite."""
    return ~scores.isfinite().all(-1)


def with_guesses(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """The scores `[C, n, K]`, with those of guesses: 1/K for classes, for numbers the mean of these targets."""
    guess = _mean(y, real)[:, None, None] if y.is_floating_point() else 1 / scores.shape[-1]
    return torch.where(is_guess(scores).unsqueeze(-1), guess, scores)


def hits(y: Tensor, scores: Tensor) -> Tensor:
    """1 where the most probable class is the label, and else 0, `[…]` in float64; 1/K of a guess."""
    return (scores.argmax(-1) == y).double().masked_fill(is_guess(scores), 1 / scores.shape[-1])


def confusion(y: Tensor, scores: Tensor, weight: Tensor) -> Tensor:
    """How many samples of each class (rows) are given each class (columns), int64 `[C, K, K]`.

    With guesses it is the expected number, in float64.
    """
    clients, classes = len(y), scores.shape[-1]
    client = torch.arange(clients, device=y.device).unsqueeze(1).expand_as(y)
    row, real, guess = client * classes + y, weight > 0, is_guess(scores)
    cell = row * classes + scores.argmax(-1)
    counts = torch.bincount(cell[real & ~guess], minlength=clients * classes * classes).view(clients, classes, classes)
    guessed = torch.bincount(row[real & guess], minlength=clients * classes).view(clients, classes, 1)
    return counts + guessed / classes if guessed.any() else counts


# Labels


def _accuracy(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    return _mean(hits(y, scores), real)


def _balanced_accuracy(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    counts = confusion(y, scores, real).double()
    return (counts.diagonal(dim1=1, dim2=2) / counts.sum(2)).nanmean(1)


def _macro_f1(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    counts = confusion(y, scores, real).double()
    return (2 * counts.diagonal(dim1=1, dim2=2) / (counts.sum(1) + counts.sum(2))).nanmean(1)


def _log_loss(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    return _mean(label_losses(y, scores), real)


def label_losses(y: Tensor, scores: Tensor) -> Tensor:
    """−log of the probability of the label, which is kept away from 0 and 1; `[…]` of scores `[…, K]`."""
    return -scores.gather(-1, y.unsqueeze(-1)).squeeze(-1).clamp(_EPS, 1 - _EPS).log()


def _brier(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """The sum over classes; for two classes half of it, the squared error of the probability of class 1."""
    errors = scores - torch.nn.functional.one_hot(y, scores.shape[-1])
    return _mean(errors.square().sum(-1) / (2 if scores.shape[-1] == 2 else 1), real)


def _ece(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """Bins (0, 1/15], (1/15, 2/15] … of the probability of the answer: mean distance to the share of right ones.

    A guess is sure of an answer that is right with probability 1/K: probabilities 1/K would be calibrated perfectly.
    """
    top = scores.amax(-1).masked_fill(is_guess(scores), 1.0)
    ends = torch.tensor([(bin + 1) / BINS for bin in range(BINS - 1)], dtype=top.dtype, device=top.device)
    place = torch.bucketize(top, ends)
    excess = torch.where(real, top - hits(y, scores), 0.0)
    return excess.new_zeros(len(excess), BINS).scatter_add(1, place, excess).abs().sum(1) / real.sum(1)


# Labels, one class against the rest


def one_against_rest(binary: Binary) -> Compute:
    """For two classes that of class 1; for more the mean over classes that some samples have and some do not."""

    def compute(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
        if scores.shape[-1] == 2:
            return binary(real & (y == 1), real & (y != 1), scores[..., 1])
        clients, n, classes = scores.shape
        step, parts = max(1, CHUNK_SCORES // max(1, clients * n)), []
        for start in range(0, classes, step):  # several classes at a time, as if each were a client of its own
            labels = torch.arange(start, min(start + step, classes), device=y.device)
            is_label = (y == labels[:, None, None]).flatten(0, 1)  # [classes × C, n]
            present = real.repeat(len(labels), 1)
            positive, negative = present & is_label, present & ~is_label
            score = scores[..., start : start + step].permute(2, 0, 1).reshape(-1, n)
            both = positive.any(1) & negative.any(1)
            parts.append(binary(positive, negative, score).masked_fill(~both, float("nan")).view(-1, clients))
        return torch.cat(parts).nanmean(0)

    return compute


def below(which: Tensor, score: Tensor) -> Tensor:
    """For each sample, how many of these samples score below it; a tie is half of one. Float64 `[…, n]`."""
    ordered, score = score.masked_fill(~which, torch.inf).sort(-1).values, score.contiguous()
    return (torch.searchsorted(ordered, score) + torch.searchsorted(ordered, score, right=True)).double() / 2


def _auroc(positive: Tensor, negative: Tensor, score: Tensor) -> Tensor:
    """The share of pairs of a positive and a negative sample that are in order; a tie is half of one."""
    pairs = positive.sum(1) * negative.sum(1)
    return (below(negative, score) * positive).sum(1) / pairs


def _at_least(which: Tensor, score: Tensor) -> Tensor:
    """For each sample, how many of these samples have at least its score."""
    ordered = score.masked_fill(~which, -torch.inf).sort(1).values
    return score.shape[1] - torch.searchsorted(ordered, score.contiguous())


def _auprc(positive: Tensor, negative: Tensor, score: Tensor) -> Tensor:
    """Average precision: the mean over positive samples of the precision at their scores."""
    right, answered = _at_least(positive, score), _at_least(positive | negative, score)
    return torch.where(positive, right / answered.clamp(min=1).double(), 0.0).sum(1) / positive.sum(1)


def _sensitivity_at(specificity: float) -> Binary:
    def sensitivity(positive: Tensor, negative: Tensor, score: Tensor) -> Tensor:
        right, wrong = _at_least(positive, score), _at_least(negative, score)
        most = (1 - specificity) * negative.sum(1, keepdim=True) + _TOLERANCE
        allowed = (positive | negative) & (wrong <= most)
        values = torch.where(allowed, right, 0).amax(1) / positive.sum(1).double()
        return values.masked_fill(~(positive.any(1) & negative.any(1)), float("nan"))

    return sensitivity


# Numbers


def _mean(values: Tensor, real: Tensor) -> Tensor:
    return torch.where(real, values, 0.0).sum(1) / real.sum(1)


def _mse(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    return _mean((scores.squeeze(-1) - y).square(), real)


def _rmse(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    return _mse(y, scores, real).sqrt()


def _mae(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    return _mean((scores.squeeze(-1) - y).abs(), real)


def _r2(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
    """1 − error / variance of the targets; if those are all equal, 1 without an error and else 0."""
    count, error = real.sum(1), _mse(y, scores, real)
    variance = _mean((y - _mean(y, real).unsqueeze(1)).square(), real)
    low, high = (y.masked_fill(~real, far) for far in (torch.inf, -torch.inf))
    constant = low.amin(1) >= high.amax(1)
    value = torch.where(constant, (error == 0).double(), 1 - error / variance)
    return value.masked_fill(count < 2, float("nan"))


def _error(
    name: str,
    title: str,
    compute: Compute,
    says: str,
    classes: bool = True,
    summed: bool = False,
    of_answers: bool = False,
) -> Metric:
    """A metric of which smaller values are better."""
    return Metric(name, title, compute, says, False, classes, percent=False, summed=summed, of_answers=of_answers)


def _sensitivity(name: str, specificity: float) -> Metric:
    says = f"the highest sensitivity at a specificity of at least {specificity:.4g}"
    compute = one_against_rest(_sensitivity_at(specificity))
    return Metric(name, f"sensitivity at specificity {specificity:.4g}", compute, says, pooled=False)


_ALL = (
    Metric("accuracy", "accuracy", _accuracy, "the share of samples that are classified correctly", summed=True,
        of_answers=True),
    Metric("balanced_accuracy", "balanced accuracy", _balanced_accuracy,
        "the mean recall over classes; classes without samples do not count", of_answers=True),
    Metric("macro_f1", "macro-F1", _macro_f1,
        "the mean F1 over classes; classes that are neither present nor predicted do not count", of_answers=True),
    Metric("auroc", "AUROC", one_against_rest(_auroc),
        "how often a sample of a class scores above one of another class; 0.5 is chance", pooled=False, percent=False),
    Metric("auprc", "AUPRC", one_against_rest(_auprc),
        "average precision: the area under the precision-recall curve; chance is the share of positives",
        pooled=False, percent=False),
    _sensitivity("sensitivity", SPECIFICITY),
    _error("log_loss", "log-loss", _log_loss, "the mean negative log of the label's probability"),
    _error("brier", "Brier score", _brier,
        "the mean squared error of the probabilities: of class 1, or summed over more than two classes"),
    _error("ece", "calibration error", _ece,
        f"the mean difference between confidence and accuracy in {BINS} bins of confidence (ECE)",
        of_answers=True),
    _error("mse", "mean squared error", _mse, "the mean of the squared error", classes=False, summed=True),
    _error("rmse", "root mean squared error", _rmse, "the root of the MSE, in the unit of the targets", classes=False),
    _error("mae", "mean absolute error", _mae, "the mean of |error|, in the unit of the targets", classes=False),
    Metric("r2", "R²", _r2, "1 − error / variance of the targets; their mean gives 0", classes=False, percent=False),
)  # fmt: skip
METRICS: dict[str, Metric] = {metric.name: metric for metric in _ALL}


@cache
def named_metric(name: str) -> Metric:
    """The metric of this name, which may be `sensitivity@0.95`, at another specificity."""
    if name in METRICS:
        return METRICS[name]
    kind, _, at = name.partition("@")
    if kind != "sensitivity":
        raise unknown("metric", name, METRICS)
    try:
        specificity = float(at)
    except ValueError:
        specificity = -1
    if not 0 < specificity < 1:
        raise RecordError(f"metric '{shown(name)}' needs a specificity between 0 and 1, such as sensitivity@0.95")
    return _sensitivity(name, specificity)


def own_metric(function: Callable[..., object], name: str | None = None) -> Metric:
    """Your own `f(y_true [n], y_score [n, K])` of numpy arrays, called client by client.

    Its attribute `larger_is_better`, if it has one, says which way is better.
    """
    if not callable(function):
        raise RecordError(f"metric must be a name or a function f(y_true, y_score), not {shown(function)}")
    called = name or str(getattr(function, "__name__", "metric"))

    def compute(y: Tensor, scores: Tensor, real: Tensor) -> Tensor:
        y, scores, real = y.cpu(), scores.cpu(), real.cpu()
        guesses = with_guesses(y, torch.full_like(scores, torch.nan), real)
        values = []
        for c in range(len(y)):
            value = _called(function, called, y[c, real[c]], scores[c, real[c]])
            # A client without a value would be absent from the mean of this model, and not from those of others.
            values.append(value if isfinite(value) else _called(function, called, y[c, real[c]], guesses[c, real[c]]))
        return torch.tensor(values, dtype=torch.float64)

    larger = bool(getattr(function, "larger_is_better", True))
    title = called.rpartition(":")[2].replace("_", " ")
    return Metric(called, title, compute, larger_is_better=larger, classes=None, pooled=False, percent=False)


def _called(function: Callable[..., object], name: str, y: Tensor, scores: Tensor) -> float:
    if not len(y):
        return float("nan")
    try:
        return float(function(y.numpy(), scores.numpy()))  # type: ignore[arg-type]
    except StrataError:
        raise
    except Exception as error:  # a person's own code
        raise RecordError(f"metric '{shown(name)}' failed: {first_line(error, typed=True)}") from error
