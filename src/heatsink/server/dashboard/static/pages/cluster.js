// Cluster: the 16,384 slots of a Redis or Valkey Cluster as a heat map by node, before and now.

import { get } from "/static/api.js";
import { card, figures, h, keyed, table, wide, write } from "/static/elements.js";
import { colour } from "/static/look.js";
import { count, moment, NONE, number, percent, seconds } from "/static/words.js";

const LEAD = "How busy each slot of a Redis or Valkey Cluster is, by node. Heatsink moves slots from busy nodes to others.";
const LOOK_MS = 2_000;
const COLUMNS = 128;
const FRESH_MS = 60_000;
const NO_CLUSTER = [
  "No cluster is watched. Add ",
  h("code", {}, "--cluster redis+cluster://host:6379"),
  " to ",
  h("code", {}, "heatsink serve"),
  " to watch one, and ",
  h("code", {}, "--balance-cluster"),
  " to also move its slots.",
];
const times = (ratio) => (ratio == null ? NONE : `${ratio.toFixed(2)} ×`);

function dataSize(bytes) {
  const [unit, size] = bytes < 1e6 ? ["kB", 1e3] : bytes < 1e9 ? ["MB", 1e6] : ["GB", 1e9];
  return `${number(bytes / size)} ${unit}`;
}

// The slots of each node in ascending order.
function slotsOf(ranges, nodes) {
  const found = nodes.map(() => []);
  for (const { first, last, node } of ranges) {
    for (let slot = first; slot <= last; slot += 1) found[node].push(slot);
  }
  return found;
}

// How hot a slot is, from 0 to 1, on a logarithmic scale up to the hottest slot.
function scale(heat) {
  const most = Math.max(...heat, 1);
  return (slot) => (heat[slot] ? 0.15 + 0.85 * Math.log1p(heat[slot]) / Math.log1p(most) : 0);
}

// One pixel for each slot; the style sheet makes the pixels large.
function paint(canvas, slots, warmth, fresh) {
  const rows = Math.max(1, Math.ceil(slots.length / COLUMNS));
  canvas.width = COLUMNS;
  canvas.height = rows;
  const pen = canvas.getContext("2d");
  const [cold, hot, moved] = [colour("cold"), colour("bad"), colour("accent")];
  slots.forEach((slot, place) => {
    const [x, y] = [place % COLUMNS, Math.floor(place / COLUMNS)];
    pen.globalAlpha = 1;
    pen.fillStyle = fresh.has(slot) ? moved : cold;
    pen.fillRect(x, y, 1, 1);
    pen.globalAlpha = fresh.has(slot) ? 0 : warmth(slot);
    pen.fillStyle = hot;
    pen.fillRect(x, y, 1, 1);
  });
}

function nodeMap() {
  const title = h("h3");
  const canvas = h("canvas", { class: "slots", role: "img" });
  return h("div", { class: "slot-map" }, title, canvas);
}

function drawMaps(parent, answer, ranges, ratioOf, slotsCount, fresh) {
  const slots = slotsOf(ranges, answer.nodes);
  const warmth = scale(answer.heat);
  const lines = answer.nodes.map((node, place) => ({ ...node, place }));
  keyed(parent, lines, (one) => one.node, nodeMap, (made, one) => {
    const words = `${one.node}: ${count(slotsCount(one), "slot")}, ${times(ratioOf(one))} the mean`;
    write(made.firstElementChild, words);
    made.lastElementChild.setAttribute("aria-label", `Heat of the slots of ${words}`);
    paint(made.lastElementChild, slots[one.place], warmth, fresh);
  });
}

const freshly = (answer) => new Set([
  ...(answer.running?.slots ?? []),
  ...answer.moves.filter((one) => !one.error && Date.now() - new Date(one.time) < FRESH_MS).flatMap((one) => one.slots),
]);

function shortSlots(slots) {
  const shown = slots.slice(0, 4).join(", ");
  return slots.length > 4 ? `${shown} … (${number(slots.length)})` : shown;
}

const movesTable = () => table([
  { name: "time", text: (one) => (one.time ? moment(one.time) : "now"), tight: true },
  { name: "slots", text: (one) => shortSlots(one.slots) },
  { name: "from", text: (one) => one.source, tight: true },
  { name: "to", text: (one) => one.target, tight: true },
  { name: "data", number: true, text: (one) => dataSize(one.size), less: true },
  { name: "took", number: true, text: (one) => (one.time ? seconds(one.took_s) : "running"), less: true },
  { name: "why", text: (one) => one.error || one.reason, bad: (one) => Boolean(one.error) },
], (one) => `${one.time}:${one.slots[0]}:${one.target}`, "No slot has moved since this process began to lead.");

const nodesTable = () => table([
  { name: "node", text: (one) => one.node, tight: true },
  { name: "load ÷ mean", number: true, text: (one) => times(one.ratio) },
  { name: "before the moves", number: true, text: (one) => times(one.ratio_before) },
  { name: "used", number: true, text: (one) => percent(one.used) },
  { name: "network", number: true, text: (one) => `${dataSize(one.network_s)}/s`, less: true },
  { name: "memory", number: true, text: (one) => dataSize(one.memory), less: true },
  { name: "slots", number: true, text: (one) => number(one.slots) },
  { name: "replicas", number: true, text: (one) => number(one.replicas), less: true },
], (one) => one.node, "Waiting for the first measurement…");

function stateWords(answer) {
  if (!answer.watched) return "";
  if (!answer.leads) return "This server is not the leader. The leader watches the cluster.";
  return answer.trouble || answer.ceiling || answer.why;
}

export function makeCluster() {
  const state = { answer: null, asked_ms: 0, refusal: "", drawn: null };
  const known = () => state.answer?.nodes.length;
  const now = figures({
    "busiest ÷ mean": () => [times(state.answer?.busiest_to_mean), "load of the busiest node"],
    "before the moves": () => [times(state.answer?.busiest_to_mean_before), "the same load on the owners of then"],
    "slots are": () => (state.answer?.balances ? ["moved by heat", "slots.balance is on"] : ["only watched", "slots.balance is off: see Settings"]),
    "moving now": () => [state.answer?.running ? count(state.answer.running.slots.length, "slot") : "none", state.answer?.running?.target ?? ""],
  });
  const words = h("p", { role: "status" });
  const nothing = h("p", { class: "empty" }, ...NO_CLUSTER);
  const before = h("div", { class: "slot-maps" });
  const after = h("div", { class: "slot-maps" });
  const legend = h("p", { class: "soft" }, "Each cell is a slot: the redder, the busier. ",
    "Blue slots move now or moved in the last minute.");
  const nodes = nodesTable();
  const moves = movesTable();
  const parts = [
    card("Before the moves", before), card("Now", after),
    wide("Nodes", nodes.element), wide("Moves", moves.element),
  ];
  const element = h("div", { class: "cards" }, wide("Cluster", now.element, words, nothing, legend), ...parts);
  const ask = async () => {
    if (Date.now() - state.asked_ms < LOOK_MS) return;
    state.asked_ms = Date.now();
    try {
      state.answer = await get("/v1/cluster");
      state.refusal = "";
    } catch (error) {
      state.refusal = error.message;
    }
  };
  const update = () => {
    ask();
    const answer = state.answer;
    nothing.hidden = !answer || Boolean(answer.watched);
    write(words, state.refusal || (answer ? stateWords(answer) : "Loading: waiting for the server’s answer…"));
    [now.element, legend, ...parts].forEach((part) => { part.hidden = !known(); });
    if (!known() || state.drawn === answer) return;
    state.drawn = answer;
    now.update();
    const fresh = freshly(answer);
    drawMaps(before, answer, answer.owners_before, (one) => one.ratio_before, (one) => one.slots_before, fresh);
    drawMaps(after, answer, answer.owners, (one) => one.ratio, (one) => one.slots, fresh);
    nodes.update(answer.nodes);
    moves.update([...(answer.running ? [answer.running] : []), ...answer.moves]);
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { state.drawn = null; });
  return { title: "Cluster", lead: LEAD, element, update };
}
