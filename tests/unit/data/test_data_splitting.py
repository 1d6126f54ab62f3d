"""Splits: stratified by class or quantile with the sizes that were asked for, groups on one side, and the old way."""

import logging

import numpy as np
import pytest
import torch
from PIL import Image

from stratafl.config.assemble import federation_of, samples_of
from stratafl.config.experiment import Experiment, from_stored, from_tables, with_settings
from stratafl.config.protocols import PROTOCOLS
from stratafl.data import Assignment, federate, from_clients, write_shards
from stratafl.data.splitting import Sizes, parts_of_strata
from stratafl.errors import DataError, UnknownNameError
from wording import mentions

SPLITS = ("train", "validation", "test")


def client_of(*counts, seed=0):
    """One client with so many samples of each class, in any order."""
    labels = np.repeat(np.arange(len(counts)), counts)
    np.random.default_rng(seed).shuffle(labels)
    return np.zeros((len(labels), 1), np.float32), labels


def classes_of(federation, client=0):
    return {split: federation.class_counts(split)[client].tolist() for split in SPLITS}


# By class


@pytest.mark.parametrize("seed", range(20))
def test_twenty_samples_of_two_classes_have_both_in_every_part(seed):
    federation = from_clients([client_of(10, 10)], validation=0.1, test=0.25, seed=seed)
    found = classes_of(federation)
    assert found["validation"] == [1, 1]
    assert sorted(found["test"]) == [2, 3]
    assert sorted(found["train"]) == [6, 7]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        # 7 of 20 are held out: 5.25 and 1.75 become 5 and 2, of which 3.57 and 1.43 (4 and 1) are for testing
        ((15, 5), {"train": [10, 3], "validation": [1, 1], "test": [4, 1]}),
        ((19, 1), {"train": [12, 1], "validation": [2, 0], "test": [5, 0]}),  # a single sample is trained on
        ((20,), {"train": [13], "validation": [2], "test": [5]}),
        # 6.65 and 0.7/2 each: nothing of a class of one is held out, so that 19 have all seven
        ((18, 1, 1), {"train": [11, 1, 1], "validation": [2, 0, 0], "test": [5, 0, 0]}),
    ],
)
def test_parts_by_hand(counts, expected):
    for seed in range(5):
        assert classes_of(from_clients([client_of(*counts)], validation=0.1, test=0.25, seed=seed)) == expected


def test_every_class_of_two_stays_in_training():
    for seed in range(20):
        found = classes_of(from_clients([client_of(*[2] * 10)], validation=0.1, test=0.25, seed=seed))
        assert min(found["train"]) == 1
        assert (sum(found["test"]), sum(found["validation"])) == (5, 2)


def test_single_samples_are_held_out_only_where_there_is_nothing_else():
    for seed in range(20):
        found = classes_of(from_clients([client_of(*[1] * 17, 3)], validation=0.1, test=0.25, seed=seed))
        assert found["train"][17] == 1  # two of the three, and five of the seventeen
        assert sum(found["train"]) == 13
        assert (sum(found["test"]), sum(found["validation"])) == (5, 2)


def test_sizes_and_samples_are_those_of_the_old_way():
    rng = np.random.default_rng(0)
    for seed in range(30):
        counts = rng.integers(1, 12, rng.integers(1, 8))
        given = {"validation": 0.13, "test": 0.31, "minimum_test": 2, "seed": seed}
        x, y = client_of(*counts, 4)
        new, old = from_clients([(x, y)], **given), from_clients([(x, y)], **given, split="random")
        for split in SPLITS:
            assert new.counts(split).tolist() == old.counts(split).tolist()
        held = torch.cat([new.split(split).of(0) for split in SPLITS])
        assert sorted(held.tolist()) == list(range(len(y)))


def test_shares_of_classes_are_within_one_of_their_share():
    rng = np.random.default_rng(1)
    for seed in range(30):
        counts = rng.integers(5, 40, rng.integers(2, 8))
        federation = from_clients([client_of(*counts)], validation=0.2, test=0.3, seed=seed)
        total = counts.sum()
        for split in SPLITS:
            exact = counts * int(federation.counts(split)) / total
            assert np.abs(federation.class_counts(split)[0].numpy() - exact).max() < 2  # two roundings
        held = counts - federation.class_counts("train")[0].numpy()
        assert np.abs(held - counts * held.sum() / total).max() < 1


def test_which_sample_and_which_class_is_held_out_is_the_seeds():
    x, y = client_of(10, 10)
    tests = [from_clients([(x, y)], seed=seed).split("test").of(0).tolist() for seed in range(6)]
    assert len({tuple(sorted(each)) for each in tests}) == 6
    more = {tuple(classes_of(from_clients([(x, y)], test=0.25, seed=seed))["test"]) for seed in range(20)}
    assert more == {(2, 3), (3, 2)}
    assert from_clients([(x, y)], seed=3).split("test").of(0).tolist() == tests[3]


def test_a_clients_split_is_its_own():
    x, y = client_of(8, 5, 7)
    alone = from_clients([(x, y), (x, y)], validation=0.1, seed=2)
    beside = from_clients([(x[:9], y[:9]), (x, y)], validation=0.1, seed=2)
    for split in SPLITS:
        assert torch.equal(alone.split(split).of(1) - 20, beside.split(split).of(1) - 9)


def test_numbers_are_split_by_quantiles():
    y = np.random.default_rng(0).permutation(40).astype(float)
    for seed in range(10):
        federation = federate(np.zeros((40, 1)), y, [range(40)], validation=0.1, test=0.2, seed=seed)
        for split, each in (("validation", 1), ("test", 2), ("train", 7)):  # 4, 8 and 28 of four quantiles
            found = federation.y[federation.split(split).of(0)].long() // 10
            assert found.bincount(minlength=4).tolist() == [each] * 4


def test_an_ordered_split_holds_out_the_last_samples_of_each_client():
    y, given = np.arange(30) % 3, {"validation": 0.2, "test": 0.25, "split": "ordered"}
    rows = [[9, 4, 2, 0, 7, 11, 5, 1, 3, 10], np.arange(12, 30)]  # a client's samples in the order of the data
    for seed in range(3):  # of 10: 5 + 2 + 3; of 18: 9 + 4 + 5
        federation = federate(np.zeros((30, 1)), y, rows, **given, seed=seed)
        parts = [[federation.split(split).of(client).tolist() for split in SPLITS] for client in range(2)]
        assert parts[0] == [[0, 1, 2, 3, 4], [5, 7], [9, 10, 11]]
        assert parts[1] == [list(range(12, 21)), list(range(21, 25)), list(range(25, 30))]
    own_tests = Assignment([np.arange(20)[::-1]], [np.arange(20, 30)])
    validation = federate(np.zeros((30, 1)), y, own_tests, **given).split("validation")
    assert sorted(validation.indices.tolist()) == [16, 17, 18, 19]


def test_an_ordered_split_refuses_groups():
    with pytest.raises(DataError) as error:
        federate(np.zeros((6, 1)), np.zeros(6, int), [range(6)], split="ordered", group=[0, 0, 0, 1, 1, 1])
    assert mentions(str(error.value), "'ordered'", "data.group")


def test_targets_of_several_numbers_are_split_at_random():
    y = np.random.default_rng(0).standard_normal((20, 2))
    given = {"validation": 0.1, "seed": 4}
    new, old = (federate(y, y, [range(20)], **given, split=split) for split in ("stratified", "random"))
    assert torch.equal(new.split("test").indices, old.split("test").indices)


def test_of_a_division_with_its_own_tests_validation_is_stratified():
    y = np.arange(40) % 2
    for seed in range(10):
        division = Assignment([np.arange(20)], [np.arange(20, 40)])
        federation = federate(np.zeros((40, 1)), y, division, validation=0.2, seed=seed)
        assert classes_of(federation)["validation"] == [2, 2]
        copies = Assignment([np.repeat(np.arange(20), 2)], [np.arange(20, 40)], overlap=True)
        federation = federate(np.zeros((40, 1)), y, copies, validation=0.2, seed=seed)
        assert classes_of(federation)["validation"] == [4, 4]


def test_a_split_that_does_not_exist_is_refused():
    with pytest.raises(UnknownNameError, match="stratified"):
        from_clients([client_of(4, 4)], split="stratifed")


def test_the_order_of_strata_decides_between_equals():
    stratum = np.array([0, 1] * 4)
    found = [parts_of_strata(stratum, Sizes(1, 0), np.random.default_rng(seed)) for seed in range(20)]
    assert {int(stratum[parts == 0][0]) for parts in found} == {0, 1}


# The old way


def test_random_is_a_permutation_of_the_clients_own_stream():
    x, y = client_of(11, 9)
    federation = from_clients([(x, y), (x, y)], validation=0.1, test=0.25, seed=7, split="random")
    for client in range(2):
        stream = np.random.default_rng(np.random.SeedSequence(7, spawn_key=(client,)))
        mixed = stream.permutation(np.arange(20)) + 20 * client
        for split, part in (("test", mixed[:5]), ("validation", mixed[5:7]), ("train", mixed[7:])):
            assert federation.split(split).of(client).tolist() == part.tolist()


def test_new_runs_are_stratified_and_papers_and_code_bases_as_they_were():
    assert Experiment().data.split == "stratified"
    for name in PROTOCOLS:
        made = from_tables({"run": {"protocol": name}})
        assert made.data.split == ("stratified" if name == "clean" else "random")
        assert with_settings(Experiment(), [f"run.protocol={name}"]).data.split == made.data.split


def test_a_configuration_of_a_run_that_does_not_say_is_split_as_it_was():
    assert from_stored({}).data.split == "random"
    today = {"clients": 3, "split": "random", "normalise": "images"}
    assert from_stored({"data": {"clients": 3}}).data == from_tables({"data": today}).data
    assert from_stored({"data": {"split": "stratified"}}).data.split == "stratified"


# Groups


def grouped(rng, groups, most=5, classes=2):
    """So many groups of up to `most` samples."""
    group = np.repeat(np.arange(groups), rng.integers(1, most + 1, groups))
    return group, rng.integers(0, classes, len(group))


def sides(federation, group, client=0):
    return {split: set(group[federation.split(split).of(client).numpy()].tolist()) for split in SPLITS}


@pytest.mark.parametrize("split", ["stratified", "random"])
def test_a_group_is_on_one_side_and_sizes_are_near(split):
    rng = np.random.default_rng(3)
    chosen = set()
    for seed in range(40):
        group, y = grouped(rng, 30) if seed % 2 else grouped(np.random.default_rng(0), 30)
        federation = federate(
            np.zeros((len(y), 1)), y, [range(len(y))], validation=0.15, test=0.25, seed=seed, group=group, split=split
        )
        found = sides(federation, group)
        assert not found["train"] & found["test"]
        assert not found["train"] & found["validation"]
        assert not found["test"] & found["validation"]
        assert sum(map(len, found.values())) == 30
        for part, share in (("validation", 0.15), ("test", 0.25), ("train", 0.6)):
            assert abs(int(federation.counts(part)) - share * len(y)) <= 3
        if seed % 2 == 0:
            chosen.add(frozenset(found["test"]))
    assert len(chosen) > 10  # of 20 seeds: it is not always the same groups


def test_groups_of_one_class_are_stratified_as_well_as_they_allow():
    group = np.repeat(np.arange(20), 4)
    y = (group >= 10).astype(np.int64)  # ten groups of each class
    for seed in range(20):
        federation = federate(np.zeros((80, 1)), y, [range(80)], validation=0.2, test=0.2, seed=seed, group=group)
        assert classes_of(federation) == {"train": [24, 24], "validation": [8, 8], "test": [8, 8]}


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((10,), {"train": 1, "validation": 0, "test": 0}),
        ((5, 5), {"train": 1, "validation": 0, "test": 1}),
        ((7, 3, 2), {"train": 1, "validation": 1, "test": 1}),
    ],
)
def test_with_few_groups_training_comes_first_then_testing(sizes, expected):
    group = np.repeat(np.arange(len(sizes)), sizes)
    for seed in range(10):
        x = np.zeros((len(group), 1))
        federation = federate(x, group % 2, [range(len(group))], validation=0.1, test=0.3, seed=seed, group=group)
        assert {split: len(held) for split, held in sides(federation, group).items()} == expected


def test_no_group_goes_to_a_part_that_nobody_asked_for():
    group = np.repeat(np.arange(3), (6, 5, 1))
    for seed in range(10):
        federation = federate(np.zeros((12, 1)), group % 2, [range(12)], test=0.4, seed=seed, group=group)
        assert federation.counts("validation").tolist() == [0]


def table(path, header="a,b,patient_id,client,label", patients=6, clients=("x", "y")):
    rng, lines = np.random.default_rng(0), [header]
    for client in clients:
        for patient in range(patients):
            for visit in range(4):
                cells = {"client": client, "patient_id": f"{client}{patient}", "label": "ny"[visit % 2]}
                values = [cells.get(name, f"{rng.standard_normal():.3f}") for name in header.split(",")]
                lines.append(",".join(values))
    path.write_text("\n".join(lines) + "\n")
    return path


def experiment(path, *more):
    return with_settings(Experiment(), [f"data.name={path}", *more])


def test_a_column_of_a_table_keeps_samples_together(tmp_path):
    path = table(tmp_path / "my.csv")
    federation = federation_of(experiment(path, "data.group=patient_id"))
    assert federation.column_names == ("a", "b")  # it is no feature
    assert (federation.group, federation.groups) == ("patient_id", 12)
    cells = [line.split(",")[2] for line in path.read_text().splitlines()[1:]]
    for seed in range(10):
        federation = federation_of(experiment(path, "data.group=patient_id", f"data.seed={seed}"))
        for client in range(2):
            found = sides(federation, np.array(cells), client)
            assert sorted(len(held) for held in found.values()) == [1, 1, 4]
            assert len(set.union(*found.values())) == 6


def test_arrays_may_have_groups(tmp_path):
    group = np.repeat(np.arange(8), 3)
    client = np.repeat([0, 1], 12)
    np.savez(tmp_path / "my.npz", x=np.zeros((24, 2)), y=np.arange(24) % 2, client=client, ward=group)
    federation = federation_of(experiment(tmp_path / "my.npz", "data.group=ward", "data.owners=1"))
    assert (federation.clients, federation.groups) == (1, 4)
    assert federation.counts("test").tolist() == [3]
    with pytest.raises(DataError, match="'wart'"):
        federation_of(experiment(tmp_path / "my.npz", "data.group=wart"))


def test_a_table_that_names_images_may_have_groups(tmp_path):
    lines = ["file,label,client,patient"]
    for at in range(16):
        Image.new("L", (2, 2), at).save(tmp_path / f"{at}.png")
        lines.append(f"{at}.png,{'cd'[at % 2]},{'xy'[at // 8]},p{at // 2}")
    (tmp_path / "images.csv").write_text("\n".join(lines) + "\n")
    federation = federation_of(experiment(tmp_path / "images.csv", "data.group=patient"))
    assert (federation.group, federation.groups, tuple(federation.x.shape)) == ("patient", 8, (16, 1, 2, 2))
    assert federation.class_counts("test").tolist() == [[1, 1], [1, 1]]


def test_a_copy_of_the_data_keeps_its_groups(tmp_path):
    path = table(tmp_path / "my.csv")
    made = experiment(path, "data.group=patient_id")
    write_shards(samples_of(made.data, 0), tmp_path / "copy")
    there, here = federation_of(experiment(f"{tmp_path}/copy/")), federation_of(made)
    assert (there.group, there.groups) == ("patient_id", 12)
    assert torch.equal(there.split("test").indices, here.split("test").indices)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (["data.group=patient"], "'patient'.*'.*my.csv'.*'patient_id'"),
        (["data.group=client"], "data.group = 'client'"),
        (["data.group=label"], "data.group = 'label'"),
        (["data.group=patient_id", "data.partition=iid"], "data.group = 'patient_id'.*data.partition"),
    ],
)
def test_groups_that_cannot_be_kept_are_refused(tmp_path, settings, says):
    with pytest.raises(DataError, match=says) as error:
        federation_of(experiment(table(tmp_path / "my.csv"), *settings))
    assert "\n" not in str(error.value)


def test_without_clients_in_the_data_groups_are_refused(tmp_path):
    path = table(tmp_path / "my.csv", header="a,b,patient_id,label")
    with pytest.raises(DataError, match=r"data\.client"):
        federation_of(experiment(path, "data.group=patient_id"))


def test_a_group_on_both_sides_of_the_datas_own_split_is_refused(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    table(folder / "train.csv")
    table(folder / "test.csv", clients=("y",))
    with pytest.raises(DataError, match=r"group 'y0'.*client 'y'"):
        federation_of(experiment(f"{folder}/", "data.group=patient_id"))


def test_clients_with_too_few_groups_and_shared_groups_are_named(tmp_path, caplog):
    path = table(tmp_path / "my.csv", patients=1)
    with caplog.at_level(logging.WARNING, "stratafl"):
        federation = federation_of(experiment(path, "data.group=patient_id"))
    assert federation.counts("train").tolist() == [4, 4]
    assert mentions(caplog.messages[0], "'patient_id'", "test", "2 clients", "'x', 'y'")
    assert len(caplog.messages) == 2

    caplog.clear()
    path.write_text(path.read_text() + "".join(f"1,2,z{at},y,n\n" for at in range(9)) + "1,2,x0,y,n\n")
    with caplog.at_level(logging.WARNING, "stratafl"):
        federation_of(experiment(path, "data.group=patient_id"))
    test, validation, shared = caplog.messages
    assert mentions(test, "'patient_id'", "test", "1 client ", "'x'")
    assert mentions(validation, "'patient_id'", "validation", "1 client ", "'x'")
    assert mentions(shared, "1 group ", "'patient_id'")
