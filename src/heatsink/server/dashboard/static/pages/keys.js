// Keys: the hottest, and of one key its buckets, why it has them, and a pin.

import { get, part, send } from "/static/api.js";
import { bars, known, steps } from "/static/charts.js";
import { bar, button, chart, figures, fillBar, h, LOADING, table, wide, write } from "/static/elements.js";
import { latest } from "/static/history.js";
import { count, idOf, isOwn, keyName, number, pageOf, seconds, subjectOf } from "/static/words.js";

const LEAD = "The keys with the most traffic in the whole fleet. Choose one to see its buckets and why it has them, or to pin their number.";
const MEASURING = "Loading: a rate needs two looks at the counts, a second apart…";
const LOOK_MS = 1_000;
const HOUR_MS = 3_600_000;
const NO_KEYS = [
  "No key has a tenth of the load that a bucket takes, so none is listed. Send 3,000 writes to one, and watch it get buckets: ",
  h("code", {}, `curl -sZ -o /dev/null -H 'content-type: application/json' -d '{"body": "hey"}' '${location.origin}/v1/conversations/conv_1/messages#[1-3000]'`),
];

export function makeKeys(app) {
  const chosen = makeDetail(app);
  const choose = (id) => app.go(pageOf(id));
  const hottest = table([
    { name: "key", make: (id) => button(keyName(id), () => choose(id), "plain"), update() {} },
    { name: "buckets", number: true, text: (one) => number(one.buckets) },
    { name: "write units/s", number: true, text: (one) => number(one.write_units_s) },
    { name: "per bucket", number: true, text: (one) => number(one.write_units_s / one.buckets) },
    { name: "load of a bucket", make: () => bar("Load of a bucket"), update: showFull },
    { name: "reads/s", number: true, text: (one) => number(one.reads_s) },
    { name: "throttled/s", number: true, text: (one) => number(one.throttles_s), bad: (one) => one.throttles_s > 0 },
  ], idOf, NO_KEYS);
  const note = h("small");
  const box = h("input", { name: "key", required: true, placeholder: "conv_abc123", autocomplete: "off" });
  const form = h("form", { class: "line" }, h("label", { class: "grow" }, "Any other key", box),
    h("button", { type: "submit", class: "quiet" }, "Explain"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    choose(`key:${box.value}`);
  });
  const list = wide("The hottest keys ", hottest.element, form);
  list.querySelector("h2").append(note);
  const element = h("div", { class: "cards" }, list, chosen.element);
  let id = null;
  return {
    title: "Keys",
    lead: LEAD,
    element,
    open(query) {
      id = query.has("key") ? idOf({ kind: query.get("kind") ?? "key", key: query.get("key") }) : null;
      chosen.open(id);
    },
    update() {
      const heat = latest.heat;
      hottest.update(heat?.keys, id ?? "");
      write(note, boundOfOthers(heat));
      chosen.update();
    },
  };
}

function boundOfOthers(heat) {
  if (!heat?.window) return "";
  if (heat.unreported_s == null) return "a report is late: the load of other keys is unknown";
  return `every other key gets at most ${number(heat.unreported_s)} write units/s`;
}

function showFull(element, one) {
  const full = one.write_units_s / one.buckets / latest.heat.bucket_units_s;
  fillBar(element, full);
  element.classList.toggle("full", full > 1);
}

function makeDetail(app) {
  const state = { id: null, found: null, counts: [], asked_ms: 0 };
  const title = h("h2");
  const refusal = h("p", { class: "empty", hidden: true });
  const loading = h("p", { class: "empty", "aria-busy": "true" }, LOADING);
  const facts = figures({
    "buckets now": () => [number(state.found?.buckets), decidedBy(state.found)],
    "write units a second": () => [number(unitsOf(state.found)), boundWords(state.found)],
    "queries for a page": () => [number(state.found?.queries_per_page ?? 1), "one in each bucket that may hold rows of it"],
    "near cache": () => nearWords(state.found?.near),
    "partitions with its rows": () => number(state.found?.partitions ?? 1),
  });
  const why = h("p");
  const over = chart("Number of buckets over time", true);
  const each = chart("Write units a second to each bucket", true);
  const pin = makePin(app, state);
  const body = h("div", {}, facts.element, h("h3", {}, "Why"), why, pin.element,
    h("div", { class: "cards" },
      h("div", {}, h("h3", {}, "Buckets over time"), over),
      h("div", {}, h("h3", {}, "Write units a second to each bucket ", h("small", {}, "through this server")), each)));
  const element = h("section", { class: "card wide", "aria-label": "The chosen key" }, title, refusal, loading, body);

  async function look() {
    state.asked_ms = Date.now();
    const asked = state.id;
    const { kind, key } = subjectOf(asked);
    try {
      const found = await get(`/v1/keys/${part(key)}?kind=${kind}`);
      if (asked === state.id) {
        note(state, found);
      }
    } catch (error) {
      write(refusal, error.message);
      refusal.hidden = false;
    }
  }

  return {
    element,
    open(id) {
      element.hidden = !id;
      if (id !== state.id) {
        Object.assign(state, { id, found: null, counts: [], asked_ms: 0 });
        refusal.hidden = true;
      }
    },
    update() {
      if (!state.id) return;
      if (Date.now() - state.asked_ms > LOOK_MS) look();
      write(title, keyName(state.id));
      body.hidden = !state.found;
      loading.hidden = Boolean(state.found) || !refusal.hidden;
      if (!state.found) return;
      refusal.hidden = true;
      facts.update();
      write(why, whyWords(state.found));
      pin.update();
      steps(over, epochPoints(state.found.epochs));
      const isMeasured = latest.heat && (state.found.buckets === 1 || state.counts.length > 1);
      if (known(each, isMeasured, MEASURING)) bars(each, ...bucketRates(state), latest.heat.bucket_units_s);
    },
  };
}

function whyWords(found) {
  const refusal = found.table_refusal ? ` More buckets do not help here: ${found.table_refusal}` : "";
  return found.reason + refusal;
}

function decidedBy(found) {
  if (found?.pin) return "pinned";
  return found?.hot_by.startsWith("unpinned") ? "no longer pinned: decided by load after a calm time" : "decided by load";
}

function nearWords(near) {
  return near ? [seconds(near.value / 1000), `app servers answer reads from memory that long: ${near.reason}`]
    : ["off", "not read often enough"];
}

function unitsOf(found) {
  return found?.heat ? found.heat.write_units_s : found?.unreported_s == null ? null : 0;
}

function boundWords(found) {
  const heat = found?.heat;
  if (!heat) return found?.unreported_s == null ? "unknown" : "too cold to be reported";
  if (heat.bound_s == null) return "a report is late: it may be more";
  return heat.bound_s > 0 ? `up to ${number(heat.bound_s)} more` : "exact";
}

function note(state, found) {
  if (found.bucket_units.length !== state.found?.bucket_units.length) {
    state.counts = [];
  }
  state.found = found;
  state.counts = [...state.counts, { at_ms: performance.now(), units: found.bucket_units }].slice(-5);
}

function bucketRates(state) {
  const { found, counts } = state;
  if (found.buckets === 1) {
    return [["one bucket"], [found.heat?.write_units_s ?? 0]];
  }
  const [first, last] = [counts[0], counts.at(-1)];
  const elapsed_s = Math.max((last.at_ms - first.at_ms) / 1000, 0.001);
  const rates = last.units.map((value, place) => Math.max(0, value - first.units[place]) / elapsed_s);
  return [rates.map((_, place) => `#${place}`), rates];
}

// The last hour at most; what came before it is its first step.
function epochPoints(epochs) {
  const now = Date.now();
  const starts = epochs.slice(1).map((one) => ({ at_ms: Date.parse(one.start), value: one.buckets }));
  const recent = starts.filter((one) => one.at_ms > now - HOUR_MS);
  const before = starts.filter((one) => one.at_ms <= now - HOUR_MS).at(-1)?.value ?? 1;
  const begin_ms = recent.length ? Math.max(now - HOUR_MS, recent[0].at_ms - 20_000) : now - 60_000;
  const points = [{ at_ms: begin_ms, value: before }, ...recent];
  points.push({ at_ms: Math.max(now, points.at(-1).at_ms), value: points.at(-1).value });
  return points.map(({ at_ms, value }) => ({ at: new Date(at_ms), value }));
}

function makePin(app, state) {
  const buckets = h("input", { type: "number", name: "buckets", min: 1, max: 10_000, value: 4, required: true });
  const reason = h("input", { name: "reason", required: true, maxlength: 500, placeholder: "launch at noon" });
  const path = () => `/v1/keys/${part(subjectOf(state.id).key)}/pin`;
  const takeBack = () => app.attempt(() => send("DELETE", path()), `${keyName(state.id)} is unpinned: its load decides again.`);
  const unpin = button("Unpin", takeBack);
  const form = h("form", { class: "line" },
    h("label", {}, "Buckets", buckets), h("label", { class: "grow" }, "Reason (shown with the decision)", reason),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Pin"), unpin));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const wish = { buckets: Number(buckets.value), reason: reason.value };
    const said = `${keyName(state.id)} is pinned to ${count(wish.buckets, "bucket")}: takes effect within two seconds.`;
    app.attempt(() => send("PUT", path(), wish), said);
  });
  const element = h("div", {}, h("h3", {}, "Pin ", h("small", {}, "a fixed number of buckets, until you unpin it")), form);
  return {
    element,
    update() {
      element.hidden = isOwn(state.id);
      unpin.hidden = !state.found.pin;
    },
  };
}
