"""Baselines outside the federation: a logistic regression of each client alone, and one of all samples in one place.

Both see a table as the federation encodes it. The objective is that of scikit-learn with C = 1: the sum of the
log-losses and half the squared norm of the weights, without the intercepts. Its optimum is unique, so it does not
matter whether scikit-learn finds it or, where that is not installed, Newton's method here.
"""

import logging
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import softplus

from stratafl.config.assemble import federation_to_run
from stratafl.core.reprs import short_repr
from stratafl.data import Federation
from stratafl.data.reading import is_table
from stratafl.evaluation.predictions import Predictions, join_predictions
from stratafl.files import is_plain
from stratafl.runs.comparison import Comparison
from stratafl.runs.prediction_file import PREDICTIONS, write_predictions

Numbers = NDArray[np.float64]
FOLDER = "baselines"  # in the folder of a comparison
LOGISTIC_ALONE, LOGISTIC_POOLED = "logistic regression, alone", "logistic regression, pooled"
FOLDERS = {LOGISTIC_ALONE: "logistic-alone", LOGISTIC_POOLED: "logistic-pooled"}
WHY = {
    LOGISTIC_ALONE: "a baseline outside the federation: of each client's own samples",
    LOGISTIC_POOLED: "a baseline outside the federation: of all clients' samples in one place",
}
MAX_VALUES = 50_000_000  # samples × columns of a table; of a larger one they would take minutes
MAX_STEPS, GRADIENT = 2000, 1e-8  # when a search for the optimum ends
SOLVED, MIN_SIZE = 1e-20, 1e-6  # … and when a step of it is exact enough, or too short
PACKAGE = "sklearn.linear_model"
log = logging.getLogger("stratafl")


@short_repr
class Logistic(NamedTuple):
    """Weights and intercepts; of two classes those of the second against the first, and none of one class."""

    classes: NDArray[np.int64]  # those that were seen
    weights: Numbers  # [classes or 1, columns]
    intercepts: Numbers

    def probabilities(self, x: Numbers, classes: int) -> Tensor:
        """Of all classes `[n, classes]`; a class that was never seen has 0."""
        scores = torch.zeros(len(x), classes, dtype=torch.float64)
        if len(self.classes) == 1:
            scores[:, self.classes[0]] = 1.0
            return scores.float()
        logits = torch.from_numpy(x @ self.weights.T + self.intercepts)
        if len(self.classes) == 2:
            logits = torch.cat([torch.zeros_like(logits), logits], 1)
        scores[:, torch.from_numpy(self.classes)] = logits.softmax(1)
        return scores.float()


def logistic(x: Numbers, y: NDArray[np.int64]) -> Logistic:
    """The logistic regression of these samples, by scikit-learn if it is installed."""
    classes = np.unique(y)
    if len(classes) == 1:
        return Logistic(classes, np.zeros((0, x.shape[1])), np.zeros(0))
    try:
        linear: Any = import_module(PACKAGE)
    except ImportError:
        return logistic_here(x, y)
    model = linear.LogisticRegression(C=1.0, tol=GRADIENT, max_iter=MAX_STEPS).fit(x, y)
    return Logistic(classes, model.coef_, model.intercept_)


def logistic_here(x: Numbers, y: NDArray[np.int64]) -> Logistic:
    """The same without scikit-learn, for two or more classes: Newton's method, each step by conjugate gradients."""
    classes, place = np.unique(y, return_inverse=True)
    rows = 1 if len(classes) == 2 else len(classes)
    inputs = torch.from_numpy(np.concatenate([x, np.ones((len(x), 1))], 1))
    wanted = torch.nn.functional.one_hot(torch.from_numpy(place)).double()[:, -rows:]
    penalty = torch.ones(inputs.shape[1], dtype=torch.float64)
    penalty[-1] = 0.0  # of the intercept

    def activation(theta: Tensor) -> Tensor:
        logits = inputs @ theta.T
        return torch.sigmoid(logits) if rows == 1 else logits.softmax(1)

    def objective(theta: Tensor) -> float:
        logits = inputs @ theta.T
        normaliser = softplus(logits).sum() if rows == 1 else logits.logsumexp(1).sum()
        return float(normaliser - (logits * wanted).sum() + (theta.square() * penalty).sum() / 2)

    theta = torch.zeros(rows, inputs.shape[1], dtype=torch.float64)
    for _ in range(MAX_STEPS):
        share = activation(theta)
        gradient = (share - wanted).T @ inputs + theta * penalty
        if float(gradient.abs().max()) < GRADIENT * max(1.0, len(x)):
            break
        theta = _lower(objective, theta, _newton_step(inputs, share, penalty, gradient), gradient)
    intercepts = theta[:, -1] - (theta[:, -1].mean() if rows > 1 else 0.0)  # of several, only differences count
    return Logistic(classes, theta[:, :-1].numpy(), intercepts.numpy())


def _newton_step(inputs: Tensor, share: Tensor, penalty: Tensor, gradient: Tensor) -> Tensor:
    """The step d with H d = -gradient, H the matrix of second derivatives, by conjugate gradients."""

    def curvature(direction: Tensor) -> Tensor:
        z = inputs @ direction.T
        change = share * (z - (share * z).sum(1, keepdim=True))  # of one column: p z (1 - p)
        return change.T @ inputs + direction * penalty

    step, residual = torch.zeros_like(gradient), -gradient
    direction, norm = residual, residual.square().sum()
    enough = norm * SOLVED
    for _ in range(gradient.numel()):
        product = curvature(direction)
        length = norm / (direction * product).sum()
        step, residual = step + length * direction, residual - length * product
        before, norm = norm, residual.square().sum()
        if norm <= enough:
            break
        direction = residual + norm / before * direction
    return step


def _lower(objective: Callable[[Tensor], float], theta: Tensor, step: Tensor, gradient: Tensor) -> Tensor:
    """Where the objective is lower, along the step: half of it, a quarter and so on if it is too long."""
    now, slope, size = objective(theta), float((step * gradient).sum()), 1.0
    while size > MIN_SIZE and objective(theta + size * step) > now + 1e-4 * size * slope:
        size /= 2
    return theta + size * step


def is_for(federation: Federation) -> bool:
    """Whether a federation has a table of numbers and classes, and is not too large."""
    return federation.classes is not None and is_table(federation.x) and federation.x.numel() <= MAX_VALUES


def baseline_predictions(federation: Federation, clients: int, split: str = "test") -> dict[str, Predictions]:
    """What both give for the held-out samples of the first clients, which are those that train."""
    x: Numbers = federation.x.cpu().double().numpy()
    y, classes = federation.y.cpu(), federation.classes or 0
    labels, parts = y.numpy(), {LOGISTIC_ALONE: list[Predictions](), LOGISTIC_POOLED: list[Predictions]()}
    train, held_out = federation.split("train"), federation.split(split)
    everybody = train.indices[: int(train.offsets[clients])].numpy()
    pooled = logistic(x[everybody], labels[everybody])
    for client in range(clients):
        trained, rows = train.of(client).numpy(), held_out.of(client)
        if not len(rows):
            continue
        owner = torch.full((len(rows),), client)
        for name, model in ((LOGISTIC_ALONE, logistic(x[trained], labels[trained])), (LOGISTIC_POOLED, pooled)):
            scores = model.probabilities(x[rows.numpy()], classes)
            parts[name].append(Predictions(owner, y[rows], scores))
    return {name: join_predictions(predicted) for name, predicted in parts.items() if predicted}


def write_baselines(comparison: Comparison) -> None:
    """Write what the baselines give for the test samples of every seed, if the data is a table; once."""
    seeds = {member.seed: member for member in comparison.members()}
    for member in seeds.values():
        places = {name: baseline_folder(member.folder, name) for name in FOLDERS}
        if not member.experiment.evaluate.test or all(is_plain(place / PREDICTIONS) for place in places.values()):
            continue
        federation = federation_to_run(member.experiment)
        if not is_for(federation):
            return
        clients = federation.clients - member.experiment.data.new_clients
        for name, predicted in baseline_predictions(federation, clients).items():
            places[name].mkdir(parents=True, exist_ok=True)
            write_predictions(places[name], {"test": predicted}, 0, "deployed")


def baseline_folder(run: Path, name: str) -> Path:
    """Where the predictions of a baseline for the data of a run are."""
    return run.parent.parent / FOLDER / FOLDERS[name] / run.name
