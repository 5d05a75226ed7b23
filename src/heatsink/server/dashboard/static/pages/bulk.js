// Bulk: batches and what to do with them, the queue's partitions, tenants.

import { open, part, send } from "/static/api.js";
import { heatmap } from "/static/charts.js";
import { bar, button, card, chart, figures, fillBar, h, sureButton, table, wide, write } from "/static/elements.js";
import { batches, latest, rateOf, series } from "/static/history.js";
import { makeControls } from "/static/pages/controls.js";
import { makeSchedules } from "/static/pages/schedules.js";
import { count as countWords, moment, NONE, number, seconds } from "/static/words.js";

const FAILURES_SHOWN = 50;
const ID_SHOWN = 12;
const WHEN = {
  pause: ["running", "open"],
  resume: ["paused"],
  cancel: ["running", "paused", "open"],
  "retry-failed": ["failed"],
};
const NO_BATCHES = [
  "No batches yet. Submit one: ",
  h("code", {}, `curl -H 'content-type: application/json' -d '[1, 2, 3]' ${location.origin}/v1/bulk/ACTION`),
  " or ",
  h("code", {}, `heatsink bulk submit ACTION items.jsonl --server ${location.origin}`),
];
const NO_QUEUE = [
  "This server has no queue, so it accepts no bulk actions and no timelines. To give it one: ",
  h("code", {}, "heatsink serve --queue redis://HOST:6379 …"),
];
const NONE_UNFINISHED = "No unfinished batches.";
const LEAD = "A batch is many items for one action. The queue spreads batches over partitions, and workers run the items of each partition.";

const sum = (list, of) => list.reduce((total, one) => total + of(one), 0);
const settled = (one) => one.done + one.failed;
const isHeld = (one) => one.state === "paused" || one.reason.endsWith(" is paused"); // itself, its tenant or its action
const heldBack = () => sum(latest.batches ? batches().filter(isHeld) : [], (one) => one.waiting);
const waits = (one) => one.runnable + one.limited + one.delayed;
const isBad = (field) => (one) => one[field] > 0;
const count = (name, of = (one) => one[name]) => ({ name, number: true, text: (one) => number(of(one)) });

function showId(node, one) {
  write(node, one.id.length > ID_SHOWN + 2 ? `${one.id.slice(0, ID_SHOWN)}…` : one.id);
  node.title = one.id;
}

function showState(node, one) {
  const [state, why] = node.children;
  write(state, one.state);
  state.className = `state ${one.state}`;
  write(why, one.reason);
}

function showProgress(element, one) {
  fillBar(element, one.items ? settled(one) / one.items : 1);
}

function batchTable(app, showFailures, isFinished) {
  return table([
    { name: "batch", text: (one) => one.action, tight: true },
    { name: "id", make: () => h("span", { class: "mono soft" }), update: showId, tight: true, less: true },
    { name: "tenant", text: (one) => one.tenant },
    { name: "state", make: () => h("div", {}, h("span"), h("small", { class: "why" })), update: showState },
    { name: "progress", make: () => bar("Progress of the batch"), update: showProgress },
    { name: "items", number: true, text: (one) => `${number(settled(one))} / ${number(one.items)}` },
    { ...count("failed"), bad: isBad("failed"), less: true },
    { ...count("lost"), bad: isBad("lost"), less: true },
    { name: "time left", number: true, less: isFinished, text: (one) => (one.ended ? NONE : seconds(one.eta_s)) },
    { name: "submitted", text: (one) => moment(one.submitted), tight: true },
    { name: "actions", make: (id) => batchButtons(app, id, showFailures), update: allow },
  ], (one) => one.id, isFinished ? "No finished batches." : NONE_UNFINISHED);
}

function batchButtons(app, id, showFailures) {
  const steer = (verb, said) => () => app.attempt(() => send("POST", `/v1/bulk/${part(id)}/${verb}`), said);
  const named = (verb, made) => Object.assign(made, { verb });
  return h("div", { class: "buttons" },
    named("pause", button("Pause", steer("pause", "Paused. Running items still finish."))),
    named("resume", button("Resume", steer("resume", "Resumed."))),
    named("retry-failed", button("Retry failed", steer("retry-failed", "Failed items run again."))),
    named("failures", button("Failures", () => showFailures(id))),
    named("cancel", sureButton("Cancel", "Really cancel?", steer("cancel", "Cancelled. Waiting items will not run."))));
}

function allow(buttons, one) {
  for (const child of buttons.children) {
    child.hidden = child.verb === "failures" ? one.failed === 0 : !WHEN[child.verb].includes(one.state);
  }
}

function makeFailures(app) {
  const title = h("h2");
  const rows = table([
    count("number", (one) => one.index),
    { name: "item", make: () => h("code"), update: (node, one) => write(node, JSON.stringify(one.item).slice(0, 200)) },
    { name: "why it failed", text: (one) => one.reason },
    count("attempts"),
  ], (one) => one.index, "No item has failed permanently.");
  const close = button("Close", () => { element.hidden = true; });
  const element = h("section", { class: "card wide", "aria-label": "Failures", hidden: true }, title, rows.element, close);
  async function show(id) {
    try {
      const answer = await open(`/v1/bulk/${part(id)}/failures?limit=${FAILURES_SHOWN}`);
      const lines = (await answer.text()).split("\n").filter(Boolean);
      write(title, `The first failures of batch ${id}`);
      rows.update(lines.map((line) => JSON.parse(line)));
      element.hidden = false;
      element.scrollIntoView({ block: "nearest" });
    } catch (error) {
      app.say(error.message, true);
    }
  }
  return { element, show };
}

// The busy partitions, or all of them.
function makePartitions() {
  const isBusy = (one) => one.target != null || one.pin || one.moves_to || one.in_flight + waits(one) > 0;
  const parts = table([
    count("partition"),
    count("workers"),
    { name: "decision", text: (one) => (one.target == null ? NONE : `${number(one.target)}: ${one.reason}`) },
    count("waiting", waits),
    count("running", (one) => one.in_flight),
    { name: "longest wait", number: true, text: (one) => (one.oldest_s ? seconds(one.oldest_s) : NONE) },
    count("done"),
    { ...count("failed"), bad: isBad("failed") },
    { name: "place", text: (one) => (one.moves_to ? `${one.place}, moves to ${one.moves_to}` : one.place) },
  ], (one) => one.partition, "No partitions yet.");
  const calm = h("p", { class: "empty", hidden: true }, "All partitions are idle.");
  const gloss = h("p", { class: "hint" }, "place: the Redis that holds the partition; home is the queue’s own Redis.");
  let all = false;
  const more = Object.assign(button("", () => { all = !all; }), { hidden: true });
  const update = (lines) => {
    if (!lines) return;
    const busy = lines.filter(isBusy);
    parts.update(all ? lines : busy);
    parts.element.hidden = lines.length > 0 && !all && busy.length === 0;
    calm.hidden = !parts.element.hidden;
    gloss.hidden = parts.element.hidden;
    more.hidden = lines.length === busy.length;
    write(more, all ? "Show busy partitions only" : `Show all ${lines.length} partitions`);
  };
  return { element: h("div", {}, parts.element, gloss, calm, more), update };
}

function makeTenants() {
  const rows = table([
    { name: "tenant", text: (one) => one.tenant },
    count("batches"),
    count("waiting"),
    count("running"),
    count("done"),
    { ...count("failed"), bad: isBad("failed") },
  ], (one) => one.tenant, "No tenants yet. A tenant appears with its first batch.", true);
  const update = (all) => {
    const lines = all && [...new Set(all.map((one) => one.tenant))].map((tenant) => {
      const own = all.filter((one) => one.tenant === tenant);
      const totals = ["waiting", "running", "done", "failed"].map((name) => [name, sum(own, (one) => one[name])]);
      return { tenant, batches: own.length, ...Object.fromEntries(totals) };
    });
    rows.update(lines?.sort((a, b) => b.waiting - a.waiting));
  };
  return { element: rows.element, update };
}

function lookChart(title, label, of, unit) {
  const drawn = chart(label);
  return { element: card(title, drawn), update: () => heatmap(drawn, series.partitions, of, unit) };
}

// What runs or waits is listed; what has ended is folded, because there may be hundreds.
function makeBatches(app, showFailures) {
  const [open, ended] = [batchTable(app, showFailures, false), batchTable(app, showFailures, true)];
  const summary = h("summary");
  const folded = h("details", { hidden: true }, summary, ended.element);
  const none = h("p", { class: "empty", hidden: true }, ...NO_BATCHES);
  const update = (all) => {
    const finished = all?.filter((one) => one.ended);
    const failed = finished?.filter((one) => one.failed + one.lost > 0).length;
    none.hidden = !all || all.length > 0;
    open.element.hidden = all?.length === 0;
    folded.hidden = !finished?.length;
    open.update(all?.filter((one) => !one.ended));
    ended.update(finished);
    write(summary, finished && countWords(finished.length, "finished batch", "finished batches")
      + (failed ? `, ${number(failed)} with failed or lost items` : ""));
  };
  return { element: h("div", {}, none, open.element, folded), update };
}

export function makeBulk(app) {
  const lines = () => latest.partitions?.partitions;
  const total = (of) => number(lines() && sum(lines(), of));
  const now = figures({
    "items a second": () => [number(rateOf("partitions", "done")), "finished"],
    "waiting": () => [total(waits), heldBack() ? `items, and ${number(heldBack())} that are paused` : "items"],
    "running": () => [total((one) => one.in_flight), "items"],
    "workers": () => [total((one) => one.workers), "slots that run one item at a time"],
    "longest wait": () => [seconds(Math.max(0, ...(lines() ?? []).map((one) => one.oldest_s)) || null), "of an item that could run"],
  });
  const failures = makeFailures(app);
  const list = makeBatches(app, failures.show);
  const depth = lookChart("Waiting in each partition", "Items that wait in each partition over time",
    (one) => one.waiting, "waiting");
  const workers = lookChart("Workers in each partition", "Workers in each partition over time",
    (one) => one.workers, "workers");
  const [parts, tenants, schedules, controls] = [makePartitions(), makeTenants(), makeSchedules(app), makeControls(app)];
  const none = wide("No queue", h("p", { class: "empty" }, ...NO_QUEUE));
  const some = [
    wide("The queue now", now.element),
    depth.element,
    workers.element,
    wide("Batches", list.element),
    wide("Schedules", schedules.element),
    wide("Paused or changed", controls.changes),
    wide("Limits on running items", controls.limits),
    wide("Tenants of these batches", tenants.element),
    wide("Partitions", parts.element),
  ];
  const element = h("div", { class: "cards" }, none, ...some.slice(0, 4), failures.element, ...some.slice(4));
  const update = () => {
    const missing = latest.partitions?.partitions.length === 0;
    none.hidden = !missing;
    some.forEach((one) => { one.hidden = missing; });
    if (missing) return;
    now.update();
    const all = latest.batches && batches();
    list.update(all);
    tenants.update(all);
    schedules.update();
    controls.update();
    parts.update(lines());
    depth.update();
    workers.update();
  };
  return { title: "Bulk", lead: LEAD, element, update };
}
