// Act 2: likes given and likes counted, and the shards of the counter.

import { chart, wide } from "/static/elements.js";
import { number } from "/static/words.js";
import { lines, partitions } from "/demo/static/charts.js";
import { moment, namesOf, picture, side, summary, tall, when } from "/demo/static/parts.js";

const PLAIN = "one row; red is throttled";
const SHARDS = "the shards of one counter";

export function make() {
  let now = null;
  const behind = () => (now ? now.plain.totals.offered - now.counted_plain : 0);
  const top = summary({
    liked: () => number(now?.heatsink.totals.offered ?? 0),
    "counted, Heatsink": () => number(now?.counted_heatsink ?? 0),
    "counted, plain": () => [number(now?.counted_plain ?? 0), `too low by ${number(behind())}`, behind() > 0.05 * (now?.plain.totals.offered ?? 0)],
    "throttled, Heatsink": () => number(now?.heatsink.totals.throttled ?? 0),
    "throttled, plain": () => [number(now?.plain.totals.throttled ?? 0), "", (now?.plain.totals.throttled ?? 0) > 0],
    shards: () => number(now?.heatsink.spread.buckets ?? 1),
  });
  const counted = tall("Likes given, and likes counted by the plain counter and by Heatsink, over time");
  const plain = chart("Likes a second that the plain counter's row accepts and refuses");
  const heatsink = chart("Likes a second that each of Heatsink's shards accepts and refuses");
  const sides = { plain: side("The plain counter", PLAIN, plain), heatsink: side("Heatsink's counter", SHARDS, heatsink) };
  const element = picture(top.element, wide("Likes given, and likes counted so far", counted), sides.plain, sides.heatsink);
  return {
    element,
    draw(run) {
      now = run.snapshots.at(-1);
      top.update(now?.says ?? "");
      lines(counted, run, [
        { name: "liked", style: "offered", of: (one) => one.heatsink.totals.offered },
        { name: "counted with Heatsink", style: "line", of: (one) => one.counted_heatsink },
        { name: "counted plain", style: "plain", of: (one) => one.counted_plain },
      ], { top: 100 });
      sides.plain.note(when(run, PLAIN));
      sides.heatsink.note(when(run, SHARDS));
      const heat = (lane) => moment(run)?.[lane].rates.partitions ?? [];
      const highest = Math.max(0, ...heat("plain").map((one) => one.taken_s + one.refused_s));
      partitions(plain, namesOf(run, "plain"), heat("plain"), run.plan.limit, highest);
      partitions(heatsink, namesOf(run, "heatsink"), heat("heatsink"), run.plan.limit, highest);
    },
  };
}
