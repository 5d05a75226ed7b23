// Pieces of the acts' pictures.

import { card, chart, figures, h, write } from "/static/elements.js";
import { number } from "/static/words.js";

export const tall = (label) => Object.assign(chart(label), { className: "chart tall" });
export const short = (label) => Object.assign(chart(label), { className: "chart short" });
export const titled = (title, note, ...rest) => [h("h3", {}, title, note ? h("small", {}, ` ${note}`) : null), ...rest];

// One sentence about this moment, and the run's figures under it; `texts` as for `figures`.
export function summary(texts) {
  const says = h("p", { class: "says", "aria-live": "polite" });
  const shown = figures(texts);
  const element = h("section", { class: "card wide", "aria-label": "Now" }, says, shown.element);
  return {
    element,
    update(text) {
      write(says, text);
      shown.update();
    },
  };
}

export const picture = (...cards) => h("div", { class: "cards picture" }, ...cards);
export const side = (title, note, ...children) => {
  const made = card(title, ...children);
  const small = h("small", {}, note);
  made.querySelector("h2").append(small);
  return Object.assign(made, { note: (text) => write(small, text) });
};

// The names that partitions had in a run so far, in their order.
export function namesOf(run, lane) {
  const names = new Set(run.snapshots.flatMap((one) => one[lane].rates.partitions.map((heat) => heat.name)));
  return [...names].sort((a, b) => a.length - b.length || (a < b ? -1 : 1));
}

// Bars show the present, and when it is over the hottest moment; `when` says which.
export const when = (run, note) => (run.over ? `at the peak: ${note}` : note);
export function moment(run) {
  const offered = (one) => one.heatsink.rates.offered_s;
  if (!run.over || !run.snapshots.length) return run.snapshots.at(-1);
  return run.snapshots.reduce((a, b) => (offered(b) > offered(a) ? b : a));
}

// Latencies are rounded up, so 0 means that no call was answered.
export const wait = (ms) => (!ms ? "–" : ms < 1000 ? `${ms} ms` : `${(ms / 1000).toFixed(1)} s`);
export const versus = (ours, theirs) => `${number(ours)} against ${number(theirs)}`;
