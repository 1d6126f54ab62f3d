"""The guard: each client keeps its safe choice, unless a candidate is better on its validation data.

A client's validation data is small, so its own mean gain is noisy. The guard shrinks it towards the federation's mean
gain, the more the noisier it is and the less clients differ (empirical Bayes, normal-normal). What is alike among
clients is the gain measured by its own standard deviation, the effect size: a client whose models hardly differ has a
small gain and a small deviation, and would otherwise pull the gains of all clients to zero. For each candidate:

    d_ij = u_ij(candidate) − u_ij(safe)                   the paired gain of client i on its sample j, see `utility`
    g_i  = mean_j d_ij        e_i = s_i / √n_i            its mean and its standard error
    s_i² = (ν₀·s² + Σ_j (d_ij − g_i)²) / (ν₀ + n_i − 1)   a variance that ν₀ samples of the federation's s² steady
    s²   = Σ_ij (d_ij − g_i)² / Σ_i (n_i − 1)             never below the mean of d² / Σ n_i
    z_i  = g_i / s_i                                      the effect size, of variance 1 / n_i
    τ²   = max(0, Σ_i (z_i − mean z)² / (N − 1) − mean 1/n_i)      how much the N clients truly differ
    v_i  = 1 / (1/n_i + τ²)   μ = Σ v_i z_i / Σ v_i       the federation's mean, of variance 1 / Σ v_i
    b_i  = τ² / (τ² + 1/n_i)
    γ_i  = s_i · (μ + b_i (z_i − μ))                      the shrunk gain
    ε_i  = s_i · √(b_i / n_i + (1 − b_i)² / Σ v_i)        its standard error, as a prediction of the truth

Client i takes the candidate with the largest γ_i among those with γ_i > ε_i, and the safe choice if there is none. A
client without validation samples has b_i = 0 and ε_i² = s²·(τ² + 1 / Σ v_i): it takes what the federation's mean says,
if clients differ little. `docs/notebook/guard.md` has the experiments behind `utility` and z.

A client with a model that is not finite, of any candidate, is none of the N clients, nor are its samples part of s², of
class weights or of calibration: one broken client would decide for all. It takes no model that is not finite, as long
as it has another.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import torch
from torch import Tensor

from stratafl.core.reprs import short_repr
from stratafl.errors import DataError, unknown
from stratafl.evaluation.metrics import Metric, below
from stratafl.evaluation.predictions import Predictions

SAFE = "local"
STEADY = 4.0  # ν₀: samples of the federation's variance that are added to each client's own
SMALLEST = 1e-12  # a standard error or deviation of 0 is taken as this
COMMON = 10.0  # samples of the federation that count when a client's probabilities are calibrated
POWERS = 2 ** (torch.arange(-36, 37, dtype=torch.float64) / 8)  # β from 1/23 to 23, in steps of 9 %
TINY = 1e-12  # the least probability
OF_PROBABILITIES = ("log_loss", "brier", "ece")  # metrics to which confidence matters
OF_ORDER = ("auroc", "auprc", "sensitivity")  # to which only the order of scores matters
CLASSES_ALIKE = ("balanced_accuracy", "macro_f1")


@dataclass(frozen=True)
class Gain:
    """What a candidate gains over the safe choice for one client, on its validation samples.

    `mean` and `error` are of its own samples alone, None without any; `shrunk` and `shrunk_error` are what the rule
    compares, None if no client has samples to tell.
    """

    mean: float | None
    error: float | None
    shrunk: float | None
    shrunk_error: float | None

    @property
    def convincing(self) -> bool:
        """Whether the shrunk gain exceeds its standard error."""
        return self.shrunk is not None and self.shrunk_error is not None and self.shrunk > self.shrunk_error


@short_repr
@dataclass(frozen=True)
class Choice:
    """What one client takes, its number of validation samples, and the gain of every candidate but the safe one."""

    client: int
    candidate: str
    samples: int
    gains: Mapping[str, Gain] = field(default_factory=dict)

    @property
    def gain(self) -> Gain:
        """The gain of what it takes; of the safe choice, nothing and for certain."""
        return self.gains.get(self.candidate, Gain(0.0, 0.0, 0.0, 0.0))


def choose(
    validation: Mapping[str, Predictions], metric: Metric | None = None, clients: Iterable[int] | None = None
) -> dict[int, Choice]:
    """What each client takes, by the predictions of every candidate for its validation samples.

    `metric` is what the models are for (see `utility`); `clients` are those that choose, by default all that have
    validation samples.
    """
    if SAFE not in validation:
        raise unknown("candidate", SAFE, validation)
    base = validation[SAFE]
    ids = sorted(set(base.clients if clients is None else clients))
    others = {name: predictions for name, predictions in validation.items() if name != SAFE}
    gains = {}
    for name, predictions in others.items():
        if not (torch.equal(predictions.client, base.client) and torch.equal(predictions.y, base.y)):
            raise DataError(f"predictions of '{name}' and of '{SAFE}' are for different samples: give both the same")
    broken = {name: set(predictions.not_finite) for name, predictions in validation.items()}
    sound = (~torch.isin(base.client, torch.tensor(sorted(set().union(*broken.values()))))).nonzero()[:, 0]
    safe = base.at(sound)
    without = utility(safe, metric)
    for name, predictions in others.items():
        gains[name] = shrunk_gains(utility(predictions.at(sound), metric) - without, safe.client, ids)
    samples, choices = Counter(base.client.tolist()), {}
    for place, client in enumerate(ids):
        client_gains = {name: predictions[place] for name, predictions in gains.items()}
        sound_names = [name for name in validation if client not in broken[name]]
        choices[client] = Choice(client, _best(client_gains, sound_names), samples[client], client_gains)
    return choices


def utility(predictions: Predictions, metric: Metric | None = None) -> Tensor:
    """How much each prediction contributes to a metric, `[n]` in float64, larger is better; None is the usual metric.

    numbers                          minus the squared error; minus the distance for `mae`
    auroc, auprc, sensitivity        what a sample contributes to its client's AUROC, see `placements`
    log_loss, brier, ece             1 − ½·Brier score of the probabilities as they are
    balanced_accuracy, macro_f1      1 − ½·Brier score of calibrated probabilities, all classes of the same weight
    accuracy, and your own metric    the same, all samples of the same weight

    Whether a prediction is right says too little of ten samples, so its probabilities count. They are calibrated first:
    a model that was trained longer is only more confident, which says nothing of its answers. NaN is a sample that says
    nothing.
    """
    kind = "" if metric is None else metric.name.partition("@")[0]
    if not predictions.labelled:
        distance = (predictions.scores.double()[:, 0] - predictions.y.double()).abs()
        return -distance if kind == "mae" else -distance.square()
    if kind in OF_ORDER:
        return placements(predictions)
    weight = class_weights(predictions) if kind in CLASSES_ALIKE else _ones(predictions)
    chances = predictions.scores.double() if kind in OF_PROBABILITIES else calibrated(predictions, weight)
    right = chances.gather(1, predictions.y[:, None])[:, 0]
    return weight * (1 - (chances.square().sum(1) - 2 * right + 1) / 2)


def _ones(predictions: Predictions) -> Tensor:
    return torch.ones(len(predictions), dtype=torch.float64)


def class_weights(predictions: Predictions) -> Tensor:
    """A weight of each sample `[n]`, of mean 1, with which all classes of the federation weigh the same."""
    counts = torch.bincount(predictions.y, minlength=predictions.scores.shape[1]).double()
    return (len(predictions) / (counts.clamp(min=1) * (counts > 0).sum()))[predictions.y]


def placements(predictions: Predictions) -> Tensor:
    """Pseudo-values `[n]` of each client's AUROC, which is their mean over its samples; NaN if it cannot be told.

    The AUROC A of m positives and n negatives is the mean over positives of the share of negatives below, and over
    negatives of the share of positives above. With that share V, a positive is A + (V − A)·(m + n) / √(m·(m − 1)), and
    a negative the same with n for m: their variance over m + n is that of A (DeLong, DeLong and Clarke-Pearson 1988).
    For that, a class needs two samples of it and two others; with more classes it is the mean over those that have.
    """
    values = torch.full((len(predictions),), torch.nan, dtype=torch.float64)
    classes = torch.arange(predictions.scores.shape[1])
    for client in predictions.clients:
        at = (predictions.client == client).nonzero()[:, 0]
        label = classes[1:] if len(classes) == 2 else classes
        positive = predictions.y[at] == label[:, None]
        enough = (positive.sum(1) > 1) & ((~positive).sum(1) > 1)
        positive, score = positive[enough], predictions.scores[at].double().T[label[enough]]
        m = positive.sum(1, keepdim=True).double()
        n = len(at) - m
        share = torch.where(positive, below(~positive, score) / n, 1 - below(positive, score) / m)
        whole, alike = (share * positive).sum(1, keepdim=True) / m, torch.where(positive, m, n)
        values[at] = (whole + len(at) / (alike * (alike - 1)).sqrt() * (share - whole)).mean(0)
    return values


def calibrated(predictions: Predictions, weight: Tensor | None = None) -> Tensor:
    """Its probabilities to the power β and normalised, `[n, K]`, with the β of each client that fits the labels best.

    To a client's own log-loss the mean of the federation's is added, as much as of `COMMON` samples, so that a client
    with few samples has about the federation's β. Samples count by their weights, by default alike.
    """
    weight = _ones(predictions) if weight is None else weight
    logs, y = predictions.scores.double().clamp(min=TINY).log(), predictions.y[:, None]
    if not len(logs):
        return predictions.scores.double()
    place = predictions.client.unique(return_inverse=True)[1]
    losses = [-weight * torch.log_softmax(beta * logs, 1).gather(1, y)[:, 0] for beta in POWERS.tolist()]
    client_losses = torch.stack([_sums(loss, place, int(place.max()) + 1) + COMMON * loss.mean() for loss in losses])
    return torch.softmax(POWERS[client_losses.argmin(0)][place][:, None] * logs, 1)


def shrunk_gains(difference: Tensor, client: Tensor, ids: Sequence[int]) -> list[Gain]:
    """The gain of each of these clients, from the paired difference of each sample and whose sample it is."""
    place = {client: i for i, client in enumerate(ids)}
    at = torch.tensor([place.get(each, -1) for each in client.tolist()], dtype=torch.int64)
    usable = (at >= 0) & ~difference.isnan()
    difference, at = difference[usable], at[usable]
    count = _sums(torch.ones_like(difference), at, len(ids))
    mean = _sums(difference, at, len(ids)) / count.clamp(min=1)
    deviation = _deviations(difference, mean, count, at)
    error = deviation / count.sqrt()  # x / 0 is infinite
    has_error = torch.isfinite(error)
    size, size_error = mean / deviation.clamp(min=SMALLEST), torch.where(has_error, 1 / count.sqrt(), torch.inf)
    shrunk, shrunk_error = (deviation * each for each in shrink(size, size_error))
    columns = (mean.where(count > 0, torch.nan), error, shrunk, shrunk_error)
    return [Gain(*(x if isfinite(x) else None for x in row)) for row in torch.stack(columns, 1).tolist()]


def shrink(mean: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
    """γ and ε of the clients `[N]`, from their means and standard errors; an infinite error says nothing.

    If all are infinite, γ is NaN.
    """
    finite = torch.isfinite(error)
    if not finite.any():
        return torch.full_like(mean, torch.nan), error
    square = error.clamp(min=SMALLEST).square()
    between = between_variance(mean[finite], square[finite])
    weight = 1 / (square[finite] + between)
    centre = (weight * mean[finite]).sum() / weight.sum()
    shrinkage = between / (between + square)  # b, 0 for an infinite error
    left = torch.where(finite, shrinkage * square, between)  # b·e² tends to τ²
    return centre + shrinkage * (mean - centre), (left + (1 - shrinkage).square() / weight.sum()).sqrt()


def between_variance(mean: Tensor, square: Tensor) -> float:
    """τ² by the method of moments, all clients alike, from means and squared standard errors; 0 of one client.

    Weighted by their precision, one client with many samples would decide how much all of them differ.
    """
    return max(0.0, float(mean.var() - square.mean())) if len(mean) > 1 else 0.0


def _deviations(difference: Tensor, mean: Tensor, count: Tensor, at: Tensor) -> Tensor:
    """s of each client `[N]`, the federation's without samples; infinite if no variance can be told."""
    squares = _sums((difference - mean[at]).square(), at, len(mean))
    freedom = (count - 1).clamp(min=0)
    if not freedom.sum():
        return torch.full_like(mean, torch.inf)
    # Clients with few samples borrow the federation's variance: their own could be 0 by chance.
    common = torch.maximum(squares.sum() / freedom.sum(), difference.square().mean() / len(difference))
    return ((STEADY * common + squares) / (STEADY + freedom)).sqrt()


def _sums(values: Tensor, at: Tensor, clients: int) -> Tensor:
    return torch.zeros(clients, dtype=torch.float64).index_add(0, at, values)


def _best(gains: Mapping[str, Gain], sound: Sequence[str]) -> str:
    """The sound candidate with the largest convincing gain, the first of equal ones; the safe one if there is none.

    If the safe one is not finite, it is the sound candidate with the largest gain, convincing or not.
    """
    safe_is_sound = SAFE in sound or not sound
    shrunk = {name: gains[name].shrunk or 0.0 for name in gains if name in sound}
    eligible = [name for name in shrunk if gains[name].convincing or not safe_is_sound]
    return max(eligible, key=lambda name: shrunk[name], default=SAFE)
