// Act 5: the large batch with its workers, and the small ones as dots.

import { bar, chart, fillBar, wide } from "/static/elements.js";
import { number, seconds } from "/static/words.js";
import { dots, lines } from "/demo/static/charts.js";
import { picture, side, summary } from "/demo/static/parts.js";

const total = (list) => list.reduce((sum, one) => sum + one, 0);

export function make() {
  let now = null;
  const ended = () => (now?.small ?? []).filter((one) => one.took_s != null);
  const inLine = () => (now?.done_s ? `in a single queue: ${seconds((now.items - now.done) / now.done_s)}` : "");
  const top = summary({
    done: () => [number(now?.done ?? 0), `of ${number(now?.items)}`],
    "items a second": () => number(now?.done_s ?? 0),
    workers: () => [number(total(now?.workers ?? [])), `in ${number(now?.workers.length ?? 0)} partitions`],
    "small batches": () => [number(ended().length), "twenty items each"],
    "the latest took": () => [seconds(ended().at(-1)?.took_s), inLine()],
  });
  const whole = bar();
  whole.setAttribute("aria-label", "How much of the large batch is done");
  const small = chart("How long each small batch took, by when it was submitted");
  const workers = chart("Workers over time");
  const pace = chart("Items done a second over time");
  const element = picture(
    top.element,
    side("Workers", "of the large batch's partitions", workers),
    side("Items done a second", "of the large batch", pace),
    wide("How long each small batch took", small),
  );
  top.element.append(whole);
  return {
    element,
    draw(run) {
      now = run.snapshots.at(-1);
      top.update(now?.says ?? "");
      fillBar(whole, now ? now.done / now.items : 0);
      lines(workers, run, [{ name: "workers", style: "steps", of: (one) => total(one.workers) }], { top: 10 });
      lines(pace, run, [{ name: "items/s", style: "main", of: (one) => one.done_s }], { top: 1000 });
      dots(small, run, ended().map((one) => ({
        x: one.second, y: one.took_s, text: `${seconds(one.took_s)}, while ${number(one.ahead)} items of the large batch waited`,
      })), " s");
    },
  };
}
