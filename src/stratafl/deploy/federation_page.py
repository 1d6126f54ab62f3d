"""The report of a federation as one HTML page, from the folder of its host or of a site; `strata report` writes it."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stratafl.config.deployment import FederationFile, read_federation
from stratafl.core.keys import Seeds
from stratafl.deploy.federation_report import HEAD, FederationReport, cells, report_sentences
from stratafl.deploy.serving import FILE
from stratafl.deploy.site_scores import SiteScores, report_metric
from stratafl.deploy.status import PLACE, ROUNDS, read_status
from stratafl.errors import DeployError, counted
from stratafl.evaluation.metrics import METRICS, Metric
from stratafl.report import charts
from stratafl.report.gains import ClientGain, Gains, SeedGain
from stratafl.report.gains_tables import gains_figure
from stratafl.report.page import Section, definitions, document
from stratafl.report.report_tables import Cell, ReportTable, escaped
from stratafl.runs.json_files import read_lines

MAX_POINTS = 500  # of a curve
CAPTION = (
    "Scores on the test samples of each site, which no model was trained on. Alone: trained on the site's own samples "
    "for as many rounds. As received: the model that the site was sent, with the layers that it keeps. Personalised: "
    "the model that the site predicts with. In brackets: the 95 % interval of the gain over other test samples"
)


def report_of(folder: Path) -> tuple[FederationFile, FederationReport]:
    """The federation and its report, which is empty as long as no site has reported."""
    file = read_federation(folder / FILE, plain=True)
    status = read_status(folder) or {}
    return file, FederationReport.load(folder, file) or FederationReport(int(status.get("round", 0)))


def federation_page(folder: Path) -> str:
    """The page; an error if the federation has nothing to report yet."""
    file, report = report_of(folder)
    lines = read_lines(folder / ROUNDS, summed=True) if (folder / ROUNDS).exists() else []
    if not report.heard and not lines:
        raise DeployError(f"'{folder}' has nothing to report yet: its first round is not complete")
    metric = report_metric(file.experiment)
    gains = _gains(report.scores, file, metric)
    facts = {
        "method": file.experiment.algorithm.name,
        "sites": ", ".join(file.deploy.sites),
        "rounds": f"{max([report.rounds, *(int(line['round']) for line in lines)])} of {file.experiment.run.rounds}",
    }
    decision = Section(
        "decision",
        "Which model",
        "".join(f'<p class="lead">{escaped(_sentence(line))}</p>' for line in report_sentences(report, file)),
        _table(report, metric),
        _chart(gains),
    )
    after = [Section("course", "Rounds", _curve(lines, file)), Section("made", "What was run", definitions(facts))]
    what = f"{counted(len(file.deploy.sites), 'site')}, {facts['rounds']} rounds of {facts['method']}"
    return document(f"Federation {file.deploy.name}", what, [decision, *(each for each in after if each.parts)])


def _sentence(line: str) -> str:
    return f"{line[0].upper()}{line[1:]}."


def _table(report: FederationReport, metric: Metric) -> ReportTable | None:
    rows = []
    for site, scores in report.scores.items():
        raw = (site, scores.samples, scores.alone, scores.received, scores.personalised, scores.gain(metric))
        shown = cells(site, scores, metric)
        rows.append(tuple(Cell(text, value) for text, value in zip(shown, (*raw, scores.outlook), strict=True)))
    caption = f"{CAPTION}. {metric.title[:1].upper()}{metric.title[1:]}."
    return ReportTable("sites", caption, HEAD, tuple(rows)) if rows else None


def _gains(scores: Mapping[str, SiteScores], file: FederationFile, metric: Metric) -> Gains:
    clients = []
    for site, of_site in scores.items():
        gain, score, alone = of_site.gain(metric), of_site.personalised, of_site.alone
        if gain is not None and score is not None and alone is not None:
            ends = of_site.low, of_site.high
            once = SeedGain(Seeds(), score, alone, gain, *ends, of_site.samples)
            clients.append(ClientGain(file.deploy.number(site), site, (once,), *ends))
    return Gains(file.experiment.algorithm.name, "alone", metric, "clients", clients=tuple(clients))


def _chart(gains: Gains) -> charts.Chart | None:
    if not gains.clients:
        return None
    caption = "The personalised model of each site against the one trained alone. Above 0, the site gains"
    figure = gains_figure(gains, sorted(gains.clients, key=lambda client: client.difference), "site")
    return charts.Chart("gains", "Who gains", caption, figure, height=360)


def _curve(lines: Sequence[Mapping[str, Any]], file: FederationFile) -> charts.Chart | None:
    """The mean over sites of the score of the model that each received, round by round."""
    metric = METRICS["mse" if file.experiment.data.targets == "numbers" else "accuracy"]
    key = f"{PLACE}.client_{metric.key}"
    scored = [line for line in lines if isinstance(line.get(key), int | float)]
    if not scored:
        return None
    drawn = [scored[at] for at in charts.thinned(len(scored), MAX_POINTS)]
    rounds, values = [line["round"] for line in drawn], [float(line[key]) for line in drawn]
    curve = charts.scatter("lines+markers", rounds, [charts.rounded(value) for value in values], **charts.line_style(0))
    axes = {
        "xaxis": {"title": {"text": "round"}},
        "yaxis": charts.value_axis(metric.title, values, share=metric.percent),
    }
    caption = "The mean over sites of the test score of the model that each received, as sites report it every round"
    return charts.Chart("course", "Rounds", caption, {"data": [curve], "layout": axes})
