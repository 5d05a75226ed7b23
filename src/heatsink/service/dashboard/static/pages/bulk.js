// Bulk: batches and what to do with them, the queue's partitions, tenants.

import { open, part, send } from "/static/api.js";
import { heatmap } from "/static/charts.js";
import { button, card, chart, figures, h, sureButton, table, wide, write } from "/static/elements.js";
import { latest, rateOf, series } from "/static/history.js";
import { moment, NONE, number, seconds } from "/static/words.js";

const FAILURES_SHOWN = 50;
const STEERING = {
  pause: ["running", "open"],
  resume: ["paused"],
  cancel: ["running", "paused", "open"],
  "retry-failed": ["failed"],
};
const NO_BATCHES = ["No batches yet. Submit one: ", h("code", {}, "heatsink bulk submit ACTION items.jsonl"), " or ", h("code", {}, "POST /v1/bulk/{action}")];
const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);

// A batch as it was listed, with how far it is where that is known.
export function batches() {
  const progress = new Map((latest.progress?.progress ?? []).map((one) => [one.id, one]));
  return (latest.batches?.batches ?? []).map((line) => {
    const now = progress.get(line.id);
    const ended = line.done + line.failed + line.cancelled;
    const known = now ?? { done: line.done, failed: line.failed, cancelled: line.cancelled, running: 0, waiting: line.ended ? 0 : line.items - ended, eta_s: null };
    return { ...line, ...known, state: now?.state ?? line.state };
  });
}

const settled = (one) => one.done + one.failed + one.cancelled;

function makeTable(app, showFailures) {
  const steer = (id, verb, said) => () => app.attempt(() => send("POST", `/v1/bulk/${part(id)}/${verb}`), said);
  const makeButtons = (id) => h("div", { class: "buttons" },
    Object.assign(button("Pause", steer(id, "pause", "Paused: what runs may finish.")), { verb: "pause" }),
    Object.assign(button("Resume", steer(id, "resume", "It goes on.")), { verb: "resume" }),
    Object.assign(button("Retry failed", steer(id, "retry-failed", "What failed runs once more.")), { verb: "retry-failed" }),
    Object.assign(button("Failures", () => showFailures(id)), { verb: "failures" }),
    Object.assign(sureButton("Cancel", "Really cancel?", steer(id, "cancel", "Cancelled: what waits will not run.")), { verb: "cancel" }));
  return table([
    { name: "batch", make: () => h("span"), update: (node, one) => write(node, one.action), tight: true },
    { name: "id", make: () => h("span", { class: "mono soft" }), update: (node, one) => { write(node, one.id.length > 14 ? `${one.id.slice(0, 12)}…` : one.id); node.title = one.id; }, tight: true },
    { name: "tenant", text: (one) => one.tenant },
    { name: "state", make: () => h("span"), update: (node, one) => { write(node, one.state); node.className = `state ${one.state}`; node.title = one.reason; } },
    { name: "progress", make: () => h("progress", { max: 1 }), update: (bar, one) => { bar.value = one.items ? settled(one) / one.items : 1; } },
    { name: "items", number: true, text: (one) => `${number(settled(one))} / ${number(one.items)}` },
    { name: "failed", number: true, text: (one) => number(one.failed), bad: (one) => one.failed > 0 },
    { name: "time left", number: true, text: (one) => (one.ended ? NONE : seconds(one.eta_s)) },
    { name: "submitted", text: (one) => moment(one.submitted), tight: true },
    { name: "", make: makeButtons, update: allow },
  ], (one) => one.id, NO_BATCHES);
}

function allow(buttons, one) {
  for (const child of buttons.children) {
    child.hidden = child.verb === "failures" ? one.failed === 0 : !STEERING[child.verb].includes(one.state);
  }
}

function makeFailures(app) {
  const title = h("h2");
  const rows = table([
    { name: "item", number: true, text: (one) => number(one.index) },
    { name: "what", make: () => h("code"), update: (node, one) => write(node, JSON.stringify(one.item).slice(0, 200)) },
    { name: "why it failed", text: (one) => one.reason },
    { name: "attempts", number: true, text: (one) => number(one.attempts) },
  ], (one) => one.index, "Nothing failed for good.");
  const close = button("Close", () => { element.hidden = true; });
  const element = h("section", { class: "card wide", "aria-label": "Failures", hidden: true }, title, rows.element, close);
  async function show(id) {
    try {
      const text = await (await open(`/v1/bulk/${part(id)}/failures?limit=${FAILURES_SHOWN}`)).text();
      write(title, `The first failures of batch ${id}`);
      rows.update(text.split("\n").filter(Boolean).map((line) => JSON.parse(line)));
      element.hidden = false;
      element.scrollIntoView({ block: "nearest" });
    } catch (error) {
      app.say(error.message, true);
    }
  }
  return { element, show };
}

const partitionTable = () => table([
  { name: "partition", number: true, text: (one) => one.partition },
  { name: "workers", number: true, text: (one) => number(one.workers) },
  { name: "decided", text: (one) => (one.target == null ? NONE : `${number(one.target)}: ${one.reason}`) },
  { name: "waiting", number: true, text: (one) => number(one.runnable + one.limited + one.delayed) },
  { name: "running", number: true, text: (one) => number(one.in_flight) },
  { name: "oldest", number: true, text: (one) => (one.oldest_s ? seconds(one.oldest_s) : NONE) },
  { name: "done", number: true, text: (one) => number(one.done) },
  { name: "failed", number: true, text: (one) => number(one.failed), bad: (one) => one.failed > 0 },
], (one) => one.partition, ["This server has no queue: start it with ", h("code", {}, "--queue URL"), "."]);

const tenantTable = () => table([
  { name: "tenant", text: (one) => one.tenant },
  { name: "batches", number: true, text: (one) => number(one.batches) },
  { name: "waiting", number: true, text: (one) => number(one.waiting) },
  { name: "running", number: true, text: (one) => number(one.running) },
  { name: "done", number: true, text: (one) => number(one.done) },
  { name: "failed", number: true, text: (one) => number(one.failed), bad: (one) => one.failed > 0 },
], (one) => one.tenant, "No tenants yet: they come with batches.", true);

const isBusy = (one) => one.workers + one.in_flight > 0 && (one.target != null || one.pin || one.in_flight + one.runnable + one.limited + one.delayed > 0);

// The busy ones, and all of them for who wants to see that the others are idle.
function makePartitions() {
  const parts = partitionTable();
  const calm = h("p", { class: "empty" });
  let all = false;
  const more = button("", () => { all = !all; });
  const element = h("div", {}, parts.element, calm, more);
  const update = (lines) => {
    const busy = lines.filter(isBusy);
    parts.update(all ? lines : busy);
    parts.element.hidden = lines.length > 0 && !all && busy.length === 0;
    write(calm, "All partitions are idle.");
    calm.hidden = !parts.element.hidden;
    more.hidden = lines.length === busy.length;
    write(more, all ? "Show busy partitions only" : `Show all ${lines.length} partitions`);
  };
  return { element, update };
}

function tenants(all) {
  const names = [...new Set(all.map((one) => one.tenant))];
  const lines = names.map((tenant) => {
    const own = all.filter((one) => one.tenant === tenant);
    const total = (field) => sum(own, (one) => one[field]);
    return { tenant, batches: own.length, waiting: total("waiting"), running: total("running"), done: total("done"), failed: total("failed") };
  });
  return lines.sort((a, b) => b.waiting - a.waiting);
}

export function makeBulk(app) {
  const lines = () => latest.partitions?.partitions ?? [];
  const now = figures({
    "items a second": () => number(rateOf("partitions", "done")),
    "waiting": () => number(sum(lines(), (one) => one.runnable + one.limited + one.delayed)),
    "running": () => number(sum(lines(), (one) => one.in_flight)),
    "workers": () => number(sum(lines(), (one) => one.workers)),
    "the oldest waits for": () => seconds(Math.max(0, ...lines().map((one) => one.oldest_s))),
  });
  const failures = makeFailures(app);
  const list = makeTable(app, failures.show);
  const depth = chart("Items that wait in each partition over time");
  const workers = chart("Workers in each partition over time");
  const parts = makePartitions();
  const who = tenantTable();
  const element = h("div", { class: "cards" }, wide("The queue now", now.element), wide("Batches", list.element), failures.element,
    card("Waiting in each partition", depth), card("Workers in each partition", workers),
    wide("Tenants of these batches", who.element), wide("Partitions", parts.element));
  const update = () => {
    const all = batches();
    now.update();
    list.update(all);
    who.update(tenants(all));
    parts.update(lines());
    heatmap(depth, series.partitions, (one) => one.waiting, "waiting");
    heatmap(workers, series.partitions, (one) => one.workers, "workers");
  };
  return { title: "Bulk", element, update };
}
