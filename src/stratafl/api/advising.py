"""`advise`: the command of this name for samples and models in Python."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

from stratafl.advice import BUDGET, advice_on
from stratafl.advice.advice import CAUTION
from stratafl.advice.advice_files import CONFIG, write_advice
from stratafl.api.requests import SharedOptions, Source, each_warning_once, requested
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
    **options: Unpack[SharedOptions],
) -> AdviceResult:
    """Advise whether to federate, with which method, who gains and at what cost, as `strata advise` does.

    Validation samples alone decide. An advice that is interrupted leaves nothing.

    Example:
        ```python
        advice = stratafl.advise(clients, "mlp", rounds=20)
        print(advice)  # the answer and its reasons, in sentences
        advice.to_pandas("clients")
        ```

    Args:
        clients: Samples as `fit` takes them, or the name of a data set, file or folder.
        model: A name, a module or a function that makes one.
        budget: The share of the steps of a full comparison that this may take.
        caution: By how many standard errors federating must win.
        folder: Where the advice is written, by default a new folder in `runs/`.
        settings: Settings as the command has them: `{"train.epochs": 2}`.
        progress: Show what is tried.
        trust: Allow files to import code of your own.
        options: Common settings as arguments, as in `compare`.

    Returns:
        The answer, the method to use, and what each client can expect.

    Raises:
        StrataError: If something does not fit.
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
