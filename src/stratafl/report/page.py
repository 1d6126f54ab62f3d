"""A report as one HTML file that asks nobody for anything: text, tables, charts, and plotly.js inside."""

import base64
import gzip
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from stratafl.errors import RunError, counted, printable
from stratafl.files import write_atomically
from stratafl.report.ablations import ablation_tables
from stratafl.report.charts import Chart, on_dark
from stratafl.report.curves import curves_chart
from stratafl.report.distribution import clients_chart, worst_table
from stratafl.report.escaping import escape
from stratafl.report.flagging import flag_table
from stratafl.report.layer_charts import layer_charts
from stratafl.report.overview import facts, ranking_table, runs_table
from stratafl.report.sections import Section, section_html
from stratafl.report.study import Study
from stratafl.report.verdicts import verdict_table
from stratafl.report.who import who_chart
from stratafl.report.words import cautions, summary
from stratafl.version import __version__

GENERATOR = b'<meta name="generator" content="stratafl">'


def write_report(study: Study, path: Path) -> int:
    """Write the report of a study; how many bytes it has."""
    data = page(study).encode()
    write_atomically(path, data)
    return len(data)


def is_report(path: Path) -> bool:
    """Whether a file is a report, which another one may replace."""
    with path.open("rb") as file:
        return GENERATOR in file.read(1000)


def page(study: Study) -> str:
    """The whole file."""
    made = sections(study)
    charts = [part for section in made for part in section.parts if isinstance(part, Chart)]
    tables = {part.name: part.csv for section in made for part in section.parts if not isinstance(part, Chart | str)}
    title, subtitle = _title(study)
    return Template(_asset("page.html")).substitute(
        title=escape(title),
        subtitle=escape(subtitle),
        style=_asset("page.css"),
        contents="".join(f'<li><a href="#{each.name}">{escape(each.title)}</a></li>' for each in made),
        sections="\n".join(map(section_html, made)),
        footer=f"stratafl {escape(__version__)} · {datetime.now(UTC):%Y-%m-%d %H:%M} UTC · works offline",
        data=in_script({"charts": [chart.plain() for chart in charts], "tables": tables, "dark": on_dark()}),
        plotly=base64.b64encode(gzip.compress(_plotly().encode(), 9, mtime=0)).decode() if charts else "",
        script=_asset("page.js"),
    )


def sections(study: Study) -> list[Section]:
    """What a reader finds, in order; what there is nothing to say about is left out."""
    warned = cautions(study)
    caution = f'<div class="caution" role="note"><strong>To keep in mind</strong><ul>{_items(warned)}</ul></div>'
    top = [f'<p class="lead">{escape(summary(study))}</p>', *([caution] if warned else [])]
    made = [Section("summary", "Summary", top)]
    made.append(Section("reproduction", "Published claims", [verdict_table(study.verdicts)]))
    if study.ranks:
        who = who_chart(study) or "<p>Who holds what is not known: the runs say neither classes nor counts.</p>"
        layers = layer_charts(study)
        looked = any(record.looks.numbers for record in study.records.values())
        hint = [] if looked else ["<p>Nobody looked into the layers: run with <code>--lab 5</code> for more.</p>"]
        made += [
            Section("ranked", "Ranking", [ranking_table(study)]),
            Section("course", "Course of training", [curves_chart(study)]),
            Section("spread", "Clients", [clients_chart(study), worst_table(study)]),
            Section("flagged", "Clients left out", [flag_table(study)]),
            Section("held", "Data", [who]),
            Section("lab", "Layers", [*hint, *layers]),
            Section("ablations", "Ablations", list(ablation_tables(study))),
        ]
    if study.ranks:
        pairs = "".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in facts(study))
        made.append(Section("made", "What was run", [f"<dl>{pairs}</dl>", runs_table(study)]))
    return [section for section in made if section.parts]


def in_script(value: Any) -> str:
    """JSON that can stand in a script element: nothing in it can end the element."""
    text = json.dumps(_printable(value), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _printable(value: Any) -> Any:
    """The value with all its texts printable; lines of a table in CSV stay lines."""
    if isinstance(value, str):
        return printable(value, keep="\n")
    if isinstance(value, dict):
        return {_printable(key): _printable(each) for key, each in value.items()}
    return [_printable(each) for each in value] if isinstance(value, list | tuple) else value


def _title(study: Study) -> tuple[str, str]:
    outcomes = study.outcomes
    if not outcomes:
        return "Published claims, repeated", counted(len(study.verdicts), "verdict")
    methods = list(dict.fromkeys(str(one.config["algorithm"]["name"]).rpartition(":")[2] for one in outcomes))
    data = list(dict.fromkeys(Path(one.config["data"]["name"]).stem for one in outcomes))
    what = (
        f"{len(methods)} methods"
        if len(methods) > 3
        else " and ".join(filter(None, (", ".join(methods[:-1]), methods[-1])))
    )
    told = dict(facts(study))
    seeds = len({one.seed for one in outcomes})
    counts = [(len(study.ranks), "configuration"), (seeds, "seed"), (len(outcomes), "run")]
    words = [told["data"], told["model"], _rounds(told["rounds"])] if len(data) == 1 else []
    words += [counted(n, word) for n, word in counts]
    return f"{what} on {' and '.join(data)}", " · ".join(words)


def _rounds(told: str) -> str:
    return counted(int(told), "round") if told.isdecimal() else f"{told} rounds"


def _items(lines: Sequence[str]) -> str:
    return "".join(f"<li>{escape(line)}</li>" for line in lines)


def _asset(name: str) -> str:
    return resources.files("stratafl.report").joinpath("assets", name).read_text(encoding="utf-8")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ModuleNotFoundError as error:
        raise RunError("the report needs 'plotly', which is not installed: pip install plotly") from error
    return str(get_plotlyjs())
