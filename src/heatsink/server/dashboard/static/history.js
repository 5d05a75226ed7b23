// What the events said, the latest of each kind and the last minutes of what is drawn over time.

import { get } from "/static/api.js";

export const KEPT_S = 300;
const DECISIONS = 200;
const LATENCY_S = 5;
const TOGETHER_S = 0.3; // less than a window

export const latest = {};
export const decisions = new Map(); // by version and place in it
export const older = { known: false, before: null }; // where the decisions go on that are not loaded yet
export const series = { heat: [], requests: [], partitions: [], reads: [] };
let totals = [];

const seconds = () => performance.now() / 1000;
const cost = (keys, field) => keys.reduce((sum, one) => sum + one[field], 0);

function remember(name, sample, age_s = 0) {
  const list = series[name];
  list.push({ at: new Date(Date.now() - 1000 * age_s), at_s: seconds() - age_s, ...sample });
  while (list.length && list[0].at_s < seconds() - KEPT_S) {
    list.shift();
  }
}

const newest = (name) => series[name].at(-1);
const isDue = (name, every_s) => !newest(name) || seconds() - newest(name).at_s > every_s;

const takers = {
  heat(value, before) {
    if (value.window && value.window !== before?.window) {
      if (!isDue("heat", TOGETHER_S)) series.heat.pop(); // a busy browser takes several at once
      remember("heat", {
        units: cost(value.keys, "write_units_s"),
        reads: cost(value.keys, "reads_s"),
        throttles: cost(value.keys, "throttles_s"),
      });
    }
  },
  requests: (value) => addTotals(value, seconds()),
  partitions(value) {
    if (isDue("partitions", 0.9)) {
      remember("partitions", {
        waiting: value.partitions.map((one) => one.runnable + one.limited + one.delayed),
        workers: value.partitions.map((one) => one.workers),
        done: cost(value.partitions, "done") + cost(value.partitions, "failed"),
      });
    }
  },
  reads(value) {
    if (isDue("reads", 0.9)) {
      addReads(together(value));
    }
  },
  decision: (value) => addDecisions([value]),
};

// Values and pages are kept in two places; what they saved is one figure.
export function together({ values, pages }) {
  return Object.fromEntries(Object.keys(values).map((name) => [name, values[name] + pages[name]]));
}

export const saved = (reads) => reads.hits + reads.stale_hits + reads.coalesced;

// With rates since the sample before.
function addReads(value, age_s = 0) {
  const before = newest("reads");
  const elapsed_s = before ? seconds() - age_s - before.at_s : 0;
  const rate_s = (now, then) => (elapsed_s > 0 ? Math.max(0, now - then) / elapsed_s : null);
  remember("reads", {
    ...value,
    saved_s: rate_s(saved(value), before && saved(before)),
    loads_s: rate_s(value.loads, before?.loads),
  }, age_s);
}

function addTotals(value, at_s) {
  totals.push({ at_s, value });
  while (totals.length > 2 && totals[1].at_s < at_s - LATENCY_S) {
    totals.shift();
  }
}

export function take(name, value) {
  const before = latest[name];
  latest[name] = value;
  takers[name]?.(value, before);
}

// The server says nothing where nothing changed: what is drawn over time goes on all the same.
export function tick() {
  if (latest.requests && isDue("requests", 0.9)) {
    take("requests", latest.requests);
    remember("requests", { writes: requestsNow(0), reads: requestsNow(1) });
  }
  if (latest.partitions) takers.partitions(latest.partitions);
  if (latest.reads) takers.reads(latest.reads);
}

// What was before this page was opened, or the server came back.
export async function catchUp() {
  const [recent, log] = await Promise.all([get("/v1/recent"), get(`/v1/decisions?limit=${DECISIONS}`)]);
  addDecisions(log.decisions);
  Object.assign(older, { known: true, before: log.before });
  totals = [];
  Object.values(series).forEach((list) => list.splice(0));
  for (const one of recent.samples) {
    const age_s = (Date.parse(recent.now) - Date.parse(one.time)) / 1000;
    addTotals(one.requests, seconds() - age_s);
    remember("heat", { units: one.write_units_s, reads: one.reads_s, throttles: one.throttles_s }, age_s);
    remember("requests", { writes: requestsNow(0), reads: requestsNow(1) }, age_s);
    addReads(together(one.reads), age_s);
    if (one.waiting.length) {
      remember("partitions", { waiting: one.waiting, workers: one.workers, done: one.finished }, age_s);
    }
  }
}

export async function loadOlder() {
  const log = await get(`/v1/decisions?limit=${DECISIONS}&before=${older.before}`);
  addDecisions(log.decisions);
  older.before = log.before;
}

export function addDecisions(lines) {
  for (const line of lines) {
    decisions.set(`${line.version} ${line.subject.kind} ${line.subject.name} ${line.setting}`, line);
  }
}

export const decided = () => [...decisions.values()].sort((a, b) => b.version - a.version);

// The newest batches, with how far each is.
export function batches() {
  const underway = new Map((latest.progress?.progress ?? []).map((one) => [one.id, one]));
  return (latest.batches?.batches ?? []).map((line) => {
    const now = underway.get(line.id);
    const left = line.ended ? 0 : line.items - line.done - line.failed - line.cancelled - line.lost;
    return { ...line, running: 0, waiting: left, eta_s: null, ...now, reason: line.reason };
  });
}

// Of the last seconds: how many a second, and how long they took.
export function requestsNow(kind) {
  const [first, last] = [totals[0], totals.at(-1)];
  if (!first || last.at_s - first.at_s < 0.5) {
    return { rate_s: null, p50_s: null, p99_s: null, refused: 0 };
  }
  const [before, now] = [first.value.kinds[kind], last.value.kinds[kind]];
  const times = now.times.map((value, place) => value - before.times[place]);
  const bounds = last.value.bounds_s;
  return {
    rate_s: (now.answered - before.answered) / (last.at_s - first.at_s),
    p50_s: quantile(times, bounds, 0.5),
    p99_s: quantile(times, bounds, 0.99),
    refused: now.refused + now.failed - before.refused - before.failed,
  };
}

function quantile(times, bounds, share) {
  const wanted = share * times.reduce((sum, value) => sum + value, 0);
  let seen = 0;
  for (let place = 0; wanted > 0 && place < times.length; place += 1) {
    if (seen + times[place] >= wanted) {
      const low = place ? bounds[place - 1] : 0;
      const high = bounds[place] ?? low;
      return low + ((high - low) * (wanted - seen)) / times[place];
    }
    seen += times[place];
  }
  return null;
}

// Of a total that grows: how much a second, over the last seconds.
export function rateOf(name, field) {
  const list = series[name].slice(-6);
  const [first, last] = [list[0], list.at(-1)];
  return list.length < 2 ? null : Math.max(0, (last[field] - first[field]) / (last.at_s - first.at_s));
}
