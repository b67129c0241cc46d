"use strict";
// Curves of the training, the sandboxes, and every other metric that was recorded.

const REWARD_COLORS = ["ramp1", "ramp2", "ramp3", "ramp4", "ramp5", "ramp6", "ramp7", "ramp8"];

/** The steps at which any of the named metrics was recorded, and the metrics there. */
function picked(shown, names) {
  const all = names.map((name) => column(shown, name));
  const kept = shown.metrics.steps.map((_, n) => n).filter((n) => all.some((values) => values[n] !== null));
  return { steps: kept.map((n) => shown.metrics.steps[n]), columns: all.map((values) => kept.map((n) => values[n])) };
}

function trainingCharts(shown) {
  const reward = plain(shown, "Mean training reward", [["train/reward", "mean", "blue"]], { zero: false });
  const made = [reward, distributionChart(shown.rewards), groupsChart(shown), effortChart(shown), timeChart(shown)];
  made.push(plain(shown, "Tokens sampled", [["tokens/completion", "sampled", "blue"]]));
  made.push(plain(shown, "Share of answers cut off", [["completions/clipped_ratio", "cut off", "amber"]], { range: [0, 1], format: (v) => percent(v, 0) }));
  made.push(plain(shown, "Rollouts lost by the machinery", [["rollout/infra_failure_rate", "lost", "rose"]], { range: [0, 1], format: (v) => percent(v, 0) }));
  made.push(plain(shown, "Loss", [["train/loss", "loss", "violet"]], { zero: false }));
  made.push(plain(shown, "Entropy", [["train/entropy", "entropy", "teal"]]));
  made.push(plain(shown, "Gradient norm", [["train/grad_norm", "norm", "violet"]]));
  made.push(plain(shown, "Divergence from the start", [["train/kl", "KL", "amber"]]));
  made.push(...passAtCharts(shown));
  return made.filter(Boolean);
}

/** The metrics of a run that has one step alone, which no curve can be drawn of. */
function figureTable(shown) {
  const rows = Object.entries(shown.metrics.columns).filter(([, values]) => values[0] !== null && values[0] !== undefined);
  const cells = rows.map(([name, [value]]) => h("div.figure", null, h("dt", null, name), h("dd.number", null, short(value))));
  return h("dl.figures", null, cells);
}

/** A chart of metrics as they are; nothing where none of them was recorded. */
function plain(shown, title, lines, options = {}) {
  const { steps, columns } = picked(shown, lines.map(([name]) => name));
  if (!steps.length) return null;
  return lineChart(title, steps, lines.map(([, name, tone], n) => ({ name, values: columns[n], color: tone })), options);
}

function distributionChart(rewards) {
  if (!rewards.steps.length) return null;
  const hue = (n) => REWARD_COLORS[rewards.labels.length < 2 ? 7 : Math.round((7 * n) / (rewards.labels.length - 1))];
  const parts = rewards.labels.map((label, n) => ({ name: `reward ${label}`, values: rewards.counts[n], color: hue(n) }));
  parts.push({ name: "masked", values: rewards.masked, color: "gray" });
  return stackChart("Rewards of each step", rewards.steps, parts, { format: whole, note: "rollouts" });
}

function groupsChart(shown) {
  const { steps, columns: [count, trainable, constant] } = picked(shown, ["groups/count", "groups/trainable", "groups/zero_variance"]);
  if (!steps.length) return null;
  const of = (share) => share.map((value, n) => Math.round((value || 0) * (count[n] || 0)));
  const [useful, equal] = [of(trainable), of(constant)];
  const parts = [
    { name: "trainable", values: useful, color: "blue" },
    { name: "constant reward", values: equal, color: "ramp2" },
    { name: "too few valid", values: useful.map((value, n) => Math.max(0, Math.round(count[n] || 0) - value - equal[n])), color: "rose" },
  ];
  return stackChart("Groups of each step", steps, parts, { format: whole, note: "only trainable ones move the weights" });
}

const effortChart = (shown) =>
  plain(shown, "Effort of a rollout", [["rollout/turns", "model calls", "blue"], ["rollout/tool_calls", "tool calls", "teal"]]);

function timeChart(shown) {
  const names = ["time/rollouts", "time/sampling", "time/tools", "time/grading", "time/training"];
  const { steps, columns: [rollouts, ...spent] } = picked(shown, names);
  if (!rollouts.some((v) => v !== null)) return null;
  const training = spent.pop();
  const busy = steps.map((_, n) => spent.reduce((sum, values) => sum + (values[n] || 0), 0));
  const shared = (values) => values.map((v, n) => (busy[n] ? ((rollouts[n] || 0) * (v || 0)) / busy[n] : 0));
  const parts = ["sampling", "tools", "grading"].map((name, n) => ({ name, values: shared(spent[n]), color: TIME_COLORS[name] }));
  parts.push({ name: "training", values: training.map((v) => v || 0), color: TIME_COLORS.training });
  return stackChart("Time of each step", steps, parts, { format: duration, axis: clock, note: "wall clock" });
}

function passAtCharts(shown) {
  const names = Object.keys(shown.metrics.columns).filter((name) => /^val\/pass@\d+$/.test(name));
  const lines = names.map((name, n) => {
    const { steps, columns: [values, low, high] } = picked(shown, [name, `${name}_low`, `${name}_high`]);
    const line = { name: name.slice(4), values, low, high, color: ROLLOUT_COLORS[n % 6], points: true };
    return lineChart(`Held-out ${name.slice(4)}`, steps, [line], { range: [0, 1], format: (v) => percent(v, 0), note: "band: 95 % interval" });
  });
  return lines;
}

function sandboxCharts(shown) {
  const box = (name) => `cwsandbox/${name}`;
  const startup = picked(shown, [box("avg_startup_seconds"), box("min_startup_seconds"), box("max_startup_seconds")]);
  const done = picked(shown, [box("exec_completed_ok"), box("exec_completed_nonzero"), box("exec_failures")]);
  const made = [];
  if (startup.steps.length) {
    const [values, low, high] = startup.columns;
    made.push(lineChart("Start-up of a sandbox", startup.steps, [{ name: "mean", values, low, high, color: "teal" }], { format: duration, axis: clock, note: "band: least to most" }));
  }
  if (done.steps.length) {
    const [fine, nonzero, lost] = done.columns;
    made.push(stackChart("Executions of each step", done.steps, [
      { name: "exit status 0", values: fine, color: "teal" },
      { name: "another status", values: nonzero, color: "amber" },
      { name: "lost by the machinery", values: lost, color: "rose" },
    ], { format: whole }));
  }
  const each = plain(shown, "Executions in one sandbox", [[box("avg_execs_per_sandbox"), "mean", "teal"]]);
  return each ? [...made, each] : made;
}

const DRAWN = /^(val\/pass|train\/(reward|pass_rate|loss|entropy|grad_norm|kl)$|groups\/|rollout\/(turns|tool_calls|infra)|tokens\/completion|completions\/|time\/|cwsandbox\/|stop\/)/;

/** A small chart for each metric that no other chart shows, made when the part is opened. */
function otherMetrics(shown) {
  const names = Object.keys(shown.metrics.columns).filter((name) => !DRAWN.test(name));
  if (!names.length) return null;
  const grid = h("div.charts.small");
  const part = h("details.more", { toggle: () => {
    if (!part.open || grid.childElementCount) return;
    fill(grid, names.map((name) => plain(shown, name, [[name, "value", "blue"]], { zero: false, height: 120 })).filter(Boolean));
  } }, h("summary", null, `${names.length} more metrics`), grid);
  return part;
}
