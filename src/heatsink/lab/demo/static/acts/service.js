// Act 6: what an existing service stores and loses, and the partition keys of its table.

import { chart, wide } from "/static/elements.js";
import { number } from "/static/words.js";
import { lines, partitions } from "/demo/static/charts.js";
import { moment, namesOf, picture, side, summary, tall, when } from "/demo/static/parts.js";

const PLAIN = "one partition key; red is throttled";
const BUCKETS = "the same service; the room's partition keys";

export function make() {
  let now = null;
  const lost = (lane) => now?.[lane].totals.dropped ?? 0;
  const throttled = (lane) => now?.[lane].totals.throttled ?? 0;
  const top = summary({
    sent: () => number(now?.heatsink.totals.offered ?? 0),
    "lost, Heatsink": () => [number(lost("heatsink")), "", lost("heatsink") > 0],
    "lost, plain": () => [number(lost("plain")), "", lost("plain") > 0],
    "throttled, Heatsink": () => number(throttled("heatsink")),
    "throttled, plain": () => [number(throttled("plain")), "", throttled("plain") > 0],
    "partition keys": () => number(now?.heatsink.spread.buckets ?? 1),
  });
  const stored = tall("Messages sent, and messages stored without and with Heatsink, over time");
  const plain = chart("Messages a second that the table without Heatsink accepts and refuses");
  const heatsink = chart("Messages a second that each partition key accepts and refuses with Heatsink");
  const sides = { plain: side("Without Heatsink", PLAIN, plain), heatsink: side("With Heatsink", BUCKETS, heatsink) };
  const element = picture(top.element, wide("Messages sent, and messages stored so far", stored), sides.plain, sides.heatsink);
  return {
    element,
    draw(run) {
      now = run.snapshots.at(-1);
      top.update(now?.says ?? "");
      lines(stored, run, [
        { name: "sent", style: "offered", of: (one) => one.heatsink.totals.offered },
        { name: "stored with Heatsink", style: "line", of: (one) => one.heatsink.totals.accepted },
        { name: "stored without", style: "plain", of: (one) => one.plain.totals.accepted },
      ], { top: 100 });
      sides.plain.note(when(run, PLAIN));
      sides.heatsink.note(when(run, BUCKETS));
      const heat = (lane) => moment(run)?.[lane].rates.partitions ?? [];
      const highest = Math.max(0, ...heat("plain").map((one) => one.taken_s + one.refused_s));
      partitions(plain, namesOf(run, "plain"), heat("plain"), run.plan.limit, highest);
      partitions(heatsink, namesOf(run, "heatsink"), heat("heatsink"), run.plan.limit, highest);
    },
  };
}
