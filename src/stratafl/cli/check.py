"""`strata check`: whether an algorithm obeys the contract, law by law."""

from collections.abc import Sequence

from rich.text import Text

from stratafl.algorithms.special_cases import special_cases_of
from stratafl.cli.console import result_console
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.settings import parse_settings
from stratafl.config.trust import typed
from stratafl.errors import StrataError, counted
from stratafl.testing import SETTINGS, law_results


def check(name: str, options: Sequence[str], quick: bool) -> int:
    """Print a line per law; raise if one is broken."""
    given = parse_settings(f"algorithm.{option.removeprefix(f'{name}.')}" for option in options)
    algorithm = algorithm_of(with_values(Experiment(), {"algorithm.name": name, **given}), typed([name]))
    console, broken, total = result_console(), 0, 0
    laws = special_cases_of(name) if not options else ()
    with console.status(f"checking {name}") as status:
        for result in law_results(algorithm, laws, settings=SETTINGS[:1] if quick else SETTINGS):
            total += 1
            mark, style = ("✓", "green") if result.error is None else ("✗", "bold red")
            console.print(Text.assemble((f" {mark} ", style), result.says))
            status.update(f"checking {name}: {result.name} done")
            if result.error is not None:
                broken += 1
                console.print(Text(f"   {result.error}", style="red"))
    if broken:
        raise StrataError(f"'{name}' breaks {broken} of {counted(total, 'law')} of the contract: see ✗ above")
    console.print(Text(f"'{name}' obeys the contract", style="bold green"))
    return 0
