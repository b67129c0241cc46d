"use strict";
// The page of one run, from what this file holds or from the server that it came from.

const LIVE_EVERY = 2000;

/** Where the page takes its data from: `{served, figures(), index(), trajectory(n), pieces()}`. */
function heldByFile() {
  const chunks = new Map();
  let pieces = null;
  return {
    served: false,
    figures: async () => JSON.parse($("data").textContent),
    index: () => inflate("index"),
    async trajectory(rows, n) {
      if (rows.first[n] < 0) return null;
      const name = `chunk-${rows.first[n]}`;
      if (!chunks.has(name)) {
        if (chunks.size >= 8) chunks.delete(chunks.keys().next().value);
        chunks.set(name, await inflate(name));
      }
      return chunks.get(name)[rows.second[n]];
    },
    pieces: () => (pieces = pieces || inflate("tokens")),
  };
}

function heldByServer() {
  const tags = {};
  const beside = () => (page.against ? `?against=${encodeURIComponent(page.against)}` : "");
  return {
    served: true,
    figures: () => ask(`figures.json${beside()}`, tags),
    index: () => ask("index.json", tags),
    trajectory: (rows, n) => ask(`trajectory.json?file=${encodeURIComponent(rows.file[n])}&at=${rows.second[n]}`),
    pieces: (n) => ask(`tokens.json?file=${encodeURIComponent(page.list.rows.file[n])}&at=${page.list.rows.second[n]}`),
  };
}

const page = { against: null, shown: null, list: null, source: null };

async function startRun() {
  const source = (page.source = $("data") ? heldByFile() : heldByServer());
  page.list = new TrajectoryList((n) => source.trajectory(page.list.rows, n), () => source.pieces(page.list.reader.shown));
  page.overview = h("section", { id: "overview" });
  page.figures = h("section", { id: "figures" });
  page.sandboxes = h("section", { id: "sandboxes" });
  page.spec = h("section", { id: "spec" });
  page.masthead = h("header.masthead");
  const trajectories = h("section", { id: "trajectories" }, h("h2", null, "Trajectories"), page.list.element);
  const links = ["Overview", "Figures", "Sandboxes", "Trajectories", "Spec"];
  fill($("page"), page.masthead,
    h("nav", { "aria-label": "Parts of the report" }, links.map((name) => h("a", { id: `to-${name.toLowerCase()}`, href: `#${name.toLowerCase()}` }, name))),
    h("main", null, page.overview, page.figures, page.sandboxes, trajectories, page.spec));
  draw(await source.figures());
  window.addEventListener("hashchange", follow);
  window.addEventListener("filter", follow);
  const index = await source.index();
  page.list.take(index);
  samples();
  follow();
  // The part that the address names was not there yet when the browser looked for it.
  const part = $(decodeHash()[0]);
  if (part && part.parentElement.tagName === "MAIN" && part.id !== "trajectories") part.scrollIntoView();
  document.documentElement.dataset.ready = "yes";
  if (source.served) watch();
}

/** Show the part, or the trajectory, that the address names. */
function follow() {
  const [part, query] = decodeHash();
  if (part !== "trajectories") return page.list.show(new URLSearchParams());
  page.list.show(new URLSearchParams(query));
  const section = $("trajectories");
  const { top, bottom } = section.getBoundingClientRect();
  if (top > window.innerHeight * 0.6 || bottom < 120) section.scrollIntoView();
}

function decodeHash() {
  const text = location.hash.slice(1);
  const at = text.indexOf("?");
  return at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + 1)];
}

function draw(shown) {
  page.shown = shown;
  clear(page.masthead, masthead(shown));
  clear(page.overview, answerCards(shown));
  const steps = shown.metrics.steps.length;
  const curves = steps > 1 ? trainingCharts(shown) : [];
  clear(page.figures, h("h2", null, shown.run.mode === "train" ? "Training" : "Figures"),
    steps === 0 && h("p.faint", null, "No step was recorded yet."),
    steps === 1 ? figureTable(shown) : h("div.charts", null, curves), steps > 1 && otherMetrics(shown));
  const boxes = steps > 1 ? sandboxCharts(shown) : [];
  page.sandboxes.hidden = boxes.length === 0;
  $("to-sandboxes").hidden = boxes.length === 0;
  clear(page.sandboxes, h("h2", null, "Sandboxes"), h("div.charts", null, boxes));
  clear(page.spec, specPart(shown));
  if (page.list.rows) samples();
  sweepCharts();
}

function masthead(shown) {
  const { run } = shown;
  const facts = run.manifest;
  const tone = { done: "good", failed: "bad", invalid: "bad", interrupted: "warn", running: "live" }[run.status];
  const when = [moment(facts.started), duration(shown.answers.cost.seconds), run.mode, `seed ${facts.seed ?? "?"}`].filter(Boolean);
  const last = shown.metrics.steps.length ? shown.metrics.steps[shown.metrics.steps.length - 1] : 0;
  const far = run.mode === "train" && run.steps ? `step ${last} of ${run.steps}` : null;
  const quiet = run.status === "running" && run.last_written ? `last wrote ${ago(shown.written - run.last_written)}` : null;
  return [
    page.source.served && h("a.back", { href: "/" }, "All runs"),
    h("div.title", null, h("h1", null, run.name), chip(run.status, tone), page.source.served && run.status === "running" && h("span.live", null, "live")),
    h("p.faint", null, [run.id, ...when, far, quiet].filter(Boolean).join(" · ")),
    h("p.kinds", null, Object.entries(run.kinds).map(([part, kind]) => h("span", null, h("span.faint", null, `${part} `), kind))),
    facts.error && !["running", "done"].includes(run.status) && h("p.notice", null, h("b", null, `${run.status}: `), facts.error),
    (facts.resumed || []).map((one) => h("p.notice.quiet", null, `Taken up again after step ${one.step}, on ${moment(one.time)}; it had been ${one.after}. Times count from the first start.`)),
    run.broken > 0 && h("p.notice", null, `${run.broken} lines of the run folder could not be read and are left out.`),
    !page.source.served && run.status === "running" && h("p.notice.quiet", null, `As of ${moment(shown.written)}. The run goes on; load this page again to see more, or follow it: rlpipe view ${run.folder}`),
  ];
}

/** A few trajectories to read, in the second answer. */
function samples() {
  const place = $("samples");
  const t = page.list.rows;
  if (!place || !t) return;
  const phase = page.shown.answers.tried.phase;
  const latest = (wanted) => {
    for (let n = t.count - 1; n >= 0; n--) if (t.phase[n] === phase && page.list.result(n) === wanted) return n;
    return null;
  };
  const newest = (wanted) => {
    const found = latest(wanted);
    if (found === null) return null;
    let best = found;
    for (let n = 0; n < t.count; n++)
      if (t.phase[n] === phase && page.list.result(n) === wanted && t.step[n] > t.step[best]) best = n;
    return best;
  };
  const links = Object.entries(RESULTS).map(([result, label]) => {
    const n = newest(result);
    if (n === null) return null;
    const address = `#trajectories?phase=${phase}&result=${result}&open=${encodeURIComponent(page.list.name(n))}`;
    return h("li", null, h(`span.mark.mark-${result}`), h("a", { href: address }, t.task[n]), h("span.faint", null, ` ${label}, step ${t.step[n]}`));
  });
  clear(place, h("h3", null, "Read one"), h("ul.samples", null, links));
}

function specPart(shown) {
  highlighting = HIGHLIGHTING;
  const { against, run } = shown;
  const settings = against ? Object.entries(against.settings) : [];
  const facts = run.manifest;
  const provenance = [["command", (facts.command || []).join(" ")], ["commit", facts.git ? facts.git.commit + (facts.git.dirty ? ", with changes" : "") : ""],
    ["python", facts.python], ["platform", facts.platform], ["spec digest", facts.spec_digest],
    ["data set", facts.dataset ? `${facts.dataset.kind}, ${facts.dataset.tasks} tasks, fingerprint ${facts.dataset.fingerprint}` : ""],
    ["isolation", facts.isolation], ["versions", Object.entries(facts.versions || {}).map(([name, version]) => `${name} ${version}`).join(", ")]];
  return [
    h("h2", null, "Spec"),
    besideChoice(shown),
    against && h("h3", null, `What is set otherwise than in ${against.id}`, h("span.faint", null, outcomeOf(against))),
    against && (settings.length
      ? table(["setting", against.id, "this run"], settings.map(([key, [theirs, ours]]) => [h("code", null, key), h("code.was", null, theirs), h("code.is", null, ours)]), "difference")
      : h("p.faint", null, "Nothing: both have the same spec.")),
    !against && h("p.faint", null, "There is no earlier run beside this one."),
    h("h3", null, "Made with"),
    h("dl.provenance", null, provenance.filter(([, value]) => value).map(([name, value]) => [h("dt", null, name), h("dd", null, value)])),
    h("details", null, h("summary", null, "The resolved spec"), h("pre", null, code(shown.spec, "yaml"))),
  ];
}

function besideChoice(shown) {
  if (!shown.beside || !shown.beside.length) return null;
  const select = h("select", { "aria-label": "Run to compare with", change: async () => {
    page.against = select.value;
    const fresh = await page.source.figures();
    if (fresh) draw(fresh);
  } }, shown.beside.map((id) => h("option", { value: id, selected: Boolean(shown.against) && shown.against.id === id }, id)));
  return h("p", null, h("label", null, "Beside ", select));
}

/** Ask the server for what is new for as long as the run goes on. */
async function watch() {
  for (;;) {
    await new Promise((done) => setTimeout(done, LIVE_EVERY));
    if (document.hidden) continue;
    try {
      const fresh = await page.source.figures();
      if (!fresh) continue;
      const index = await page.source.index();
      draw(fresh);
      if (index) page.list.take(index);
      samples();
    } catch (error) {
      console.warn("the server does not answer", error);
    }
  }
}

startRun();
