// The overview's charts: polled every two seconds, drawn by uPlot, said in words.
"use strict";

(() => {
  const root = document.getElementById("charts");
  const stateLine = document.getElementById("live-state");
  const pauseButton = document.getElementById("pause");
  const KEPT_S = 900;
  const TABLE_EVERY_S = 60;
  const data = { at_s: [] };
  const charts = [];
  let paused = matchMedia("(prefers-reduced-motion: reduce)").matches;
  let failed = false;

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const latest = (values) => values.length ? values[values.length - 1] : null;
  const clock = (at) => new Date(at * 1000).toISOString().slice(11, 19);

  const written = (value, digits) => value === null || value === undefined
    ? "–"
    : value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

  const short = (value) => {
    if (value >= 1e6) return `${value / 1e6}M`;
    if (value >= 1e4) return `${value / 1e3}k`;
    return value.toLocaleString("en-US");
  };

  const readChart = (section) => ({
    section,
    title: section.querySelector("h2").textContent.replace(/\s+/g, " ").trim(),
    digits: Number(section.dataset.digits),
    plotElement: section.querySelector(".plot"),
    tableBody: section.querySelector("tbody"),
    details: section.querySelector("details"),
    series: [...section.querySelectorAll("[data-series]")].map((element) => ({
      field: element.dataset.series,
      label: element.dataset.label,
      dashed: "dashed" in element.dataset,
      figure: element.querySelector("b"),
    })),
    plot: null,
  });

  const options = (chart, width) => {
    const axis = {
      stroke: css("--quiet"),
      font: "11px system-ui, sans-serif",
      grid: { stroke: css("--line"), width: 1 },
      ticks: { show: false },
    };
    const colours = [css("--accent"), css("--second")];
    return {
      width,
      height: 150,
      padding: [8, 6, 0, 0],
      legend: { show: false },
      cursor: { points: { size: 6 }, drag: { x: false, y: false } },
      scales: { y: { range: (_, __, max) => [0, max > 0 ? max * 1.08 : 1] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 64, values: (_, at) => at.map((t) => clock(t).slice(0, 5)) },
        { ...axis, size: 44, space: 24, values: (_, values) => values.map(short) },
      ],
      tzDate: (at) => uPlot.tzDate(new Date(at * 1000), "UTC"),
      series: [{}, ...chart.series.map((series, index) => ({
        label: series.label,
        stroke: colours[index],
        width: 1.75,
        dash: series.dashed ? [5, 4] : undefined,
        points: { show: false },
        spanGaps: false,
      }))],
    };
  };

  const columns = (chart) => [data.at_s, ...chart.series.map((series) => data[series.field] || [])];

  const draw = (chart) => {
    if (chart.plot) chart.plot.destroy();
    chart.plot = new uPlot(options(chart, chart.plotElement.clientWidth), columns(chart), chart.plotElement);
  };

  const describe = (chart) => {
    const parts = chart.series.map((series) => {
      const values = (data[series.field] || []).filter((value) => value !== null);
      if (!values.length) return `${series.label}: nothing measured`;
      const [low, high] = [Math.min(...values), Math.max(...values)];
      const now = latest(data[series.field]);
      return `${series.label}: now ${now === null ? "nothing" : written(now, chart.digits)}, `
        + `lowest ${written(low, chart.digits)}, highest ${written(high, chart.digits)}`;
    });
    chart.plotElement.setAttribute("aria-label", `${chart.title}, the last 15 minutes. ${parts.join("; ")}.`);
  };

  const cell = (kind, text) => {
    const element = document.createElement(kind);
    element.textContent = text;
    if (kind === "th") element.scope = "row"; else element.className = "num";
    return element;
  };

  const fillTable = (chart) => {
    const rows = [];
    let last = Infinity;
    for (let i = data.at_s.length - 1; i >= 0; i--) {
      if (last - data.at_s[i] < TABLE_EVERY_S - 1) continue;
      last = data.at_s[i];
      const row = document.createElement("tr");
      row.append(cell("th", clock(last)), ...chart.series.map((series) => cell("td", written(data[series.field][i], chart.digits))));
      rows.push(row);
    }
    if (rows.length) chart.tableBody.replaceChildren(...rows);
  };

  const show = () => {
    for (const chart of charts) {
      chart.plot.setData(columns(chart));
      for (const series of chart.series) series.figure.textContent = written(latest(data[series.field]), chart.digits);
      describe(chart);
      if (chart.details.open) fillTable(chart);
    }
  };

  const add = (points) => {
    const start = (latest(points.at_s) ?? latest(data.at_s) ?? 0) - KEPT_S;
    for (const [field, values] of Object.entries(points)) data[field] = (data[field] || []).concat(values);
    const drop = data.at_s.findIndex((at) => at >= start);
    if (drop > 0) for (const field of Object.keys(data)) data[field].splice(0, drop);
  };

  const say = (text) => { if (stateLine.textContent !== text) stateLine.textContent = text; };

  const poll = async () => {
    try {
      const after = latest(data.at_s) ?? 0;
      const response = await fetch(`${root.dataset.source}?after_s=${after}`, { headers: { accept: "application/json" } });
      if (response.status === 401) { location.reload(); return; }
      if (!response.ok) throw new Error(response.statusText);
      const answer = await response.json();
      add(answer.points);
      show();
      failed = false;
    } catch {
      failed = true;
    }
    say(failed ? "The gateway does not answer" : paused ? "Paused" : "Live, the last 15 minutes");
  };

  const tick = () => { if (!paused && !document.hidden) poll(); };

  const setPaused = (value) => {
    paused = value;
    pauseButton.setAttribute("aria-pressed", String(paused));
    pauseButton.textContent = paused ? "Resume" : "Pause";
    if (paused) say("Paused"); else poll();
  };

  for (const section of root.querySelectorAll("[data-chart]")) {
    const chart = readChart(section);
    charts.push(chart);
    draw(chart);
    chart.details.addEventListener("toggle", () => fillTable(chart));
    new ResizeObserver(() => chart.plot.setSize({ width: chart.plotElement.clientWidth, height: 150 })).observe(chart.plotElement);
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(draw));
  pauseButton.addEventListener("click", () => setPaused(!paused));
  pauseButton.setAttribute("aria-pressed", String(paused));
  pauseButton.textContent = paused ? "Resume" : "Pause";
  poll();
  setInterval(tick, Number(root.dataset.everyS) * 1000);
})();
