"use strict";

// Draws one lane's three charts from the snapshots of a run. Knows nothing of where they come from.

const CONFIG = { displayModeBar: false, responsive: true, staticPlot: false, scrollZoom: false };

function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

function layout(run, extra) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), fixedrange: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("soft"), size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 48, r: 12, t: 8, b: 32 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), font: { color: colour("text") } },
    ...extra,
    xaxis: { ...axis, ...extra.xaxis },
    yaxis: { ...axis, rangemode: "tozero", separatethousands: true, ...extra.yaxis },
  };
}

const overTime = (run) => ({ range: [0, run.seconds], ticksuffix: " s", nticks: 8 });

function line(name, values, style) {
  return { name, x: values.x, y: values.y, mode: "lines", hovertemplate: "%{y:,}", ...style };
}

function drawTraffic(element, run, lane) {
  const series = (field) => ({
    x: run.snapshots.map((one) => one.second),
    y: run.snapshots.map((one) => one[lane].rates[field]),
  });
  const traces = [
    line("accepted", series("accepted_s"), {
      fill: "tozeroy", fillcolor: colour("accepted-fill"), line: { color: colour("accepted"), width: 2 },
    }),
    line("offered", series("offered_s"), { line: { color: colour("offered"), width: 2, dash: "dot" } }),
    line("throttled", series("throttled_s"), { line: { color: colour("refused"), width: 2 } }),
  ];
  Plotly.react(element, traces, layout(run, {
    margin: { l: 48, r: 12, t: 24, b: 32 },
    xaxis: overTime(run),
    yaxis: { range: [0, 1.05 * highestRate(run)] },
  }), CONFIG);
}

// Both lanes share the scale, or they could not be compared.
function highestRate(run) {
  const rates = run.snapshots.flatMap((one) => [one.plain.rates, one.heatsink.rates]);
  return Math.max(run.plan.limit, ...rates.flatMap((r) => [r.offered_s, r.accepted_s, r.throttled_s]));
}

function hottest(run) {
  const offered = (one) => one.heatsink.rates.offered_s;
  return run.snapshots.reduce((a, b) => (offered(b) > offered(a) ? b : a));
}

function drawHeat(element, run, lane) {
  const moment = run.over ? hottest(run) : run.snapshots.at(-1);
  const heat = new Map((moment ? moment[lane].rates.partitions : []).map((one) => [one.name, one]));
  const names = [...new Set(["chat", ...run.partitions[lane]])];
  const bar = (name, field, fill) => ({
    type: "bar", name, x: names, y: names.map((key) => heat.get(key)?.[field] ?? 0),
    marker: { color: colour(fill) }, hovertemplate: "%{y:,}/s",
  });
  const labelled = names.filter((_, place) => place % Math.ceil(names.length / 13) === 0);
  const limit = run.plan.limit;
  const highest = Math.max(...names.map((key) => {
    const one = heat.get(key);
    return one ? one.taken_s + one.refused_s : 0;
  }));
  Plotly.react(element, [bar("taken", "taken_s", "accepted"), bar("throttled", "refused_s", "refused")], layout(run, {
    barmode: "stack",
    bargap: 0.25,
    showlegend: false,
    xaxis: {
      type: "category", range: [-0.6, Math.max(names.length, 8) - 0.4],
      tickvals: labelled, ticktext: labelled.map((key) => key.replace(/^.*#/, "#")), tickangle: 0, showgrid: false,
    },
    yaxis: { range: [0, Math.max(1.35 * limit, 1.1 * highest)] },
    shapes: [{
      type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit,
      line: { color: colour("limit"), width: 2, dash: "dash" },
    }],
    annotations: [{
      xref: "paper", x: 1, y: limit, xanchor: "right", yanchor: "bottom", showarrow: false,
      text: `limit ${limit.toLocaleString("en")}/s`, font: { color: colour("limit") },
    }],
  }), CONFIG);
}

function drawBuckets(element, run, lane) {
  const values = {
    x: run.snapshots.map((one) => one.second),
    y: run.snapshots.map((one) => one[lane].spread.buckets),
  };
  const widest = Math.max(2, ...run.snapshots.map((one) => one.heatsink.spread.buckets));
  const trace = line("partitions", values, { line: { color: colour("accepted"), width: 2, shape: "hv" } });
  Plotly.react(element, [trace], layout(run, {
    showlegend: false,
    xaxis: overTime(run),
    yaxis: { range: [0, widest + 0.5], nticks: 4, tickformat: "d" },
  }), CONFIG);
}

function drawLane(run, lane) {
  const card = document.getElementById(lane);
  drawTraffic(card.querySelector(".traffic"), run, lane);
  drawHeat(card.querySelector(".heat"), run, lane);
  drawBuckets(card.querySelector(".buckets"), run, lane);
}
