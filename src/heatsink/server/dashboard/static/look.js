// What all charts have in common: Plotly in the page's own colours. Its script has megabytes, so
// only the first chart of a page fetches it.

const CONFIG = { displayModeBar: false, responsive: true, scrollZoom: false };
const FETCHING = "Loading: the script that draws charts…";
const wanted = new WeakMap(); // by element: the chart to draw once Plotly is there
let plotly = null;

function fetchPlotly() {
  plotly ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.addEventListener("load", resolve);
    script.addEventListener("error", () => {
      plotly = null; // the next chart tries again
      reject(new Error("plotly.min.js could not be fetched"));
    });
    script.src = "/plotly.min.js";
    document.head.append(script);
  });
  return plotly;
}

// Draws the newest chart of the element; not if it was taken away meanwhile.
function drawWanted(element) {
  const chart = wanted.get(element);
  wanted.delete(element);
  if (!chart) return;
  element.replaceChildren();
  element.classList.remove("waiting");
  if (element.isConnected) Plotly.react(element, chart.traces, chart.layout, CONFIG);
}

export function draw(element, traces, layout) {
  if (globalThis.Plotly) {
    Plotly.react(element, traces, layout, CONFIG);
  } else {
    wanted.set(element, { traces, layout });
    element.textContent = FETCHING;
    element.classList.add("waiting");
    fetchPlotly().then(() => drawWanted(element), () => {});
  }
}

export function undraw(element) {
  wanted.delete(element);
  if (element.data) Plotly.purge(element);
}

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
