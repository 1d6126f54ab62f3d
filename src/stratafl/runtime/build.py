"""Builds a runtime: checks that model and data fit, and finds out whether the module runs stacked."""

import logging
import warnings
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.hooks import RemovableHandle

from stratafl.core.describe import INNER, columns, light_copy
from stratafl.core.keys import torchs_generator
from stratafl.core.layout import Layout
from stratafl.core.objectives import default_objective
from stratafl.core.state import expand
from stratafl.core.task import Inputs, Stack
from stratafl.data.federation import Federation
from stratafl.data.preprocessing import numbers as numbers_of
from stratafl.data.sample_format import SampleFormat
from stratafl.errors import ModelError, first_line, shown, unknown
from stratafl.models import own_model
from stratafl.runtime.choice import is_measured, measured
from stratafl.runtime.engine import Engine, LoopEngine, StackedEngine
from stratafl.runtime.likeness import found_once, keeps_state, likeness
from stratafl.runtime.model import Model
from stratafl.runtime.modules import draws_by_functions
from stratafl.runtime.runtime import Runtime, steps_of
from stratafl.runtime.speed import DEFAULT_SPEED, Speed, check_precision, precision, with_convolutions
from stratafl.runtime.tables import table_of
from stratafl.runtime.ways import Way

T = TypeVar("T")
EngineName = Literal["auto", "stacked", "loop"]
MAX_REASON_LETTERS = 200  # letters of torch's reason that are shown
SEVERAL = 16  # clients with which convolutions are measured
log = logging.getLogger("stratafl")


def build_runtime(
    federation: Federation,
    module: nn.Module,
    layout: Layout,
    *,
    head: str | None = None,
    device: str | torch.device = "cpu",
    engine: EngineName = "auto",
    speed: Speed = DEFAULT_SPEED,
    batch: int = 10,
    measures: bool = True,
    numbers: tuple[int, ...] | None = None,
    widest: Mapping[str, int] | None = None,
) -> Runtime:
    """The runtime of a federation; `engine` forces stacked or client-by-client computation.

    Convolutions are measured on batches of `batch` samples. Without `measures`, the engine of a CPU follows from the
    model alone, so that machines choose alike. `numbers` and `widest` are those of `Runtime`.
    """
    device = torch.device(device)
    dtype = next(p.dtype for p in module.parameters())
    federation = federation.to(device)
    sample = _sample(federation, dtype)
    alike = _likeness(module, layout, head, federation)

    def once(what: Hashable, find: Callable[[], T], here: bool = False) -> T:
        """What holds for such a model and such data is found once; `here`: values of the data matter, too."""
        if alike is None:
            return find()
        return federation.once((what, alike, dtype), find) if here else found_once((what, alike, dtype), find)

    outputs = federation.y.shape[1:].numel()
    once("outputs", lambda: _check_outputs(module, sample, federation.classes, outputs), here=True)
    check_precision(speed.precision, device)
    if alike is not None and once("keeps state", lambda: keeps_state(module, sample), here=True):
        alike = None

    functions = once("functions", lambda: draws_by_functions(module, sample))
    # Frozen tensors are moved once for all threads.
    on_device = module if device.type == "cpu" else light_copy(module).to(device)

    def model(stacked: bool, products: Mapping[str, Way] | None = None) -> Model:
        rounded = speed.precision == "bf16"
        how: dict[str, Any] = {"rounded": rounded, "products": products, "functions": functions}
        return Model(on_device, layout, head=head, stacked=stacked, device=device, **how)

    asked_speed = speed
    with precision(speed.precision):
        speed = with_convolutions(speed, module, sample, min(federation.clients, SEVERAL), batch)
    measures = (
        measures
        and engine == "auto"
        and asked_speed.products is None
        and asked_speed.convolutions == "auto"
        and device.type == "cpu"
    )
    stacked = StackedEngine(lambda: model(True, speed.products))
    alone = lambda: model(False, speed.products)  # noqa: E731
    why_not = lambda: _why_not_stacked(stacked, module, layout, federation, sample)  # noqa: E731
    chosen = _engine(module, engine, stacked, sample, alone, lambda: once(("stacks", speed.key), why_not))
    possible = chosen is stacked
    if measures and isinstance(chosen, StackedEngine) and not speed.captures(device) and is_measured(module):
        loop = _loop(module, sample, lambda: model(False))
        chosen = _faster(chosen, loop, module, federation, sample, batch) if loop.parallel else chosen
    width = once(("width", type(chosen), speed.key), lambda: _width(chosen, module, sample))
    smallest = once("smallest batch", lambda: _smallest_batch(module, sample))
    captured = None
    if speed.captures(device) and isinstance(chosen, StackedEngine):
        captured = steps_of(speed, device, len(layout.specs))
    alike = alike if isinstance(chosen, StackedEngine) else None
    prefers_loop = isinstance(chosen, LoopEngine) and (possible or engine == "loop")
    return Runtime(
        *(federation, chosen, layout, dtype, device, smallest, width, captured, speed, alike, prefers_loop),
        table=table_of(module),
        numbers=numbers,
        widest=widest or {},
    )


def head_width(module: nn.Module, layout: Layout, head: str | None, samples: SampleFormat) -> int:
    """The width of the head's input, found without data. Raises if the module does not take such samples."""
    sample = numbers_of(samples.zeros(2)[0], next(module.parameters()).dtype)
    _check_outputs(module, sample, samples.classes, samples.outputs)
    alone = LoopEngine(lambda: Model(module, layout, head=head, stacked=False, device=sample.device))
    return _width(alone, module, sample)


def _likeness(module: nn.Module, layout: Layout, head: str | None, federation: Federation) -> Hashable:
    """The same for runs whose steps compute the same on samples of one form; None if that cannot be told."""
    same, x, y = likeness(module), federation.x, federation.y
    described = (tuple(layout.specs.values()), layout.layers, layout.buffers, head)
    return same and (same, *described, federation.classes, x.shape[1:], x.dtype, y.shape[1:], y.dtype, x.device)


def _sample(federation: Federation, dtype: torch.dtype) -> Tensor:
    return _two(federation.inputs(federation.x[:2].clone(), dtype))  # a module may write to its input


def _two(x: Tensor) -> Tensor:
    """Two of them: a site that only predicts may have none, and zeros do as well."""
    x = x if len(x) else x.new_zeros(1, *x.shape[1:])
    return x[:2] if len(x) > 1 else x.repeat(2, *(1,) * (x.ndim - 1))


def _check_outputs(module: nn.Module, sample: Tensor, classes: int | None, wanted: int) -> None:
    """Raise unless the module gives scores for all classes, or `wanted` numbers where there are no classes."""
    name, shape = type(own_model(module)).__name__, tuple(sample.shape[1:])
    trial = light_copy(module).to(sample.device).eval()
    try:
        with torch.no_grad():
            output = trial(sample)
    except ModelError:
        raise
    except Exception as error:  # a user's module may fail in any way
        raise ModelError(f"{name} does not take samples of shape {shape}: {first_line(error, typed=True)}") from error
    if not isinstance(output, Tensor):
        raise ModelError(f"{name} returns {type(output).__name__}, but must return one tensor of outputs")
    if classes is not None and (output.ndim != 2 or output.shape[1] < classes):
        shape = tuple(output.shape[1:])
        raise ModelError(f"{name} returns shape {shape}, but must return {classes} logits, one for each class")
    if classes is None and output[0].numel() != wanted:
        raise ModelError(
            f"{name} returns {output[0].numel()} numbers for a sample, but the targets have {wanted}: "
            "if they are classes, give them as whole numbers from 0"
        )


def _width(engine: Engine, module: nn.Module, sample: Tensor) -> int:
    """The width of the head's input."""
    rows = expand({n: x.to(sample.device) for n, x in columns(module).items()}, 1)
    weight = torch.ones(1, len(sample), dtype=next(module.parameters()).dtype, device=sample.device)
    _, features = engine.outputs(rows, sample.unsqueeze(0), weight, (len(sample),))
    return int(features.flatten(2).shape[2])


def _smallest_batch(module: nn.Module, sample: Tensor) -> int:
    """2 where a BatchNorm refuses to train on a single sample, else 1."""
    if not any(isinstance(sub, _BatchNorm) for sub in module.modules()):
        return 1
    try:
        with torch.no_grad(), torchs_generator():
            light_copy(module).to(sample.device).train()(sample[:1])
    except ValueError:
        return 2
    return 1


def _engine(
    module: nn.Module,
    name: EngineName,
    stacked: StackedEngine,
    sample: Tensor,
    model: Callable[[], Model],
    why_not_stacked: Callable[[], str | None],
) -> Engine:
    if name not in ("auto", "stacked", "loop"):
        raise unknown("engine", str(name), ("auto", "stacked", "loop"))
    if name == "loop":
        return _loop(module, sample, model)
    reason = why_not_stacked()
    if reason is None:
        return stacked
    if name == "stacked":
        raise ModelError(f"{type(own_model(module)).__name__} does not run stacked: {reason}")
    log.warning(
        "%s runs client by client, because it does not run stacked: %s", type(own_model(module)).__name__, reason
    )
    return _loop(module, sample, model)


def _loop(module: nn.Module, sample: Tensor, model: Callable[[], Model]) -> LoopEngine:
    """Client by client; on a CPU several at a time, unless the module draws random numbers of its own."""
    try:
        draws = sample.device.type != "cpu" or model().draws(columns(module), sample)
    except Exception:  # a user's module may fail in any way; then it says why when it trains
        draws = True
    return LoopEngine(model, parallel=not draws)


def _faster(
    stacked: StackedEngine, loop: LoopEngine, module: nn.Module, federation: Federation, sample: Tensor, batch: int
) -> Engine:
    """The engine that is faster on this processor, unless single-threaded clients would leave half of it idle."""
    if 2 * federation.clients <= torch.get_num_threads():
        return stacked
    times = measured(stacked, loop, module, federation, sample, batch)
    stacked.client_seconds, loop.client_seconds = times.stacked, times.loop
    log.info(
        "a client's step takes %.2f ms stacked and %.2f ms client by client: engine '%s'",
        *(1e3 * times.stacked, 1e3 * times.loop, times.engine),
    )
    return loop if times.engine == "loop" else stacked


def _why_not_stacked(
    engine: StackedEngine, module: nn.Module, layout: Layout, federation: Federation, sample: Tensor
) -> str | None:
    """Why a step of two clients fails in one vectorised call, or None if it works."""
    rows = expand({n: x.to(sample.device) for n, x in columns(module).items()}, 2)
    targets = _two(federation.y[:1])
    x, y = sample.expand(2, *sample.shape), targets.expand(2, *targets.shape)
    weight = torch.ones(2, 2, dtype=next(module.parameters()).dtype, device=sample.device)
    keys = torch.zeros(2, dtype=torch.int64, device=sample.device)
    inside, hooks = list[str](), list[RemovableHandle]()
    try:
        hooks += _entered(engine.model.module, inside)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's warnings about slow rules are no reason
            stack, trained = Stack(x, y, weight, keys, (2, 2)), layout.trainable()
            objective, modes = default_objective(federation.classes), engine.model.modes(trained)
            engine.gradients(objective, rows, stack, trained, Inputs(), modes)
            engine.outputs(rows, x, weight, (2, 2))
    except Exception as error:  # the module does something that vmap cannot do
        where = f"{inside[-1]} fails for several clients at once, " if inside else ""
        return where + shown(first_line(error, typed=True), MAX_REASON_LETTERS)
    finally:
        for hook in hooks:
            hook.remove()
    return None


def _entered(module: nn.Module, inside: list[str]) -> list[RemovableHandle]:
    """Hooks that keep in `inside` the modules whose forward has begun and not ended, the innermost last."""

    def hooks_of(path: str, sub: nn.Module) -> list[RemovableHandle]:
        title = f"'{path}' ({type(sub).__name__})"
        return [
            sub.register_forward_pre_hook(lambda *_: inside.append(title)),
            sub.register_forward_hook(lambda *_: inside.pop() and None),
        ]

    paths = ((path.removeprefix(f"{INNER}."), sub) for path, sub in module.named_modules() if path not in ("", INNER))
    return [hook for path, sub in paths for hook in hooks_of(path, sub)]
