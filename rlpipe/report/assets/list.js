"use strict";
// The trajectories: filters, a list by pages, and what of them stands in the address.

const PAGE_SIZE = 50;
const EXACT = ["phase", "stop", "outcome", "failure"];
const ORDERS = {
  "": ["as they ended", null],
  low: ["lowest reward first", (t, a, b) => (t.reward[a] ?? Infinity) - (t.reward[b] ?? Infinity)],
  high: ["highest reward first", (t, a, b) => (t.reward[b] ?? -Infinity) - (t.reward[a] ?? -Infinity)],
  tokens: ["most tokens first", (t, a, b) => t.tokens[b] - t.tokens[a]],
  calls: ["most tool calls first", (t, a, b) => t.calls[b] - t.calls[a]],
  slow: ["slowest first", (t, a, b) => t.seconds[b] - t.seconds[a]],
};
const RESULTS = { passed: "passed", wrong: "did not pass", masked: "masked by a failure" };

/** The index as plain columns. */
function decodeIndex(index) {
  const columns = {};
  for (const [name, column] of Object.entries(index))
    columns[name] = column.words ? column.codes.map((code) => column.words[code]) : column;
  columns.count = columns.rollout.length;
  return columns;
}

class TrajectoryList {
  /** `load(n)` fetches the body of a trajectory; `pieces()` the texts of token ids. */
  constructor(load, pieces) {
    this.rows = null;
    this.matching = [];
    this.page = 0;
    this.query = new URLSearchParams();
    this.body = h("tbody");
    this.count = h("p.faint", { "aria-live": "polite" });
    this.pager = h("div.pager");
    this.controls = {};
    this.filters = h("div.filters");
    const heads = ["", "reward", "task", "for", "ended with", "outcome", "tokens", "time"];
    this.listing = h("div.listing", null, this.filters, this.count,
      h("div.table-frame", null, h("table.rollouts", null,
        h("thead", null, h("tr", null, heads.map((head) => h("th", { scope: "col" }, head)))), this.body)), this.pager);
    this.reader = new Reader(load, pieces, this);
    this.element = h("div.browser", null, this.listing, this.reader.element);
  }

  /** Take an index, of this run for the first time or one that has grown. */
  take(index) {
    this.rows = decodeIndex(index);
    this.place = new Map();
    this.groups = new Map();
    for (let n = 0; n < this.rows.count; n++) {
      this.place.set(this.name(n), n);
      const group = `${this.rows.file[n]} ${this.rows.group[n]}`;
      if (!this.groups.has(group)) this.groups.set(group, []);
      this.groups.get(group).push(n);
    }
    // While someone is at the filters of a run that goes on, they stay as they are.
    if (!this.filters.contains(document.activeElement)) this.buildFilters();
    this.apply();
  }

  name(n) {
    return `${this.rows.file[n]}/${this.rows.rollout[n]}`;
  }

  /** The rollouts of the same task beside this one. */
  groupOf(n) {
    return this.groups.get(`${this.rows.file[n]} ${this.rows.group[n]}`);
  }

  buildFilters() {
    const t = this.rows;
    const all = (values) => [...new Set(values)].filter((value) => value !== "");
    const choice = (key, label, options) => {
      const select = h("select", { "aria-label": label, "data-filter": key, change: () => this.set(key, select.value) },
        h("option", { value: "" }, label), options.map(([value, text]) => h("option", { value }, text)));
      return (this.controls[key] = select);
    };
    const plain = (values) => all(values).sort().map((value) => [value, words(value)]);
    const field = (key, label, type) => {
      const input = h("input", { type, placeholder: label, "aria-label": label, "data-filter": key, step: "any", input: () => this.set(key, input.value) });
      return (this.controls[key] = input);
    };
    clear(this.filters,
      field("q", "Task or rollout", "search"),
      choice("phase", "Any purpose", all(t.phase).map((phase) => [phase, phaseName(phase)])),
      choice("step", "Any step", all(t.step).sort((a, b) => a - b).map((step) => [step, `step ${step}`])),
      choice("result", "Any result", Object.entries(RESULTS)),
      choice("stop", "Any stop reason", plain(t.stop)),
      choice("outcome", "Any outcome", plain(t.outcome)),
      choice("failure", "Any failure", plain(t.failure)),
      field("from", "Reward from", "number"), field("to", "to", "number"),
      choice("order", "Order: as they ended", Object.entries(ORDERS).slice(1).map(([key, [text]]) => [key, text])),
      h("button", { type: "button", click: () => navigate(new URLSearchParams()) }, "Clear"));
    this.controls.failure.hidden = all(t.failure).length === 0;
  }

  /** Change one filter. The address follows, and is what is read back. */
  set(key, value) {
    const query = new URLSearchParams(this.query);
    if (value === "") query.delete(key);
    else query.set(key, value);
    query.delete("open");
    navigate(query, true);
  }

  /** Show what an address asks for. */
  show(query) {
    const before = new URLSearchParams(this.query);
    this.query = query;
    before.delete("open");
    const now = new URLSearchParams(query);
    now.delete("open");
    if (before.toString() !== now.toString()) this.page = 0;
    this.apply();
  }

  apply() {
    if (!this.rows) return;
    for (const [key, control] of Object.entries(this.controls)) {
      const value = this.query.get(key) || "";
      if (document.activeElement !== control || value === "") control.value = value;
    }
    this.matching = this.select();
    const open = this.query.get("open");
    if (open && this.place.has(open)) {
      const at = this.matching.indexOf(this.place.get(open));
      if (at >= 0) this.page = Math.floor(at / PAGE_SIZE);
      this.reader.open(this.place.get(open));
    } else this.reader.close();
    this.element.classList.toggle("reading", this.reader.shown !== null);
    this.draw();
  }

  select() {
    const t = this.rows;
    const get = (key) => this.query.get(key) || "";
    const text = get("q").toLowerCase();
    const exact = EXACT.map((key) => [t[key], get(key)]).filter(([, value]) => value !== "");
    const step = get("step") === "" ? null : Number(get("step"));
    const [from, to] = [get("from"), get("to")].map((value) => (value === "" ? null : Number(value)));
    const result = get("result");
    const found = [];
    for (let n = 0; n < t.count; n++) {
      if (step !== null && t.step[n] !== step) continue;
      if (!exact.every(([column, value]) => column[n] === value)) continue;
      if (result && this.result(n) !== result) continue;
      if (from !== null && !(t.reward[n] !== null && t.reward[n] >= from)) continue;
      if (to !== null && !(t.reward[n] !== null && t.reward[n] <= to)) continue;
      if (text && !t.task[n].toLowerCase().includes(text) && !t.rollout[n].toLowerCase().includes(text)) continue;
      found.push(n);
    }
    const order = ORDERS[get("order")] && ORDERS[get("order")][1];
    return order ? found.sort((a, b) => order(t, a, b) || a - b) : found;
  }

  result(n) {
    return this.rows.failure[n] ? "masked" : this.rows.passed[n] ? "passed" : "wrong";
  }

  draw() {
    const pages = Math.max(1, Math.ceil(this.matching.length / PAGE_SIZE));
    this.page = Math.min(this.page, pages - 1);
    const first = this.page * PAGE_SIZE;
    const shown = this.matching.slice(first, first + PAGE_SIZE);
    clear(this.count, `${whole(this.matching.length)} of ${whole(this.rows.count)} trajectories`);
    clear(this.body, shown.map((n) => this.row(n)));
    const turn = (by) => () => { this.page += by; this.draw(); };
    clear(this.pager,
      h("button", { type: "button", disabled: this.page === 0, click: turn(-1) }, "Previous"),
      h("span.faint", null, shown.length ? `${whole(first + 1)} to ${whole(first + shown.length)}` : "none"),
      h("button", { type: "button", disabled: this.page >= pages - 1, click: turn(1) }, "Next"));
    this.pager.hidden = pages === 1;
  }

  row(n) {
    const t = this.rows;
    const result = this.result(n);
    const link = h("a", { href: this.address(n) }, t.task[n]);
    return h("tr", { class: n === this.reader.shown ? "open" : null, click: (event) => { if (event.target !== link) link.click(); } },
      h("td", null, h(`span.mark.mark-${result}`, { title: RESULTS[result] })),
      h("td.number", null, t.reward[n] === null ? "–" : short(t.reward[n])),
      h("td.task", null, link),
      h("td", null, t.phase[n] === "train" ? `step ${t.step[n]}` : `${phaseName(t.phase[n])} ${t.step[n]}`),
      h("td", null, words(t.stop[n])),
      h("td", null, t.failure[n] || words(t.outcome[n])),
      h("td.number", null, whole(t.tokens[n])),
      h("td.number", null, duration(t.seconds[n])));
  }

  address(n) {
    const query = new URLSearchParams(this.query);
    query.set("open", this.name(n));
    return `#trajectories?${query}`;
  }

  /** The trajectory before or after the open one in the list. */
  neighbour(by) {
    const at = this.matching.indexOf(this.reader.shown);
    return at < 0 ? undefined : this.matching[at + by];
  }
}

/** Go to the trajectories with these filters. */
function navigate(query, quietly = false) {
  const text = query.toString();
  const address = `#trajectories${text ? `?${text}` : ""}`;
  if (quietly) {
    history.replaceState(null, "", address);
    window.dispatchEvent(new Event("filter"));
  } else location.hash = address;
}
