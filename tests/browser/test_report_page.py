"""The report in a browser: charts are drawn, controls work, nothing is asked of anybody, nothing breaks out."""

import csv
import json
import time
from io import StringIO
from itertools import pairwise

import pytest
from written_runs import EVIL, write_study

from processes import PATIENCE
from stratafl.report import gather
from stratafl.report.page import write_report

pytestmark = pytest.mark.slow
CHARTS = ("decision", "curves", "clients", "class_counts", "layers", "methods", "mixing", "bytes")
PHONE, DESK = 400, 1280


class Page:
    """The report, open in the browser."""

    def __init__(self, browser, path):
        self.browser, self.url = browser, path.as_uri()

    def open(self, width, dark=False):
        metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})
        self.browser.get("about:blank")
        for log in ("browser", "performance"):
            self.browser.get_log(log)
        self.browser.get(self.url)
        self.until("return document.documentElement.dataset.ready === 'true'")

    def until(self, script):
        end = time.monotonic() + PATIENCE
        while not self.do(script):
            assert time.monotonic() < end, script
            time.sleep(0.05)

    def do(self, script, *arguments):
        return self.browser.execute_script(script, *arguments)

    def drawn(self, chart):
        """What the picture of a chart is made of, without labels that plotly numbers anew."""
        return self.do("return document.querySelector(`#chart-${arguments[0]} .main-svg`)?.innerHTML || ''", chart)

    def set(self, chart, level, value):
        """Use a control as its reader would."""
        self.do(
            """const all = [...document.querySelectorAll(`#controls-${arguments[0]} [data-level="${arguments[1]}"]`)];
            const radio = all.find(each => each.type === "radio" && each.value === arguments[2]);
            if (radio) { radio.click(); return; }
            all[0].value = arguments[2];
            all[0].dispatchEvent(new Event(all[0].type === "range" ? "input" : "change", {bubbles: true}));""",
            chart,
            level,
            value,
        )

    def complaints(self):
        return [
            entry["message"] for entry in self.browser.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")
        ]

    def requests(self):
        events = [json.loads(entry["message"])["message"] for entry in self.browser.get_log("performance")]
        sent = [event["params"]["request"]["url"] for event in events if event["method"] == "Network.requestWillBeSent"]
        return {url for url in sent if not url.startswith(("data:", "blob:", "about:"))}


@pytest.fixture(scope="module")
def page(chromium, tmp_path_factory):
    place = tmp_path_factory.mktemp("browser")
    write_report(gather([write_study(place / "study")]), place / "report.html")
    return Page(chromium, place / "report.html")


@pytest.fixture(scope="module")
def client(page):
    page.open(DESK)
    return page


def test_every_chart_is_drawn(client):
    for chart in CHARTS:
        marks = client.do(
            """const place = document.getElementById(`chart-${arguments[0]}`);
            return [place.data.length, place.querySelectorAll(".trace, .hm, .point, .points path").length,
                    place.querySelector(".main-svg").getBoundingClientRect().height];""",
            chart,
        )
        assert min(marks[:2]) > 0, chart
        assert marks[2] > 100, chart


def test_no_two_ticks_of_an_axis_have_the_same_text(client):
    ticks = """return [...document.querySelectorAll(".chart")].flatMap(chart =>
        [".xtick text", ".ytick text"].map(axis =>
            [chart.id, [...chart.querySelectorAll(axis)].map(each => each.textContent)]))"""
    found = client.do(ticks)
    assert len(found) > len(CHARTS)
    for chart, texts in found:
        assert len(set(texts)) == len(texts), (chart, texts)


def test_axes_show_the_differences(client):
    """Scores of clients go from 47 to 70 %: the axis does not go from 0 to 100 %."""
    low, high = client.do("return document.getElementById('chart-clients').layout.xaxis.range")
    values = client.do("return document.getElementById('chart-clients').data.flatMap(each => each.x)")
    assert low < min(values) < max(values) < high
    assert high - low < 1.2 * (max(values) - min(values))


def test_points_are_what_the_caption_says(client):
    shown = """const place = document.getElementById("chart-clients");
        return [place.data.map(each => each.x.length),
                place.closest("figure").querySelector("figcaption").textContent]"""
    points, caption = client.do(shown)
    assert points == [8, 8, 8]
    assert "(4 clients × 2 seeds = 8)" in caption


def test_the_decision_can_be_seen_alone(page):
    visible = "return document.querySelector('#ranked').getBoundingClientRect().height > 0"
    page.open(DESK)
    assert page.do(visible)
    page.do("document.querySelector('button[data-view=decision]').click()")
    assert not page.do(visible)
    assert page.do("return document.documentElement.scrollHeight") <= 900  # one screen
    page.do("document.querySelector('button[data-view=everything]').click()")
    assert page.do(visible)
    page.url += "#decision"
    try:
        page.open(DESK)
        assert not page.do(visible)
        page.do("document.querySelector('button[data-view=everything]').click()")
        assert page.do("return document.querySelectorAll('#chart-curves .trace').length") > 0  # drawn when it is shown
    finally:
        page.url = page.url.removesuffix("#decision")


def test_the_axis_can_be_fitted_to_the_end(page):
    page.open(DESK)
    span = "const [low, high] = document.getElementById('chart-curves').layout.yaxis.range; return high - low"
    before = page.do(span)
    page.do("document.querySelector('#controls-curves input[type=checkbox]').click()")
    assert page.do(span) < 0.75 * before


def test_on_paper_everything_is_light_and_unfolded(page):
    page.open(DESK, dark=True)
    page.do("dispatchEvent(new Event('beforeprint'))")
    assert page.do("return document.documentElement.dataset.theme") == "light"
    assert page.do("return [...document.querySelectorAll('details')].every(each => each.open)")
    page.do("dispatchEvent(new Event('afterprint'))")
    assert page.do("return document.documentElement.dataset.theme") == "dark"


def test_tables_that_a_decision_needs_fit_a_screen(client):
    wide = """return [...document.querySelectorAll(".scroll")].filter(each => each.scrollWidth > each.clientWidth + 1)
        .map(each => each.querySelector("table").id)"""
    assert set(client.do(wide)) <= {"runs"}


def test_nothing_is_asked_of_anybody_and_nothing_is_complained_about(page):
    page.open(DESK)
    assert page.requests() == {page.url}
    assert page.complaints() == []


def test_a_label_cannot_break_out(client):
    assert client.do("return window.hurt") is None
    assert client.do("return document.images.length") == 0
    assert EVIL in client.do("return document.body.textContent")
    assert "</script>" in client.do("return document.querySelector('#chart-methods .xaxislayer-above').textContent")


def test_the_slider_changes_the_picture(client):
    before = client.do("return document.getElementById('chart-mixing').data[0].z")
    picture = "return document.querySelector('#chart-mixing .hm image').href.baseVal"
    first = client.do(picture)
    client.set("mixing", 3, 0)
    assert client.do("return document.querySelector('#controls-mixing output').textContent") == "1"
    after = client.do("return document.getElementById('chart-mixing').data[0].z")
    assert (before[0][1], after[0][1]) == (0.04, 0.01)
    assert client.do(picture).startswith("data:image/png")
    assert client.do(picture) != first


def test_the_axis_and_what_is_shown_can_be_switched(client):
    assert client.do("return document.querySelector('#chart-curves .xtitle').textContent") == "round"
    before = client.drawn("curves")
    client.set("curves", 1, "bytes")
    assert client.do("return document.querySelector('#chart-curves .xtitle').textContent").startswith("bytes")
    assert client.drawn("curves") != before
    client.set("curves", 0, "test loss, deployed")
    assert client.do("return document.querySelector('#chart-curves .ytitle').textContent") == "loss"
    assert (
        client.do("return document.querySelector('#controls-curves input:checked').value") == "bytes"
    )  # as chosen before


def test_what_a_control_offers_depends_on_the_one_before(client):
    offered = "return [...document.querySelectorAll('#controls-layers select')[1].options].length"
    assert client.do(offered) == 3
    assert client.do("return [...document.querySelectorAll('#controls-mixing select')[0].options].length") == 1


def test_controls_keep_the_focus_of_the_keyboard(client):
    from selenium.webdriver.common.keys import Keys

    client.do("document.querySelector('#controls-curves input:checked').focus()")
    client.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    client.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert client.do("return document.activeElement.type") == "radio"
    assert client.do("return document.activeElement.checked")


def test_charts_and_tables_can_be_downloaded(client):
    client.do(
        """window.saved = []; window.texts = [];
        HTMLAnchorElement.prototype.click = function () { window.saved.push([this.download, this.href]); };
        const made = URL.createObjectURL;
        URL.createObjectURL = blob => { blob.text().then(text => window.texts.push(text)); return made(blob); };"""
    )
    for kind in ("png", "svg", "csv"):
        client.do("document.querySelector(`[data-chart='clients'][data-format='${arguments[0]}']`).click()", kind)
    client.do("document.querySelector(\"[data-table='ranking']\").click()")
    client.until("return window.saved.length === 4 && window.texts.length >= 2")
    saved = dict(client.do("return window.saved"))
    assert set(saved) == {"clients.png", "clients.svg", "clients.csv", "ranking.csv"}
    assert saved["clients.png"].startswith("data:image/png;base64,")
    assert saved["clients.svg"].startswith("data:image/svg+xml")
    tables = [list(csv.reader(StringIO(text))) for text in client.do("return window.texts")]
    clients = next(table for table in tables if table[0] == ["series", "x", "y"])
    assert len(clients) == 1 + 3 * 2 * 4  # methods, seeds, clients
    assert any("</script>" in row[0] for row in clients)  # as it is, not as plotly reads it


def test_light_and_dark(page):
    page.open(DESK, dark=True)  # as the reader's system has it
    colour = "return getComputedStyle(document.body).backgroundColor"
    ground = "return document.getElementById('chart-curves').layout.paper_bgcolor"
    dark, dark_chart = page.do(colour), page.do(ground)
    page.do("document.getElementById('theme').click()")
    assert page.do("return document.documentElement.dataset.theme") == "light"
    assert page.do(colour) != dark
    assert page.do(ground) != dark_chart
    assert page.do("return document.getElementById('theme').getAttribute('aria-pressed')") == "false"


@pytest.mark.parametrize("width", [PHONE, DESK])
def test_nothing_sticks_out_at_the_side(page, width):
    page.open(width)
    assert page.do("return document.documentElement.scrollWidth") <= width
    wide = """return [...document.querySelectorAll("section *")].filter(each => !each.closest(".scroll") &&
        !each.closest("svg") && each.getBoundingClientRect().right > innerWidth + 1).map(each => each.outerHTML)"""
    assert page.do(wide) == []


def test_on_a_phone_a_verdict_stands_below_its_claim_and_nothing_is_at_the_side(page):
    page.open(PHONE)
    told = page.do("""const table = document.getElementById("verdicts"), frame = table.closest(".scroll");
        const [claim, verdict] = table.querySelector("tbody tr").children;
        const [above, below] = [claim, verdict].map(each => each.getBoundingClientRect().top);
        return [table.scrollWidth - frame.clientWidth, below - above,
                getComputedStyle(verdict, "::before").content, verdict.textContent];""")
    assert told[0] <= 0
    assert told[1] > 0
    assert told[2:] == ['"verdict: "', "✓ holds"]
    page.open(DESK)
    assert page.do("return getComputedStyle(document.querySelector('#verdicts td'), '::before').content") == "none"


def test_everything_has_a_name_for_those_who_do_not_see_it(client):
    nameless = """return [...document.querySelectorAll("button, select, input")].filter(each =>
        !(each.getAttribute("aria-label") || each.textContent.trim() || each.closest("label"))).length"""
    assert client.do(nameless) == 0
    levels = client.do("return [...document.querySelectorAll('h1, h2, h3')].map(each => +each.tagName[1])")
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))


def test_bubbles_have_a_scale_that_is_true(page):
    page.open(DESK)
    wide = """const box = each => each.getBoundingClientRect().width;
        const place = document.getElementById("chart-class_counts");
        const points = [...place.querySelectorAll(".scatterlayer .point")].map(box);
        const items = [...place.querySelectorAll(".legend .traces")];
        const shown = items.map(each => [each.textContent, box(each.querySelector(".legendpoints path"))]);
        return [Math.max(...points), shown];"""
    largest, legend = page.do(wide)
    assert [name for name, _ in legend] == ["1 sample", "3 samples"]  # of 3 at most
    assert legend[-1][1] == pytest.approx(largest, abs=0.2)
    assert legend[0][1] == pytest.approx(largest / 3**0.5, abs=0.2)


def test_blue_is_lighter_on_a_dark_ground(page):
    colours = """return ["curves", "class_counts"].flatMap(name => {
        const {data} = document.getElementById(`chart-${name}`);
        return data.filter(each => each.name).slice(0, 1).map(each => each.marker.color)})"""
    page.open(DESK)
    assert page.do(colours) == ["#0072B2"] * 2
    page.open(DESK, dark=True)
    assert page.do(colours) == ["#3D9CE0"] * 2


def test_no_shadow_lies_on_a_caption_and_no_code_is_broken(page):
    page.open(PHONE)
    grounds = (
        """return ["caption", "section"].map(each => getComputedStyle(document.querySelector(each)).backgroundColor)"""
    )
    caption, card = page.do(grounds)
    assert caption == card
    space = """const code = document.createElement("code");
        document.body.append(code);
        return getComputedStyle(code).whiteSpace"""
    assert page.do(space).startswith("nowrap")
