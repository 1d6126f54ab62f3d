"use strict";
(() => {
  const report = JSON.parse(document.getElementById("report-data").textContent);
  const root = document.documentElement;
  const NARROW = 700;

  // --- theme

  const preferred = matchMedia("(prefers-color-scheme: dark)");
  const button = document.getElementById("theme");
  let chosen = null;

  let printing = false; // on paper, colours are light and everything is unfolded

  function dark() { return !printing && (chosen === null ? preferred.matches : chosen); }

  function paint() {
    root.dataset.theme = dark() ? "dark" : "light";
    button.textContent = dark() ? "Light" : "Dark";
    button.setAttribute("aria-pressed", String(dark()));
    button.setAttribute("aria-label", dark() ? "Switch to light colours" : "Switch to dark colours");
    charts.forEach(chart => chart.draw());
  }

  function colours() {
    const style = getComputedStyle(root);
    return name => style.getPropertyValue(`--${name}`).trim();
  }

  // --- the decision alone, or everything: a report is opened on its decision by report.html#decision

  const views = [...document.querySelectorAll("button[data-view]")];

  function view(wanted) {
    root.dataset.view = wanted;
    views.forEach(each => each.setAttribute("aria-pressed", String(each.dataset.view === wanted)));
    charts.forEach(chart => chart.draw());
  }

  function viewOfAddress() {
    const wanted = location.hash === "#decision" ? "decision" : "everything";
    if (location.hash || !root.dataset.view) view(wanted);
  }

  // --- charts

  function themed(layout, given, width, named) {
    const colour = colours();
    const narrow = innerWidth < NARROW;
    const height = given + (narrow && layout.showlegend !== false ? 14 * named : 0); // the legend is below
    const square = layout.yaxis && layout.yaxis.scaleanchor;
    const axis = given => ({
      automargin: true, gridcolor: colour("line"), linecolor: colour("line"), zerolinecolor: colour("line"), ...given,
      title: { standoff: 10, ...(given || {}).title },
    });
    const title = layout.title ? { title: { x: 0, xanchor: "left", font: { size: 13 }, ...layout.title } } : {};
    return {
      height: square ? Math.min(height, width) : height,
      font: { family: "system-ui, sans-serif", size: narrow ? 11 : 13, color: colour("text") },
      paper_bgcolor: colour("card"), plot_bgcolor: colour("card"), dragmode: narrow ? false : "zoom",
      margin: { l: narrow ? 48 : 64, r: 12, t: layout.title ? 36 : 12, b: 48 },
      legend: { orientation: "h", x: 0, xanchor: "left", y: 0, yref: "container", yanchor: "bottom" },
      hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
      ...layout, ...title, xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    };
  }

  // The trace in colours that can be seen on a dark background.
  function lit(trace) {
    const lighter = colour => Array.isArray(colour) ? colour.map(lighter) : report.dark[colour] || colour;
    const made = { ...trace };
    for (const part of ["line", "marker"]) {
      if (made[part] && made[part].color) made[part] = { ...made[part], color: lighter(made[part].color) };
    }
    if (made.fillcolor) made.fillcolor = lighter(made.fillcolor);
    return made;
  }

  class Chart {
    constructor(given) {
      this.given = given;
      this.place = document.getElementById(`chart-${given.name}`);
      this.bar = document.getElementById(`controls-${given.name}`);
      this.choice = given.controls.map(() => null);
      this.offer();
    }

    // Fill the controls from the root down; what was chosen stays where it still exists.
    offer() {
      const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.level : null;
      const inside = this.bar.contains(document.activeElement);
      this.bar.replaceChildren();
      let node = this.given.tree;
      this.given.controls.forEach((control, level) => {
        const keys = node.options.map(([key]) => key);
        if (!keys.includes(this.choice[level])) this.choice[level] = control.kind === "slider" ? keys.at(-1) : keys[0];
        this.bar.append(makers[control.kind](this, control.label, level, keys));
        node = node.options.find(([key]) => key === this.choice[level])[1];
      });
      this.figure = node;
      if ((node.layout.meta || {}).end) this.bar.append(this.closerSwitch());
      if (inside) {
        const again = this.bar.querySelector(`[data-level="${focused}"]:checked`) || this.bar.querySelector(`[data-level="${focused}"]`);
        if (again) again.focus();
      }
    }

    closerSwitch() {
      const box = make("input", { type: "checkbox", "data-level": "closer" });
      box.checked = Boolean(this.closer);
      box.addEventListener("change", () => { this.closer = box.checked; this.draw(); });
      return make("label", {}, box, "fit the axis to the second half");
    }

    choose(level, key) {
      this.choice[level] = key;
      if (this.given.controls[level].kind === "slider" && level === this.given.controls.length - 1) {
        this.figure = this.leaf();
      } else {
        this.offer();
      }
      this.draw();
    }

    leaf() {
      return this.choice.reduce((node, wanted) => node.options.find(([key]) => key === wanted)[1], this.given.tree);
    }

    draw() {
      if (!window.Plotly || !this.place.clientWidth) return; // what is hidden is drawn when it is shown
      const layout = themed(this.figure.layout, this.given.height, this.place.clientWidth, this.named());
      const end = (this.figure.layout.meta || {}).end;
      if (this.closer && end) layout.yaxis.range = [...end];
      this.place.style.minHeight = `${layout.height}px`;
      const traces = this.figure.data.map(dark() ? lit : trace => ({ ...trace }));
      Plotly.react(this.place, traces, layout, { displayModeBar: false, responsive: true });
    }

    named() {
      const traces = this.figure.data.filter(trace => trace.showlegend !== false && trace.name);
      return traces.length > 1 ? traces.length : 0;
    }

    name() {
      return [this.given.name, ...this.choice].join("-").replace(/[^\w.-]+/g, "-").slice(0, 80);
    }

    async image(format) {
      const wide = Math.max(this.place.clientWidth, 800);
      const url = await Plotly.toImage(this.place, { format, width: wide, height: this.given.height, scale: format === "png" ? 2 : 1 });
      save(url, `${this.name()}.${format}`);
    }

    csv() {
      return asCsv(rowsOf(this.figure.data.filter(trace => trace.hoverinfo !== "skip")));
    }
  }

  const makers = {
    menu(chart, label, level, keys) {
      const select = make("select", { "data-level": level });
      keys.forEach(key => select.append(new Option(key, key, false, key === chart.choice[level])));
      select.addEventListener("change", () => chart.choose(level, select.value));
      return labelled(label, select);
    },
    switch(chart, label, level, keys) {
      const field = make("fieldset", {}, make("legend", {}, label));
      keys.forEach(key => {
        const radio = make("input", { type: "radio", name: `${chart.given.name}-${level}`, value: key, "data-level": level });
        radio.checked = key === chart.choice[level];
        radio.addEventListener("change", () => chart.choose(level, key));
        field.append(make("label", {}, radio, key));
      });
      return field;
    },
    slider(chart, label, level, keys) {
      const range = make("input", { type: "range", min: 0, max: keys.length - 1, step: 1, "data-level": level });
      const shown = make("output", {}, chart.choice[level]);
      range.value = keys.indexOf(chart.choice[level]);
      range.disabled = keys.length < 2;
      range.setAttribute("aria-valuetext", `${label} ${chart.choice[level]}`);
      range.addEventListener("input", () => {
        shown.textContent = keys[range.value];
        range.setAttribute("aria-valuetext", `${label} ${keys[range.value]}`);
        chart.choose(level, keys[range.value]);
      });
      return labelled(label, range, shown);
    },
  };

  function labelled(label, ...parts) { return make("label", {}, label, ...parts); }

  function make(kind, attributes, ...parts) {
    const element = document.createElement(kind);
    Object.entries(attributes).forEach(([name, value]) => element.setAttribute(name, value));
    element.append(...parts);
    return element;
  }

  // --- downloads

  // Plotly's texts are escaped; a spreadsheet takes some texts for formulas.
  function plainText(text) {
    const read = String(text).replaceAll("&lt;", "<").replaceAll("&gt;", ">").replaceAll("&amp;", "&");
    return /^[=+\-@\t\r]/.test(read) ? `'${read}` : read;
  }

  function rowsOf(traces) {
    if (traces.every(trace => trace.z)) {
      const rows = traces.flatMap(trace => trace.z.flatMap((row, i) =>
        row.map((value, j) => [(trace.x || [])[j] ?? j, (trace.y || [])[i] ?? i, value])));
      return [["x", "y", "value"], ...rows];
    }
    const extra = traces.some(trace => trace.customdata);
    const rows = traces.flatMap(trace => trace.x.map((x, i) =>
      [trace.name || "", x, trace.y[i], ...(extra ? [(trace.customdata || [])[i] ?? ""] : [])]));
    return [["series", "x", "y", ...(extra ? ["more"] : [])], ...rows];
  }

  function asCsv(rows) {
    const cell = value => {
      if (value === null || value === undefined) return "";
      const text = typeof value === "number" ? String(value) : plainText(value);
      return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
    };
    return rows.map(row => row.map(cell).join(",")).join("\n") + "\n";
  }

  function save(url, name) {
    const link = make("a", { href: url, download: name });
    document.body.append(link);
    link.click();
    link.remove();
  }

  function saveText(text, name) {
    const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
    save(url, name);
    setTimeout(() => URL.revokeObjectURL(url), 1000);
  }

  document.addEventListener("click", event => {
    const { chart, table, format } = event.target.dataset || {};
    if (table) saveText(report.tables[table], `${table}.csv`);
    if (!chart) return;
    const found = charts.find(each => each.given.name === chart);
    if (format === "csv") saveText(found.csv(), `${found.name()}.csv`);
    else found.image(format);
  });

  // --- beginning

  async function unpacked(id) {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent.trim()), letter => letter.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).text();
  }

  const charts = report.charts.map(given => new Chart(given));
  viewOfAddress();
  paint();
  views.forEach(each => each.addEventListener("click", () => {
    history.replaceState(null, "", each.dataset.view === "decision" ? "#decision" : "#everything");
    view(each.dataset.view);
  }));
  addEventListener("hashchange", viewOfAddress);
  const folded = [...document.querySelectorAll("details:not([open])")];
  const onPaper = start => {
    printing = start;
    folded.forEach(each => { each.open = start; });
    paint();
  };
  addEventListener("beforeprint", () => onPaper(true));
  addEventListener("afterprint", () => onPaper(false));
  preferred.addEventListener("change", paint);
  button.addEventListener("click", () => { chosen = !dark(); paint(); });
  let width = innerWidth;
  addEventListener("resize", () => {
    if ((width < NARROW) !== (innerWidth < NARROW)) charts.forEach(chart => chart.draw());
    width = innerWidth;
  });

  if (charts.length) {
    unpacked("plotly-gzip").then(source => {
      document.head.append(make("script", {}, source));
      charts.forEach(chart => chart.draw());
      root.dataset.ready = "true";
    }).catch(error => {
      charts.forEach(chart => { chart.place.textContent = "This browser cannot show the chart: it is too old."; });
      console.error(error);
    });
  } else {
    root.dataset.ready = "true";
  }
})();
