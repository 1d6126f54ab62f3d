"""`strata check`: whether an algorithm obeys the contract, law by law."""

from collections.abc import Sequence

from rich.text import Text

from stratafl.algorithms.laws import LAWS as OWN_LAWS
from stratafl.cli.console import result_console
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, as_typed, with_settings
from stratafl.config.trust import typed
from stratafl.errors import StrataError, counted
from stratafl.testing import SETTINGS, verdicts


def check(name: str, options: Sequence[str], quick: bool) -> int:
    """Print a verdict per law; raise if one is broken."""
    own = [f"algorithm.{option.removeprefix(f'{name}.')}" for option in options]
    experiment = with_settings(Experiment(), [as_typed("algorithm.name", name), *own])
    algorithm = algorithm_of(experiment, typed([name]))
    console, broken, total = result_console(), 0, 0
    laws = OWN_LAWS.get(name, ()) if not options else ()
    with console.status(f"checking {name}") as status:
        for verdict in verdicts(algorithm, laws, settings=SETTINGS[:1] if quick else SETTINGS):
            total += 1
            mark, style = ("✓", "green") if verdict.error is None else ("✗", "bold red")
            console.print(Text.assemble((f" {mark} ", style), verdict.says))
            status.update(f"checking {name}: {verdict.name} done")
            if verdict.error is not None:
                broken += 1
                console.print(Text(f"   {verdict.error}", style="red"))
    if broken:
        raise StrataError(f"'{name}' breaks {broken} of {counted(total, 'law')} of the contract: see ✗ above")
    console.print(Text(f"'{name}' obeys the contract", style="bold green"))
    return 0
