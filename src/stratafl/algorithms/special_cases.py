"""Special cases: for each algorithm, settings in which it must equal a simpler one (a degenerate law)."""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from stratafl.algorithms.apple import apple
from stratafl.algorithms.composition import PARTS, PLUS, composed, is_composition, parse_composition
from stratafl.algorithms.confree import confree
from stratafl.algorithms.declaration import METHODS
from stratafl.algorithms.ditto import ditto
from stratafl.algorithms.fedala import fedala
from stratafl.algorithms.fedalp import fedalp
from stratafl.algorithms.fedamp import fedamp, heurfedamp
from stratafl.algorithms.fedas import fedas
from stratafl.algorithms.fedavg import fedavg
from stratafl.algorithms.fedavg30local import fedavg30local
from stratafl.algorithms.fedbabu import fedbabu
from stratafl.algorithms.fedbias import fedbias
from stratafl.algorithms.fedbn import fedbn
from stratafl.algorithms.fedcac import fedcac
from stratafl.algorithms.fedcp import Separation, fedcp
from stratafl.algorithms.feddbe import SHIFT, feddbe
from stratafl.algorithms.fedexp import fedexp
from stratafl.algorithms.fedfomo import fedfomo
from stratafl.algorithms.fedlag import fedlag
from stratafl.algorithms.fedlc import fedlc
from stratafl.algorithms.fedopt import fedopt
from stratafl.algorithms.fedpac import fedpac
from stratafl.algorithms.fedper import fedper
from stratafl.algorithms.fedprior import fedprior
from stratafl.algorithms.fedprox import fedprox
from stratafl.algorithms.fedrep import fedrep
from stratafl.algorithms.fedrod import PERSONAL, fedrod
from stratafl.algorithms.fedstrata import fedstrata
from stratafl.algorithms.finetuning import fedavgft, fedavglpft
from stratafl.algorithms.fisher import StartTrace
from stratafl.algorithms.flayer import flayer
from stratafl.algorithms.gpfl import Conditions, gpfl
from stratafl.algorithms.ifca import ifca
from stratafl.algorithms.lgfedavg import lgfedavg
from stratafl.algorithms.local import alone, local
from stratafl.algorithms.model_generator import BIASES, GeneratorField
from stratafl.algorithms.moon import moon
from stratafl.algorithms.perfedavg import perfedavg
from stratafl.algorithms.pfedfda import pfedfda
from stratafl.algorithms.pfedhn import pfedhn, pfedhnpc
from stratafl.algorithms.pfedla import heurpfedla, pfedla
from stratafl.algorithms.pfedme import pfedme
from stratafl.algorithms.scaffold import scaffold
from stratafl.algorithms.simmix import simmix
from stratafl.core.algorithm import Algorithm
from stratafl.core.layers import select
from stratafl.core.layerwise import Layerwise
from stratafl.core.phased import Phase, Phased
from stratafl.core.records import record
from stratafl.policies import Copy, LocalTraining, Mean, ServerOptimizer


@dataclass(frozen=True)
class SpecialCase:
    """`special` gives every client the same model as `simple`, on the contract's model or on one without BatchNorm."""

    says: str
    special: Algorithm
    simple: Algorithm
    batchnorm: bool = True
    full_participation_only: bool = False
    clients: int | None = None  # the number of clients, if the case needs one
    on: str = "all"  # the layers whose tensors are compared


def _extended(record: Layerwise, like: Layerwise) -> Layerwise:
    """A method on the model that another one makes."""
    return replace(record, extension=like.extension)


def _without_inputs(record: Layerwise) -> Layerwise:
    """A method whose hypernetwork has output biases alone: all else is 0, and stays 0."""
    zero = {
        name: replace(part, start="zero") for name, part in record.server.items() if isinstance(part, GeneratorField)
    }
    return replace(record, server={**zero, BIASES: record.server[BIASES]})


@record
class GaussianHead:
    """The model with the head of equally frequent classes N(w_c, I), bias −½·‖w_c‖²; of weights with exact squares."""

    def __call__(self, module: nn.Module, example: Tensor, classes: int | None, head: str) -> nn.Module:
        weight, bias = (module.get_parameter(f"{head}.{name}") for name in ("weight", "bias"))
        with torch.no_grad():
            weight.copy_((16 * weight).round() / 16)
            bias.copy_(-weight.square().sum(1) / 2)
        return module


SPECIAL_CASES: dict[str, list[SpecialCase]] = {}


def _case(method: str, says: str, special: Algorithm, simple: Algorithm, **limits: Any) -> None:
    SPECIAL_CASES.setdefault(method, []).append(SpecialCase(says, special, simple, **limits))


_with_all = partial(_case, full_participation_only=True)
BASE = select("base")
UNIFORM = replace(fedavg(), merge=(Mean(weights="uniform"),))
ONE_STEP = LocalTraining(steps=1)
ALL_SAMPLES = LocalTraining(batch=100)
SIXTH = replace(  # of the learning rate on each of six clients, and six times their mean step on the server
    fedavg(train=LocalTraining(lr=LocalTraining().lr / 6)),
    merge=(ServerOptimizer(weights="uniform", optimizer="sgd", lr=6.0),),
)
_with_all("ditto", "Ditto without a pull is Local", ditto(strength=0.0), local(train=LocalTraining(purpose="personal")))
_case("ditto", "the global model of Ditto is FedAvg's", replace(ditto(), row="theta"), fedavg())
_case("apple", "with one client and fixed weights, APPLE is Local", apple(weights_lr=0.0), local(), clients=1)
_with_all(
    "apple",
    "APPLE whose weights stay at 1/N takes the steps of all clients, each at 1/N of the learning rate",
    apple(weights_lr=0.0, own=None),
    SIXTH,
    batchnorm=False,
)
_case(
    "confree",
    "with one client and α = 1, ConFREE is Local: (1 + α)/(1 + α²) is 1",
    confree(radius=1.0),
    local(),
    clients=1,
)
_case("fedala", "FedALA whose weights stay at 1 is FedAvg", fedala(weights_lr=0.0, first_passes=1), fedavg())
_case("fedalp", "FedALP with β = 0 is FedAvg", fedalp(beta=0.0, groups=2, warmup=1), fedavg())
_with_all("fedavg30local", "without a warm-up it is Local", fedavg30local(warmup=0), local())
_case("fedavg30local", "as long as it warms up it is FedAvg", Phased(fedavg30local(warmup=2).phases[:-1]), fedavg())
_with_all("fedamp", "FedAMP without a pull is Local", fedamp(strength=0.0), local())
_case(
    "fedamp",
    "FedAMP with a very large sigma is HeurFedAMP with uniform weights",
    fedamp(sigma=1e14),
    heurfedamp(own=1 / 6, sharpness=0.0),
)
_case("fedcac", "FedCAC without critical parameters is FedAvg", fedcac(share=0.0), fedavg())
_with_all(
    "fedcac",
    "FedCAC in which all parameters are critical is FedAvg with uniform weights",
    fedcac(share=1.0),
    UNIFORM,
    batchnorm=False,
)
_case("fedfomo", "with one client, FedFomo is Local", fedfomo(), local(), clients=1)
_with_all("fedfomo", "FedFomo that sends no models is Local", fedfomo(models=0), local())
_case("fedlag", "FedLAG that personalises nothing is FedAvg", fedlag(k=0, warmup=0), fedavg())
_case("fedlc", "FedLC without a margin is FedAvg", fedlc(tau=0.0), fedavg())
_case(
    "flayer",
    "FLAYER with rates off, full masks and A = 0 is FedAvg",
    flayer(rates=False, least=1.0, accuracy=0.0),
    fedavg(),
)
_case(
    "flayer",
    "FLAYER with A = 1, rates off and masks off is FedPer",
    flayer(rates=False, mask=False, accuracy=1.0),
    fedper(),
)
_with_all("heurfedamp", "HeurFedAMP without a pull is Local", heurfedamp(strength=0.0), local())
_case(
    "heurfedamp",
    "HeurFedAMP with all weight on a client's own model is FedAMP without attention",
    heurfedamp(own=1.0),
    fedamp(alpha=0.0),
)
_case("heurpfedla", "HeurpFedLA that retains nothing is pFedLA", heurpfedla(k=0), pfedla())
_case("ifca", "IFCA with one group is FedAvg", ifca(groups=1), fedavg())
_case(
    "pfedhn",
    "a hypernetwork of output biases alone is FedAvg with uniform weights",
    _without_inputs(pfedhn(hyper_lr=1.0, momentum=0.0, decay=0.0, clip=1e9)),
    UNIFORM,
    batchnorm=False,
)
_case("pfedhnpc", "pFedHN-PC without personal layers is pFedHN", pfedhnpc(personal="none"), pfedhn())
_with_all("pfedhnpc", "pFedHN-PC with every layer personal is Local", pfedhnpc(personal="all"), local())
_with_all(
    "pfedla",
    "pFedLA with fixed uniform weights is FedAvg with uniform weights",
    pfedla(initial="uniform", hyper_lr=0.0),
    UNIFORM,
)
_with_all("simmix", "SimMix that ignores similarity is FedAvg with uniform weights", simmix(sharpness=0.0), UNIFORM)
_case(
    "fedas",
    "FedAS without alignment, weighted by samples, is FedPer",
    replace(fedas(align_epochs=0), merge=(Mean(), Mean("statistics"))),
    fedper(),
)
_case(
    "fedas",
    "FedAS without alignment is FedPer if all traces are 0",
    replace(fedas(), train=(LocalTraining(), Copy("theta", "old"), Copy("theta", "statistics"), StartTrace())),
    fedper(),
)
_case("fedavg", "with one client, FedAvg is Local", fedavg(), local(), clients=1)
_case("fedavgft", "FedAvg-FT that tunes nothing is FedAvg", fedavgft(tune_epochs=0), fedavg())
_case("fedavglpft", "without head epochs, FedAvg-LP-FT is FedAvg-FT", fedavglpft(head_epochs=0), fedavgft())
_case("fedbabu", "FedBABU that fixes and tunes nothing is FedAvg", fedbabu(fixed="none", tune_epochs=0), fedavg())
_case("fedbias", "with one client, FedBias is Local", fedbias(), _extended(alone(), fedbias()), clients=1)
_case(
    "feddbe",
    "FedDBE without a pull is FedPer with a personal shift, a round later",
    feddbe(strength=0.0),
    Phased((feddbe().phases[0], Phase(fedper(personal=SHIFT)))),
)
_case(
    "fedcp",
    "FedCP with two equal, fixed heads is FedAvg: the division of features does not matter",
    replace(fedcp(), train=(LocalTraining(layers=BASE, objective=Separation(0.0)),)),
    _extended(fedavg(train=LocalTraining(layers=BASE)), fedcp()),
)
_case("fedexp", "FedExP with a large ε is FedAvg", fedexp(epsilon=1e12), fedavg())
_case(
    "fedopt",
    "FedOpt without momentum, at rate 1, is FedAvg",
    fedopt(optimizer="momentum", beta1=0.0, server_lr=1.0),
    fedavg(),
)
_case("fedpac", "with one client and no pull, FedPAC is FedRep", fedpac(strength=0.0), fedrep(), clients=1)
_case(
    "fedprior",
    "FedPrior with equal priors is FedAvg",
    fedprior(smoothing=1e15),
    _extended(fedavg(), fedprior()),
    on="not head.prior",
)
_case("fedstrata", "without rates and masks, FedStrata is FedPrior", fedstrata(rates=False, mask=False), fedprior())
_case(
    "fedstrata",
    "with equal priors, FedStrata without rates and masks is FedAvg",
    fedstrata(smoothing=1e15, rates=False, mask=False),
    _extended(fedavg(), fedprior()),
    on="not head.prior",
)
_case(
    "fedstrata",
    "with equal priors, FedStrata is FLAYER without its guide",
    fedstrata(smoothing=1e15),
    _extended(flayer(guide=False), fedprior()),
    on="not head.prior",
)
_case("fedbn", "without BatchNorm, FedBN is FedAvg", fedbn(), fedavg(), batchnorm=False)
_case("fedper", "with one client, FedPer is Local", fedper(), local(), clients=1)
_with_all("fedper", "FedPer with every layer personal is Local", fedper(personal="all"), local())
_case("fedper", "FedPer with every layer shared is FedAvg", fedper(personal="not head+base"), fedavg())
_case("fedprox", "FedProx without a pull is FedAvg", fedprox(strength=0.0), fedavg())
_case("fedrep", "FedRep without personal layers is FedAvg", fedrep(personal="none"), fedavg())
_case(
    "fedrod",
    "without balanced softmax, FedRoD is FedAvg below its personal heads",
    fedrod(balanced=False),
    _extended(fedavg(train=LocalTraining(layers=~PERSONAL)), fedrod()),
    on="not head.personal",
)
_case(
    "gpfl",
    "with one client, GPFL is Local with its loss",
    gpfl(),
    replace(_extended(alone(), gpfl()), mix=(Conditions(),), train=gpfl().train),
    clients=1,
)
_case("lgfedavg", "LG-FedAvg with every layer shared is FedAvg", lgfedavg(shared="head+base"), fedavg())
_with_all("lgfedavg", "LG-FedAvg that shares nothing is Local", lgfedavg(shared="none"), local())
_case("moon", "MOON without contrast is FedAvg", moon(strength=0.0), fedavg())
_case(
    "perfedavg",
    "Per-FedAvg that looks no step ahead is FedAvg, on all samples at once",
    perfedavg(alpha=0.0, train=ALL_SAMPLES),
    fedavg(train=ALL_SAMPLES),
    batchnorm=False,  # with dropout, another draw is another mask
)
_case(
    "pfedfda",
    "pFedFDA that adapts nothing, with equal class frequencies, is FedAvg below a head that stays where it began",
    replace(pfedfda(beta=0.0, epsilon=1e15), extension=GaussianHead()),
    replace(fedavg(train=LocalTraining(layers=BASE)), extension=GaussianHead()),
    on="base",
)
_case(
    "pfedme",
    "pFedMe whose local model becomes the personal one after every step, η·λ = 1, is FedAvg",
    replace(pfedme(strength=20.0, inner=1, personal_lr=0.1), row="theta"),
    fedavg(train=LocalTraining(lr=0.1)),
)
_case("scaffold", "with one client, SCAFFOLD is FedAvg", scaffold(), fedavg(), clients=1)
_with_all(
    "scaffold",
    "SCAFFOLD with one step per round is FedAvg with uniform weights",
    scaffold(train=ONE_STEP),
    replace(UNIFORM, train=(ONE_STEP,)),
)
_with_all("local", "Local is FedPer that shares nothing", local(), fedper(personal="all"))


def special_cases_of(name: str) -> tuple[SpecialCase, ...]:
    """Those of a method; a composition equals its host if its last part does nothing, on FedAvg its paper's method."""
    if not is_composition(name):
        return tuple(SPECIAL_CASES.get(name, ()))
    host, (*before, part) = parse_composition(name)
    build, cases = composed(name), list[SpecialCase]()
    if (off := PARTS[part].off) is not None:
        rest = PLUS.join((host, *before))
        simple = composed(rest) if before else METHODS[host].builder
        cases.append(SpecialCase(f"with its last part switched off, '{name}' is '{rest}'", build(**off), simple()))
    paper = PARTS[part].method
    if host == "fedavg" and not before and paper is not None:
        method, options = METHODS[paper], PARTS[part].soon
        cases.append(SpecialCase(f"'{name}' is {method.label}", build(**options), method.builder(**options)))
    return tuple(cases)
