// The dashboard's charts: the last minutes, by the time of day.

import { write } from "/static/elements.js";
import { KEPT_S } from "/static/history.js";
import { colour, draw, layout, limitLine, STYLES, undraw } from "/static/look.js";

const NARROW = 420;
const ticks = (element) => (element.clientWidth < NARROW ? 3 : 5);

// Half a minute at least, so that a page that was just opened does not stretch its first seconds.
function lately(samples, element) {
  const end = samples.at(-1)?.at ?? new Date();
  const first = samples[0]?.at ?? end;
  const length_ms = Math.min(Math.max(end - first, 30_000), KEPT_S * 1000);
  return {
    type: "date", range: [new Date(end - length_ms), end], tickformat: "%H:%M:%S",
    nticks: ticks(element),
  };
}

const SAMPLES_MIN = 2; // of one there is nothing to draw
const FIRST = "Loading: the chart begins with the second figure from the server…";

// Words instead of axes that stand for nothing; whether there is something to draw.
export function known(element, isKnown, words = FIRST) {
  if (!isKnown) {
    undraw(element);
    write(element, words);
  } else if (!element.data) {
    element.replaceChildren();
  }
  element.classList.toggle("waiting", !isKnown);
  element.setAttribute("aria-busy", String(!isKnown && words === FIRST));
  return isKnown;
}

// `lines`: { name, style, of(sample) }; `none`: what to say if all are empty or zero.
export function overTime(element, samples, lines, none, yaxis = {}) {
  const isEmpty = !samples.some((one) => lines.some(({ of }) => of(one) > 0));
  if (!known(element, samples.length >= SAMPLES_MIN)) return;
  if (!known(element, !isEmpty, none)) return;
  const x = samples.map((one) => one.at);
  const traces = lines.map(({ name, style, of }) => ({
    name, x, y: samples.map(of), mode: "lines", hovertemplate: "%{y:,.3~g}", ...STYLES[style](),
  }));
  draw(element, traces, layout({
    showlegend: lines.length > 1, xaxis: lately(samples, element), yaxis,
  }));
}

export function steps(element, points, yaxis = {}) {
  const trace = {
    x: points.map((one) => one.at), y: points.map((one) => one.value),
    mode: "lines", hovertemplate: "%{y}", ...STYLES.steps(),
  };
  const highest = Math.max(1, ...trace.y);
  draw(element, [trace], layout({
    margin: { l: 46, r: 10, t: 8, b: 26 },
    xaxis: { type: "date", nticks: ticks(element), tickformat: "%H:%M:%S" },
    yaxis: { range: [0, highest * 1.15 + 0.2], tickformat: "d", ...(highest < 6 ? { dtick: 1 } : {}), ...yaxis },
  }));
}

export function bars(element, names, values, limit) {
  const trace = {
    type: "bar", x: names, y: values,
    marker: { color: colour("accent") }, hovertemplate: "%{y:,.0f}/s<extra></extra>",
  };
  const shown = names.filter((_, place) => place % Math.ceil(names.length / 12) === 0);
  draw(element, [trace], layout({
    margin: { l: 46, r: 10, t: 8, b: 26 },
    bargap: 0.3,
    xaxis: { type: "category", tickvals: shown, tickangle: 0, range: [-0.6, Math.max(names.length, 4) - 0.4] },
    yaxis: { range: [0, Math.max(1.25 * limit, 1.1 * Math.max(0, ...values))] },
    ...limitLine(limit, `should get at most ${limit.toLocaleString("en")}`),
  }));
}

// A row for each partition, time to the right, the more the stronger.
export function heatmap(element, samples, of, unit) {
  if (!known(element, samples.length >= SAMPLES_MIN)) return;
  const rows = Math.max(0, ...samples.map((one) => of(one).length));
  const z = Array.from({ length: rows }, (_, row) => samples.map((one) => of(one)[row] ?? 0));
  const highest = Math.max(4, ...z.flat());
  const trace = {
    type: "heatmap", x: samples.map((one) => one.at), y: z.map((_, row) => row), z, zmin: 0, zmax: highest,
    colorscale: [[0, colour("cold")], [1, colour("accent")]], xgap: 0, ygap: 1,
    colorbar: { thickness: 8, outlinewidth: 0, nticks: 4, tickformat: ",d" },
    hovertemplate: `partition %{y}: %{z:,} ${unit}<extra></extra>`,
  };
  draw(element, [trace], layout({
    hovermode: "closest",
    margin: { l: 30, r: 4, t: 8, b: 26 },
    xaxis: lately(samples, element),
    yaxis: { autorange: "reversed", showgrid: false, nticks: 8, rangemode: "normal", zeroline: false },
  }));
}
