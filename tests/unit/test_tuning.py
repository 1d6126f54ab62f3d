"""What is tried, which trials go on, and what is chosen: by hand, without a run."""

import sys
from dataclasses import replace
from math import inf, log, prod

import pytest
import torch

from stratafl.algorithms import ALGORITHMS
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.migrations import FORMAT
from stratafl.core.annotations import Range, Tune
from stratafl.errors import ModelError, RecordError, RunError, StageError, UnknownNameError
from stratafl.report.tuned import TunedMethod, TunedTrial
from stratafl.runs.checkpoint import Checkpoint, save
from stratafl.runs.comparison import shared_and_own
from stratafl.runs.joined import JoinedRuns
from stratafl.runs.json_files import Journal
from stratafl.runs.summary import selected, validation_score
from stratafl.tuning import Rung, Search, TuningPlan, promoted, rungs, search_space, tpe, worker
from stratafl.tuning.folder_claims import claimed
from stratafl.tuning.grid import beyond, counts, levels_of, points
from stratafl.tuning.search import side
from stratafl.tuning.space import Dimension, own_settings, parse_grids
from stratafl.tuning.tpe import TPESearch
from stratafl.tuning.trials import why_diverged
from stratafl.tuning.tuning import Tuning

LR = "train.lr"


def of(method, **settings):
    return with_values(Experiment(), {"algorithm.name": method, **settings})


def rate(default=0.05, *values):
    return Dimension(LR, default, Tune(1e-3, 1.0, log=True), Range(least=0), values=values)


@pytest.mark.parametrize(
    ("trials", "rounds", "eta", "every", "schedule"),
    [
        (12, 90, 3, 1, [(12, 10), (4, 30), (2, 90)]),  # ⌈12/9⌉ = 2 run all rounds
        (12, 80, 2, 1, [(12, 10), (6, 20), (3, 40), (2, 80)]),
        (6, 100, 2, 1, [(6, 25), (3, 50), (2, 100)]),
        (6, 100, 2, 10, [(6, 30), (3, 50), (2, 100)]),  # 25 is not evaluated
        (8, 4, 2, 1, [(8, 1), (4, 2), (2, 4)]),
        (12, 2, 2, 1, [(12, 1), (2, 2)]),  # rungs that would end at the same round are one
        (4, 10, 1, 1, [(4, 10)]),
        (2, 10, 3, 1, [(2, 10)]),
        (1, 10, 2, 1, [(1, 10)]),
        (5, 3, 2, 50, [(5, 3)]),
    ],
)
def test_the_schedule_of_halving(trials, rounds, eta, every, schedule):
    assert rungs(trials, rounds, eta, every) == [Rung(*each) for each in schedule]


def test_the_best_go_on_and_of_equal_ones_the_first():
    scores = {0: 0.5, 1: 0.7, 2: 0.5, 3: 0.6, 4: -inf}
    assert promoted(scores, 3) == [0, 1, 3]
    assert promoted(scores, 2) == [1, 3]
    assert promoted({0: -0.3, 1: -0.2, 2: -inf}, 2) == [0, 1]  # of a regression: minus the loss
    assert promoted({0: 0.1, 1: -inf, 2: -inf}, 2) == [0]  # none that failed
    assert promoted({0: None, 1: None, 2: -inf}, 1) == [0, 1]  # nothing was evaluated yet


def test_the_grid_of_a_method_without_options_is_the_learning_rate():
    space = search_space(of("fedavg"))
    assert [each.path for each in space] == [LR]
    assert [point[LR] for point in points(space, 4)] == [0.05, 0.001, 0.00707, 0.354]  # the default first
    assert levels_of(space[0], 4) == [0.001, 0.00707, 0.05, 0.354]  # 0.05 / 0.001 is two steps: 50 = 7.07²
    assert [point[LR] for point in points(space, 1)] == [0.05]


def test_the_grid_of_a_method_with_an_option_gives_most_levels_to_the_learning_rate():
    space = search_space(of("fedprox"))
    assert [each.path for each in space] == [LR, "algorithm.strength"]
    assert counts(space, 12) == [6, 2]
    assert counts(space, 24) == [8, 3]
    assert counts(space, 6) == [6, 1]  # the strength stays at its default
    found = points(space, 12)
    assert len(found) == 12
    assert found[0] == {LR: 0.05, "algorithm.strength": 0.01}
    assert {point["algorithm.strength"] for point in found} == {0.01, 0.1}


@pytest.mark.parametrize("method", [*sorted(ALGORITHMS), "fedper+flayer", "scaffold+lag"])
def test_every_method_has_a_grid_with_its_defaults_and_no_double(method):
    space = search_space(of(method))
    usual = {each.path: each.default for each in space}
    assert LR in usual
    for trials in (1, 2, 5, 12, 40):
        found = points(space, trials)
        assert found[0] == usual
        assert len(found) == len({str(point) for point in found}) == prod(counts(space, trials)) <= trials


def test_the_default_is_what_was_set_also_outside_of_the_range():
    assert search_space(of("fedper", **{LR: 0.0001}))[0].default == 0.0001
    assert levels_of(rate(0.0001), 4) == [0.0001, 0.001, 0.0316, 1.0]


def test_given_values_are_tried_as_they_are_and_only_narrows():
    grids = parse_grids(["train.lr=0.1,0.01", "fedprox.strength=1,2,3", "fedper.personal=head,all"])
    assert grids == {LR: [0.1, 0.01], "fedprox.strength": [1, 2, 3], "fedper.personal": ["head", "all"]}
    space = search_space(of("fedprox"), grids=grids)
    assert [each.values for each in space] == [(0.1, 0.01), (1, 2, 3)]
    assert points(space, 6)[0] == {LR: 0.1, "algorithm.strength": 1}  # the nearest to the default: ln 2 to ln 5
    assert [each.path for each in search_space(of("fedprox"), only=[LR])] == [LR]
    assert [each.path for each in search_space(of("fedprox"), only=["fedprox.strength"])] == ["algorithm.strength"]
    assert [each.path for each in search_space(of("fedper"), grids=grids)] == [LR, "algorithm.personal"]
    with pytest.raises(RecordError, match=r"6 .*--trials 5"):
        points(space, 5)
    with pytest.raises(RecordError, match=r"0\.1,0\.1"):
        parse_grids(["train.lr=0.1,0.1"])


def test_the_edge_is_found_and_widened_by_one_step():
    assert beyond(rate(), [0.01, 0.1, 1.0], 0.1) is None
    assert beyond(rate(), [0.01, 0.1, 1.0], 1.0) == 10.0
    assert beyond(rate(), [0.02, 0.1, 1.0], 0.02) == 0.004
    assert beyond(rate(), [0.1], 0.1) is None  # one value has no ratio
    narrow = Dimension(LR, 0.05, Tune(1e-3, 1.0, log=True), Range(least=0.01))
    assert beyond(narrow, [0.02, 0.1], 0.02) is None  # 0.004 is not allowed
    assert [side([1, 2, 4], value) for value in (1, 2, 4, None)] == ["lowest", "inside", "highest", "inside"]


def test_settings_of_a_method_and_of_its_training_are_told_apart():
    given = {"run.rounds": 3, "fedprox.strength": 1.0, "fedprox.train.lr": 0.5, "fedper.train.lr": 0.1}
    common, own = shared_and_own(["fedper", "fedprox"], given)
    assert common == {"run.rounds": 3}
    assert own == {"fedper": {LR: 0.1}, "fedprox": {"algorithm.strength": 1.0, LR: 0.5}}
    assert own_settings("fedprox", own["fedprox"]) == {"fedprox.strength": 1.0, "fedprox.train.lr": 0.5}


def test_a_plan_is_checked():
    with pytest.raises(RecordError, match=r"--trials .*0"):
        TuningPlan(trials=0)
    with pytest.raises(UnknownNameError, match="'tpe'"):
        TuningPlan(sampler="tpee")
    with pytest.raises(RecordError, match="--budget"):
        TuningPlan(budget="steps", grids={LR: [0.1]})


def line(number, score=None, **more):
    made = {"round": number, "train.loss": 0.5, "train.steps": 10, **more}
    return made if score is None else {**made, "validation.deployed.accuracy": score, "validation.deployed.loss": 1.0}


def test_the_score_is_the_best_so_far_on_validation_data():
    lines = [line(1, 0.5), line(2, 0.7), line(3), line(4, 0.6)]
    evaluate = Experiment().evaluate
    assert validation_score(lines, evaluate) == 0.7
    assert validation_score(lines[2:3], evaluate) is None
    last = with_values(Experiment(), {"evaluate.select": "last"}).evaluate
    assert validation_score(lines, last) == 0.6
    received = with_values(Experiment(), {"evaluate.stage": "received"}).evaluate
    assert validation_score(lines, received) is None


def test_the_score_is_that_of_the_selected_round_by_the_rule_that_selects_it():
    ranked = with_values(Experiment(), {"evaluate.metric": "auroc", "evaluate.average": "clients"}).evaluate
    place = "validation.deployed"
    pooled = [{"round": n, f"{place}.auroc": value, f"{place}.loss": n / 2} for n, value in ((1, 0.6), (2, 0.8))]
    assert (selected(pooled, ranked)["round"], validation_score(pooled, ranked)) == (2, 0.8)  # of no client alone
    both = [{**each, f"{place}.client_auroc": 1 - each[f"{place}.auroc"]} for each in pooled]
    assert (selected(both, ranked)["round"], validation_score(both, ranked)) == (1, 0.4)
    neither = [{key: value for key, value in each.items() if "auroc" not in key} for each in pooled]
    assert (selected(neither, ranked)["round"], validation_score(neither, ranked)) == (1, -0.5)  # the loss
    received = with_values(Experiment(), {"evaluate.stage": "received"}).evaluate
    stages = [{**line(n, 0.1 * n), "validation.received.accuracy": 0.9 / n} for n in (1, 2)]
    stages = [{**each, "validation.received.loss": 1.0} for each in stages]
    assert validation_score(stages, received) == 0.45  # deployed models are best after round 2


def test_a_loss_that_is_not_finite_has_diverged():
    assert not why_diverged([line(1, 0.5)])
    assert why_diverged([line(1, 0.5), {**line(2, 0.6), "train.loss": None}])
    assert why_diverged([line(1, 0.5), {**line(2, 0.1), "validation.deployed.loss": None}])
    assert not why_diverged([{**line(1, 0.5), "train.loss": None}, line(2, 0.6)])  # it has recovered


class Synthetic:
    """A search on journals that nobody computed: the score of a trial after a round is `scores[trial](round)`."""

    def __init__(self, folder, scores, settings=None, **plan):
        values = [0.01 * 2**number for number in range(len(scores))]
        base = with_values(
            Experiment(), {"algorithm.name": "fedavg", "run.rounds": 8, LR: values[0], **(settings or {})}
        )
        self.search = Search(folder, base, TuningPlan(trials=len(scores), grids={LR: values}, **plan))
        self.scores = scores

    def advance(self, work):
        number = int(work.folder.name)
        done = len(self.search.journals.lines(number))
        work.folder.mkdir(parents=True, exist_ok=True)
        journal = Journal(work.folder / "rounds.jsonl")
        score = self.scores[number] if number < len(self.scores) else self.scores[-1]
        journal.append(score(t) for t in range(done + 1, work.rounds + 1))
        (work.folder / "checkpoint").mkdir(exist_ok=True)
        save(work.folder / "checkpoint", Checkpoint(work.rounds, {}, {"rounds": journal.mark}, None))

    def run(self):
        """Everything in the order in which it is asked for; which trials ran until which round."""
        while work := self.search.work():
            self.advance(work[0])
        return self.search.choice()


def test_promotions_follow_the_journals(tmp_path):
    # After 2 rounds 1, 3 and 2 lead; after 4 rounds 1 has fallen back.
    course = [
        lambda t: line(t, 0.30),
        lambda t: line(t, 0.60),
        lambda t: line(t, 0.40 + 0.06 * t),
        lambda t: line(t, 0.55 + 0.02 * t),
        lambda t: line(t, 0.90 if t < 2 else None, **{"train.loss": None if t > 1 else 0.5}),
        lambda t: line(t, 0.10),
    ]
    made = Synthetic(tmp_path, course)
    first = made.search.work()
    assert [(int(work.folder.name), work.rounds) for work in first] == [(n, 2) for n in range(6)]
    chosen = made.run()
    assert {t.number: t.rounds for t in chosen.trials} == {0: 2, 1: 4, 2: 8, 3: 8, 4: 2, 5: 2}
    assert [bool(t.failed) for t in chosen.trials] == [False] * 4 + [True, False]
    assert chosen.settings == {LR: 0.04}
    assert chosen.validation == pytest.approx(0.88)
    assert (chosen.trials[2].first, chosen.trials[2].score) == pytest.approx((0.52, 0.88))
    assert (chosen.steps, chosen.rounds) == (10 * 26, 26)
    assert chosen.sides == {LR: "inside"}


def test_a_rung_stays_decided_when_a_trial_falls_back_later(tmp_path):
    course = [lambda t: line(t, 0.6 if t < 5 else 0.2), *(lambda t, s=s: line(t, s) for s in (0.5, 0.55, 0.1))]
    chosen = Synthetic(tmp_path, course, {"evaluate.select": "last"}, widen=False).run()
    assert {t.number: t.rounds for t in chosen.trials} == {0: 8, 1: 4, 2: 8, 3: 4}
    assert chosen.settings == {LR: 0.04}


def test_a_choice_at_the_edge_gets_one_more_trial(tmp_path):
    made = Synthetic(tmp_path, [lambda t, n=n: line(t, 0.5 + 0.05 * n) for n in range(4)])
    chosen = made.run()
    assert [trial.settings[LR] for trial in chosen.trials] == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert chosen.widened
    assert chosen.settings == {LR: 0.08}  # the one beyond is not better
    assert chosen.sides == {LR: "inside"}
    untouched = Synthetic(tmp_path / "narrow", made.scores, widen=False).run()
    assert (untouched.widened, untouched.sides) == (False, {LR: "highest"})


def in_a_stage(error):
    """As the executor `Debug` raises it."""
    found = StageError(f"stage 'train', client 0: {error}")
    found.__cause__ = error
    return found


@pytest.mark.parametrize(
    ("error", "counts"),
    [
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), False),
        (torch.AcceleratorError("an illegal memory access was encountered"), False),
        (RuntimeError("MPS backend out of memory (MPS allocated: 17.00 GB)"), False),
        (RuntimeError("[enforce fail at alloc_cpu.cpp:121] . DefaultCPUAllocator: can't allocate memory"), False),
        (in_a_stage(RuntimeError("CUDA error: unspecified launch failure")), False),
        (in_a_stage(RuntimeError("mat1 and mat2 shapes cannot be multiplied (10x64 and 32x10)")), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied (10x64 and 32x10)"), True),
        (RuntimeError("probability tensor contains either `inf`, `nan` or element < 0"), True),
        (RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu!"), True),
        (NotImplementedError("Could not run 'aten::x' with arguments from the 'CUDA' backend"), True),
        (torch.linalg.LinAlgError("linalg.svd: the input matrix contained non-finite values"), True),
        (ModelError("'nosuch' matches no layer of this model"), True),
        (ValueError("share must be below 1"), True),
    ],
)
def test_what_the_device_does_is_no_verdict_on_settings(tmp_path, monkeypatch, error, counts):
    def fail(work):
        raise error

    monkeypatch.setattr(worker, "_run", fail)
    (work, *_) = Synthetic(tmp_path, [lambda t: line(t, 0.5)] * 2).search.work()
    if counts:
        worker.perform(work, worker.Reports(), JoinedRuns(1))
    else:
        with pytest.raises(RunError, match=r"fedavg, trial 0 \(train.lr=0.01\): \w+Error: "):
            worker.perform(work, worker.Reports(), JoinedRuns(1))
    assert work.failure.exists() is counts


def test_a_trial_beyond_the_edge_is_said():
    trials = [TunedTrial(n, {LR: value}, 8, 10) for n, value in enumerate((0.01, 0.1, 1.0))]
    inside = TunedMethod("fedavg", {LR: 0.1}, {LR: 0.01}, 0.5, {LR: "inside"}, widened=True, trials=trials)
    assert inside.remark().endswith(" 1")
    assert replace(inside, widened=False).remark() == ""
    assert replace(inside, sides={LR: "highest"}).remark().startswith("train.lr is the highest ")


def test_a_search_whose_trials_all_fail_chooses_nothing(tmp_path):
    made = Synthetic(tmp_path, [lambda t: {**line(t, 0.1), "train.loss": None}] * 3)
    assert made.run().settings is None


def test_a_failed_trial_counts_as_the_worst(tmp_path):
    made = Synthetic(tmp_path, [lambda t: line(t, 0.9), lambda t: line(t, 0.5), lambda t: line(t, 0.4)], widen=False)
    (tmp_path / "000.failed").write_text("this cannot be")
    chosen = made.run()
    assert chosen.settings == {LR: 0.02}
    assert chosen.trials[0].failed == "this cannot be"


def test_equal_steps_give_fewer_trials_to_methods_with_longer_rounds(tmp_path):
    plan = TuningPlan(trials=12, budget="steps")
    tuning = Tuning(tmp_path, of("fedavg"), ["fedavg", "fedrep"], {"fedavg": {}, "fedrep": {}}, plan, 1)
    assert [work.folder.name for work in tuning.work()] == ["000", "000"]
    for search, steps in zip(tuning.searches, (100, 150), strict=True):
        (work,) = search.pending_for_cost()
        work.folder.mkdir(parents=True)
        journal = Journal(work.folder / "rounds.jsonl")
        journal.append({"round": t, "train.steps": 100, "head.steps": steps - 100} for t in range(1, work.rounds + 1))
        (work.folder / "checkpoint").mkdir()
        save(work.folder / "checkpoint", Checkpoint(work.rounds, {}, {"rounds": journal.mark}, None))
    methods = [work.method for work in tuning.work()]
    assert (methods.count("fedavg"), methods.count("fedrep")) == (11, 8)  # the first of fedavg is where it is to go


class Suggested(Synthetic):
    """The same with trials that TPE suggests; better the nearer the learning rate is to 0.2."""

    def __init__(self, folder):
        base = with_values(Experiment(), {"algorithm.name": "fedprox", "run.rounds": 2})
        self.search = TPESearch(folder, base, TuningPlan(trials=7, sampler="tpe"))
        self.base, self.folder, self.asked = base, folder, list[dict]()

    def run(self, anew=False):
        while work := self.search.work():
            settings = {LR: work[0].experiment.train.lr, **work[0].experiment.algorithm.options}
            self.asked.append(settings)
            good = 0.9 - abs(log(settings[LR] / 0.2)) / 10
            self.scores = [lambda t, good=good: line(t, good)] * len(self.asked)
            self.advance(work[0])
            if anew:
                self.search = TPESearch(self.folder, self.base, TuningPlan(trials=7, sampler="tpe"))
        return self.search.choice()


def test_a_resumed_search_by_tpe_is_told_the_same(tmp_path):
    optuna = pytest.importorskip("optuna")
    whole, parts = Suggested(tmp_path / "whole"), Suggested(tmp_path / "parts")
    first, second = whole.run(), parts.run(anew=True)
    assert whole.asked == parts.asked
    assert first == second
    assert whole.asked[0] == {LR: 0.05, "strength": 0.01}  # the default
    assert len({str(settings) for settings in whole.asked}) == 7
    assert first.settings[LR] == min((each[LR] for each in whole.asked), key=lambda rate: abs(log(rate / 0.2)))
    backend = optuna.storages.journal.JournalFileBackend(str(tmp_path / "whole" / "optuna.log"))
    study = optuna.load_study(study_name="fedprox", storage=optuna.storages.JournalStorage(backend))
    assert [trial.value for trial in study.trials] == [trial.score for trial in first.trials]


def test_tpe_draws_rates_by_their_logarithm_and_takes_failed_trials_for_the_worst(tmp_path):
    optuna = pytest.importorskip("optuna")
    search = Suggested(tmp_path).search
    drawn = {each.path: tpe._distribution(optuna, each) for each in search.space}
    assert (drawn[LR].low, drawn[LR].high, drawn[LR].log) == (1e-3, 1.0, True)
    assert drawn["algorithm.strength"].log
    (tmp_path / "001.failed").write_text("this cannot be")
    made = Synthetic(tmp_path, [lambda t: line(t, 0.5)] * 2)
    made.search = search
    made.advance(search.pending_run(0, search.default, 2))
    good, failed = search._told(optuna, {0: search.default, 1: search.default})
    assert good.value == 0.5 > failed.value


def test_one_process_at_a_time_holds_a_claim(tmp_path):
    with claimed(tmp_path / "000") as mine, claimed(tmp_path / "000") as theirs, claimed(tmp_path / "001") as other:
        assert (mine, theirs, other) == (True, False, True)
    with claimed(tmp_path / "000") as again:
        assert again


def test_without_optuna_it_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    plan = TuningPlan(trials=2, sampler="tpe")
    with pytest.raises(RunError, match=r"'stratafl\[tune\]'"):
        Tuning.create(tmp_path / "a", Experiment(), ["local"], {}, plan, 1)


def test_fedalp_has_as_many_groups_as_when_its_tuning_began(tmp_path):
    settings = {"data.clients": 6, "model.hidden": [8]}
    Tuning.create(tmp_path / "a", Experiment(), ["fedalp"], settings, TuningPlan(2), 1)
    assert not Tuning.read(tmp_path / "a").experiment("fedalp").algorithm.options
    path = tmp_path / "a" / "tune.toml"
    path.write_text(path.read_text().replace(f"format = {FORMAT}", "format = 5"))
    assert Tuning.read(tmp_path / "a").experiment("fedalp").algorithm.options == {"groups": 4}
