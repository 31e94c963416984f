// Draws the charts of the page, and nothing else: statistics and words come from deckperf.
(function () {
  "use strict";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const charts = read("charts-json");
  const root = document.documentElement;
  const tip = document.getElementById("tip");

  // ---- Light and dark: the system's choice, until the reader chooses.
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const KEPT = "deckperf-theme";
  const kept = () => { try { return localStorage.getItem(KEPT); } catch { return null; } };
  let chosen = kept();
  const themeButton = document.getElementById("theme");
  function applyTheme() {
    const theme = chosen || (system.matches ? "dark" : "light");
    root.dataset.theme = theme;
    themeButton.querySelector("span").textContent = theme === "dark" ? "light" : "dark";
    drawn.forEach((one) => one.draw());
  }
  themeButton.addEventListener("click", () => {
    chosen = root.dataset.theme === "dark" ? "light" : "dark";
    try { localStorage.setItem(KEPT, chosen); } catch { /* A page that is opened from a file may have no storage. */ }
    applyTheme();
  });
  system.addEventListener("change", applyTheme);

  // ---- Figures in the form that people read: the same rules as in show.rs.
  function figure(value) {
    if (value === null || value === undefined) return "–";
    const size = Math.abs(value);
    const digits = size === 0 || size >= 100 ? 0 : Math.min(6, Math.max(0, 2 - Math.floor(Math.log10(size))));
    return value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
  }
  function bytes(size, short) {
    const unit = size >= 1 << 20 && size % (1 << 20) === 0 ? 20 : size >= 1024 && size % 1024 === 0 ? 10 : 0;
    const name = short ? ["", "K", "M"][unit / 10] : [" B", " KiB", " MiB"][unit / 10];
    return size / 2 ** unit + name;
  }
  const tickFigure = (value) => (value >= 1000 ? value.toLocaleString("en-US") : String(+value.toPrecision(6)));

  // ---- Colours and dashes: a contender has the same ones in all charts, by its name, as long as there are enough. The second
  // eight slots have the colours of the first eight, and other dashes.
  const COLOURS = 8;
  const DASHES = [[], [], [], [], [6, 3], [2, 3], [8, 3, 2, 3], [10, 4],
                  [3, 2], [3, 2], [3, 2], [3, 2], [14, 3], [14, 3], [14, 3], [3, 2]];
  const SLOTS = DASHES.length;
  const slots = new Map();
  function slotsOf(chart) {
    const used = new Set();
    const own = chart.lines.map((line) => {
      if (line.limit) return -1;
      const slot = slots.get(line.name);
      if (slot !== undefined && !used.has(slot)) { used.add(slot); return slot; }
      return null;
    });
    return own.map((slot, at) => {
      if (slot !== null) return slot;
      let free = 0;
      while (used.has(free) && free < SLOTS) free++;
      used.add(free);
      if (!slots.has(chart.lines[at].name)) slots.set(chart.lines[at].name, free % SLOTS);
      return free % SLOTS;
    });
  }
  const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
  const LIMIT_DASHES = [[2, 3], [7, 4], [10, 3, 2, 3]];

  // Place of an empty message on a logarithmic axis, where 0 has none: one step before the first size.
  const ZERO = 0.5;
  const toAxis = (chart, x) => (chart.x.log && x === 0 ? ZERO : x);

  function nice(low, high, wanted) {
    const rough = (high - low) / wanted || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
    const found = [];
    for (let at = Math.ceil(low / step) * step; at <= high + step / 1e6; at += step) found.push(+at.toPrecision(12));
    return found;
  }
  function decades(low, high, wanted) {
    for (const steps of [[1, 2, 5], [1, 3], [1]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        for (const step of steps) {
          const at = +(step * 10 ** power).toPrecision(3);
          if (at >= low * 0.999 && at <= high * 1.001) found.push(at);
        }
      }
      if (found.length <= wanted) return found;
      if (steps.length === 1) return found.filter((_, at) => at % Math.ceil(found.length / wanted) === 0);
    }
  }

  class Drawn {
    constructor(box) {
      this.box = box;
      this.chart = charts[+box.dataset.chart];
      this.plotBox = box.querySelector(".plot");
      this.readBox = box.querySelector(".read");
      this.slots = slotsOf(this.chart);
      this.hidden = new Set();
      this.at = null;
      this.legend();
      let width = 0;
      new ResizeObserver(() => {
        if (printing || this.plotBox.clientWidth === width) return;
        width = this.plotBox.clientWidth;
        this.draw();
      }).observe(this.plotBox);
      this.plotBox.addEventListener("keydown", (event) => this.key(event));
      this.plotBox.addEventListener("blur", () => { this.at = null; tip.hidden = true; });
    }

    style(at) {
      const line = this.chart.lines[at];
      if (line.limit) {
        const which = this.chart.lines.slice(0, at).filter((one) => one.limit).length;
        return { colour: css("--limit"), dash: LIMIT_DASHES[which % 3], width: 1.5 };
      }
      const slot = this.slots[at];
      return { colour: css("--line" + slot % COLOURS), dash: DASHES[slot], width: 2 };
    }

    legend() {
      const legend = this.box.querySelector(".legend");
      this.keys = this.chart.lines.map((line, at) => {
        const button = document.createElement("button");
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.title = "Show or hide " + line.name;
        button.innerHTML = '<svg width="26" height="10" aria-hidden="true"><line x1="1" y1="5" x2="25" y2="5"/></svg>';
        button.append(line.name);
        button.addEventListener("click", () => {
          if (!this.hidden.delete(at)) this.hidden.add(at);
          button.setAttribute("aria-pressed", String(!this.hidden.has(at)));
          this.draw();
        });
        legend.append(button);
        return button;
      });
    }

    data() {
      const xs = [...new Set(this.chart.lines.flatMap((line) => line.points.map((p) => p.x)))].sort((a, b) => a - b);
      this.xs = xs;
      const columns = [xs.map((x) => toAxis(this.chart, x))];
      for (const line of this.chart.lines) {
        const by = new Map(line.points.map((p) => [p.x, p]));
        for (const part of ["median", "p90", "p10"]) {
          columns.push(xs.map((x) => (by.has(x) ? by.get(x)[part] : null)));
        }
      }
      return columns;
    }

    draw() {
      const { chart, plotBox } = this;
      const width = Math.max(240, plotBox.clientWidth);
      const height = plotBox.clientHeight || 340;
      const ink = css("--ink"), soft = css("--soft"), rule = css("--rule");
      const font = "12px " + getComputedStyle(document.body).fontFamily;
      const data = this.data();
      const series = [{}], bands = [];
      chart.lines.forEach((line, at) => {
        const { colour, dash, width } = this.style(at);
        const show = !this.hidden.has(at);
        const only = line.points.length === 1;
        series.push({ show, stroke: colour, width, dash, spanGaps: true, points: { show: !line.limit || only, size: only ? 9 : 5, fill: colour, stroke: colour } });
        series.push({ show, spanGaps: true, width: 0, points: { show: false } });
        series.push({ show, spanGaps: true, width: 0, points: { show: false } });
        if (!line.limit) bands.push({ series: [at * 3 + 2, at * 3 + 3], fill: colour + (chart.lines.length > 5 ? "1c" : "2e") });
        const sample = this.keys[at].querySelector("line");
        sample.setAttribute("stroke", colour);
        sample.setAttribute("stroke-width", "3");
        sample.setAttribute("stroke-dasharray", dash.join(" "));
      });
      const padded = (log, low, high) => {
        if (low === null || high === null || !isFinite(low)) return [1, 10];
        if (log) return [low / 1.25, high * 1.25];
        return [Math.min(0, low), high > 0 ? high * 1.08 : 1];
      };
      // Figures that the bands and lines reach.
      const values = [];
      chart.lines.forEach((line, at) => {
        if (!this.hidden.has(at)) line.points.forEach((p) => values.push(p.median, ...(line.limit ? [] : [p.p10, p.p90])));
      });
      const log = chart.y.log && values.every((value) => value > 0);
      const range = padded(log, Math.min(...values), Math.max(...values));
      const xs = data[0];
      const ends = chart.x.log ? [xs[0] / 1.3, xs[xs.length - 1] * 1.3] : [xs[0] - 0.03 * (xs[xs.length - 1] - xs[0]), xs[xs.length - 1] * 1.03];
      const axis = { stroke: soft, font, labelFont: font, grid: { stroke: rule, width: 1 }, ticks: { stroke: rule, width: 1 } };
      const label = (at) => (chart.x.bytes ? (at === ZERO ? "0" : bytes(at, true)) : tickFigure(at));
      // Labels that would touch each other are left out; the last one stays.
      const places = (u) => {
        const kept = [];
        let end = Infinity;
        for (const at of [...xs].reverse()) {
          const x = u.valToPos(at, "x"), half = label(at).length * 3.8 + 4;
          if (x + half < end) { kept.unshift(at); end = x - half; }
        }
        return kept;
      };
      const ticks = log ? decades(range[0], range[1], 8) : nice(range[0], range[1], 6);
      const room = 16 + 7 * Math.max(...ticks.map((at) => tickFigure(at).length));
      if (this.plot) this.plot.destroy();
      this.plot = new uPlot({
        width, height, series, bands,
        legend: { show: false },
        padding: [8, 14, 0, 0],
        scales: {
          x: { time: false, distr: chart.x.log ? 3 : 1, log: 2, range: () => ends },
          y: { distr: log ? 3 : 1, range: () => range },
        },
        axes: [
          { ...axis, label: chart.x.title, labelSize: 22, size: 30, splits: places, filter: (u, s) => s, values: (u, s) => s.map(label) },
          { ...axis, label: chart.y.title + (log ? ", logarithmic" : ""), labelSize: 22, size: room, splits: () => ticks, filter: (u, s) => s, values: (u, s) => s.map(tickFigure) },
        ],
        cursor: { drag: { x: false, y: false }, y: false, points: { show: false } },
        hooks: { setCursor: [(u) => this.hover(u)] },
      }, data, plotBox);
      plotBox.querySelectorAll("canvas").forEach((canvas) => canvas.setAttribute("aria-hidden", "true"));
      plotBox.querySelector(".u-over").addEventListener("mouseleave", () => { tip.hidden = true; });
    }

    hover(u) {
      const { idx, left, top } = u.cursor;
      if (idx === null || idx === undefined || left < 0) { tip.hidden = true; return; }
      this.show(idx, top);
    }

    // Shows all contenders at one place, in the order of the curves, with bounds; the nearest is bold.
    show(idx, top) {
      const x = this.xs[idx];
      const rows = this.chart.lines.map((line, at) => ({ line, at, point: line.points.find((p) => p.x === x) }))
        .filter(({ at, point }) => point && !this.hidden.has(at))
        .sort((a, b) => b.point.median - a.point.median);
      if (!rows.length) { tip.hidden = true; return; }
      const place = this.place(x);
      const distance = (row) => Math.abs(this.plot.valToPos(row.point.median, "y") - top);
      const near = top >= 0 ? rows.reduce((a, b) => (distance(b) < distance(a) ? b : a)) : null;
      tip.textContent = "";
      const head = document.createElement("strong");
      head.textContent = place + ", " + this.chart.y.unit;
      const table = document.createElement("table");
      for (const row of rows) {
        const tr = table.insertRow();
        if (row === near) tr.className = "near";
        const swatch = document.createElement("span");
        swatch.textContent = "●";
        swatch.style.color = this.style(row.at).colour;
        tr.insertCell().append(swatch);
        tr.insertCell().textContent = row.line.name;
        tr.insertCell().textContent = figure(row.point.median);
        tr.insertCell().textContent = "95 %: " + figure(row.point.low) + " to " + figure(row.point.high);
      }
      tip.append(head, table);
      if (near) {
        const { p10, p90, rounds } = near.point;
        const more = document.createElement("div");
        more.textContent = near.line.name + ": p10 " + figure(p10) + ", p90 " + figure(p90) + ", " + rounds + " rounds";
        tip.append(more);
      }
      tip.hidden = false;
      const box = this.plotBox.querySelector(".u-over").getBoundingClientRect();
      const at = box.left + this.plot.valToPos(toAxis(this.chart, x), "x");
      const wide = tip.offsetWidth, tall = tip.offsetHeight, view = root.clientWidth;
      let left = at + 14;
      if (left + wide > view - 4) left = at - 14 - wide;
      left = Math.max(4, Math.min(left, view - wide - 4));
      const above = box.top + Math.max(0, Math.min(top >= 0 ? top - tall / 2 : 0, box.height - tall));
      tip.style.left = left + window.scrollX + "px";
      tip.style.top = above + window.scrollY + "px";
    }

    place(x) {
      return this.chart.x.bytes ? bytes(x, false) : this.chart.x.title + " " + tickFigure(x);
    }

    key(event) {
      const last = this.xs.length - 1;
      const from = this.at === null ? -1 : this.at;
      const to = { ArrowRight: Math.min(last, from + 1), ArrowLeft: Math.max(0, from - 1), Home: 0, End: last }[event.key];
      if (event.key === "Escape") { this.at = null; tip.hidden = true; this.readBox.textContent = ""; return; }
      if (to === undefined) return;
      event.preventDefault();
      this.at = to;
      this.show(to, -1);
      const x = this.xs[to];
      const said = this.chart.lines.filter((_, at) => !this.hidden.has(at)).map((line) => {
        const point = line.points.find((p) => p.x === x);
        return point ? line.name + " " + figure(point.median) : null;
      });
      this.readBox.textContent = this.place(x) + ": " + said.filter(Boolean).join(", ") + " " + this.chart.y.unit;
    }
  }

  // ---- Print: paper is white and narrow, whatever the window looks like.
  let printing = false;
  let before = null;
  window.addEventListener("beforeprint", () => {
    printing = true;
    before = root.dataset.theme;
    root.dataset.theme = "light";
    drawn.forEach((one) => { one.plotBox.style.width = "660px"; one.draw(); });
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = before;
    drawn.forEach((one) => { one.plotBox.style.width = ""; one.draw(); });
    printing = false;
  });

  // ---- Raw data.
  function csv() {
    const data = read("data-json");
    const labels = [...new Set(data.runs.flatMap((run) => run.series.flatMap((one) => Object.keys(one.labels || {}))))].sort();
    const heads = ["source", "command", "date", "test", "library", "transport", "protocol", "payload", "size", "ranks", ...labels, "unit", "better", "round", "figure"];
    const field = (value) => {
      const text = value === undefined || value === null ? "" : String(value);
      return /[",\n]/.test(text) ? '"' + text.replaceAll('"', '""') + '"' : text;
    };
    const lines = [heads.map(field).join(",")];
    for (const run of data.runs) {
      for (const one of run.series) {
        const start = [run.source, run.command, run.date, one.test, one.library, one.transport, one.protocol, one.payload, one.size, one.ranks,
          ...labels.map((label) => (one.labels || {})[label]), one.unit, one.better].map(field).join(",");
        one.rounds.forEach((value, round) => { if (value !== null) lines.push(start + "," + round + "," + value); });
      }
    }
    return lines.join("\n") + "\n";
  }
  function download(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }
  // The page's title begins with the program that made it.
  const program = document.title.split(" ")[0];
  document.getElementById("csv").addEventListener("click", () => download(program + ".csv", "text/csv", csv()));
  document.getElementById("json").addEventListener("click", () => download(program + ".json", "application/json", document.getElementById("data-json").textContent));

  const drawn = [];
  applyTheme();
  for (const box of document.querySelectorAll("figure[data-chart]")) {
    const one = new Drawn(box);
    one.draw();
    drawn.push(one);
  }
})();
