"""The catalogue: name → builder. A method is in it once a line here imports it. Names are lower case, no punctuation.

What a method says of itself is in `stratafl.algorithms.declaration:METHODS`. A name such as `fedper+flayer` is a
composition (`stratafl.algorithms.composition`).
"""

from collections.abc import Callable
from inspect import signature
from typing import Any

from stratafl.algorithms.apple import apple as apple
from stratafl.algorithms.composition import composed, is_composition
from stratafl.algorithms.confree import confree as confree
from stratafl.algorithms.declaration import METHODS
from stratafl.algorithms.ditto import ditto as ditto
from stratafl.algorithms.fedala import fedala as fedala
from stratafl.algorithms.fedalp import fedalp as fedalp
from stratafl.algorithms.fedamp import fedamp as fedamp
from stratafl.algorithms.fedamp import heurfedamp as heurfedamp
from stratafl.algorithms.fedas import fedas as fedas
from stratafl.algorithms.fedavg import fedavg as fedavg
from stratafl.algorithms.fedavg30local import fedavg30local as fedavg30local
from stratafl.algorithms.fedbabu import fedbabu as fedbabu
from stratafl.algorithms.fedbias import fedbias as fedbias
from stratafl.algorithms.fedbn import fedbn as fedbn
from stratafl.algorithms.fedcac import fedcac as fedcac
from stratafl.algorithms.fedcp import fedcp as fedcp
from stratafl.algorithms.feddbe import feddbe as feddbe
from stratafl.algorithms.fedexp import fedexp as fedexp
from stratafl.algorithms.fedfomo import fedfomo as fedfomo
from stratafl.algorithms.fedlag import fedlag as fedlag
from stratafl.algorithms.fedlc import fedlc as fedlc
from stratafl.algorithms.fedopt import fedopt as fedopt
from stratafl.algorithms.fedpac import fedpac as fedpac
from stratafl.algorithms.fedper import fedper as fedper
from stratafl.algorithms.fedprior import fedprior as fedprior
from stratafl.algorithms.fedprox import fedprox as fedprox
from stratafl.algorithms.fedrep import fedrep as fedrep
from stratafl.algorithms.fedrod import fedrod as fedrod
from stratafl.algorithms.fedstrata import fedstrata as fedstrata
from stratafl.algorithms.finetuning import fedavgft as fedavgft
from stratafl.algorithms.finetuning import fedavglpft as fedavglpft
from stratafl.algorithms.flayer import flayer as flayer
from stratafl.algorithms.gpfl import gpfl as gpfl
from stratafl.algorithms.ifca import ifca as ifca
from stratafl.algorithms.lgfedavg import lgfedavg as lgfedavg
from stratafl.algorithms.local import local as local
from stratafl.algorithms.moon import moon as moon
from stratafl.algorithms.perfedavg import perfedavg as perfedavg
from stratafl.algorithms.pfedfda import pfedfda as pfedfda
from stratafl.algorithms.pfedhn import pfedhn as pfedhn
from stratafl.algorithms.pfedhn import pfedhnpc as pfedhnpc
from stratafl.algorithms.pfedla import heurpfedla as heurpfedla
from stratafl.algorithms.pfedla import pfedla as pfedla
from stratafl.algorithms.pfedme import pfedme as pfedme
from stratafl.algorithms.scaffold import scaffold as scaffold
from stratafl.algorithms.simmix import simmix as simmix
from stratafl.core.algorithm import Algorithm
from stratafl.errors import check_known, unknown

ALGORITHMS: dict[str, Callable[..., Algorithm]] = {name: METHODS[name].builder for name in sorted(METHODS)}


def algorithm(name: str, **options: Any) -> Algorithm:
    """A method of the catalogue, or a composition such as `fedper+flayer` with the options of both."""
    if is_composition(name):
        return composed(name)(**options)
    if name not in ALGORITHMS:
        raise unknown("algorithm", name, sorted(ALGORITHMS))
    check_known(f"option of {name}", options, signature(ALGORITHMS[name]).parameters)
    return ALGORITHMS[name](**options)
