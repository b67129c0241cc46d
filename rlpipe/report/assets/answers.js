"use strict";
// The first screen: did it learn, what did it try, what failed and whose fault was it, what did it
// cost.

const PHASE_NAMES = { train: "training", collect: "collection", eval: "evaluation", sample: "pass@k samples", teacher: "teacher" };
const phaseName = (phase) => (Object.hasOwn(PHASE_NAMES, phase) ? PHASE_NAMES[phase] : phase);
const ROLLOUT_COLORS = ["blue", "teal", "violet", "amber", "rose", "gray"];
const TIME_COLORS = { sampling: "blue", tools: "teal", grading: "amber", training: "violet", other: "gray" };

function answerCards(shown) {
  const answers = shown.answers;
  return h("div.answers", null,
    card("Did it learn?", answers.learned.headline, VERDICTS[answers.learned.verdict], learnedBody(shown)),
    card("What did it try?", answers.tried.headline, null, triedBody(shown)),
    card("What failed, and whose fault?", answers.failed.headline, null, failedBody(answers.failed)),
    card("What did it cost?", answers.cost.headline, null, costBody(answers.cost)));
}

const VERDICTS = { yes: "good", worse: "bad", unclear: "warn" };

const card = (question, headline, tone, body) =>
  h("section.card", { "data-answer": question },
    h("h2.question", null, question),
    h(`p.headline${tone ? `.tone-${tone}` : ""}`, null, headline),
    body);

const column = (shown, name) => shown.metrics.columns[name] || shown.metrics.steps.map(() => null);

function learnedBody(shown) {
  const answer = shown.answers.learned;
  const steps = shown.metrics.steps;
  const at = new Map(answer.evaluations.map((rate) => [rate.step, rate]));
  const pick = (key) => steps.map((step) => (at.has(step) && key in at.get(step) ? at.get(step)[key] : null));
  const banded = answer.evaluations.some((rate) => "low" in rate);
  const lines = [];
  if (at.size) lines.push({ name: "held-out pass rate", values: pick("value"), color: "blue", points: true, ...(banded ? { low: pick("low"), high: pick("high") } : {}) });
  const training = column(shown, "train/pass_rate");
  if (training.some((v) => v !== null)) lines.push({ name: "training pass rate", values: training, color: "gray" });
  const charted = steps.length > 1 && lines.length
    ? lineChart("Pass rate by step", steps, lines, { range: [0, 1], format: (v) => percent(v, 0), height: 136, note: banded ? "band: 95 % interval" : "" })
    : null;
  if (shown.run.mode !== "train") return verdicts(shown.answers.tried);
  return [charted, h("ul.facts", null, learnedFacts(shown).map((fact) => h("li", null, fact)))];
}

/** How the rollouts of a run without training were judged. */
function verdicts(answer) {
  const link = (result) => `#trajectories?phase=${answer.phase}&result=${result}`;
  const parts = [
    { name: RESULTS.passed, value: answer.passed, color: "teal", href: link("passed") },
    { name: RESULTS.wrong, value: answer.scored - answer.passed, color: "rose", href: link("wrong") },
    { name: "without a score", value: answer.rollouts - answer.scored, color: "gray", href: link("masked") },
  ];
  return answer.rollouts > 0 && [h("h3", null, "How rollouts were judged"), split(parts.filter((part) => part.value > 0), whole)];
}

function learnedFacts(shown) {
  const answer = shown.answers.learned;
  const facts = [];
  if (answer.gained !== undefined && answer.gained + answer.lost > 0) {
    const chance = answer.chance < 0.001 ? "p < 0.001" : `p = ${answer.chance.toFixed(3)}`;
    facts.push(`Of the held-out tasks ${answer.gained} were gained and ${answer.lost} lost (McNemar's exact test, ${chance}).`);
  }
  const last = answer.evaluations[answer.evaluations.length - 1];
  if (last && "low" in last) facts.push(`95 % interval after step ${last.step}: ${percent(last.low)} to ${percent(last.high)}.`);
  if (answer.best && answer.best.value > last.value) facts.push(`Best: ${percent(answer.best.value)} after step ${answer.best.step}.`);
  const other = shown.against;
  if (other) facts.push(["Beside it: ", h("a", { href: "#spec" }, other.id), `, ${outcomeOf(other)}.`]);
  return facts;
}

/** What another run came to, in a few words. */
function outcomeOf(other) {
  const rates = other.evaluations;
  if (rates.length > 1) return `held-out ${percent(rates[0].value)} to ${percent(rates[rates.length - 1].value)}`;
  const results = Object.entries(other.result).map(([name, value]) => `${name} ${short(value)}`);
  return results.length ? results.join(", ") : "without a result";
}

function triedBody(shown) {
  const answer = shown.answers.tried;
  if (!answer.rollouts) return null;
  const stops = answer.stops.map(([name, value], n) => ({
    name: words(name), value, color: name === "failed" ? "gray" : ROLLOUT_COLORS[Math.min(n, 4)], href: `#trajectories?phase=${answer.phase}&stop=${name}`,
  }));
  const calls = answer.tools.reduce((sum, [, times]) => sum + times, 0);
  const rows = answer.tools.map(([name, times]) => [name, times, (times / answer.rollouts).toFixed(2)]);
  return [
    h("h3", null, "How rollouts ended"),
    split(stops, whole),
    h("h3", null, "What they called"),
    calls
      ? table(["tool", "calls", "per rollout"], rows, "compact")
      : h("p.faint", null, "No tool was called."),
    h("ul.facts", null,
      h("li", null, `${answer.turns.toFixed(1)} model calls per rollout.`),
      answer.scored > 0 && h("li", null, `${whole(answer.passed)} of ${whole(answer.scored)} scored rollouts passed (${percent(answer.passed / answer.scored)}).`)),
    h("div", { id: "samples" }),
  ];
}

function failedBody(answer) {
  const machinery = answer.machinery.map((row) => [
    h("a", { href: `#trajectories?failure=${encodeURIComponent(row.name)}`, title: row.message }, row.name), row.lost, row.attempts - row.lost]);
  const own = answer.outcomes.map(([name, times]) => [
    h("a", { href: `#trajectories?phase=${answer.phase}&outcome=${encodeURIComponent(name)}` }, words(name)), times]);
  for (const [name, times] of answer.cut)
    own.push([h("a", { href: `#trajectories?phase=${answer.phase}&stop=${name}` }, `cut off: ${words(name)}`), times]);
  if (answer.malformed) own.push(["malformed tool calls", answer.malformed]);
  const first = answer.machinery.find((row) => row.message);
  return h("div.faults", null,
    h("div", null,
      h("h3", null, "The machinery's", h("span.faint", null, "masked, never scored")),
      machinery.length
        ? table(["boundary and type", "lost", "retried"], machinery, "compact")
        : h("p.faint", null, `None of ${whole(answer.total)} rollouts.`),
      first && h("p.quote", null, first.message.slice(0, 240))),
    h("div", null,
      h("h3", null, "The model's", h("span.faint", null, `scored, in ${phaseName(answer.phase)}`)),
      own.length ? table(["outcome", "rollouts"], own, "compact") : h("p.faint", null, "None.")));
}

function costBody(answer) {
  const spent = answer.time.filter(([, seconds]) => seconds > 0);
  const parts = spent.map(([name, value]) => ({
    name: name === "other" ? "loading, warm-up, evaluation" : name, value, color: TIME_COLORS[name] }));
  const rows = answer.tokens.map((row) => [phaseName(row.phase), row.rollouts, row.prompt, row.cached, row.completion]);
  const boxes = answer.sandboxes;
  return [
    h("h3", null, "Where the time went", h("span.faint", null, "wall clock")),
    spent.length ? split(parts, duration) : h("p.faint", null, "No time was recorded."),
    rows.length > 0 && [
      h("h3", null, "Tokens"),
      table(["for", "rollouts", "in", "cached", "sampled"], rows, "compact"),
    ],
    answer.money && [
      h("h3", null, "Money"),
      table(["for", "$"], answer.money.parts.map(([name, sum]) => [name, sum.toFixed(2)]), "compact"),
    ],
    h("ul.facts", null,
      h("li", null, `${whole(boxes.sandboxes_created)} sandboxes, ${whole(boxes.executions)} executions in them, ${whole(boxes.exec_failures)} lost by the machinery.`)),
  ];
}
