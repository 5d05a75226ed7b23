// What all charts have in common: Plotly in the page's own colours.

export const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false };
export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

export function layout({ xaxis = {}, yaxis = {}, ...more }) {
  const axis = { gridcolor: colour("line"), zerolinecolor: colour("line"), fixedrange: true };
  return {
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    font: { color: colour("soft"), size: 12, family: getComputedStyle(document.body).fontFamily },
    margin: { l: 46, r: 10, t: 26, b: 26 },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom" },
    showlegend: false,
    hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), font: { color: colour("text") } },
    ...more,
    xaxis: { ...axis, showgrid: false, ticks: "outside", tickcolor: colour("line"), ...xaxis },
    yaxis: { ...axis, rangemode: "tozero", separatethousands: true, nticks: 5, ...yaxis },
  };
}

export const STYLES = {
  main: () => ({ line: { color: colour("accent"), width: 2 }, fill: "tozeroy", fillcolor: colour("accent-fill") }),
  line: () => ({ line: { color: colour("accent"), width: 2 } }),
  dotted: () => ({ line: { color: colour("accent"), width: 2, dash: "dot" } }),
  soft: () => ({ line: { color: colour("soft"), width: 1.5 } }),
  bad: () => ({ line: { color: colour("bad"), width: 1.5 } }),
  steps: () => ({ ...STYLES.main(), line: { color: colour("accent"), width: 2, shape: "hv" } }),
};

// A dashed line across a chart, and what it stands for.
export const limitLine = (limit, text, side = "right") => ({
  shapes: [{
    type: "line", xref: "paper", x0: 0, x1: 1, y0: limit, y1: limit,
    line: { color: colour("limit"), width: 1.5, dash: "dash" },
  }],
  annotations: [{
    xref: "paper", x: side === "right" ? 1 : 0, y: limit, xanchor: side, yanchor: "bottom", showarrow: false,
    text, font: { color: colour("limit") },
  }],
});
