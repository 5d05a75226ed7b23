// Act 3: the views, and the loads that reach each database because of them.

import { chart, wide } from "/static/elements.js";
import { number } from "/static/words.js";
import { lines } from "/demo/static/charts.js";
import { moment, picture, side, summary, tall, wait } from "/demo/static/parts.js";

const loads = (lane) => lane.rates.partitions.reduce((sum, one) => sum + one.taken_s, 0);

export function make() {
  let now = null, hottest = null, isOver = false;
  const at = () => (isOver ? ", at the peak" : "");
  const top = summary({
    views: () => number(now?.heatsink.totals.offered ?? 0),
    "loads a second, hs.reads": () => [number(hottest ? loads(hottest.heatsink) : 0), isOver ? "at the peak" : ""],
    "loads a second, plain": () => [number(hottest ? loads(hottest.plain) : 0), isOver ? "at the peak" : ""],
    "errors, hs.reads": () => number(now?.heatsink.totals.dropped ?? 0),
    "errors, plain": () => [number(now?.plain.totals.dropped ?? 0), "", (now?.plain.totals.dropped ?? 0) > 0],
    "99 % within": () => [wait(hottest?.heatsink.rates.p99_ms), `plain: ${wait(hottest?.plain.rates.p99_ms)}${at()}`],
  });
  const loaded = tall("Views a second, and loads a second plain and with hs.reads, over time");
  const refused = chart("Loads a second that the database refuses, plain and with hs.reads");
  const waits = chart("Within which time 99 of 100 views are answered, plain and with hs.reads");
  const element = picture(
    top.element,
    wide("Loads a second that reach the database", loaded),
    side("Throttled", "loads a second that the database refuses", refused),
    side("How long a view takes", "99 % are faster", waits),
  );
  const sides = (of) => [
    { name: "plain", style: "plain", of: (one) => of(one.plain) },
    { name: "hs.reads", style: "line", of: (one) => of(one.heatsink) },
  ];
  return {
    element,
    draw(run) {
      now = run.snapshots.at(-1);
      hottest = moment(run);
      isOver = run.over;
      top.update(now?.says ?? "");
      const views = { name: "views", style: "offered", of: (one) => one.heatsink.rates.offered_s };
      lines(loaded, run, [views, ...sides(loads)], { limit: run.plan.limit, text: `the database serves ${number(run.plan.limit)} loads/s` });
      lines(refused, run, sides((lane) => lane.rates.throttled_s), { top: 10 });
      lines(waits, run, sides((lane) => lane.rates.p99_ms / 1000), { top: 0.1, unit: " s" });
    },
  };
}
