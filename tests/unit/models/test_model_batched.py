"""Gradients of stacked models equal those of the models one by one."""

import torch
from model_cases import Case
from torch import Tensor
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn.functional import cross_entropy

from stratafl.models import LinearBase, ResNet, Staged


def loop(model: Staged, x: Tensor, y: Tensor) -> dict[str, Tensor]:
    names, values = zip(*model.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(cross_entropy(model(x), y), values), strict=True))


def check_stacked(models: list[Staged], x: Tensor, y: Tensor) -> None:
    parameters, buffers = stack_module_state(models)
    skeleton = models[0]

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(functional_call(skeleton, (p, b), (x,)), y)

    stacked = vmap(grad(loss))(parameters, buffers, x, y)
    for i, model in enumerate(models):
        alone = loop(model, x[i], y[i])
        assert stacked.keys() == alone.keys()
        for name, value in alone.items():
            torch.testing.assert_close(stacked[name][i], value, rtol=1e-10, atol=1e-10, msg=name)


def test_stacked_gradients_equal_the_loop(case: Case) -> None:
    models = [case.model(seed).double().eval() for seed in (0, 1)]
    x = torch.stack([case.batch(2, seed, torch.float64) for seed in (2, 3)])
    y = torch.randint(case.classes, (2, 2), generator=torch.Generator().manual_seed(4))
    check_stacked(models, x, y)


def test_stacked_gradients_through_a_linear_base() -> None:
    models: list[Staged] = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        original = ResNet(shape=(3, 8, 8), classes=3, blocks=(1, 2), stem="cifar").double().eval()
        models.append(LinearBase(original, 2, (3, 8, 8)))
    x, y = torch.randn(2, 2, 3, 8, 8, dtype=torch.float64), torch.tensor([[0, 1], [2, 1]])
    check_stacked(models, x, y)
