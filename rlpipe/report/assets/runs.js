"use strict";
// The page of several runs: a table, curves over each other, settings that differ.

const MOST_CURVES = 12;
const MOST_SETTING_COLUMNS = 5;
const FEW_SETTING_COLUMNS = 2; // where runs are too different for a table of settings
const RUN_COLORS = ["blue", "amber", "teal", "rose", "violet", "gray"];
const RUNS_EVERY = 4000;
const CURVE_TITLES = { "val/pass_rate": "Held-out pass rate", "train/reward": "Training reward", "train/pass_rate": "Training pass rate", "val/reward": "Held-out reward" };
const TONES = { done: "good", failed: "bad", invalid: "bad", interrupted: "warn", running: "live" };

const runs = { table: null, chosen: new Set(), touched: false, sort: ["started", -1], folder: "", text: "", result: "" };

async function startRuns() {
  runs.masthead = h("header.masthead");
  runs.bar = h("div.filters");
  runs.list = h("section", { id: "runs" });
  runs.beside = h("section", { id: "beside" });
  fill($("page"), runs.masthead, h("main", null, runs.bar, runs.list, runs.beside));
  let before = "";
  for (;;) {
    if (!document.hidden) {
      try {
        const fresh = await ask("/runs.json");
        // Durations of runs that go on differ each time, and are no reason to draw.
        const text = JSON.stringify(fresh, (key, value) => (key === "seconds" ? undefined : value));
        if (text !== before) take(fresh);
        before = text;
      } catch (error) {
        console.warn("the server does not answer", error);
      }
    }
    document.documentElement.dataset.ready = "yes";
    await new Promise((done) => setTimeout(done, RUNS_EVERY));
  }
}

const folderOf = (run) => run.id.split("/").slice(0, -1).join("/");

function take(table) {
  runs.table = table;
  const folders = [...new Set(table.runs.map(folderOf))].sort();
  if (runs.folder && !folders.includes(runs.folder)) runs.folder = "";
  clear(runs.masthead, h("div.title", null, h("h1", null, "Runs")), h("p.faint", null, `${table.root} · ${table.runs.length} runs`));
  if (!runs.bar.contains(document.activeElement) || !runs.bar.childElementCount) drawBar(folders);
  drawRuns();
}

function drawBar(folders) {
  const select = (label, key, options) => {
    const element = h("select", { "aria-label": label, "data-filter": key, change: () => { runs[key] = element.value; runs.touched = false; drawRuns(); } },
      options.map(([value, name]) => h("option", { value, selected: runs[key] === value }, name)));
    return element;
  };
  const search = h("input", { type: "search", placeholder: "Name, run or status", "aria-label": "Find runs", value: runs.text, input: () => { runs.text = search.value.toLowerCase(); drawRuns(); } });
  const results = [...new Set(runs.table.runs.flatMap((run) => Object.keys(run.results)))];
  if (!runs.result || !results.includes(runs.result)) runs.result = results[0] || "";
  clear(runs.bar, search,
    folders.length > 1 && select("Folder", "folder", [["", "All folders"], ...folders.map((folder) => [folder, folder || "."])]),
    results.length > 0 && select("Result", "result", results.map((name) => [name, `Result: ${name}`])));
}

/** The places in the table of the runs that the filters leave. */
function left() {
  const { table, folder, text } = runs;
  const fits = (run) => (!folder || folderOf(run) === folder) && (!text || `${run.id} ${run.name} ${run.status}`.toLowerCase().includes(text));
  return table.runs.map((_, n) => n).filter((n) => fits(table.runs[n]));
}

/** The settings in which these runs differ. */
function differing(places) {
  return Object.entries(runs.table.settings).filter(([, values]) => new Set(places.map((n) => values[n]).filter((v) => v !== null)).size > 1);
}

function drawRuns() {
  const places = left();
  const settings = differing(places);
  const columns = settings.slice(0, settings.length > MOST_SETTING_COLUMNS ? FEW_SETTING_COLUMNS : MOST_SETTING_COLUMNS);
  const [key, way] = runs.sort;
  const read = SORTS[key] || ((run, n) => runs.table.settings[key][n]);
  places.sort((a, b) => way * compareValues(read(runs.table.runs[a], a), read(runs.table.runs[b], b)) || a - b);
  if (!runs.touched) runs.chosen = new Set(places.filter((n) => Object.keys(runs.table.runs[n].curves).length).slice(0, 6).map((n) => runs.table.runs[n].id));
  const head = (name, sort, kind) => h("th", { scope: "col", class: kind, "aria-sort": key === sort ? (way > 0 ? "ascending" : "descending") : null },
    sort ? h("button.sort", { type: "button", click: () => { runs.sort = [sort, key === sort ? -way : 1]; drawRuns(); } }, name, key === sort && (way > 0 ? " ↑" : " ↓")) : name);
  clear(runs.list,
    h("div.table-frame", null, h("table.runs", null,
      h("thead", null, h("tr", null, head("", null), head("run", "id"), head("status", "status"), columns.map(([name]) => head(name.split(".").slice(-2).join("."), name)),
        head("held-out", "after"), head("reward", "reward", "number"), head("step", "step", "number"), head("time", "seconds", "number"), head("failed attempts", "failed", "number"), head("started", "started"))),
      h("tbody", null, places.map((n) => runRow(n, columns))))),
    settings.length > columns.length && h("p.faint", null, `${settings.length - columns.length} more settings differ; they stand below.`));
  drawBeside(places, settings);
}

const SORTS = {
  id: (run) => run.id, status: (run) => run.status, after: (run) => (run.after ? run.after.value : null), reward: (run) => run.reward, step: (run) => run.step,
  seconds: (run) => run.seconds, failed: (run) => run.failed, started: (run) => run.started,
};

function compareValues(a, b) {
  if (a === b) return 0;
  if (a === null || a === undefined) return -1;
  if (b === null || b === undefined) return 1;
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
}

function runRow(n, columns) {
  const run = runs.table.runs[n];
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, checked: runs.chosen.has(run.id), change: () => {
    runs.touched = true;
    if (box.checked) runs.chosen.add(run.id);
    else runs.chosen.delete(run.id);
    drawBeside(left(), differing(left()));
  } });
  const parts = run.id.split("/");
  return h("tr", null,
    h("td", null, box),
    h("td.run", null, h("a", { href: `/run/${run.id.split("/").map(encodeURIComponent).join("/")}/` }, parts.pop()), h("span.faint", null, parts.join("/") || run.name)),
    h("td", { title: run.error }, chip(run.status, TONES[run.status])),
    columns.map(([, values]) => h("td", { class: typeof values[n] === "number" ? "number" : null }, text(values[n]))),
    h("td.rate", null, rate(run)),
    h("td.number", null, run.reward === null ? "–" : run.reward.toFixed(3)),
    h("td.number", null, run.steps && run.mode === "train" ? `${run.step}/${run.steps}` : "–"),
    h("td.number", null, run.seconds ? duration(run.seconds) : "–"),
    h("td.number", null, whole(run.failed)),
    h("td.faint", null, moment(run.started)));
}

/** The held-out pass rate before and after, with its interval drawn to scale. */
function rate(run) {
  if (!run.after) return h("span.faint", null, "–");
  const { value, low, high } = run.after;
  const scale = h("span.scale", { role: "img", "aria-label": `${percent(value)}` });
  const place = (element, from, to) => { element.style.left = `${100 * from}%`; element.style.width = `${Math.max(1, 100 * (to - from))}%`; scale.append(element); };
  if (low !== undefined) place(h("span.scale-interval"), low, high);
  place(h("span.scale-value"), Math.min(0.98, value), Math.min(1, value + 0.02));
  if (run.before) place(h("span.scale-before"), Math.min(0.98, run.before.value), Math.min(1, run.before.value + 0.02));
  return [scale, h("b", null, percent(value)), run.before && h("span.faint", null, ` from ${percent(run.before.value)}`)];
}

function drawBeside(places, settings) {
  const chosen = places.filter((n) => runs.chosen.has(runs.table.runs[n].id));
  const label = (n) => runLabel(n, settings);
  clear(runs.beside,
    h("h2", null, "Compared", h("span.faint", null, `${chosen.length} of ${places.length} runs`)),
    chosen.length ? h("div.charts", null, Object.keys(CURVE_TITLES).map((name) => curves(name, chosen, label))) : h("p.faint", null, "Choose runs in the table."),
    places.length > 1 && parallelPart(places, label),
    settingTable(chosen));
  sweepCharts();
}

/** What tells a run from the others: its settings where few differ, else its name. */
function runLabel(n, settings) {
  const run = runs.table.runs[n];
  const own = settings.slice(0, 3).map(([key, values]) => `${key.split(".").pop()} ${text(values[n])}`);
  // A dated folder is known by its time and its own letters, a sweep's job by the sweep's letters.
  const name = (run.id.match(/(?:\d\d-\d\d-\d\d-)?[0-9a-f]{6}(?:\/\d+)?$/) || [run.id.split("/").pop()])[0];
  return settings.length && settings.length <= 3 ? `${own.join(", ")} (${name})` : name;
}

function curves(name, chosen, label) {
  const drawn = chosen.filter((n) => runs.table.runs[n].curves[name]).slice(0, MOST_CURVES);
  if (!drawn.length) return null;
  const steps = [...new Set(drawn.flatMap((n) => runs.table.runs[n].curves[name].map(([step]) => step)))].sort((a, b) => a - b);
  const lines = drawn.map((n, at) => {
    const known = new Map(runs.table.runs[n].curves[name]);
    return { name: label(n), values: steps.map((step) => (known.has(step) ? known.get(step) : null)), color: RUN_COLORS[at % 6], dash: at >= 6 ? [5, 4] : undefined };
  });
  const share = name.includes("pass_rate");
  const more = chosen.filter((n) => runs.table.runs[n].curves[name]).length - drawn.length;
  return lineChart(CURVE_TITLES[name], steps, lines, { ...(share ? { range: [0, 1], format: (v) => percent(v, 0) } : { zero: false }), note: more > 0 ? `${more} more are not drawn` : "" });
}

function parallelPart(places, label) {
  const { table, result } = runs;
  const shown = places.filter((n) => table.runs[n].results[result] !== undefined && table.runs[n].results[result] !== null);
  const settings = differing(shown);
  if (shown.length < 2 || !settings.length) return null;
  const columns = settings.slice(0, MOST_AXES - 1).map(([name, values]) => ({ name, values: shown.map((n) => values[n]) }));
  columns.push({ name: result, values: shown.map((n) => table.runs[n].results[result]) });
  return parallelChart(shown, columns, (at) => label(shown[at]));
}

function settingTable(chosen) {
  if (chosen.length < 2) return null;
  const rows = differing(chosen).map(([name, values]) => [h("code", null, name), ...chosen.map((n) => h("code", null, text(values[n])))]);
  return [h("h3", null, "Settings that differ"),
    rows.length ? table(["setting", ...chosen.map((n) => runs.table.runs[n].id.split("/").pop())], rows, "difference") : h("p.faint", null, "None: these runs have the same spec.")];
}

startRuns();
