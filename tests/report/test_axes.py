"""Axes show the values and little else, and no two ticks have the same text."""

from itertools import pairwise

import pytest

from stratafl.report.charts import PERCENT, percent_bar, value_axis, value_range


def text_of(tick, step):
    """A tick as plotly writes it, whose ticks are `step` apart: the first format whose range holds the step."""
    for stop in PERCENT:
        low, high = stop["dtickrange"]
        if (low is None or step >= low) and (high is None or step <= high):
            return f"{tick:{stop['value']}}"
    raise AssertionError(f"no format for ticks {step} apart")


@pytest.mark.parametrize("power", range(-5, 0))
@pytest.mark.parametrize("digit", [1, 2, 5])
def test_no_two_ticks_have_the_same_text(power, digit):
    step = digit * 10.0**power
    texts = [text_of(0.8 + i * step, step) for i in range(12)]
    assert all(before != after for before, after in pairwise(texts))
    fewer = f"{step:.0%}"
    assert len(texts[0]) <= len("80.000%"), fewer


def test_ticks_that_need_no_decimals_have_none():
    assert text_of(0.8, 0.05) == "80%"
    assert text_of(0.875, 0.005) == "87.5%"


def test_an_axis_is_as_wide_as_its_values():
    assert value_range([0.81, 0.92], share=True) == pytest.approx([0.81 - 0.0066, 0.92 + 0.0066])
    assert value_range([0.0, 1.0], share=True) == pytest.approx([-0.025, 1.025])  # markers at the ends are whole
    assert value_range([], share=False) is None
    assert value_range([None, float("nan")], share=False) is None


def test_values_that_are_alike_do_not_look_far_apart():
    low, high = value_axis("accuracy", [0.877, 0.8771], share=True)["range"]
    assert high - low == pytest.approx(0.02 * 1.12, rel=1e-3)
    low, high = value_axis("loss", [3.0], share=False)["range"]
    assert low < 3 < high


def test_a_share_is_in_per_cent_and_a_loss_is_not():
    assert "tickformatstops" in value_axis("accuracy", [0.5], share=True)
    assert "tickformatstops" not in value_axis("loss", [0.5], share=False)
    assert [percent_bar(0.9, high)["tickformat"] for high in (0.9012, 0.92, 1.0)] == [".2%", ".1%", ".0%"]
