"use strict";
// One trajectory: what was said, called and answered, how it was judged, and its tokens.

const LONG_LINES = 40;
const LONG_TEXT = 6000;
const MOST_TOKENS = 3000;
const LANGUAGES = { py: "python", python: "python", python3: "python", bash: "bash", sh: "bash", shell: "bash", json: "json", yaml: "yaml" };

class Reader {
  constructor(load, pieces, list) {
    this.load = load;
    this.pieces = pieces;
    this.list = list;
    this.shown = null;
    this.tab = "conversation";
    this.element = h("article.reader", { hidden: true, tabindex: "-1", "aria-label": "Trajectory" });
    document.addEventListener("keydown", (event) => this.key(event));
  }

  async open(n) {
    if (this.shown === n) return;
    this.shown = n;
    this.element.hidden = false;
    clear(this.element, this.head(n), h("p.faint", null, "Loading …"));
    let body = null;
    let trouble = "";
    try {
      body = await this.load(n);
    } catch (error) {
      trouble = String(error);
    }
    if (this.shown !== n) return;
    this.body = body;
    this.draw(trouble);
    this.element.scrollTop = 0;
  }

  close() {
    this.shown = null;
    this.element.hidden = true;
  }

  key(event) {
    if (this.shown === null || event.target.matches("input, select, textarea")) return;
    if (event.key === "Escape") this.leave();
    const by = { j: 1, k: -1 }[event.key];
    const next = by && this.list.neighbour(by);
    if (next !== undefined && by) location.hash = this.list.address(next);
  }

  leave() {
    const query = new URLSearchParams(this.list.query);
    query.delete("open");
    navigate(query);
  }

  draw(trouble) {
    const body = this.body;
    clear(this.element, this.head(this.shown));
    if (!body) {
      const why = trouble || "This file holds as many trajectories as fit; the others are read from the run folder: rlpipe view RUN";
      fill(this.element, h("p.notice", null, why));
      return;
    }
    const tokens = (body.turns || []).some((turn) => turn.sampled);
    const tests = body.tests || [];
    const passed = tests.filter((test) => test.outcome === "passed").length;
    const tabs = { conversation: "Conversation" };
    if (tests.length) tabs.tests = `Tests ${passed}/${tests.length}`;
    if (tokens) tabs.tokens = "Tokens";
    tabs.record = "Record";
    if (!(this.tab in tabs)) this.tab = "conversation";
    const panel = h("div.panel", { role: "tabpanel" });
    const bar = h("div.tabs", { role: "tablist" });
    const choose = (tab) => {
      this.tab = tab;
      clear(bar, Object.entries(tabs).map(([key, label]) =>
        h("button", { type: "button", role: "tab", "aria-selected": String(key === tab), click: () => choose(key) }, label)));
      this.panel(tab, panel, body);
    };
    fill(this.element, judgement(body), bar, panel);
    choose(this.tab);
  }

  panel(tab, panel, body) {
    highlighting = HIGHLIGHTING;
    if (tab === "conversation") clear(panel, conversation(body));
    else if (tab === "tests") clear(panel, testTable(body.tests));
    else if (tab === "record") clear(panel, h("pre", null, code(JSON.stringify(body, null, 1), "json")));
    else {
      clear(panel, h("p.faint", null, "Loading …"));
      this.pieces().then((pieces) => { if (this.body === body) clear(panel, tokenView(body, pieces)); });
    }
  }

  head(n) {
    const t = this.list.rows;
    const result = this.list.result(n);
    const step = (by, label, sign) => {
      const next = this.list.neighbour(by);
      return h("button", { type: "button", "aria-label": label, disabled: next === undefined, click: () => { location.hash = this.list.address(next); } }, sign);
    };
    const others = this.list.groupOf(n);
    const group = others.length > 1 && h("div.group", null,
      h("span.faint", null, `group of ${others.length}`),
      others.map((one) => h("a", {
        href: this.list.address(one), class: `mark-${this.list.result(one)}`, "aria-current": one === n ? "true" : null,
        title: `${t.rollout[one]}: ${RESULTS[this.list.result(one)]}`,
      }, t.reward[one] === null ? "–" : short(t.reward[one]))));
    return h("header", null,
      h("div.reader-bar", null, step(-1, "Previous trajectory", "↑"), step(1, "Next trajectory", "↓"),
        h("button", { type: "button", "aria-label": "Close", click: () => this.leave() }, "Close")),
      h("h3", null, t.task[n]),
      h("p.faint", null, [phaseName(t.phase[n]), `step ${t.step[n]}`, t.rollout[n], plural(t.turns[n], "model call"), plural(t.calls[n], "tool call"), plural(t.tokens[n], "token"), duration(t.seconds[n])].join(" · ")),
      h("div.chips", null,
        chip(t.reward[n] === null ? "no reward" : `reward ${short(t.reward[n])}`, { passed: "good", wrong: "bad", masked: "warn" }[result]),
        chip(words(t.stop[n])), t.outcome[n] && chip(words(t.outcome[n])), t.failure[n] && chip(t.failure[n], "warn")),
      group);
  }
}

function judgement(body) {
  const parts = Object.entries(body.reward_parts || {});
  const failure = body.failure;
  return [
    failure && h("div.notice", null,
      h("b", null, `${failure.boundary} ${failure.type}`), ` in attempt ${failure.attempt || 1}: ${failure.message}`,
      failure.traceback && h("details", null, h("summary", null, "Traceback"), h("pre", null, failure.traceback))),
    body.note && h("p.note", null, body.note),
    parts.length > 0 && h("p.faint", null, "Reward parts: ", parts.map(([name, value]) => `${name} ${short(value)}`).join(", ")),
  ];
}

// Conversation ----------------------------------------------------------------------------------

function conversation(body) {
  const names = new Map();
  for (const message of body.messages || [])
    for (const call of message.tool_calls || []) names.set(call.id, (call.function || {}).name);
  const made = (body.messages || []).map((message) => spoken(message, names));
  if (body.submission)
    made.push(h("section.message.role-submission", null, h("h4", null, "submitted"), folded(body.submission, "python")));
  return h("div.conversation", null, made);
}

function spoken(message, names) {
  const role = String(message.role || "?");
  const label = role === "tool" ? `tool: ${names.get(message.tool_call_id) || message.name || "?"}` : role;
  const text = plainText(message.content);
  const thought = plainText(message.reasoning_content || message.reasoning);
  return h(`section.message.role-${role.replace(/\W/g, "")}`, null,
    h("h4", null, label),
    thought && h("details", null, h("summary", null, "reasoning"), h("p.prose", null, thought)),
    text && (role === "tool" ? folded(text, "") : prose(text)),
    (message.tool_calls || []).map(called));
}

/** The text of a message's content, which may be a list of parts. */
function plainText(content) {
  if (content === null || content === undefined) return "";
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return JSON.stringify(content, null, 1);
  return content.map((part) => (typeof part === "string" ? part : part.text ?? JSON.stringify(part))).join("\n");
}

/** Text with its fenced code, and code in answer tags, highlighted. */
function prose(text) {
  const made = [];
  let from = 0;
  const add = (to) => { if (text.slice(from, to).trim()) made.push(h("p.prose", null, text.slice(from, to).replace(/^\n+|\n+$/g, ""))); };
  for (const match of text.matchAll(/```(\w*)[^\n]*\n([\s\S]*?)(?:```|$)|<answer>(?!\s*```)([\s\S]*?)(<\/answer>|$)/g)) {
    add(match.index);
    const tagged = match[3] !== undefined;
    made.push(tagged
      ? h("div.tagged", null, h("span.faint", null, "<answer>"), folded(match[3], "python"), h("span.faint", null, match[4]))
      : folded(match[2], LANGUAGES[match[1].toLowerCase()] || (match[1] ? "" : "python")));
    from = match.index + match[0].length;
  }
  add(text.length);
  return made;
}

function called(call) {
  const { name, arguments: raw } = call.function || {};
  let given = null;
  try {
    given = JSON.parse(raw);
  } catch (error) {
    // It is shown as the model wrote it.
  }
  const readable = given !== null && typeof given === "object" && !Array.isArray(given);
  const shown = readable
    ? Object.entries(given).map(([key, value]) => argument(name, key, value))
    : [chip("unreadable arguments", "warn"), folded(plainText(raw), "")];
  return h("div.call", null, h("h5", null, `→ ${name}`), shown);
}

function argument(tool, key, value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 1);
  const language = { command: "bash", code: "python", content: "python" }[key] || (typeof value === "string" ? "" : "json");
  if (typeof value !== "string" || (!language && !text.includes("\n"))) return h("p.argument", null, h("span.faint", null, `${key} `), h("code", null, text));
  return [h("p.argument.faint", null, key), folded(text, language)];
}

/** Code or output; what is long begins folded. */
function folded(text, language) {
  const lines = text.split("\n");
  if (lines.length <= LONG_LINES && text.length <= LONG_TEXT) return h("pre", null, code(text, language));
  const start = lines.slice(0, LONG_LINES / 2).join("\n").slice(0, LONG_TEXT / 2);
  const block = h("pre", null, code(start, language));
  const more = h("button.unfold", { type: "button", click: () => { clear(block, code(text, language)); more.remove(); } },
    `Show all ${whole(lines.length)} lines, ${whole(text.length)} characters`);
  return h("div", null, block, more);
}

function testTable(tests) {
  const tone = { passed: "good", not_run: "" };
  const rows = tests.map((test) => [
    chip(words(test.outcome), test.outcome in tone ? tone[test.outcome] : "bad"),
    h("div", null, code(test.name, "python"), test.message && h("p.quote", null, test.message)),
    test.duration ? duration(test.duration) : ""]);
  return table(["result", "test", "time"], rows, "tests");
}

// Tokens ----------------------------------------------------------------------------------------

function tokenView(body, pieces) {
  const known = Object.keys(pieces).length > 0;
  const turns = (body.turns || []).filter((turn) => turn.sampled).map((turn, n) =>
    h("section.turn", null,
      h("h4", null, `model call ${n + 1}`, h("span.faint", null, ` ${plural(turn.given.length, "token")} ${turn.goes_on ? "added" : "given"}, ${whole(turn.sampled.length)} sampled, ended with ${words(turn.finish_reason || "?")}`)),
      h("details", null, h("summary", null, turn.goes_on ? "what was added" : "prompt"), tokenRun(turn.given, null, pieces)),
      tokenRun(turn.sampled, turn.logprobs, pieces)));
  const scale = [1, 0.75, 0.5, 0.25, 0].map((p) => { const swatch = h("span.token-piece", null, percent(p, 0)); shade(swatch, p); return swatch; });
  return h("div.tokens", null,
    h("p.faint", null, "Probability that the policy gave the token it sampled: ", scale),
    !known && h("p.faint", null, "No tokenizer lies beside a checkpoint of this run, so tokens are shown by their ids."),
    turns);
}

function tokenRun(ids, logprobs, pieces) {
  const run = h("p.token-run");
  const add = (from, to) => {
    for (let n = from; n < Math.min(to, ids.length); n++) {
      const piece = pieces[ids[n]];
      const span = h("span.token-piece", null, piece === undefined ? String(ids[n]) : piece.replace(/\n/g, "⏎"));
      const p = logprobs && n < logprobs.length && logprobs[n] !== null ? Math.exp(logprobs[n]) : null;
      span.title = `id ${ids[n]}` + (p === null ? "" : `, probability ${p.toPrecision(3)}, logprob ${logprobs[n]}`);
      if (p !== null) shade(span, p);
      run.append(span);
      if (piece !== undefined && piece.includes("\n")) run.append(document.createElement("br"));
    }
  };
  add(0, MOST_TOKENS);
  if (ids.length <= MOST_TOKENS) return run;
  const more = h("button.unfold", { type: "button", click: () => { add(MOST_TOKENS, ids.length); more.remove(); } }, `Show all ${whole(ids.length)} tokens`);
  return h("div", null, run, more);
}

function shade(span, p) {
  span.style.setProperty("--doubt", `${Math.round(100 * (1 - p))}%`);
}
