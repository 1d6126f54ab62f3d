"""`data show`: who holds what."""

import os
from xml.etree import ElementTree

import numpy as np
import pytest
from cli_helpers import checked_line

from stratafl.data import Dirichlet, digits_federation


@pytest.fixture(autouse=True)
def wide(place, monkeypatch):
    """A row of the table in one line."""
    monkeypatch.setenv("COLUMNS", "120")


def rows(text):
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in text.splitlines() if line.startswith("│")]


def test_a_row_per_client(strata):
    result = strata("data", "show", "--set", "data.clients=5", "--set", "data.seed=3")
    federation = digits_federation(clients=5, seed=3, validation=0.1, partition=Dirichlet(0.3))
    assert (result.code, result.err) == (0, "")
    assert "digits: 5 clients, 1,797 samples" in result.out
    table = rows(result.out)
    assert [row[0] for row in table] == ["0", "1", "2", "3", "4"]
    for place, split in ((2, "train"), (3, "validation"), (4, "test")):
        assert [int(row[place].replace(",", "")) for row in table] == federation.counts(split).tolist()
    assert all(int(row[1].replace(",", "")) == sum(int(cell.replace(",", "")) for cell in row[2:5]) for row in table)


def test_options_of_the_partition_and_classes_by_size(strata, place):
    y = np.repeat([0, 1, 2, 3], [30, 20, 10, 5])
    np.savez(place / "own.npz", x=np.zeros((65, 2), np.float32), y=y, client=np.array(["a", "b"])[(y > 2) * 1])
    result = strata("data", "show", "--data", "own.npz")
    assert [row[-1] for row in rows(result.out)] == ["0 (30), 1 (20), 2 (10)", "3 (5)"]
    result = strata("data", "show", "-d", "own.npz", "-s", "data.partition=owners", "-s", "data.clients=1")
    assert len(rows(result.out)) == 1
    assert ", from " not in result.out.splitlines()[0]  # not "from 60 to 60 each"
    wrong = strata("data", "show", "-d", "own.npz", "-s", "data.partition=owners", "-s", "data.maximun=1")
    assert "unknown key of [data] 'maximun'; did you mean 'maximum'?" in checked_line(wrong)


def test_many_clients_end_with_one_row_for_the_rest(strata):
    table = rows(strata("data", "show", "--set", "data.clients=60", "--set", "data.partition=iid").out)
    assert len(table) == 40
    assert table[-1][0] == "39–59"
    assert table[-1][1] == str(1797 - sum(int(row[1]) for row in table[:-1]))
    assert "21 more clients" in table[-1][-1]


def test_the_picture_is_written_and_nothing_is_overwritten(strata, place):
    result = strata("data", "show", "--set", "data.clients=4", "-o", "held.svg")
    assert (result.code, result.out.splitlines()[-1]) == (0, "picture: held.svg")
    drawn = ElementTree.parse(place / "held.svg").getroot()
    assert drawn.tag.endswith("svg")
    assert [path.name for path in place.iterdir()] == ["held.svg"]
    assert "'held.svg' exists" in checked_line(strata("data", "show", "-o", "held.svg"))


def test_help_gives_an_example(strata):
    result = strata("data", "show", "--help")
    assert (result.code, result.err) == (0, "")
    assert "Example: strata data show" in result.out


def test_clients_and_classes_have_their_names(strata, place):
    client = np.array(["[red]ann", "bob"])[np.arange(20) // 10]
    np.savez(place / "own.npz", x=np.zeros((20, 2)), y=np.where(np.arange(20) < 10, "[b]cat", "dog"), client=client)
    result = strata("data", "show", "--data", "own.npz")
    assert [(row[0], row[1], row[-1]) for row in rows(result.out)] == [
        ("0", "[red]ann", "[b]cat (10)"),
        ("1", "bob", "dog (10)"),
    ]
    assert result.out.splitlines()[-1] == "2 classes: [b]cat, dog"


def test_what_is_predicted_is_said(strata, place):
    def said(y):
        np.savez(place / "own.npz", x=np.zeros((60, 2)), y=y, client=np.arange(60) % 2)
        return strata("data", "show", "--data", "own.npz").out.splitlines()[-1]

    years = said(2000.0 + 10 * (np.arange(60) % 3))
    assert years.startswith("3 classes: 2000, 2010, 2020 ")
    assert "data.targets = 'numbers'" in years
    regression = said(np.linspace(0, 1, 60))
    assert "0 to 1" in regression
    assert "data.targets = 'classes'" in regression
    assert said(np.arange(60)).startswith("60 classes: 0, 1, 2, 3,")
    assert "18, 19, …" in said(np.arange(60))
    assert strata("data", "show").out.splitlines()[-1] == "10 classes"


def test_what_a_sample_is_is_said(strata, place):
    def said(x):
        np.savez(place / "own.npz", x=x, y=np.arange(40) % 2, client=np.arange(40) % 2)
        return strata("data", "show", "--data", "own.npz").out.splitlines()[-2]

    assert strata("data", "show").out.splitlines()[-2] == "a sample is 1×8×8, numbers from 0 to 1"
    pixels = np.arange(40 * 48, dtype=np.uint16).reshape(40, 3, 4, 4) % 256
    assert said(pixels.astype(np.uint8)) == "a sample is 3×4×4, bytes from 0 to 255"
    assert said(np.arange(80).reshape(40, 2)) == "a sample is 2 whole numbers from 0 to 79"
    lines = [f"{i},{18 + i},{i / 20:.2f},{i % 2}" for i in range(1, 41)]
    (place / "own.csv").write_text("\n".join(["id,age,share,label", *lines]))
    given = ("data", "show", "--data", "own.csv", "--set", "data.clients=2")
    told = strata(*given).out.splitlines()
    assert "a sample is 3 numbers: id 1 to 40, age 19 to 58, share 0.05 to 2" in told


def test_all_columns_are_shown_and_identifiers_and_copies_of_the_label_are_flagged(strata, place):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 60)
    columns = {f"c{i}": rng.normal(size=60).round(3) for i in range(10)}
    columns |= {"outcome": 7 - 3 * y, "row_id": rng.permutation(60) + 1000, "dose": rng.integers(0, 9, 60)}
    lines = zip(*(values.tolist() for values in columns.values()), y.tolist(), np.arange(60) % 3, strict=True)
    text = "\n".join([",".join([*columns, "label", "client"]), *(",".join(map(str, line)) for line in lines)])
    (place / "own.csv").write_text(text)
    told = strata("data", "show", "--data", "own.csv").out
    sample = next(line for line in told.splitlines() if line.startswith("a sample is"))
    assert all(f" {name} " in sample for name in columns)
    flagged = [line.split("'")[1] for line in told.splitlines() if line.startswith("column '")]
    assert sorted(flagged) == ["outcome", "row_id"]


def test_the_mode_of_images_is_said(strata, place):
    from PIL import Image

    for at in range(8):
        file = place / "photos" / ("cat", "dog")[at % 2] / f"{at}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((2, 3), 8191 * at, np.uint16)).save(file)
    given = ("data", "show", "--data", "photos/", "-s", "data.clients=2", "-s", "data.partition=iid")
    said = strata(*given).out.splitlines()[-2]
    assert all(value in said for value in ("1×2×3", "16-bit", "0 to 57,337", "I;16"))


HINT = "data.normalise = 'columns'"


@pytest.mark.parametrize(("largest", "hinted"), [(100, False), (101, True)])
def test_columns_of_different_sizes_are_pointed_out(strata, place, largest, hinted):
    x = np.linspace(0, 1, 40)[:, None] * np.array([largest, 1.0, 0.0])
    np.savez(place / "own.npz", x=x, y=np.arange(40) % 2, client=np.arange(40) % 2)
    show = ("data", "show", "--data", "own.npz")
    assert (HINT in strata(*show, "--set", "data.normalise=none").out) is hinted
    for settings in ((), ("--set", "data.normalise=columns")):
        scaled = strata(*show, *settings)
        assert (scaled.code, HINT in scaled.out, "are standardised" in scaled.out) == (0, False, True)


def test_a_client_in_another_unit_is_named_and_columns_are_not_recommended(strata, place):
    rng = np.random.default_rng(0)
    x, client = rng.normal(100, 10, (90, 3)), np.array(["east", "north", "west"])[np.arange(90) // 30]
    x[client == "north"] *= 1e4
    np.savez(place / "own.npz", x=x, y=np.arange(90) % 2, client=client)
    for settings in ((), ("--set", "data.normalise=columns")):
        told = strata("data", "show", "--data", "own.npz", *settings).out
        assert "'north'" in told
        assert "set data.normalise" not in told


def test_groups_are_counted(strata, place):
    group = np.repeat(np.arange(6), 4)
    np.savez(place / "own.npz", x=np.zeros((24, 2)), y=group % 2, client=group // 3, ward=group)
    told = strata("data", "show", "--data", "own.npz", "--set", "data.group=ward").out
    assert told.splitlines()[-1].startswith("6 groups")
    assert "'ward'" in told.splitlines()[-1]


def test_large_targets_are_pointed_out(strata, place):
    np.savez(place / "own.npz", x=np.zeros((40, 1)), y=np.linspace(100_000, 900_000.5, 40), client=np.arange(40) % 2)
    told = strata("data", "show", "--data", "own.npz").out
    assert "set data.targets = 'scaled'" in told
    assert "numbers from 100,000 to 900,000" in told
    assert "set data.targets" not in strata("data", "show", "--data", "own.npz", "--set", "data.targets=scaled").out


def test_one_class_is_said_to_be_trivial(strata, place):
    np.savez(place / "own.npz", x=np.zeros((40, 1)), y=np.array(["cat"] * 40), client=np.arange(40) % 2)
    told = strata("data", "show", "--data", "own.npz").out.splitlines()
    assert told[-2] == "1 class: cat"
    assert told[-1] != told[-2]


def test_the_picture_is_called_what_it_is(strata, place):
    line = checked_line(strata("data", "show", "-o", "held.pdf"))
    assert "'held.pdf'" in line
    assert "'held.svg'" in line
    assert list(place.iterdir()) == []


def test_a_pipe_is_refused_and_not_waited_for(refused, place):
    os.mkfifo(place / "pipe.csv")
    os.mkfifo(place / "pipe.toml")
    refused("data", "show", "--data", "pipe.csv", says="'pipe.csv'")
    refused("run", "--config", "pipe.toml", says="'pipe.toml'")


def test_a_picture_with_control_characters_in_names_is_xml(strata, place):
    client = np.repeat(["a\x1b[31m", "b\x07"], 12)
    np.savez(place / "own.npz", x=np.ones((24, 2)), y=np.tile(["x\x1b", "y"], 12), client=client)
    assert strata("data", "show", "--data", "own.npz", "-o", "own.svg").code == 0
    drawn = (place / "own.svg").read_text(encoding="utf-8")
    ElementTree.fromstring(drawn)
    assert "\x1b" not in drawn


def test_a_line_for_each_column_of_a_table(strata, place):
    lines = [f"p{n},{'ab'[n % 2]},{n % 5 or ''},{'xyz'[n % 3]},{n % 2}" for n in range(40)]
    (place / "own.csv").write_text("\n".join(["id,site,dose,ward,label", *lines]))
    unlabelled = strata("data", "show", "own.csv", "--set", "data.label=dead")
    assert (unlabelled.code, [row[:2] for row in rows(unlabelled.out)][1]) == (2, ["site", "category"])
    result = strata("data", "show", "own.csv", "--set", "data.client=site")
    assert (result.code, result.err) == (0, "")
    listed = {row[0]: row[1:] for row in rows(result.out)}
    assert [listed[name][0] for name in ("id", "dose", "ward")] == ["identifier", "number", "category"]
    assert (listed["dose"][1], "flag" in listed["dose"][2], "'x', 'y', 'z'" in listed["ward"][2]) == ("20%", True, True)
