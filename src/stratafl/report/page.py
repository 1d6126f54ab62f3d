"""A report as one HTML file that needs no network: text, tables and charts, with plotly.js inside."""

import base64
import gzip
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from stratafl.errors import RunError, counted, printable
from stratafl.files import check_folder, write_atomically
from stratafl.report.charts import Chart, on_dark
from stratafl.report.class_counts_chart import class_counts_chart
from stratafl.report.client_scores import clients_chart, worst_table
from stratafl.report.curves import curves_chart
from stratafl.report.decision import MAX_DOUBTS, decision, decision_chart, ranking_lead
from stratafl.report.flagged_clients import flag_table
from stratafl.report.gains.gain_text import how_to_see_gains, unpaired
from stratafl.report.gains_tables import dependence_table, gains_chart, gains_table, losers_table
from stratafl.report.guards import guard_sentences
from stratafl.report.in_short import in_short, kinds_chart
from stratafl.report.layer_charts import bytes_chart, methods_chart, mixing_chart, rounds_chart
from stratafl.report.metric_tables import confusion_chart, cross_site_chart, metrics_table
from stratafl.report.notes import cautions, doubts
from stratafl.report.pair_tables import pairs_table
from stratafl.report.ranking import winner
from stratafl.report.ranking_tables import (
    ablation_tables,
    new_clients_table,
    numbers_table,
    ranking_table,
    runs_table,
)
from stratafl.report.report_tables import ReportTable, escaped
from stratafl.report.run_facts import run_facts
from stratafl.report.sentences import Finding
from stratafl.report.study import Study
from stratafl.report.tuned import rates_chart, tuning_table
from stratafl.report.verdict import verdict_table
from stratafl.version import VERSION

REPORT = "report.html"
GENERATOR = b'<meta name="generator" content="stratafl">'
Part = str | ReportTable | Chart  # a str is HTML


class Section:
    """A title over parts; a part that is None is left out."""

    def __init__(self, name: str, title: str, *parts: Part | None) -> None:
        self.name, self.title = name, title
        self.parts = [part for part in parts if part is not None]


def _section_html(section: Section) -> str:
    parts, name = "\n".join(_part(part, section.title) for part in section.parts), section.name
    heading = f'<h2 id="{name}-title">{escaped(section.title)}</h2>'
    return f'<section id="{name}" aria-labelledby="{name}-title">{heading}\n{parts}\n</section>'


def _part(part: Part, title: str) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, ReportTable):
        button = f'<button type="button" data-table="{part.name}" aria-label="Table {part.name} as CSV">CSV</button>'
        return f'<div class="tabled">{part.markup()}<div class="downloads">{button}</div></div>'
    heading = f"<h3>{escaped(part.title)}</h3>" if part.title != title else ""
    buttons = "".join(
        f'<button type="button" data-chart="{part.name}" data-format="{kind}" '
        f'aria-label="Chart {escaped(part.title)} as {kind.upper()}">{kind.upper()}</button>'
        for kind in ("png", "svg", "csv")
    )
    return (
        f"<figure>{heading}<figcaption>{escaped(part.caption)}</figcaption>"
        f'<div class="controls" id="controls-{part.name}" role="group" aria-label="{escaped(part.title)}"></div>'
        f'<div class="chart" id="chart-{part.name}" role="img" aria-label="{escaped(f"{part.title}. {part.caption}")}" '
        f'style="min-height:{part.height}px"></div><div class="downloads">{buttons}</div></figure>'
    )


def write_report(study: Study, path: Path) -> int:
    """Write the report of a study, and return its size in bytes."""
    return write_page(page(study), path)


def write_page(text: str, path: Path) -> int:
    """Write a page, and return its size in bytes."""
    data = text.encode()
    write_atomically(path, data)
    return len(data)


def is_report(path: Path) -> bool:
    """Whether a file is a report, so that a new one may replace it."""
    with path.open("rb") as file:
        return GENERATOR in file.read(1000)


def check_report_file(path: Path) -> None:
    """Refuse a file that is not a report; a report may be replaced."""
    check_folder(path)
    if path.is_dir():
        raise RunError(f"'{path}' is a folder: name a file, such as {path / REPORT}")
    if path.exists() and not is_report(path):
        raise RunError(f"'{path}' exists and is not a report: choose another name, or remove it")


def page(study: Study) -> str:
    return document(*_title(study), sections(study))


def document(title: str, subtitle: str, all_sections: Sequence[Section]) -> str:
    """A page of these sections, of which the first is the decision."""
    first, *rest = all_sections
    parts = [part for section in all_sections for part in section.parts]
    charts = [part for part in parts if isinstance(part, Chart)]
    tables = {part.name: part.csv for part in parts if isinstance(part, ReportTable)}
    return Template(_asset("page.html")).substitute(
        title=escaped(title),
        subtitle=escaped(subtitle),
        style=_asset("page.css"),
        contents="".join(f'<li><a href="#{each.name}">{escaped(each.title)}</a></li>' for each in rest),
        decision=_section_html(first),
        sections="\n".join(map(_section_html, rest)),
        footer=f"stratafl {escaped(VERSION)} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · works offline",
        data=in_script({"charts": [chart.plain() for chart in charts], "tables": tables, "dark": on_dark()}),
        plotly=_plotly() if charts else "",
        script=_asset("page.js"),
    )


def decision_section(study: Study) -> Section:
    """What to use, two sentences and a picture of every client; then doubts, why, who gains, how sure."""
    decided, short = decision(study), _joined(in_short(study))
    headline = f'<p class="headline">{escaped(_joined(decided.headline))}</p>'
    sentences = f'<p class="lead">{escaped(short)}</p>' if short else None
    answers = definitions({title: _joined(findings) for title, findings in decided.answers.items()}, "answers")
    chart, warning = kinds_chart(study), _warning("Before you act", decided.cautions)
    if chart is None:
        return Section("decision", "Decision", warning, headline, answers, decision_chart(study, decided.use))
    return Section("decision", "Decision", headline, sentences, chart, warning, answers)


def sections(study: Study) -> list[Section]:
    """The decision, then everything; sections without content are left out."""
    after = [Section("reproduction", "Published claims", verdict_table(study.verdicts))]
    if study.ranks:
        lead = f'<p class="lead">{escaped(_joined(ranking_lead(study)))}</p>'
        warning = _warning("Please note", [*doubts(study)[MAX_DOUBTS:], *cautions(study)])
        runs = "This run has" if len(study.outcomes) == 1 else "These runs have"
        ranked_chart = decision_chart(study, decision(study).use) if kinds_chart(study) else None  # or it was shown
        hint = f"<p>{runs} no layer diagnostics. Add <code>--lab 10</code>.</p>"
        layers = (rounds_chart(study) or hint, methods_chart(study), mixing_chart(study), bytes_chart(study))
        after += [
            Section("ranked", "Ranking", lead, warning, ranked_chart, ranking_table(study), numbers_table(study)),
            Section("paired", "How sure", pairs_table(study.pairs)),
            Section("gaining", "Who gains", *gains_parts(study)),
            Section("course", "Learning curves", curves_chart(study)),
            Section("spread", "Clients", clients_chart(study), worst_table(study), new_clients_table(study)),
            Section("crossed", "Models on other clients' samples", cross_site_chart(study)),
            Section("flagged", "Clients left out", flag_table(study.ranks)),
            Section("measured", "All metrics", metrics_table(study), confusion_chart(study, winner(study.ranks))),
            Section("tuning", "Tuning", tuning_table(study.tuned), rates_chart(study.tuned)),
            Section("lab", "Layers", *layers),
            Section("held", "Data", class_counts_chart(study) or "<p>These runs record no class counts.</p>"),
            Section("ablations", "Ablations", *ablation_tables(study)),
            Section("made", "What was run", definitions(run_facts(study)), runs_table(study)),
        ]
    return [decision_section(study), *(section for section in after if section.parts)]


def gains_parts(study: Study) -> list[Part | None]:
    """Who gains, or how to get to know it, and what clients take under a guard; nothing for a single method."""
    guarded = _paragraphs(f"{sentence}." for sentence in guard_sentences(study.ranks))
    if not study.gains:
        return [_paragraphs(how_to_see_gains(study.ranks)), guarded]
    why = _paragraphs(unpaired(study.gains))
    return [gains_table(study), why, guarded, gains_chart(study), losers_table(study), dependence_table(study)]


def _joined(findings: Iterable[Finding]) -> str:
    return " ".join(map(str, findings))


def _warning(title: str, lines: Sequence[object]) -> str | None:
    listed = "".join(f"<li>{escaped(str(line))}</li>" for line in lines)
    return f'<div class="caution" role="note"><strong>{title}</strong><ul>{listed}</ul></div>' if lines else None


def definitions(texts: Mapping[str, str], look: str = "") -> str | None:
    listed = "".join(f"<dt>{escaped(name)}</dt><dd>{escaped(value)}</dd>" for name, value in texts.items())
    return f'<dl class="{look}">{listed}</dl>' if texts and look else f"<dl>{listed}</dl>" if texts else None


def _paragraphs(lines: Iterable[object]) -> str | None:
    return "".join(f"<p>{escaped(str(line))}</p>" for line in lines) or None


def in_script(value: Any) -> str:
    """JSON for a script element; nothing in it can end the element."""
    text = json.dumps(_printable(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(value: Any) -> Any:
    """The value with printable texts only; line breaks stay, because CSV needs them."""
    if isinstance(value, str):
        return printable(value, keep="\n")
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value


def _title(study: Study) -> tuple[str, str]:
    outcomes = study.outcomes
    if not outcomes:
        return "Published claims", counted(len(study.verdicts), "verdict")
    names = (str(run.config["algorithm"]["name"]) for run in outcomes)
    methods = list(dict.fromkeys(re.sub(r"\S+:", "", name) for name in names))  # your own without their package
    data = list(dict.fromkeys(Path(run.config["data"]["name"]).stem for run in outcomes))
    named = " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))
    what = named if len(methods) <= 3 else f"{len(methods)} methods"
    facts = run_facts(study)
    seeds, rounds = len({run.seeds.parts for run in outcomes}), facts["rounds"]
    kind = "method" if len(study.ranks) == len(methods) else "configuration"
    counts = [(len(study.ranks), kind), (seeds, "seed"), (len(outcomes), "run")]
    rounds = counted(int(rounds), "round") if rounds.isdecimal() else f"{rounds} rounds"
    words = [facts["data"], facts["model"], rounds] if len(data) == 1 else []
    words += [counted(n, word) for n, word in counts]
    return f"{what} on {' and '.join(data)}", " · ".join(words)


def _asset(name: str) -> str:
    return resources.files("stratafl.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise RunError("the report needs 'plotly', which is not installed: pip install plotly") from error
    return _packed(get_plotlyjs())


@cache
def _packed(script: str) -> str:
    """Compressed once for all reports of a process: it takes as long as the rest of a page."""
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()
