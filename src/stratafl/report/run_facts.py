"""What was run: methods, data, model, training, seeds, machines, versions and commands."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from stratafl.errors import counted
from stratafl.report.formats import Environment, listed, machine, minus, span, versions
from stratafl.report.outcome import Outcome, measure, what_counts
from stratafl.report.study import Study

PARTS = {"partition": "the partition", "weights": "the initial weights", "batches": "the batches"}


def run_facts(study: Study) -> dict[str, str]:
    """Each fact by its name; empty ones are left out."""
    outcomes, environments = study.outcomes, [run.environment for run in study.outcomes]
    if not outcomes:
        return {}
    seeds = sorted({run.seed for run in outcomes})
    facts = {
        "methods": listed([rank.label for rank in study.ranks], 20),
        "data": _joined(_data(run) for run in outcomes),
        "model": _models(study),
        "training": _joined(_training(run) for run in outcomes),
        "rounds": _joined(str(run.config["run"]["rounds"]) for run in outcomes),
        "clients per round": _joined(f"{100 * run.config['run']['participation']:g} %" for run in outcomes),
        "seeds": listed([str(seed) for seed in seeds]),
        "seeds vary": varied_parts(outcomes),
        "score": f"test {measure(outcomes[0].metric)} {what_counts(outcomes)}",
        "machine": _joined(machine(env) for env in environments),
        "versions": _joined(versions(env) for env in environments),
        "started": span([str(env["started"]) for env in environments if env.get("started")]),
        "command": _joined(map(_command, sorted(environments, key=lambda env: str(env.get("started") or "")))),
    }
    return {name: value for name, value in facts.items() if value}


def varied_parts(outcomes: Sequence[Outcome]) -> str:
    """Which of the seeds of runs differ, and which stay the same; nothing for a single run of each method."""
    varied = [name for part, name in PARTS.items() if len({getattr(run.seeds, part) for run in outcomes}) > 1]
    same = [name for name in PARTS.values() if name not in varied]
    return "; the same: ".join(listed(names) for names in (varied, same) if names) if varied else ""


def _joined(values: Iterable[str], most: int = 4) -> str:
    """All different ones."""
    distinct = list(dict.fromkeys(filter(None, values)))
    return "; ".join(distinct[:most]) + (f"; and {len(distinct) - most} more" if len(distinct) > most else "")


def _data(run: Outcome) -> str:
    data = run.config["data"]
    partition = data["partition"]
    if partition == "auto":
        drawn = "iid" if run.regression else "dirichlet"
        partition = "clients as named in the data" if run.client_names else drawn
    shown = {
        "dirichlet": f"Dirichlet shares, α = {data['alpha']:g}",
        "pfllib": f"PFLlib's Dirichlet shares, α = {data['alpha']:g}",
        "classes": f"{counted(data.get('per_client') or 0, 'class', 'classes')} each",
    }
    new = f" + {data['new_clients']} new" if data["new_clients"] else ""
    return f"{Path(data['name']).stem}, {counted(run.clients, 'client')}{new}, {shown.get(partition, partition)}"


def _models(study: Study) -> str:
    """Each model with its parameters; with the methods that have as many, if they differ."""
    methods: dict[tuple[str, int | None], list[str]] = {}
    for rank in study.ranks:
        for run in rank.members:
            columns = run.environment.get("columns")
            key = (str(run.config["model"]["name"]), columns if isinstance(columns, int) else None)
            methods.setdefault(key, []).append(rank.label)
    models = []
    for (name, columns), labels in methods.items():
        parameters = f"{columns:,} parameters" if columns else ""
        whose = listed(list(dict.fromkeys(labels)), 6) if len(methods) > 1 else ""
        about = ": ".join(filter(None, (parameters, whose)))
        models.append(f"{name} ({about})" if about else name)
    return _joined(models)


def _training(run: Outcome) -> str:
    train = run.config["train"]
    epochs, rate = counted(train["epochs"], "local epoch"), minus(f"{train['lr']:g}")
    return f"{epochs}, batch size {train['batch']}, learning rate {rate}"


def _command(env: Environment) -> str:
    words = env.get("command")
    return " ".join(["strata", *map(str, words[1:])]) if isinstance(words, list) and len(words) > 1 else ""
