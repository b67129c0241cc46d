"use strict";
// Charts by uPlot, in the colours of the page's style.

const charts = new Set();
const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

function translucent(name, share) {
  const [r, g, b] = color(name).match(/[0-9a-f]{2}/gi).map((part) => parseInt(part, 16));
  return `rgba(${r}, ${g}, ${b}, ${share})`;
}

const AXIS_FONT = "11px system-ui, sans-serif";

function axes(format, whole_x = true) {
  const look = {
    stroke: () => color("faint"),
    grid: { stroke: () => color("grid"), width: 1 },
    ticks: { show: false },
    font: AXIS_FONT,
    gap: 4,
  };
  return [
    { ...look, grid: { show: false }, size: 24, space: 48,
      values: (_, splits) => splits.map((v) => (whole_x && !Number.isInteger(v) ? "" : short(v))) },
    { ...look, size: 46, space: 28, values: (_, splits) => splits.map((v) => format(v)) },
  ];
}

/**
 * A chart over steps, with its caption, and a legend that tells the values under the pointer.
 * `lines`: [{name, values, color, low, high, dash, points}]; `low` and `high` are drawn as a band.
 */
function lineChart(title, steps, lines, options = {}) {
  const format = options.format || short;
  const series = [{ label: "step" }];
  const data = [steps];
  const bands = [];
  for (const line of lines) {
    const few = line.values.filter((v) => v !== null).length <= 40;
    series.push({
      label: line.name, stroke: () => color(line.color), width: 2, dash: line.dash,
      spanGaps: true, value: (_, v) => (v === null || v === undefined ? "–" : format(v)),
      points: { show: line.points || (few && line.values.length <= 40), size: line.points ? 7 : 4, fill: () => color(line.color) },
    });
    data.push(line.values);
    if (line.low) {
      const edge = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, band: true };
      series.push({ ...edge, label: `${line.name} high` }, { ...edge, label: `${line.name} low` });
      data.push(line.high, line.low);
      bands.push({ series: [data.length - 2, data.length - 1], fill: () => translucent(line.color, 0.16) });
    }
  }
  return chart(title, { series, bands, axes: axes(options.axis || format), ...ranges(options, lines) }, data, lines, options);
}

/** The steps from first to last; one step alone stands in the middle. */
const roomy = (_, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]);

function ranges(options, lines) {
  const all = lines.flatMap((line) => [line.values, line.low || [], line.high || []]).flat().filter((v) => v !== null);
  const fixed = options.range;
  const y = fixed || ((_, low, high) => {
    if (low === null) return [0, 1];
    // Amounts start at zero, so that a length can be compared; other figures fill their chart.
    const start = options.zero !== false && low >= 0 ? 0 : low;
    const room = (high - start || Math.abs(high) || 1) * 0.06;
    return [start === 0 ? 0 : start - room, high + room];
  });
  return { scales: { x: { time: false, range: roomy }, y: { range: all.length ? y : [0, 1] } } };
}

/** Amounts of each step on top of each other: `parts`: [{name, values, color}]. */
function stackChart(title, steps, parts, options = {}) {
  const format = options.format || short;
  const shown = parts.filter((part) => part.values.some((v) => v));
  let sums = steps.map(() => 0);
  const totals = shown.map((part) => (sums = sums.map((sum, n) => sum + (part.values[n] || 0))));
  // Drawn from the whole down, each part covers what stands above it.
  const series = [{ label: "step" }];
  const data = [steps];
  for (let n = shown.length - 1; n >= 0; n--) {
    series.push({
      label: shown[n].name, width: 0, fill: () => color(shown[n].color), stroke: () => color(shown[n].color),
      paths: uPlot.paths.bars({ size: [steps.length > 60 ? 0.98 : 0.82, 44], gap: 0 }), points: { show: false },
      value: (_, v, __, at) => (at === null || at === undefined ? "–" : format(shown[n].values[at] || 0)),
    });
    data.push(totals[n]);
  }
  const setup = { series, axes: axes(options.axis || format), scales: {
    x: { time: false, range: (_, low, high) => [low - 0.6, high + 0.6] }, y: { range: (_, low, high) => [0, (high || 1) * 1.05] } } };
  return chart(title, setup, data, [...shown].reverse(), options);
}

function chart(title, setup, data, lines, options) {
  const frame = h("div.chart-frame");
  const keys = h("ul.legend.chart-legend");
  const figure = h("figure.chart", { "data-chart": title }, h("figcaption", null, title, options.note && h("span.faint", null, options.note)), frame, keys);
  const known = data[0].length > 0 && lines.length > 0;
  const seriesOf = (line) => setup.series.findIndex((one) => one.label === line.name);
  const values = lines.map((line) => h("b"));
  const at = h("span.faint");
  lines.forEach((line, n) => keys.append(h("li", null, h(`span.swatch.fill-${line.color}`), line.name, values[n])));
  keys.append(h("li", null, at));
  if (!known) {
    frame.append(h("p.faint", null, "Nothing recorded yet"));
    keys.hidden = true;
    return figure;
  }
  const tell = (plot, where) => {
    lines.forEach((line, n) => {
      const index = seriesOf(line);
      let from = where;
      while (from > 0 && plot.data[index][from] === null) from--;
      values[n].textContent = setup.series[index].value(plot, plot.data[index][from], index, from);
    });
    at.textContent = `step ${plot.data[0][where]}`;
  };
  const last = data[0].length - 1;
  const height = options.height || 190;
  const build = (width) => {
    const plot = new uPlot({
      width, height, padding: [8, 10, 0, 0],
      cursor: { y: false, points: { size: 7 }, drag: { x: false, y: false } },
      legend: { show: false },
      hooks: { setCursor: [(one) => tell(one, one.cursor.idx === null || one.cursor.idx === undefined ? last : one.cursor.idx)] },
      ...setup,
    }, data, frame);
    tell(plot, last);
    figure.setAttribute("role", "group");
    figure.setAttribute("aria-label", `${title}: ${lines.map((line, n) => `${line.name} ${values[n].textContent}`).join(", ")} at step ${data[0][last]}`);
    return plot;
  };
  register(figure, frame, build, height);
  return figure;
}

/** Build a chart when it comes near the window, and again when its width or the colours change. */
function register(figure, frame, build, height) {
  const entry = { figure, frame, build, plot: null };
  charts.add(entry);
  frame.style.minHeight = `${height}px`;
  const width = () => Math.max(160, frame.clientWidth);
  const sizes = new ResizeObserver(() => {
    if (frame.clientWidth && entry.plot.width !== width()) entry.plot.setSize({ width: width(), height });
  });
  const sight = new IntersectionObserver((seen) => {
    if (!seen.some((one) => one.isIntersecting)) return;
    sight.disconnect();
    entry.plot = build(width());
    sizes.observe(frame);
  }, { rootMargin: "400px" });
  sight.observe(frame);
}

function recolor() {
  for (const entry of charts) {
    if (!entry.figure.isConnected) {
      if (entry.plot) entry.plot.destroy();
      charts.delete(entry);
    } else if (entry.plot) {
      entry.plot.destroy();
      entry.plot = entry.build(Math.max(160, entry.frame.clientWidth));
    }
  }
}
window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", recolor);

/** Forget the charts that have left the page. */
function sweepCharts() {
  for (const entry of charts) {
    if (entry.figure.isConnected) continue;
    if (entry.plot) entry.plot.destroy();
    charts.delete(entry);
  }
}
