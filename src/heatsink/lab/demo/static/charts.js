// Charts of a run, by its seconds. Both sides of a comparison share a scale, or they could not be compared.

import { colour, draw, layout, limitLine, STYLES } from "/static/look.js";
import { number } from "/static/words.js";

const NARROW = 420;
const BUCKET = /^.*(#|\u241fhs)/; // of a log's partition keys, and of a table's: `chat#1`, `lobby␟hs1`
const STYLE = {
  ...STYLES,
  offered: () => ({ line: { color: colour("soft"), width: 2, dash: "dot" } }),
  plain: () => ({ line: { color: colour("refused"), width: 2 } }),
};

const ticks = (element) => (element.clientWidth < NARROW ? 4 : 8);
const overSeconds = (element, run) => {
  const last = run.snapshots.at(-1)?.second ?? 0;
  return { range: [0, Math.max(run.seconds, last)], ticksuffix: " s", nticks: ticks(element) };
};
const bound = (limit, text, side) => (limit == null ? {} : limitLine(limit, text ?? `limit ${number(limit)}/s`, side));

// `lines`: { name, style, of(snapshot) }; `top`: how high the scale goes at least.
export function lines(element, run, lines, { top = 1, limit, text, unit = "" } = {}) {
  const x = run.snapshots.map((one) => one.second);
  const traces = lines.map(({ name, style, of }) => ({
    name, x, y: run.snapshots.map(of), mode: "lines", hovertemplate: `%{y:,.3~r}${unit}`, ...STYLE[style](),
  }));
  const highest = Math.max(top, limit ?? 0, ...traces.flatMap((trace) => trace.y.filter(Number.isFinite)));
  draw(element, traces, layout({
    showlegend: lines.length > 1,
    margin: { l: 50, r: 10, t: lines.length > 1 ? 26 : 8, b: 26 },
    xaxis: overSeconds(element, run),
    yaxis: { range: [0, 1.08 * highest], ticksuffix: unit },
    ...bound(limit, element.clientWidth < NARROW ? undefined : text, "left"), // where lines begin, they are low
  }));
}

// A bar for each partition: what it took and, on top, what it refused.
export function partitions(element, names, heat, limit, top = 0) {
  const known = new Map(heat.map((one) => [one.name, one]));
  const bar = (name, field, fill) => ({
    type: "bar", name, x: names, y: names.map((key) => known.get(key)?.[field] ?? 0),
    marker: { color: colour(fill) }, hovertemplate: "%{y:,}/s",
  });
  const every = Math.ceil(names.length / (1.5 * ticks(element)));
  const isTight = every === 1 && element.clientWidth < NARROW;
  const isCrowded = (place) => isTight && place > 0 && !BUCKET.test(names[place - 1]); // the bare key's label is long
  const labelled = names.filter((_, place) => place % every === 0 && !isCrowded(place));
  const highest = Math.max(top, ...heat.map((one) => one.taken_s + one.refused_s));
  draw(element, [bar("accepted", "taken_s", "accent"), bar("throttled", "refused_s", "refused")], layout({
    barmode: "stack",
    bargap: 0.25,
    margin: { l: 50, r: 10, t: 8, b: 26 },
    xaxis: {
      type: "category", range: [-0.6, Math.max(names.length, 8) - 0.4], tickangle: 0,
      tickvals: labelled, ticktext: labelled.map((key) => key.replace(BUCKET, "#")),
    },
    yaxis: { range: [0, Math.max(1.35 * limit, 1.1 * highest)] },
    ...bound(limit),
  }));
}

// Pairs of bars, one for each thing that happened.
export function pairs(element, points, sides) {
  const x = points.map((_, place) => place + 1);
  const traces = sides.map(({ name, fill, of }) => ({
    type: "bar", name, x, y: points.map(of), marker: { color: colour(fill) }, hovertemplate: "%{y:,}",
  }));
  const highest = Math.max(10, ...traces.flatMap((trace) => trace.y));
  draw(element, traces, layout({
    showlegend: true,
    barmode: "group",
    bargap: 0.25,
    margin: { l: 50, r: 10, t: 26, b: 40 },
    xaxis: { range: [0.4, Math.max(points.length, 25) + 0.6], title: { text: "posts", standoff: 4 }, nticks: ticks(element) },
    yaxis: { range: [0, 1.08 * highest] },
  }));
}

export function dots(element, run, points, unit) {
  const trace = {
    x: points.map((one) => one.x), y: points.map((one) => one.y), text: points.map((one) => one.text),
    mode: "markers", marker: { color: colour("accent"), size: 11 }, hovertemplate: "%{text}<extra></extra>",
  };
  draw(element, [trace], layout({
    hovermode: "closest",
    margin: { l: 50, r: 10, t: 8, b: 26 },
    xaxis: overSeconds(element, run),
    yaxis: { range: [0, Math.max(2, 1.15 * Math.max(0, ...trace.y))], ticksuffix: unit },
  }));
}
