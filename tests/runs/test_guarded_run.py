"""A run that ends with a choice per client: what it writes, killed and resumed, and what refuses it."""

import json
import shutil
import weakref
from collections.abc import Generator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from guarded_runs import finished
from stored_runs import UNSTEADY, selected_early
from stored_runs import finished as finished_run

import stratafl
from stratafl.algorithms import algorithm, ditto, fedper, local
from stratafl.api import guarded as api
from stratafl.config.assemble import simulation_of
from stratafl.config.experiment import Experiment, from_tables, with_values
from stratafl.config.setting_tables import EvaluateTable
from stratafl.core.layout import Rows
from stratafl.core.round import Round
from stratafl.data import digits_federation
from stratafl.errors import DamagedError, DataError, RecordError, RunError
from stratafl.evaluation import candidates
from stratafl.evaluation.candidates import GuardCandidates, local_descent
from stratafl.evaluation.guard import SAFE, Choice
from stratafl.evaluation.metrics import Metric
from stratafl.evaluation.predictions import Predictions
from stratafl.evaluation.trial import Trial
from stratafl.execute import Progress, Simulation
from stratafl.execute.client_states import InMemory
from stratafl.models import MLP
from stratafl.policies import LocalTraining
from stratafl.report import gather, ranking, read_outcome, run_folders
from stratafl.report.guards import guard_sentences
from stratafl.report.page import page
from stratafl.report.report_tables import escaped
from stratafl.runs import Run
from stratafl.runs.comparison import Comparison
from stratafl.runs.directory import config_of
from stratafl.runs.guard_files import _lines, by_validation, read_guard, run_to_end, train_alone, trained_alone
from stratafl.runs.json_files import read_lines
from stratafl.runs.prediction_file import read_predictions
from stratafl.runs.summary import Selection

NO_CLIENTS = InMemory(torch.device("cpu"), {})
SMALL = {"run": {"rounds": 2, "seed": 1}, "data": {"clients": 4, "validation": 0.2}, "evaluate": {"guard": True}}
SMALL |= {"train": {"batch": 400}, "model": {"name": "mlp", "hidden": [8]}}  # few steps: what is tested is the files


def experiment(method: str = "fedper", **tables: dict[str, object]) -> Experiment:
    return from_tables({**SMALL, "algorithm": {"name": method}, **tables})


def model() -> MLP:
    return MLP(shape=(1, 8, 8), classes=10, hidden=(8,))


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return finished(experiment(), tmp_path_factory.mktemp("guarded") / "run")


@pytest.mark.slow
def test_what_is_written_is_a_method_of_its_own(done: Path) -> None:
    outcomes = [read_outcome(folder) for folder in run_folders([done])]
    ranks = {rank.label: rank for rank in ranking(outcomes)}
    assert set(ranks) == {"fedper", "guarded fedper"}
    given = read_predictions(done / "guard")
    assert given is not None
    numbers = ranks["guarded fedper"].numbers
    assert numbers["score"].mean == pytest.approx(float(given.hits().double().mean()))
    assert numbers["seconds"].mean > ranks["fedper"].numbers["seconds"].mean
    assert numbers["bytes"].mean == ranks["fedper"].numbers["bytes"].mean
    said = guard_sentences(list(ranks.values()))
    assert said[0].startswith("guarded fedper: ")
    assert "4 clients" in said[0]


@pytest.mark.parametrize(("shrunk", "said"), [(0.01, 1), (None, 1), (-0.01, 0), (0.03, 0)])
def test_too_few_validation_samples_are_said(shrunk: float | None, said: int, done: Path, tmp_path: Path) -> None:
    """If a candidate looks better for half of the clients, but not by more than its standard error of 0.02."""
    shutil.copytree(done, tmp_path / "run")
    path = tmp_path / "run/guard/guard.json"
    table = json.loads(path.read_text())
    for each in table["clients"]:
        gain = {"mean": None, "error": None, "shrunk": shrunk, "shrunk_error": 0.02}
        each |= {"choice": "local", "validation_samples": 7 + each["client"], "gains": {"received": gain}}
    path.write_text(json.dumps(table))
    ranks = ranking([read_outcome(tmp_path / "run/guard")])
    doubts = guard_sentences(ranks)[1:]
    assert len(doubts) == said
    if said:
        assert "(7 to 10 per client)" in doubts[0]
        assert "4 of 4 clients" in doubts[0]
        assert "data.validation" not in doubts[0]  # it is 0.2 already
        assert doubts[0].endswith("leave out the guard")


@pytest.mark.slow
def test_the_page_says_what_clients_take_as_the_console_does(done: Path) -> None:
    study = gather([done])
    sentences = guard_sentences(study.ranks)
    assert sentences[0].startswith("guarded fedper: ")
    shown = page(study)
    assert all(f"<p>{escaped(sentence)}.</p>" in shown for sentence in sentences)


def test_choices_are_read_again(done: Path) -> None:
    record = read_guard(done)
    assert sorted(record.choices) == [0, 1, 2, 3]
    assert set(record.choices[0].gains) == {"received", "fine-tuned", "head fine-tuned"}
    for choice in record.choices.values():
        assert choice.candidate == "local" or choice.gain.convincing
        assert choice.samples > 0


def test_the_chosen_models_give_the_predictions(done: Path) -> None:
    fitted, given = stratafl.load(done, device="cpu"), read_predictions(done / "guard")
    assert given is not None
    federation = fitted.sim.runtime.federation
    for client in range(4):
        x = federation.x[federation.split("test").of(client)]
        scores = torch.softmax(fitted.guarded(client)(x), 1)
        assert torch.allclose(scores, given.of(client).scores, atol=1e-5)
    with pytest.raises(DataError, match="client 9"):
        fitted.guarded(9)


def test_choices_among_models_of_another_round_are_refused(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "run")
    path = tmp_path / "run/guard/guard.json"
    table = json.loads(path.read_text())
    path.write_text(json.dumps(table | {"round": table["round"] - 1}))
    fitted = stratafl.load(tmp_path / "run", device="cpu")
    with pytest.raises(RunError, match=f"round {fitted.round - 1}, .* round {fitted.round}"):
        fitted.guarded(0)


@pytest.mark.slow
def test_the_newest_models_are_not_what_the_guard_chose_among() -> None:
    folder = finished_run(*selected_early(), "evaluate.guard=true")
    selected, newest = (stratafl.load(folder, round=name, device="cpu") for name in ("selected", "newest"))
    assert (selected.round, newest.round) == (read_guard(folder).round, 4)
    assert selected.round < newest.round
    selected.guarded(0)
    with pytest.raises(RunError, match=f"round {selected.round}, .* round 4"):
        newest.guarded(0)


@pytest.mark.slow
def test_interrupted_and_resumed_it_chooses_the_same(done: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    with Run.create(experiment(), folder) as run:
        list(run.rounds())
        next(iter(run.guarding()))  # and no further
        assert run.unguarded
    assert not (folder / "guard").exists()
    with Run.open(folder) as run:
        assert run.finished
        assert run.unguarded
        list(run.rounds())
        list(run.guarding())
        assert not run.unguarded
    assert (folder / "guard" / "guard.json").read_text() == (done / "guard" / "guard.json").read_text()
    for split in ("validation", "test"):
        mine, whole = read_predictions(folder / "guard", split), read_predictions(done / "guard", split)
        assert mine is not None
        assert whole is not None
        assert torch.equal(mine.scores, whole.scores)


@pytest.mark.slow
def test_a_damaged_guard_is_refused_and_written_again(done: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(done, tmp_path / "run")
    path = folder / "guard" / "guard.json"
    table = json.loads(path.read_text())
    table["clients"][0]["choice"] = "teleported"
    path.write_text(json.dumps(table))
    with pytest.raises(DamagedError, match="cannot take 'teleported'"):
        read_guard(folder)
    with Run.open(folder) as run:
        assert run.unguarded
        list(run.guarding())
    assert read_guard(folder).choices == read_guard(done).choices


def test_a_guard_that_was_killed_while_writing_leaves_nothing(done: Path, tmp_path: Path) -> None:
    shutil.copytree(done, tmp_path / "run")
    partial = tmp_path / "run" / ".guard.0123.partial"
    partial.mkdir()
    (partial / "models.safetensors").write_bytes(b"half of it")
    Run.open(tmp_path / "run").close()
    assert not partial.exists()
    assert (tmp_path / "run" / "guard").exists()


@pytest.mark.slow
def test_candidates_are_tried_one_after_the_other(done: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a candidate predicts, the models of those before are gone, but for the received ones: they are trained."""
    fitted = stratafl.load(done, device="cpu")
    alive: list[weakref.ref[torch.Tensor]] = []
    predict = candidates.row_predictions

    def watched(sim: Simulation, rnd: Round, rows: Rows, ids: torch.Tensor, split: str) -> Predictions:
        assert sum(each() is not None for each in alive) <= 1
        alive.append(weakref.ref(rows["fc.weight"]))
        return predict(sim, rnd, rows, ids, split)

    monkeypatch.setattr(candidates, "row_predictions", watched)
    made = GuardCandidates(fitted.sim, fitted.progress, fitted.sim, fitted.progress, LocalTraining(batch=100), epochs=1)
    assert list(made.predictions(torch.arange(4), ["test"])["test"]) == [
        "received",
        "fine-tuned",
        "head fine-tuned",
        "local",
    ]


def test_the_folder_of_a_guard_is_not_a_run_to_continue(done: Path) -> None:
    with pytest.raises(RunError, match="give the run itself"):
        Run.open(done / "guard")
    with pytest.raises(RunError, match="give the run itself"):
        stratafl.load(done / "guard")


def test_in_python() -> None:
    train = LocalTraining(lr=0.1, batch=400)
    fitted = stratafl.fit(
        fedper(train=train), digits_federation(clients=4, validation=0.2), model, rounds=1, device="cpu"
    )
    made = fitted.guard(epochs=1)
    assert sorted(made.choices) == [0, 1, 2, 3]
    federation, right = fitted.sim.runtime.federation, 0
    for client in range(4):
        held = federation.split("test").of(client)
        right += int((made.model(client)(federation.x[held]).argmax(1) == federation.y[held]).sum())
    assert made.accuracy == pytest.approx(right / len(federation.split("test").indices))
    with pytest.raises(RunError, match="has no guard"):
        fitted.guarded(0)
    with pytest.raises(DataError, match="client 7"):
        made.model(7)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fedrod", "fedrep"])
def test_a_loaded_run_trains_alone_as_the_run_would(method: str, tmp_path: Path) -> None:
    """Without the layers that a method adds, and with the run's epochs where the method divides them."""
    with Run.create(experiment(method, train={"batch": 100, "epochs": 3}), tmp_path / "run") as run:
        list(run.rounds())
        list(run.guarding())
    made = stratafl.load(tmp_path / "run").guard()
    assert made.models.candidates.alone is not None
    assert local_descent(made.models.candidates.alone.algorithm) == experiment(train={"batch": 100, "epochs": 3}).train
    assert not any("generic" in name for name in made.models.candidates.alone.setup.layout.specs)
    assert made.choices == read_guard(tmp_path / "run").choices


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fedper+prior", "fedrod"])
def test_the_guard_of_a_method_that_adds_layers_trains_the_plain_model_alone(name: str) -> None:
    train, federation = LocalTraining(lr=0.1, batch=400), digits_federation(clients=3, validation=0.2)
    methods = (algorithm(name, train=train), fedper(train=train))
    fits = [stratafl.fit(each, federation, model, rounds=1, device="cpu") for each in methods]
    guarded, plain = (fitted.guard(epochs=1) for fitted in fits)
    alone, expected = (each.models.candidates.rows(SAFE, torch.arange(3)) for each in (guarded, plain))
    assert alone.keys() == expected.keys()
    assert all(torch.equal(rows, expected[tensor]) for tensor, rows in alone.items())
    assert all(guarded.model(client)(federation.x[:5]).shape == (5, 10) for client in guarded.choices)


@pytest.mark.slow
def test_in_python_it_goes_by_the_metric_of_the_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Local training selects its round by it, and clients choose by it."""
    by: list[str] = []
    train, choose = api.train_alone, candidates.choose

    def trained(trial: Trial, evaluate: EvaluateTable, rounds: int) -> Generator[int, None, Progress]:
        assert trial.metric is not None
        by.extend((evaluate.metric, trial.metric.name))
        return train(trial, evaluate, rounds)

    def chosen(validation: Mapping[str, Predictions], metric: Metric, clients: list[int]) -> dict[int, Choice]:
        by.append(metric.name)
        return choose(validation, metric, clients=clients)

    monkeypatch.setattr(api, "train_alone", trained)
    monkeypatch.setattr(candidates, "choose", chosen)
    federation = digits_federation(clients=3, validation=0.2)
    stratafl.fit(fedper(), federation, model, rounds=1, metric="auroc", device="cpu").guard(epochs=1)
    assert by == ["auroc"] * 3


@pytest.mark.slow
def test_a_loaded_run_scores_the_stage_that_counts(tmp_path: Path) -> None:
    """Its metric is that of the report: at `evaluate.stage`, and by `evaluate.average`."""
    settings = {"stage": "received", "metric": "accuracy", "average": "clients"}
    with Run.create(experiment("fedavgft", evaluate=settings), tmp_path / "run") as run:
        list(run.rounds())
    fitted, numbers = stratafl.load(tmp_path / "run", device="cpu"), read_outcome(tmp_path / "run").numbers()
    assert fitted.metric("accuracy") == pytest.approx(numbers["score"])


def test_a_descent_that_a_method_shapes_is_plain_in_fine_tuning() -> None:
    """Ditto pulls its personal model to an anchor; fine-tuning knows the rate, the batch and nothing of that."""
    plain = LocalTraining(lr=0.3, batch=7)
    assert local_descent(ditto(train=plain)) == plain
    assert local_descent(local(train=plain)) == plain


def test_local_training_has_nothing_to_choose(tmp_path: Path) -> None:
    finished(experiment("local"), tmp_path / "run")
    assert not (tmp_path / "run" / "guard").exists()


def test_local_models_of_a_comparison_are_used_and_are_the_same(done: Path, tmp_path: Path) -> None:
    folders = [tmp_path / method / "seed-1" for method in ("local", "fedper")]
    finished(experiment("local"), folders[0])
    with Run.create(experiment(), folders[1]) as run:
        list(run.rounds())
        assert list(run.guarding()) == []  # no round of local training
    assert read_guard(folders[1]) == read_guard(done)
    stored = config_of(folders[0])
    other = with_values(stored, {"data.alpha": 5.0})
    assert trained_alone(folders[0], stored, simulation_of(stored)) is not None
    assert trained_alone(folders[0], other, simulation_of(other)) is None  # that local run had other data


class Course:
    """Local training that is best after its second round."""

    accuracies = (0.2, 0.9, 0.5)
    sim = SimpleNamespace(start=lambda: Progress(0, {}, NO_CLIENTS))

    def round(self, progress: Any) -> tuple[Any, Any]:
        t = progress.t + 1
        scores = {"validation.deployed.accuracy": self.accuracies[t - 1], "validation.deployed.loss": 1.0}
        return Progress(t, {}, NO_CLIENTS), SimpleNamespace(round={"round": t, **scores})


def test_local_training_gives_the_state_after_its_best_round() -> None:
    trial: Any = Course()
    assert run_to_end(train_alone(trial, EvaluateTable(), 3)).t == 2
    assert run_to_end(train_alone(trial, EvaluateTable(select="last"), 3)).t == 2  # whatever the run itself goes by


def test_the_scores_of_the_guard_stand_in_the_selected_round() -> None:
    history = [{"round": t, "train.loss": 0.5, "seconds.train": 1.0, "test.deployed.accuracy": 0.1} for t in (1, 2, 3)]
    lines = _lines(history, 2, {"test.deployed.accuracy": 0.9}, seconds=5.0)
    assert [line.get("test.deployed.accuracy") for line in lines] == [None, 0.9, None]
    assert [line["seconds.train"] for line in lines] == [1.0, 1.0, 6.0]


def test_local_training_that_kept_another_than_its_best_round_is_not_taken() -> None:
    for seed in range(20):
        folder = finished_run(*UNSTEADY, f"run.seed={seed}", "algorithm.name=local", "evaluate.select=last")
        stored = config_of(folder)
        best = Selection.of(read_lines(folder / "rounds.jsonl"), by_validation(stored.evaluate), None).line
        assert best is not None
        if best["round"] < 4:
            break
    assert trained_alone(folder, stored, simulation_of(stored)) is None


@pytest.mark.slow
@pytest.mark.parametrize("first", ["local", "fedper"])
def test_local_training_stops_by_the_rule_and_not_where_the_method_did(first: str, tmp_path: Path) -> None:
    """`fedper` learns nothing and stops in round 2, `local` goes on; whether it is there already or not."""
    tables = {"run": {"rounds": 4, "seed": 1}, "stop": {"patience": 1, "margin": 0.0}}
    rates, trained = {"local": 0.3, "fedper": 1e-9}, {}
    for method in (first, *(each for each in rates if each != first)):
        with Run.create(
            experiment(method, **tables, train={"batch": 100, "lr": rates[method]}), tmp_path / method / "seed-1"
        ) as run:
            list(run.rounds())
            run.alone = experiment(train={"batch": 100, "lr": rates["local"]}).train
            trained[method] = run.progress.t, len(list(run.guarding()))
    assert trained["fedper"] == (2, 0 if first == "local" else trained["local"][0])
    assert trained["local"][0] > 2


@pytest.mark.slow
def test_the_safe_choice_of_a_comparison_is_its_own_local_training(tmp_path: Path) -> None:
    """FedPer has another learning rate: the guard compares with `local` at that of `local`, whichever is run first."""
    settings, trained = {"fedper.train.lr": 0.5, "local.train.lr": 0.1}, {}
    for order in (["local", "fedper"], ["fedper", "local"]):
        folder = tmp_path / order[0]
        for member in Comparison.create(folder, experiment(), order, 1, settings).members():
            with member.run() as run:
                list(run.rounds())
                trained[order[0], member.method] = len(list(run.guarding()))
    assert trained["local", "fedper"] == 0  # the models of `local` are there
    assert trained["fedper", "fedper"] == 2
    assert read_guard(tmp_path / "local/fedper/seed-1") == read_guard(tmp_path / "fedper/fedper/seed-1")


def test_it_needs_validation_samples() -> None:
    with pytest.raises(RecordError, match=r"data\.validation"):
        experiment(data={"clients": 4, "validation": 0.0})


@pytest.mark.slow
def test_a_method_with_layers_of_its_own_is_compared_with_plain_local_models(tmp_path: Path) -> None:
    """FedRoD has two heads; what a client trains alone has one, as the method `local`."""
    finished(experiment("fedrod"), tmp_path / "run")
    fitted = stratafl.load(tmp_path / "run", device="cpu")
    names = {name for client in range(4) for name, _ in fitted.guarded(client).named_parameters()}
    assert names <= {"fc1.weight", "fc1.bias", "fc.weight", "fc.bias"} | {
        name for name, _ in fitted.client(0).model.named_parameters()
    }


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["balanced_accuracy", "auroc"])
def test_another_metric_ranks_the_guarded_run(metric: str, tmp_path: Path) -> None:
    finished(experiment(evaluate={"guard": True, "metric": metric}), tmp_path / "run")
    numbers = read_outcome(tmp_path / "run" / "guard").numbers()
    assert 0 < numbers["score"] <= 1
