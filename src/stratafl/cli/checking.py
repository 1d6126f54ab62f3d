"""`check`: an algorithm against the contract, law by law."""

from collections.abc import Sequence

from rich.text import Text

from stratafl.algorithms.special_cases import SPECIAL_CASES
from stratafl.cli.consoles import results
from stratafl.config.assemble import algorithm_of
from stratafl.config.experiment import Experiment, with_values
from stratafl.config.settings import parse_settings
from stratafl.config.trust import typed
from stratafl.errors import StrataError
from stratafl.testing import SETTINGS, law_results


def check(name: str, options: Sequence[str], quick: bool) -> int:
    """Print a verdict per law; 2 if one is broken."""
    given = parse_settings(f"algorithm.{option.removeprefix(f'{name}.')}" for option in options)
    algorithm = algorithm_of(with_values(Experiment(), {"algorithm.name": name, **given}), typed([name]))
    console, broken = results(), 0
    laws = SPECIAL_CASES.get(name, ()) if not options else ()
    with console.status(f"{name} against the contract") as status:
        for result in law_results(algorithm, laws, settings=SETTINGS[:1] if quick else SETTINGS):
            mark, style = ("✓", "green") if result.error is None else ("✗", "bold red")
            console.print(Text.assemble((f" {mark} ", style), result.says))
            status.update(f"{name}: {result.name} done")
            if result.error is not None:
                broken += 1
                console.print(Text(f"   {result.error}", style="red"))
    if broken:
        raise StrataError(f"'{name}' breaks {broken} of the contract's laws")
    console.print(Text(f"'{name}' keeps the contract", style="bold green"))
    return 0
