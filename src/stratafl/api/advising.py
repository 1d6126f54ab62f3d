"""`advise`: the command of this name for samples and models in Python."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stratafl.advice import BUDGET, advice_on
from stratafl.advice.advice import CAUTION
from stratafl.advice.advice_files import CONFIG, write_advice
from stratafl.api.requests import Source, each_warning_once, requested
from stratafl.api.results import AdviceResult
from stratafl.config.experiment import with_values
from stratafl.execute.build_simulation import ModelSource
from stratafl.files import check_new


@each_warning_once()
def advise(
    clients: Source,
    model: ModelSource | str = "mlp",
    *,
    budget: float = BUDGET,
    caution: float = CAUTION,
    folder: str | Path | None = None,
    settings: Mapping[str, Any] | None = None,
    progress: bool = True,
    trust: bool = False,
    **options: Any,
) -> AdviceResult:
    """Advise whether to federate, with which method, who gains and at what cost, as `strata advise` does.

    Validation samples alone decide. `budget` is the share of the steps of a full comparison that this may take, and
    `caution` the standard errors by which federating must win. The other arguments are those of `compare`. The advice
    is written to `folder`; nothing is kept of an advice that is interrupted.
    """
    asked = requested("advise", clients, model, folder, settings, options, trust=trust)
    if asked.folder.exists():
        check_new([asked.folder / CONFIG])
    asked.store()
    experiment = with_values(asked.base, asked.settings)

    def watch(name: str, spent: int, allowed: int) -> None:
        share = min(1.0, spent / max(1, allowed))
        print(f"\r{share:4.0%} trying {name:30}", end="", file=sys.stderr, flush=True)

    advice = advice_on(experiment, budget=budget, caution=caution, trust=asked.trust, watch=watch if progress else None)
    if progress:
        print(f"\r{' ' * 42}\r", end="", file=sys.stderr, flush=True)
    return AdviceResult(advice, write_advice(advice, asked.folder))
