"use strict";
// Parallel coordinates: an axis for each setting and one for the result, a line for each run.

const MOST_AXES = 8;
const SHADES = 8;

/** `runs`: rows; `axes`: [{name, values}]; `label(n)` names a run. The last axis gives the colour. */
function parallelChart(runs, columns, label) {
  const axes = columns.map(scaleOf);
  const frame = h("div.chart-frame");
  const told = h("p.faint.told", null, "Point at a line to see its run.");
  const figure = h("figure.chart.parallel", { "data-chart": "parallel" }, h("figcaption", null, "Settings and result", h("span.faint", null, "a line is a run, its shade the result")), frame, told);
  const places = axes.map((_, n) => n);
  const result = axes[axes.length - 1];
  const order = runs.map((_, n) => n).filter((n) => result.at[n] !== null).sort((a, b) => result.at[a] - result.at[b]);
  const hue = (n) => `ramp${1 + Math.round((SHADES - 1) * result.at[n])}`;
  const series = [{ label: "axis" }, ...order.map((n) => ({ label: label(n), stroke: () => color(hue(n)), width: 2, spanGaps: false, points: { show: true, size: 4, fill: () => color(hue(n)) } }))];
  const data = [places, ...order.map((n) => axes.map((axis) => axis.at[n]))];
  const tell = (plot, at) => {
    const n = at > 0 ? order[at - 1] : null;
    clear(told, n === null ? "Point at a line to see its run." : [h("b", null, label(n)), " ", columns.map((column) => `${column.name} ${text(column.values[n])}`).join(", ")]);
  };
  const build = (width) => new uPlot({
    width, height: 320, padding: [16, 30, 0, 30],
    scales: { x: { time: false, range: [-0.3, axes.length - 0.7] }, y: { range: [-0.04, 1.04] } },
    axes: [
      { stroke: () => color("ink"), grid: { stroke: () => color("line"), width: 1 }, ticks: { show: false }, font: AXIS_FONT, size: 28,
        splits: () => places, values: (_, splits) => splits.map((n) => axes[n].name.split(".").pop()) },
      { show: false },
    ],
    legend: { show: false }, focus: { alpha: 0.12 },
    cursor: { x: false, y: false, drag: { x: false, y: false }, focus: { prox: 30 }, points: { show: false } },
    hooks: { setSeries: [tell], draw: [(plot) => drawTicks(plot, axes)] },
    series,
  }, data, frame);
  register(figure, frame, build, 320);
  return figure;
}

/** A setting as it was written; a result to four digits. */
function text(value) {
  if (value === null || value === undefined) return "–";
  return typeof value === "number" && !Number.isInteger(value) ? String(Number(value.toPrecision(4))) : String(value);
}

/** Where each value stands between 0 and 1: by size where all are numbers, else one after another. */
function scaleOf({ name, values }) {
  const there = values.filter((value) => value !== null && value !== undefined);
  if (there.length && there.every((value) => typeof value === "number")) {
    const [low, high] = [Math.min(...there), Math.max(...there)];
    // Values over more than a decade and a half, such as learning rates, are told apart by ratio.
    const bent = low > 0 && high / low >= 30 ? Math.log : (value) => value;
    const span = bent(high) - bent(low);
    const at = (value) => (value === null || value === undefined ? null : span ? (bent(value) - bent(low)) / span : 0.5);
    const few = [...new Set(there)];
    const ticks = few.length <= 6 ? few : [low, high];
    return { name, at: values.map(at), ticks: ticks.map((value) => [at(value), text(value)]) };
  }
  const kinds = [...new Set(there.map(text))].sort();
  const at = (value) => (value === null || value === undefined ? null : kinds.length > 1 ? kinds.indexOf(text(value)) / (kinds.length - 1) : 0.5);
  return { name, at: values.map(at), ticks: kinds.map((kind, n) => [kinds.length > 1 ? n / (kinds.length - 1) : 0.5, kind]) };
}

function drawTicks(plot, axes) {
  const { ctx } = plot;
  const ratio = window.devicePixelRatio || 1;
  ctx.save();
  ctx.font = `${11 * ratio}px system-ui, sans-serif`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "left";
  axes.forEach((axis, n) => {
    const x = plot.valToPos(n, "x", true);
    for (const [at, name] of axis.ticks) {
      const y = plot.valToPos(at, "y", true);
      const shown = name.length > 18 ? `${name.slice(0, 17)}…` : name;
      const width = ctx.measureText(shown).width;
      ctx.fillStyle = translucent("surface", 0.8);
      ctx.fillRect(x + 5 * ratio, y - 8 * ratio, width + 4 * ratio, 16 * ratio);
      ctx.fillStyle = color("muted");
      ctx.fillText(shown, x + 7 * ratio, y);
    }
  });
  ctx.restore();
}
