"""FLAYER's parts and LAG on other methods: where they act, what is refused, and their names everywhere."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from stratafl.algorithms import (
    ALGORITHMS,
    algorithm,
    fedala,
    fedavg,
    fedlag,
    fedopt,
    fedper,
    fedprior,
    fedprox,
    fedrep,
    fedstrata,
    flayer,
    lgfedavg,
)
from stratafl.algorithms.composition import PARTS, composed, composition
from stratafl.algorithms.declaration import METHODS
from stratafl.algorithms.fedprior import OwnPrior, with_prior
from stratafl.algorithms.flayer import Guide, LayerRate, TopChange
from stratafl.algorithms.flayer_on import acting, with_flayer, with_guide, with_mask, with_rates
from stratafl.algorithms.lag_on import MoveShared, with_lag
from stratafl.cli.list_command import print_catalogue
from stratafl.config.assemble import algorithm_of, completed
from stratafl.config.experiment import Experiment, from_tables, to_tables, with_settings, with_values
from stratafl.core.fields import Number, Start, Together
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.parcel import Field, Parcel
from stratafl.errors import RecordError, UnknownNameError
from stratafl.evaluation.evaluate import client_models, global_field
from stratafl.execute import Matrix, simulation
from stratafl.models import build
from stratafl.models.heads import OwnOffset
from stratafl.policies import LocalTraining, Mean, Remember, ServerOptimizer
from stratafl.runs.comparison import Comparison
from stratafl.testing import CLASSES, SHAPE, tiny_federation, tiny_model

TRAIN = LocalTraining(lr=0.02, momentum=0.5)


# On FedAvg they are the methods of their papers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"s": 2, "least": 0.3, "unsent": "zero"},
        {"guide": False},
        {"rates": False, "accuracy": "validation", "accuracy_of": "initialised"},
        {"accuracy": 0.5},
    ],
)
def test_flayer_on_fedavg_is_flayer(options):
    assert algorithm("fedavg+flayer", **options, train=TRAIN) == flayer(**options, train=TRAIN)


@pytest.mark.parametrize("options", [{}, {"k": 3, "xi": -0.2, "warmup": 0}, {"bn": "averaged", "warmup": 4}])
def test_lag_on_fedavg_is_fedlag(options):
    assert algorithm("fedavg+lag", **options, train=TRAIN) == fedlag(**options, train=TRAIN)


def test_parts_one_by_one_are_flayer():
    assert with_mask(with_rates(with_guide(fedavg()))) == flayer() == with_flayer(fedavg())


@pytest.mark.parametrize("name", ["fedavg", "fedper", "fedrep", "fedbabu", "ditto", "fedala"])
def test_without_its_parts_flayer_leaves_a_method_as_it_is(name):
    assert algorithm(f"{name}+flayer", **PARTS["flayer"].off) == algorithm(name)


# Where FLAYER's parts act


TABLE_5 = {
    "fedavg": ("guide", "rates", "mask"),
    "ditto": ("guide", "rates", "mask"),
    "fedamp": ("guide", "rates"),
    "fedper": ("rates", "mask"),
    "fedrep": ("rates", "mask"),
    "fedala": ("rates", "mask"),
}


@pytest.mark.parametrize("host", TABLE_5)
def test_parts_act_where_a_method_has_a_place_for_them(host):
    assert tuple(part for part, reason in acting(algorithm(host)).items() if reason is None) == TABLE_5[host]


def test_rates_are_those_of_every_descent_and_of_nothing_that_is_learned_before_it():
    made = algorithm("fedrep+flayer")
    assert [step.rates for step in made.train] == [(LayerRate(),)] * 2
    ala = algorithm("fedala+flayer")
    assert ala.mix[:-1] == algorithm("fedala").mix
    assert ala.train[0].rates == (LayerRate(),)


def test_what_is_masked_is_what_is_averaged():
    (sent,) = algorithm("fedper+flayer", personal="last:2", least=0.2).send
    assert sent == TopChange(0.2, ~select("last:2"))
    changed = algorithm("scaffold+flayer").send
    assert changed == (TopChange(), algorithm("scaffold").send[1])  # control variates are not averaged
    assert algorithm("fedper+flayer", unsent="zero").merge == (Mean(unsent="zero"),)


def test_change_is_measured_from_where_training_starts_and_an_anchor_that_is_there_is_used():
    assert with_mask(fedprox()).mix == fedprox().mix
    moved = replace(
        fedavg(), mix=(Remember("met", "anchor"), *fedavg().mix), client={**fedavg().client, "met": Number()}
    )
    made = with_mask(moved)
    assert made.mix[-1] == Remember("theta", "theta.start")
    assert made.send == (TopChange(anchor="theta.start"),)


def test_a_guide_is_for_heads_that_are_received():
    head = select("last:1")
    ditto, amp, lg = (algorithm(f"{name}+flayer") for name in ("ditto", "fedamp", "lgfedavg"))
    assert ditto.mix[2] == Guide(head, "personal", "theta", "own")
    assert amp.mix[2] == Guide(head, "theta", "u", "received")
    assert (ditto.train[-1].row, amp.train[-1].row) == ("personal", "theta")
    assert lg.mix[0] == Guide(head)
    assert lg.client["theta"] == Together((lgfedavg().client["theta"], Start(head)))
    for kept in ("head", "blocks:2", "last:1"):
        with pytest.raises(RecordError, match=r"^guide: "):
            with_guide(fedper(personal=kept))
    assert with_guide(fedper(personal="conv1")).mix[0] == Guide(head)


# What is refused


@pytest.mark.parametrize(
    ("name", "options", "value"),
    [
        ("local+flayer", {}, ""),
        ("local+lag", {}, ""),
        ("fedamp+flayer", {"mask": True}, "mask=True"),
        ("fedper+flayer", {"guide": True}, "guide=True"),
        ("fedala+flayer", {"guide": True}, "Combine"),
        ("scaffold+flayer", {"rates": True}, "Renew"),
        ("fedavg+flayer", {"accuracy": 0.5, "accuracy_of": "initialised"}, "accuracy_of='initialised'"),
        ("flayer+flayer", {}, ""),
        ("flayer+lag", {}, ""),
        ("fedlag+flayer", {}, ""),
        ("fedlag+lag", {}, ""),
        ("pfedla+lag", {}, ""),
        ("fedamp+lag", {}, ""),
        ("fedexp+topk", {}, "Extrapolate"),
        ("fedalp+topk", {}, "FormGroups"),
        ("fedexp+private", {}, "Extrapolate"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_reason_in_one_line(name, options, value):
    with pytest.raises(RecordError) as error:
        algorithm(name, **options)
    assert str(error.value).startswith(f"{name}: ")
    assert value in str(error.value)
    assert "\n" not in str(error.value)


def test_parts_act_in_the_order_of_the_name():
    made = algorithm("fedala+prior+flayer", smoothing=0.5, least=0.2, weights_lr=2.0, train=TRAIN)
    assert made == with_flayer(with_prior(fedala(weights_lr=2.0, train=TRAIN), smoothing=0.5), least=0.2)
    assert algorithm("fedavg+prior", smoothing=2.0, train=TRAIN) == fedprior(smoothing=2.0, train=TRAIN)
    described = composition("fedala+prior+q8")
    assert described.label == "FedALA + class prior + 8-bit uploads"
    assert {option.name for option in described.hyperparameters} >= {"weights_lr", "smoothing", "min_size"}


def test_fedstrata_is_what_its_parts_make():
    options = {"smoothing": 0.5, "least": 0.2, "train": TRAIN}
    assert fedstrata(**options) == algorithm("fedprior+flayer", guide=False, **options)
    assert fedstrata(smoothing=0.5, rates=False, mask=False, train=TRAIN).train == (TRAIN,)


def test_a_prior_is_no_part_of_a_guided_head_and_no_update_that_conflicts():
    guided = algorithm("fedprior+flayer")
    assert guided.mix[:2] == (Guide(select("last:1")), OwnPrior())
    assert algorithm("fedavg+prior+lag").phases[-1].algorithm.mix[-1] == OwnPrior()


@pytest.mark.parametrize("host", ["fedavg", "fedala", "fedper", "flayer", "fedlag"])
def test_a_prior_gives_no_method_a_global_model_that_it_lacks(host):
    options = {"rounds": 4, "dtype": torch.float64, "engine": "loop"}
    sims = [simulation(algorithm(n), tiny_federation(), tiny_model(), **options) for n in (host, f"{host}+prior")]
    plain, with_prior = (global_field(sim, sim.start().server) for sim in sims)
    assert plain == with_prior == (None if host in ("fedper", "flayer", "fedlag") else "theta")


@pytest.mark.parametrize("host", ["apple", "fedfomo", "ifca"])  # they score models or build them while they mix
def test_clients_use_no_model_without_their_prior(host, monkeypatch):
    used, add = list[torch.Tensor](), OwnOffset.forward
    federation = tiny_federation(sizes=(9, 6), dtype=torch.float64)
    options = {"rounds": 1, "dtype": torch.float64, "engine": "loop"}
    sim = simulation(algorithm(f"{host}+prior", smoothing=0.5), federation, tiny_model(batchnorm=False), **options)
    monkeypatch.setattr(OwnOffset, "forward", lambda head, x: used.append(head.value.detach()) or add(head, x))
    progress = sim.round(sim.start(), Matrix())[0]
    for new in (False, True):
        (models,) = client_models(sim, progress, torch.arange(2), new=new)
        models.rows("trained")
    counts = federation.class_counts("train").double() + 0.5
    priors = (counts / counts.sum(1, keepdim=True)).log()
    assert all(any(torch.allclose(value.flatten(), prior) for prior in priors) for value in used)
    assert len(used) > 4


def test_a_prior_hides_no_class_counts_that_a_method_sends():
    assert composition("fedpac+prior").sends == METHODS["fedpac"].sends
    assert composition("fedper+prior").sends != METHODS["fedper"].sends


UNFIT = ["fedrod+prior", "fedprior+prior", "fedlc+prior", "local+prior", "fedper+flayer+flayer", "fedper+q8+topk"]


@pytest.mark.parametrize("name", [*UNFIT, "fedavg+q8+flayer", "fedavg+topk+lag"])
def test_parts_that_do_not_fit_together_are_refused(name):
    with pytest.raises(RecordError, match=rf"^'?{re.escape(name)}"):
        algorithm(name)


def test_the_page_of_compositions_refuses_what_is_refused():
    """Every composition that is written down as refused, without options, is; methods that are not refused compose."""
    page = (Path(__file__).parents[2] / "docs/methods/composition.md").read_text(encoding="utf-8")
    rows = page.split("## What is refused")[1].split("\n## ")[0].splitlines()
    names = [name for row in rows if "with `rates" not in row for name in re.findall(r"`(\w+\+\w+)`", row)]
    for name in names:
        with pytest.raises(RecordError):
            algorithm(name)
    priors = {host for host in ALGORITHMS if f"{host}+prior" not in names}
    for host in priors:
        algorithm(f"{host}+prior")


def test_parts_of_different_phases_are_refused():
    with pytest.raises(RecordError, match=r"^fedper\+lag\+flayer: "):
        algorithm("fedper+lag+flayer")


def test_an_option_that_both_have_is_refused(monkeypatch):
    def normed(*, norm: float = 1.0) -> Layerwise:
        return fedavg()

    monkeypatch.setitem(METHODS, "normed", replace(METHODS["fedavg"], builder=normed))
    with pytest.raises(RecordError, match=r"normed\+clipped: .*'norm'"):
        algorithm("normed+clipped", norm=0.5)


@pytest.mark.parametrize(
    ("name", "options", "unknown", "nearest"),
    [
        ("fedper+flyer", {}, "flyer", "flayer"),
        ("fedpr+flayer", {}, "fedpr", "fedper"),
        ("fedper", {"finetun": 1}, "finetun", "finetune"),
        ("fedper+flayer", {"leest": 1}, "leest", "least"),
    ],
)
def test_names_that_do_not_exist_have_a_nearest_match(name, options, unknown, nearest):
    with pytest.raises(UnknownNameError, match=rf"'{unknown}'.*'{nearest}'\?"):
        algorithm(name, **options)


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_any_method_is_composed_or_refused_in_one_line(part):
    for host in ALGORITHMS:
        refused = ""
        try:
            composition(f"{host}+{part}")
        except RecordError as error:
            refused = str(error)
        assert not refused or refused.startswith(f"{host}+{part}: ")
        assert "\n" not in refused
        assert "have an option" not in refused


# LAG on what a server does besides the mean


def merged(step, personal):
    """The server's model after two clients sent all ones and all threes, from zeros; layers in L_p as given."""
    torch.manual_seed(0)
    module = build("mlp", shape=SHAPE, classes=CLASSES, hidden=(4,))
    sim = simulation(with_lag(fedavg(), warmup=0), tiny_federation((8, 8)), module, rounds=1, dtype=torch.float64)
    rnd, layout = sim.at(0), sim.setup.layout
    zeros = {n: torch.zeros(spec.shape, dtype=torch.float64) for n, spec in layout.specs.items()}
    L = [float(layer.name in personal) for layer in layout.layers]
    server = {"theta": zeros, "personal": torch.tensor(L, dtype=torch.float64)}
    sent = {n: torch.stack([x + 1, x + 3]) for n, x in zeros.items()}
    up = Parcel({"theta": Field(sent), "samples": Field(torch.tensor([1, 3]))})
    after = step.finish(rnd, server, step.fold(rnd, server, {}, up, torch.arange(2)))["theta"]
    head = layout.layer(layout.resolve("head")[0]).tensors
    return {n: x.unique().tolist() for n, x in after.items()}, set(head)


def test_a_server_optimizer_moves_shared_layers_and_keeps_the_mean_of_personal_ones():
    step = MoveShared(ServerOptimizer(lr=0.5))
    found, head = merged(step, {"fc"})
    assert {n: x == [2.5] for n, x in found.items()} == {n: n in head for n in found}
    assert {n: x == [1.25] for n, x in found.items()} == {n: n not in head for n in found}


def test_steps_of_a_server_act_on_shared_layers():
    last = with_lag(fedopt()).phases[-1].algorithm
    assert last.merge[1] == MoveShared(fedopt().merge[0])
    assert with_lag(algorithm("fedexp")).phases[-1].algorithm.merge[1].unless == "personal"


def test_lag_keeps_what_a_method_keeps_and_withholds_only_what_it_sends():
    made = with_lag(fedrep(), warmup=0).phases[0].algorithm
    assert made.serve[0].layers == made.merge[0].layers == select("base")
    assert made.client["theta"] == Start()
    assert made.welcome == fedrep().serve
    own = with_lag(fedper(initial="own"), warmup=0).phases[0].algorithm
    assert own.client["theta"] == Together((Start(select("head"), own=True), Start(select("base"))))


# Names


def test_a_composition_takes_the_options_of_both_and_says_what_it_is():
    found = composition("fedper+flayer")
    assert [each.name for each in found.hyperparameters][::4] == ["personal", "s", "accuracy"]
    assert (found.label, found.kind, found.year) == ("FedPer + FLAYER", "personal parts", 2025)
    assert [part for part in ("rates", "mask", "no guide") if part in found.idea] == ["rates", "mask", "no guide"]
    assert found.sends.startswith(f"{METHODS['fedper'].sends}; ")
    assert composed("fedper+flayer").__name__ == "fedper+flayer"
    assert composition("scaffold+lag").label == "SCAFFOLD + LAG"


def test_a_configuration_names_a_composition():
    typed = ["algorithm.name=fedper+flayer", "fedper+flayer.least=0.3", "flayer.s=2", "fedper.personal=blocks:2"]
    made = with_settings(Experiment(), typed)
    assert dict(made.algorithm.options) == {"least": 0.3, "s": 2, "personal": "blocks:2"}
    assert from_tables(to_tables(made)) == made
    assert algorithm_of(made) == algorithm("fedper+flayer", least=0.3, s=2, personal="blocks:2", train=made.train)
    assert completed(made).algorithm.options["unsent"] == "held"
    with pytest.raises(UnknownNameError, match=r"fedrep.*fedper"):
        with_values(made, {"fedrep.head_epochs": 2})
    with pytest.raises(UnknownNameError, match="'lug'; did you mean 'lag'"):
        with_values(Experiment(), {"algorithm.name": "fedper+lug"})
    with pytest.raises(RecordError, match=r"least .*2\.0"):
        algorithm_of(with_values(made, {"algorithm.least": 2.0}))


def test_a_comparison_holds_compositions(tmp_path):
    base = with_settings(Experiment(), ["run.rounds=1", "data.clients=4"])
    methods, settings = ["fedper", "fedper+flayer"], {"fedper+flayer.least": 0.5}
    made = Comparison.create(tmp_path / "c", base, methods, 1, settings)
    read = Comparison.open(tmp_path / "c")
    assert [member.folder.parent.name for member in read.members()] == methods
    assert [dict(member.experiment.algorithm.options) for member in made.members()] == [{}, {"least": 0.5}]


@pytest.mark.budget(1.5, "the first use of the command's tables")
def test_the_catalogue_shows_a_composition(capsys):
    print_catalogue("scaffold+lag", as_json=True, settings={})
    (entry,) = json.loads(capsys.readouterr().out)["algorithms"]
    assert entry["name"] == "scaffold+lag"
    assert [each["name"] for each in entry["hyperparameters"]][:5] == ["server_lr", "k", "xi", "warmup", "warmup_share"]
    print_catalogue("fedper+flayer", as_json=False, settings={})
    assert "FedPer + FLAYER" in capsys.readouterr().out
    with pytest.raises(RecordError, match=r"local\+lag: "):
        print_catalogue("local+lag", as_json=True, settings={})
