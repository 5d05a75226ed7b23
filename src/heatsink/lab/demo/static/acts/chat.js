// Act 1: two lanes, each with its traffic, the load of its partitions, and how many there are; then a new table.

import { chart, figures, h, wide, write } from "/static/elements.js";
import { count, number } from "/static/words.js";
import { lines, partitions } from "/demo/static/charts.js";
import { moment, namesOf, picture, short, side, titled, wait } from "/demo/static/parts.js";

const LANES = {
  plain: ["Plain store", "one key, one partition, three tries"],
  heatsink: ["Heatsink", "the same key, spread when it gets hot"],
};

function makeLane(name) {
  const [title, note] = LANES[name];
  let now = null, waits_ms = 0, isOver = false;
  const says = h("p", { class: "says", "aria-live": "polite" });
  const bad = (field) => () => [number(now?.totals[field] ?? 0), "", (now?.totals[field] ?? 0) > 0];
  const shown = figures({
    accepted: () => number(now?.totals.accepted ?? 0),
    throttled: bad("throttled"),
    dropped: bad("dropped"),
    "99 % within": () => [wait(waits_ms), isOver ? "at the peak" : "", waits_ms >= 1000],
  });
  const when = h("span", {}, "now");
  const traffic = chart(`Writes a second offered, accepted and throttled over time, ${title}`);
  const heat = chart(`Writes a second that each partition accepts and refuses, ${title}`, true);
  const buckets = short(`Number of partitions over time, ${title}`);
  const why = h("p", { class: "small" });
  const element = side(title, note, says, shown.element,
    ...titled("Writes a second", "", traffic),
    h("h3", {}, "Load of each partition, ", when, h("small", {}, " the line is its limit")), heat,
    ...titled("Partitions in use", "", buckets), why);
  element.classList.add("lane");
  return {
    element,
    draw(run) {
      const last = run.snapshots.at(-1);
      now = last?.[name];
      waits_ms = moment(run)?.[name].rates.p99_ms ?? 0;
      isOver = run.over;
      write(says, last?.narration[name] ?? "");
      write(when, run.over ? "at the peak" : "now");
      shown.update();
      const widest = now && now.spread.widest > 1;
      write(why, widest ? `Last decision: ${count(now.spread.target, "partition")}, because: ${now.spread.reason}` : "");
      drawCharts(run, name, { traffic, heat, buckets });
    },
  };
}

function drawCharts(run, name, { traffic, heat, buckets }) {
  const { limit } = run.plan;
  const rates = run.snapshots.flatMap((one) => [one.plain.rates, one.heatsink.rates]);
  const top = Math.max(limit, ...rates.flatMap((one) => [one.offered_s, one.accepted_s, one.throttled_s]));
  const rate = (field) => (one) => one[name].rates[field];
  lines(traffic, run, [
    { name: "accepted", style: "main", of: rate("accepted_s") },
    { name: "offered", style: "offered", of: rate("offered_s") },
    { name: "throttled", style: "plain", of: rate("throttled_s") },
  ], { top });
  partitions(heat, namesOf(run, name), moment(run)?.[name].rates.partitions ?? [], limit);
  const widest = Math.max(2, ...run.snapshots.map((one) => one.heatsink.spread.buckets));
  lines(buckets, run, [{ name: "partitions", style: "steps", of: (one) => one[name].spread.buckets }], { top: widest });
}

const CASES = ["plain", "offered", "soft", "main"];

function makeYoung() {
  const throttled = chart("Writes a second throttled on a new table: plain, adaptive, with buckets, and with both");
  const element = wide("A rush on a new table, simulated", h("p", { class: "small" },
    "Throttled writes a second. An adaptive store splits hot partitions, but never a key. Buckets may share a partition."), throttled);
  return {
    element,
    draw(run) {
      const young = run.verdict?.young ?? [];
      element.hidden = !young.length;
      if (!young.length) return;
      const snapshots = young[0].throttled.map((_, second) => ({ second, of: young.map((one) => one.throttled[second]) }));
      lines(throttled, { seconds: snapshots.length, snapshots },
        young.map((one, place) => ({ name: one.case, style: CASES[place], of: (now) => now.of[place] })));
    },
  };
}

export function make() {
  const parts = [...Object.keys(LANES).map(makeLane), makeYoung()];
  return {
    element: picture(...parts.map((part) => part.element)),
    draw: (run) => parts.forEach((part) => part.draw(run)),
  };
}
