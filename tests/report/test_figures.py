"""Charts and tables of run directories that were written by hand: what a reader sees, and that plotly accepts it."""

import json

import pytest
from seen import axis_titles, bands, colour_ranges, details, figures, heat_map, options, series, texts
from written_runs import EVIL, as_regression, client_line, layer_line, rewrite, write_run, write_study

from stratafl.errors import RunError
from stratafl.report import gather
from stratafl.report import layer_charts as charts_of_layers
from stratafl.report.charts import Chart, short_labels, thinned
from stratafl.report.class_counts_chart import class_counts_chart
from stratafl.report.client_scores import clients_chart, histogram, worst_table
from stratafl.report.curves import curve, curves_chart
from stratafl.report.layer_charts import mixing_chart
from stratafl.report.page import sections
from stratafl.report.ranking_tables import ablation_tables, ranking_table, runs_table
from stratafl.report.run_facts import run_facts
from stratafl.report.run_journals import lines_of_round, read_layer_journal


def check_accepted(figure):
    """Plotly refuses properties that do not exist."""
    from plotly.graph_objects import Figure  # takes a second to import

    Figure(figure)


def charts(study):
    return {part.name: part for section in sections(study) for part in section.parts if isinstance(part, Chart)}


def layer_charts(study):
    return {name: chart for name, chart in charts(study).items() if name in ("layers", "methods", "mixing", "bytes")}


@pytest.mark.slow
def test_plotly_accepts_every_figure(tmp_path):
    found = charts(gather([write_study(tmp_path / "s")]))
    assert list(found) == ["decision", "curves", "clients", "layers", "methods", "mixing", "bytes", "class_counts"]
    for chart in found.values():
        assert figures(chart.tree)
        for figure in figures(chart.tree):
            check_accepted(figure)


def test_a_curve_is_the_mean_over_seeds_at_mean_bytes_and_seconds(tmp_path):
    write_run(tmp_path / "0", [0.75, 0.5, 0.9], seed=0, asked=2)
    write_run(tmp_path / "1", [0.25, 0.5], seed=1)
    (rank,) = gather([tmp_path]).ranks
    first, second = curve(rank, "test.deployed.accuracy")  # the third round has one seed only
    assert (first.mean, first.std) == (0.5, pytest.approx(0.125**0.5))
    assert first.at == {"rounds": 1, "bytes": 110, "seconds": 2.5, "simulated": 0.0}
    assert (second.mean, second.std) == (0.5, 0)
    assert second.at == {"rounds": 2, "bytes": 220, "seconds": 5.0, "simulated": 0.0}


def test_curves_can_be_seen_over_rounds_bytes_and_seconds(tmp_path):
    write_run(tmp_path / "0", [0.25, 0.5])
    chart = curves_chart(gather([tmp_path]))
    shown = {axis: series(chart, "test accuracy, deployed", axis)["fedper"] for axis in ("rounds", "bytes", "seconds")}
    assert shown == {
        "rounds": [(1, 0.25), (2, 0.5)],
        "bytes": [(110, 0.25), (220, 0.5)],
        "seconds": [(2.5, 0.25), (5.0, 0.5)],
    }
    assert series(chart, "test loss, deployed", "rounds")["fedper"] == [(1, 1.75), (2, 1.5)]
    assert details(chart, "test accuracy, deployed", "rounds") == [None, None]  # one seed has no deviation
    assert options(chart, "test accuracy, deployed") == ["rounds", "bytes", "seconds"]


def test_curves_over_simulated_seconds_add_the_rounds_up(tmp_path):
    write_run(tmp_path / "0", [0.25, 0.5])
    rewrite(tmp_path / "0/rounds.jsonl", lambda line: {**line, "simulated.seconds": 1.5})
    chart = curves_chart(gather([tmp_path]))
    assert series(chart, "test accuracy, deployed", "simulated")["fedper"] == [(1.5, 0.25), (3.0, 0.5)]


def test_long_runs_are_thinned_out(tmp_path):
    write_run(tmp_path / "0", [i / 2000 for i in range(600)], clients=1, layers=())
    line = series(curves_chart(gather([tmp_path])), "test accuracy, deployed", "rounds")["fedper"]
    assert len(line) == 500
    assert (line[0][0], line[-1][0]) == (1, 600)
    assert thinned(5, 9) == [0, 1, 2, 3, 4]
    assert thinned(5, 3) == [0, 2, 4]


def test_few_clients_are_points_and_many_are_steps(tmp_path):
    write_run(tmp_path / "few", [0.1, 0.9], clients=3)
    assert series(clients_chart(gather([tmp_path / "few"])))["fedper"] == [(x, "fedper") for x in (0.9, 0.89, 0.88)]
    write_run(tmp_path / "many", [0.9], clients=501)
    steps = series(clients_chart(gather([tmp_path / "many"])))["fedper"]
    assert len(steps) == 20
    assert sum(share for _, share in steps) == pytest.approx(1, abs=1e-3)
    assert histogram([0.0, 0.04, 0.05, 1.0], 0.0, 0.05) == [0.5, 0.25, *[0] * 17, 0.25]


def test_clients_are_shown_by_the_models_that_count(tmp_path):
    """Deployed models have 0.9 and less, models as received 0.2 and more: the client with the most has the best."""
    counts = {"select": "last", "stage": "received", "average": "clients"}
    path = write_run(tmp_path / "run", [0.9], clients=3, evaluate=counts) / "clients.jsonl"
    rewrite(path, lambda line: line | {"test.received.accuracy": 0.2 + line["client"] / 10})
    study = gather([tmp_path])
    chart = clients_chart(study)
    assert [score for score, _ in series(chart)["fedper"]] == pytest.approx([0.2, 0.3, 0.4])
    assert [row[1].shown for row in worst_table(study).rows] == ["client 0", "client 1", "client 2"]


def test_the_worst_clients_and_what_they_hold(tmp_path):
    counts = {"train": [[1, 0, 2], [0, 5, 0], [0, 0, 7]], "test": [[1, 0, 0]] * 3}
    held = {"classes": 3, "clients": 3, "counts": counts}
    write_run(tmp_path / "0", [0.1, 0.9], clients=3, holdings=held)
    rows = [[cell.shown for cell in row] for row in worst_table(gather([tmp_path])).rows]
    assert rows[0] == ["fedper", "client 2", "0", "88.0 %", "6", "7", "2"]
    assert rows[2] == ["fedper", "client 0", "0", "90.0 %", "4", "3", "0, 2"]


def test_only_the_selected_round_of_the_clients_is_read(tmp_path):
    path = tmp_path / "clients.jsonl"
    lines = [client_line(11, 0, 0.5), client_line(1, 0, 0.25), client_line(1, 1, 0.75)]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round":1,"cli', encoding="utf-8")
    assert [line["test.deployed.accuracy"] for line in lines_of_round(path, 1)] == [0.25, 0.75]
    assert lines_of_round(tmp_path / "none.jsonl", 1) == []


def test_the_journal_of_layers_in_tables(tmp_path):
    path = tmp_path / "layers.jsonl"
    lines = [layer_line(t, layer, t == 2, 2) for t in (1, 2) for layer in ("b", "a")]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    seen = read_layer_journal(path)
    assert seen.bytes == {"b": 110, "a": 110}
    assert seen.names == ["b", "a"]
    assert seen.numbers["cka"] == {"b": {2: 0.8}, "a": {2: 0.8}}
    assert seen.matrices["alpha"]["a"] == {2: [[0.52, 0.02], [0.02, 0.52]]}
    path.write_text("[]\n", encoding="utf-8")
    with pytest.raises(RunError, match="damaged"):
        read_layer_journal(path)


def test_mixing_weights_have_a_matrix_for_each_round_with_diagnostics(tmp_path):
    write_run(tmp_path / "0", [0.5] * 4, name="pfedla", lab=2, mixing=3)
    chart = mixing_chart(gather([tmp_path]))
    assert options(chart, "pfedla", "0", "head") == ["1", "2", "4"]
    _, _, values = heat_map(chart, "pfedla", "0", "head", "4")
    assert values == [[0.54, 0.04, 0.04], [0.04, 0.54, 0.04], [0.04, 0.04, 0.54]]
    assert colour_ranges(chart) == {(0.01, 0.54)}  # colours mean the same in all rounds


ONE = 2 * 40 * 40  # the numbers of a round with two layers and 40 clients


@pytest.mark.parametrize(
    ("cells", "rounds", "side"), [(10 * ONE, 10, 40), (6 * ONE, 6, 40), (ONE, 1, 40), (ONE - 1, 1, 30)]
)
def test_matrices_keep_to_a_budget(tmp_path, monkeypatch, cells, rounds, side):
    write_run(tmp_path / "0", [0.5] * 10, name="pfedla", lab=1, mixing=40, layers=("a", "b"))
    monkeypatch.setattr(charts_of_layers, "CELLS", cells)
    chart = mixing_chart(gather([tmp_path]))
    for layer in ("a", "b"):
        offered = options(chart, "pfedla", "0", layer)
        assert (len(offered), offered[-1]) == (rounds, "10")
        matrices = [heat_map(chart, "pfedla", "0", layer, each)[2] for each in offered]
        assert {(len(z), len(z[0])) for z in matrices} == {(side, side)}
    assert ("Only 30 clients are shown" in chart.caption) == (side == 30)


def test_heat_maps_are_layers_by_rounds(tmp_path):
    write_run(tmp_path / "0", [0.5] * 4, lab=2)
    chart = layer_charts(gather([tmp_path]))["layers"]
    cka = next(name for name in options(chart) if name.startswith("CKA"))
    assert heat_map(chart, cka, "fedper", "0") == (["1", "2", "4"], ["first", "head"], [[0.85, 0.8, 0.7]] * 2)


def test_without_layer_diagnostics_there_is_communication_alone(tmp_path):
    write_run(tmp_path / "0", [0.5] * 2)
    (chart,) = layer_charts(gather([tmp_path])).values()
    assert series(chart)["fedper"] == [(110, "first"), (110, "head")]


def test_bytes_of_many_layers_are_a_heat_map(tmp_path):
    for name in ("fedper", "local"):
        write_run(tmp_path / name, [0.5] * 2, name=name, layers=tuple(f"l{i}" for i in range(41)))
    (chart,) = layer_charts(gather([tmp_path])).values()
    _, layers, values = heat_map(chart)
    assert (len(layers), values[0], details(chart)[0]) == (41, [110, 110], ["110 B"] * 2)
    check_accepted(chart.tree)


def test_class_counts_are_bubbles(tmp_path):
    held = {"classes": 2, "clients": 2, "counts": {"train": [[3, 0], [1, 5]], "test": [[1, 0], [0, 1]]}}
    write_run(tmp_path / "0", [0.5], holdings=held)
    chart = class_counts_chart(gather([tmp_path]))
    assert series(chart, "seed 0", "train")["samples"] == [("0", "0"), ("0", "1"), ("1", "1")]  # class and client
    assert details(chart, "seed 0", "train") == [3, 1, 5]


def test_many_clients_are_a_heat_map_of_some_of_them(tmp_path):
    rows = [[client % 7, 1] for client in range(1000)]
    held = {"classes": 2, "clients": 1000, "counts": {"train": rows, "test": rows}}
    write_run(tmp_path / "0", [0.5], holdings=held)
    chart = class_counts_chart(gather([tmp_path]))
    _, clients, values = heat_map(chart, "seed 0", "train")
    assert (len(clients), values[-1]) == (200, [999 % 7, 1])
    assert "200 of the 1000 clients" in chart.caption


def test_without_class_counts_the_samples_of_clients_are_shown(tmp_path):
    write_run(tmp_path / "0", [0.5], clients=3)
    chart = class_counts_chart(gather([tmp_path]))
    assert series(chart, "seed 0", "test")["samples"] == [("0", 4), ("1", 5), ("2", 6)]
    (tmp_path / "0" / "clients.jsonl").unlink()
    assert class_counts_chart(gather([tmp_path])) is None


def test_an_ablation_shows_the_keys_that_differ(tmp_path):
    for lr, values in ((0.1, (0.5, 0.6)), (0.2, (0.7, 0.8))):
        for seed, value in enumerate(values):
            write_run(tmp_path / f"{lr}-{seed}", [value], seed=seed, train={"lr": lr})
    write_run(tmp_path / "other", [0.9], name="local")
    (table,) = ablation_tables(gather([tmp_path]))
    assert table.head == ("train.lr", "seeds", "accuracy", "95 % interval", "against the best")
    assert [[cell.shown for cell in row][:3] for row in table.rows] == [
        ["0.2", "2", "75.0 % ± 7.1"],
        ["0.1", "2", "55.0 % ± 7.1"],
    ]
    assert table.rows[1][4].shown == "−20.0 (−20.0 to −20.0)"
    assert ablation_tables(gather([tmp_path / "other"])) == []


def test_the_ranking_in_the_table_and_in_csv(tmp_path):
    for seed in (0, 1, 2):
        write_run(tmp_path / f"a{seed}", [0.5 + seed / 10], seed=seed)
        write_run(tmp_path / f"b{seed}", [0.4 + seed / 10], seed=seed, name="=local:x")
    table = ranking_table(gather([tmp_path]))
    assert [row[0].shown for row in table.rows] == ["fedper", "=local:x"]
    assert [row[2].shown for row in table.rows] == ["first", "−10.0 (−10.0 to −10.0)"]
    assert table.rows[0][1].below == "95 % interval 35.2 to 84.8 %"
    header, first, second = table.csv.splitlines()
    assert {"score_mean", "score_low", "difference_high"} <= set(header.split(","))
    low = float(first.split(",")[header.split(",").index("score_low")])
    assert low == pytest.approx(0.6 - 4.3027 * 0.1 / 3**0.5, abs=1e-4)
    assert second.startswith("'=local:x,3,")  # no formula for a spreadsheet


def test_what_was_run_in_words(tmp_path):
    study = gather([write_study(tmp_path / "s")])
    told = run_facts(study)
    assert told["seeds"] == "0, 1"
    assert told["versions"].startswith("stratafl 0.1, Python 3.11")
    assert len(runs_table(study).rows) == 6


@pytest.mark.parametrize(
    ("names", "partition", "says"),
    [
        (["ann", "bob"], "auto", "gone, 2 clients, clients as named in the data"),
        (["ann", "bob"], "iid", "gone, 2 clients, iid"),
        ([], "auto", "gone, 2 clients, Dirichlet shares, α = 0.1"),
    ],
)
def test_the_partition_in_words(tmp_path, names, partition, says):
    rows = {split: [[1, 2], [3, 4]] for split in ("train", "test")}
    held = {"classes": 2, "clients": 2, "counts": rows} | ({"client_names": names} if names else {})
    write_run(tmp_path / "0", [0.5], clients=2, holdings=held, data={"partition": partition, "alpha": 0.1})
    assert run_facts(gather([tmp_path]))["data"] == says


def test_labels_in_charts_are_short_and_all_different():
    long = "own.package.module:method train.lr=0.1 model.hidden=[10]"
    assert short_labels(["fedper", "my.own:thing", f"{long} †", long, long]) == [
        "fedper",
        "thing",
        "method train.lr=0.1 model… †",
        "method train.lr=0.1 model…",
        "method train.lr=0.1 model… #5",
    ]


def test_no_text_of_a_run_is_markup_in_a_figure(tmp_path):
    for name, chart in charts(gather([write_study(tmp_path / "s")])).items():
        assert not any("<" in text for text in texts(chart)), (name, EVIL)


def named_run(folder, clients=2):
    rows = [[3, 0], [1, 5]] * (clients // 2)
    names = ["ann", f"<b>{'long' * 10}", *(f"c{i}" for i in range(2, clients))]
    held = {"classes": 2, "clients": clients, "counts": {"train": rows, "test": rows}}
    return write_run(folder, [0.9], clients=clients, holdings=held | {"client_names": names, "class_names": ["a", "b"]})


def test_clients_and_classes_are_called_by_their_names(tmp_path):
    study = gather([named_run(tmp_path / "0")])
    brief = "&lt;b&gt;longlonglonglon… #1"
    held = series(class_counts_chart(study), "seed 0", "train")["samples"]
    assert held == [("a", "ann"), ("a", brief), ("b", brief)]
    assert details(clients_chart(study)) == ["ann, seed 0", f"&lt;b&gt;{'long' * 10}, seed 0"]
    table = worst_table(study)
    rows = [[cell.shown for cell in row] for row in table.rows]
    assert rows[1] == ["fedper", "ann", "0", "90.0 %", "4", "3", "a"]


def test_many_clients_keep_their_names(tmp_path):
    classes, clients, _ = heat_map(class_counts_chart(gather([named_run(tmp_path / "0", 100)])), "seed 0", "train")
    assert (classes, clients[2]) == (["a", "b"], "c2")


def test_bands_end_where_numbers_end(tmp_path):
    """0.9 and 1.0 are 0.95 ± 0.07, losses of 0.1 and 1.9 are 1 ± 1.27: beyond 100 % and below 0 there is nothing."""
    for seed, (accuracy, loss) in enumerate(((0.9, 0.1), (1.0, 1.9))):
        path = write_run(tmp_path / str(seed), [accuracy], seed=seed) / "rounds.jsonl"
        rewrite(path, lambda line, loss=loss: line | {"test.deployed.loss": loss})
    chart = curves_chart(gather([tmp_path]))
    ((upper, lower),) = bands(chart, "test accuracy, deployed", "rounds")
    assert (upper, lower) == ([1], [pytest.approx(0.95 - 0.005**0.5, abs=1e-4)])
    ((upper, lower),) = bands(chart, "test loss, deployed", "rounds")
    assert (upper, lower) == ([pytest.approx(1 + 1.62**0.5, abs=1e-4)], [0])


def test_partitions_are_called_by_what_they_differ_in(tmp_path):
    def held(count):
        return {"classes": 2, "clients": 1, "counts": {"train": [[count, 1]], "test": [[1, 1]]}}

    def labels(place):
        return sorted(options(class_counts_chart(gather([place]))))

    for name in ("fedavg", "local"):  # the same partition for both
        for seed in (0, 1):
            write_run(tmp_path / "seeds" / f"{name}{seed}", [0.5], name=name, seed=seed, holdings=held(seed + 2))
    assert labels(tmp_path / "seeds") == ["seed 0", "seed 1"]
    for at, alpha in enumerate((0.1, 10.0)):
        write_run(tmp_path / "alphas" / str(at), [0.5], name="fedavg", holdings=held(at + 2), data={"alpha": alpha})
    assert labels(tmp_path / "alphas") == ["data.alpha=0.1", "data.alpha=10.0"]
    write_run(tmp_path / "alphas" / "2", [0.5], seed=1, holdings=held(4), data={"alpha": 10.0})
    assert labels(tmp_path / "alphas") == [f"data.alpha={at}" for at in ("0.1, seed 0", "10.0, seed 0", "10.0, seed 1")]
    for at, name in enumerate(("fedavg", "local")):  # the file is not what it was
        write_run(tmp_path / "changed" / name, [0.5], name=name, holdings=held(at + 2))
    assert labels(tmp_path / "changed") == ["seed 0", "seed 0 #2"]


def test_a_regression_has_no_classes_and_says_which_loss_it_is(tmp_path):
    held = {"classes": None, "clients": 2, "counts": {"train": [[3], [4]], "test": [[1], [1]]}}
    study = gather([as_regression(write_run(tmp_path / "0", [0.5], clients=2, holdings=held))])
    assert worst_table(study).head == (
        *("method", "client", "seed", "mean squared error", "test samples", "training samples"),
    )
    assert ranking_table(study).caption.startswith("Test loss (mean squared error) of deployed models")
    assert axis_titles(clients_chart(study))[0] == "mean squared error"
    curves = curves_chart(study)
    titles = {name: axis_titles(curves, name, "rounds")[1] for name in options(curves)}
    assert (titles["test loss, deployed"], titles["training loss"]) == ("mean squared error", "loss")
    assert not any("accuracy" in name for name in titles)


def test_commands_stand_in_the_order_in_which_they_were_given(tmp_path):
    for name, value, hour, word in (("fedavg", 0.9, 11, "resume"), ("local", 0.5, 10, "compare")):
        then = {"started": f"2026-11-15T{hour}:00:00+00:00", "command": ["strata", word]}
        write_run(tmp_path / name, [value], name=name, environment=then)
    assert run_facts(gather([tmp_path]))["command"] == "strata compare; strata resume"
