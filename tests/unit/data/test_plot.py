"""The picture of who holds what."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from stratafl.data import Assignment, digits_federation, federate
from stratafl.data.plot import MAX_CLIENTS_DRAWN, plot_class_counts, total_class_counts

SVG = "{http://www.w3.org/2000/svg}"


def federation(labels, owners, **options):
    return federate(np.zeros((len(labels), 2), np.float32), np.asarray(labels), owners, name="<mine>", **options)


def found(made, kind):
    return list(ElementTree.fromstring(made).iter(f"{SVG}{kind}"))


def said(element):
    return element.find(f"{SVG}title").text


def test_every_class_of_every_client_is_a_bubble_whose_area_is_its_samples():
    made = plot_class_counts(federation([0] * 16 + [1] * 4 + [2] * 4, [np.arange(20), np.arange(20, 24)], classes=3))
    bubbles = {said(each): each for each in found(made, "circle")}
    assert list(bubbles) == [
        "client 0, class 0: 16 samples",
        "client 0, class 1: 4 samples",
        "client 1, class 2: 4 samples",
    ]
    large, small, other = (float(each.get("r")) for each in bubbles.values())
    assert large == pytest.approx(2 * small, abs=0.01)
    assert small == other
    places = [(float(each.get("cx")), float(each.get("cy"))) for each in bubbles.values()]
    assert places[0][0] == places[1][0] < places[2][0]
    assert places[0][1] < places[1][1] < places[2][1]


def test_bars_are_the_samples_of_each_client():
    bars = [
        each for each in found(plot_class_counts(digits_federation(clients=6)), "rect") if each.get("class") == "all"
    ]
    sizes = [int(re.search(r": ([\d,]+) samples", said(each))[1].replace(",", "")) for each in bars]
    assert sizes == total_class_counts(digits_federation(clients=6)).sum(1).tolist()
    heights = [float(each.get("height")) for each in bars]
    assert np.allclose(np.array(heights) / max(heights), np.array(sizes) / max(sizes), atol=0.01)


def test_all_splits_are_counted():
    division = Assignment([np.arange(6)], [np.arange(6, 10)])
    assert total_class_counts(federation([0, 1] * 5, division, validation=0.5)).tolist() == [[5, 5]]


def test_it_is_for_light_and_dark():
    made = plot_class_counts(digits_federation(clients=3))
    assert "prefers-color-scheme: dark" in made
    assert found(made, "rect")[0].get("class") == "paper"


def test_names_are_escaped():
    assert "&lt;mine&gt;" in plot_class_counts(federation([0, 1], [[0, 1]], test=0.5))


def test_data_without_classes_has_one_row():
    made = federation(np.linspace(0, 1, 10), [np.arange(4), np.arange(4, 10)])
    assert torch.equal(total_class_counts(made), torch.tensor([[4], [6]]))
    assert len(found(plot_class_counts(made), "circle")) == 2


def test_more_clients_than_can_be_told_apart_are_left_out_and_that_is_said():
    samples = 2 * MAX_CLIENTS_DRAWN + 2
    many = federation(np.zeros(samples, int), np.arange(samples).reshape(-1, 2), test=0.5)
    assert f" {MAX_CLIENTS_DRAWN} " in plot_class_counts(many)
    assert len(found(plot_class_counts(many), "circle")) == MAX_CLIENTS_DRAWN


def test_short_names_lie_beside_each_other():
    made = federation([0, 1, 1, 1], [[0, 1], [2, 3]], test=0.5)
    drawn = plot_class_counts(replace(made, client_names=("7", "301")))
    assert {"7", "301"} <= {each.text for each in found(drawn, "text")}
    assert "rotate" not in drawn
    assert found(drawn, "svg")[0].get("height") == found(plot_class_counts(made), "svg")[0].get("height")


def test_clients_and_classes_are_called_by_their_names():
    made = federation([0, 1, 1, 1], [[0, 1], [2, 3]], test=0.5)
    named = replace(made, client_names=("ann", "<bob> of the Very-Long-Name"), class_names=("cat", "dog"))
    drawn = plot_class_counts(named)
    assert [said(each) for each in found(drawn, "circle")] == [
        "client ann, class cat: 1 sample",
        "client ann, class dog: 1 sample",
        "client <bob> of the Very-Long-Name, class dog: 2 samples",
    ]
    words = [each.text for each in found(drawn, "text")]
    assert {"ann", "<bob> of the Very…", "cat", "dog"} <= set(words)
    assert (
        int(found(drawn, "svg")[0].get("height"))
        == int(found(plot_class_counts(made), "svg")[0].get("height")) + 18 * 7
    )


def test_a_picture_is_as_wide_as_the_names_of_its_classes_need():
    made = federation(np.zeros(60, int), np.arange(60).reshape(-1, 2), test=0.5)
    made = replace(made, classes=1)
    named = replace(made, class_names=("a class of a very long name",))
    wider = int(found(plot_class_counts(named), "svg")[0].get("width")) - int(
        found(plot_class_counts(made), "svg")[0].get("width")
    )
    assert wider == 16 + 18 * 7 - 64
