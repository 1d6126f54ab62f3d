"""Weights to a file and back, and every refusal."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from stratafl.errors import ModelError
from stratafl.models import MLP, ConvNorm, load_weights, save_weights
from wording import mentions


def net(classes: int = 3) -> ConvNorm:
    return ConvNorm(shape=(1, 8, 8), classes=classes)


def state(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in module.state_dict().items()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def refused(module: nn.Module, path: Path, *, strict: bool = True) -> str:
    before = state(module)
    with pytest.raises(ModelError) as caught:
        load_weights(module, path, strict=strict)
    assert same(before, state(module))
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_round_trip_with_buffers(tmp_path: Path) -> None:
    model, other = net(), net()
    model(torch.randn(4, 1, 8, 8))
    assert not same(state(model), state(other))
    save_weights(model, tmp_path / "w.safetensors")
    assert set(load_weights(other, tmp_path / "w.safetensors")) == set(model.state_dict())
    assert same(state(model), state(other))
    assert other.bn1.num_batches_tracked == 1


def test_a_path_may_be_a_string_and_is_overwritten(tmp_path: Path) -> None:
    first, second, third = net(), net(), net()
    path = str(tmp_path / "w.safetensors")
    save_weights(first, path)
    save_weights(second, path)
    load_weights(third, path)
    assert same(state(second), state(third))


def test_only_the_file_is_left(tmp_path: Path) -> None:
    save_weights(net(), tmp_path / "w.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]


def test_a_failed_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = net(), net()
    save_weights(model, tmp_path / "w.safetensors")

    def half_written(_: object, path: Path, metadata: object = None) -> None:
        path.write_bytes(b"half")
        raise OSError("no space left")

    monkeypatch.setattr("safetensors.torch.save_file", half_written)
    with pytest.raises(ModelError, match=r"w\.safetensors'.*no space left"):
        save_weights(other, tmp_path / "w.safetensors")
    assert [p.name for p in tmp_path.iterdir()] == ["w.safetensors"]
    load_weights(other, tmp_path / "w.safetensors")
    assert same(state(model), state(other))


def test_a_missing_folder_is_refused_on_saving(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="none"):
        save_weights(net(), tmp_path / "none" / "w.safetensors")


def test_tied_and_transposed_weights_are_saved(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    tied[0].bias.data = torch.randn(4)[::2]
    save_weights(tied, tmp_path / "w")
    other = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    load_weights(other, tmp_path / "w")
    assert same(state(tied), state(other))


def test_missing_file(tmp_path: Path) -> None:
    path = tmp_path / "none.safetensors"
    assert f"'{path}'" in refused(net(), path)
    assert f"'{tmp_path}'" in refused(net(), tmp_path)


@pytest.mark.parametrize("content", [b"", b"not a safetensors file at all"])
def test_not_safetensors(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "w.safetensors"
    path.write_bytes(content)
    assert refused(net(), path).startswith(f"'{path}' ")


def test_pickles_are_not_read(tmp_path: Path) -> None:
    torch.save(net().state_dict(), tmp_path / "w.pt")
    assert "w.pt" in refused(net(), tmp_path / "w.pt")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(net(), path)
    path.write_bytes(path.read_bytes()[:-8])
    assert f"'{path}'" in refused(net(), path)


def test_missing_and_unexpected_names(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    weights = state(net())
    del weights["fc.bias"]
    weights["fc.bais"], weights["zzz"] = torch.zeros(3), torch.zeros(1)
    save_file(weights, path)
    missing, unexpected = ("1 ", "14 ", "'fc.bias'", "'fc.bais'"), ("2 ", "'fc.bais'", "'fc.bias'")
    assert mentions(refused(net(), path), f"'{path}'", *missing, *unexpected)


def test_missing_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file({"fc.bias": torch.zeros(3)}, path)
    text = refused(MLP(shape=(2,), classes=3), path)
    assert mentions(text, f"'{path}'", "3 ", "4 ", "'fc1.weight'")
    assert "'fc.bias')" not in text  # which both have


def test_unexpected_names_alone(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    save_file(state(net()) | {"zzz": torch.zeros(1)}, path)
    assert mentions(refused(net(), path), f"'{path}'", "1 ", "'zzz'")


@pytest.mark.parametrize("strict", [True, False])
def test_wrong_shapes(tmp_path: Path, strict: bool) -> None:
    path = tmp_path / "w.safetensors"
    save_weights(net(classes=5), path)
    text = refused(net(classes=3), path, strict=strict)
    expected = {"fc.weight": ("(5, 8)", "(3, 8)"), "fc.bias": ("(5,)", "(3,)")}
    assert any(mentions(text, f"'{n}'", stored, f"'{path}'", needed) for n, (stored, needed) in expected.items())


def test_not_strict_loads_what_fits_by_name(tmp_path: Path) -> None:
    path, model = tmp_path / "w.safetensors", net()
    before = state(model)
    save_file({"fc.bias": torch.full((3,), 7.0), "zzz": torch.zeros(1)}, path)
    assert load_weights(model, path, strict=False) == ("fc.bias",)
    assert model.fc.bias.tolist() == [7.0] * 3
    assert same(before | {"fc.bias": torch.full((3,), 7.0)}, state(model))
