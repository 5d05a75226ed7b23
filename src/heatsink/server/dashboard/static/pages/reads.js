// Reads: how many were answered without asking the store, and which keys are read most.

import { overTime } from "/static/charts.js";
import { card, chart, figures, h, LOADING, table, wide } from "/static/elements.js";
import { latest, requestsNow, saved, series, together } from "/static/history.js";
import { idOf, keyName, number, percent, seconds } from "/static/words.js";

const LEAD = "How many reads the server’s near cache answers from memory, and how many load from the store. Readers of one key at one time share a load.";
const NOT_READ = [
  "This server’s near cache has not been used yet. Applications use theirs with: ",
  h("code", {}, "await hs.reads.get(key, load, fresh_for=1.0)"),
];

function ratioLately() {
  const list = series.reads.slice(-10);
  const [first, last] = [list[0], list.at(-1)];
  if (!first || list.length < 2) return null;
  const kept = saved(last) - saved(first);
  const all = kept + last.loads - first.loads;
  return all > 0 ? kept / all : null;
}

function makeKept() {
  const totals = () => latest.reads && together(latest.reads);
  const ratio = () => {
    const now = totals();
    return now && saved(now) + now.loads > 0 ? saved(now) / (saved(now) + now.loads) : null;
  };
  return figures({
    "hit ratio, now": () => [percent(ratioLately()), `${percent(ratio())} since the start`],
    "loads saved": () => [number(totals() ? saved(totals()) : null), "answered without the store"],
    "loads": () => [number(totals()?.loads), `${number(series.reads.at(-1)?.loads_s)} a second`],
    "shared a load": () => [number(totals()?.coalesced), "waited for another reader’s load"],
    "stale answers": () => [number(totals()?.stale_hits), "given while a load was under way"],
    "entries": () => [number(totals()?.entries), `${number(totals()?.evictions)} evicted`],
  });
}

export function makeReads() {
  const now = figures({
    "HTTP reads a second": () => number(requestsNow(1).rate_s),
    "median": () => seconds(requestsNow(1).p50_s),
    "99 % within": () => seconds(requestsNow(1).p99_s),
    "store queries a second": () => [number(series.heat.at(-1)?.reads), "of the hottest keys, whole fleet"],
  });
  const kept = makeKept();
  const ratio = chart("Reads answered from the near cache and loads over time");
  const nothing = h("p", { class: "empty" }, ...NOT_READ);
  const loading = h("p", { class: "empty", "aria-busy": "true" }, LOADING);
  const near = wide("Near cache", kept.element, ratio, nothing, loading);
  const most = table([
    { name: "key", text: (one) => keyName(idOf(one)) },
    { name: "reads/s", number: true, text: (one) => number(one.reads_s) },
    { name: "buckets", number: true, text: (one) => number(one.buckets) },
  ], idOf, "No key is read often enough to be reported.", true);
  const rate = chart("HTTP reads and store queries a second over time");
  const element = h("div", { class: "cards" },
    wide("Reads now", now.element), near, card("HTTP reads a second", rate), card("Most read keys", most.element));
  const showKept = () => {
    const totals = latest.reads && together(latest.reads);
    const used = totals && saved(totals) + totals.loads > 0;
    nothing.hidden = !totals || Boolean(used);
    loading.hidden = Boolean(totals);
    kept.element.hidden = ratio.hidden = !used;
    if (used) {
      kept.update();
      overTime(ratio, series.reads, [
        { name: "loads saved a second", style: "main", of: (one) => one.saved_s },
        { name: "loads a second", style: "soft", of: (one) => one.loads_s },
      ], "No reads through the near cache in the last minutes.");
    }
  };
  const update = () => {
    now.update();
    showKept();
    overTime(rate, series.requests, [{ name: "HTTP reads", style: "main", of: (one) => one.reads.rate_s }],
      "No HTTP reads in the last minutes.");
    const read = latest.heat?.keys.filter((one) => one.reads_s > 0);
    most.update(read?.sort((a, b) => b.reads_s - a.reads_s).slice(0, 10));
  };
  return { title: "Reads", lead: LEAD, element, update };
}
