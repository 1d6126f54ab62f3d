"""The three products of a convolution with a weight per client, client by client, by stock convolutions in float64."""

import torch
import torch.nn.functional as F


def output(image, weight, geometry):
    """`[C, in, B, h, w]` and `[C, out, in, kh, kw]` give `[C, out, B, oh, ow]`; padding may differ between sides."""
    ends = [
        (out - 1) * stride + kernel + start - size
        for out, stride, kernel, start, size in zip(
            geometry.out, geometry.stride, geometry.kernel, geometry.start, geometry.image, strict=True
        )
    ]
    sides = (-geometry.start[1], ends[1], -geometry.start[0], ends[0])
    each = [
        F.conv2d(F.pad(x.transpose(0, 1), sides), w, stride=geometry.stride).transpose(0, 1)
        for x, w in zip(image, weight, strict=True)
    ]
    return torch.stack(each)


def product(kind, a, b, geometry):
    """What `kernels.multiply` must give, in the type of its factors; gradients by autograd."""
    a, b = a.double().detach(), b.double().detach()
    if kind == "output":
        return output(a, b, geometry)
    image = torch.zeros(geometry.shape("image"), dtype=torch.float64, device=a.device)
    weight = torch.zeros(geometry.shape("weight"), dtype=torch.float64, device=a.device)
    image, weight = (a, weight) if kind == "weight" else (image, a)
    with torch.enable_grad():
        wanted = (weight if kind == "weight" else image).requires_grad_()
        (found,) = torch.autograd.grad(output(image, weight, geometry), wanted, b)
    return found


def factors(kind, geometry, device="cpu", seed=0):
    """Random float32 factors of a product."""
    torch.manual_seed(seed)
    made = {each: torch.randn(geometry.shape(each)).to(device) for each in ("image", "weight", "output")}
    first, second = {"output": ("image", "weight"), "image": ("weight", "output"), "weight": ("image", "output")}[kind]
    return made[first], made[second]


def error(found, expected):
    return float((found.double() - expected).abs().max() / expected.abs().max())
