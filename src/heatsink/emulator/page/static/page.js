// Asks once a second what the partitions do, and draws it. Texts are only ever set as text.

const EVERY_MS = 1000;
const SPACE = 2 ** 64;
const EXACT = 2 ** 12; // bounds are 64 bits wide, numbers here 53
const HOT = 0.9;
const KEY_SHOWN = 40;
const COLUMNS = ["partition", "of hash range", "rows", "writes/s", "reads/s", "refused/s", "load", "lent/s", "burst left (write / read)", "throttles/s", "throttles in all", "hottest key"];
const WORDS = { Lend: "lend", Split: "split", Isolate: "isolate", Merge: "merge", CannotHelp: "cannot help" };

const count = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const percent = new Intl.NumberFormat("en-GB", { style: "percent", maximumSignificantDigits: 2 });

function h(tag, attributes, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}

const share = (state) => (state.end - state.start < EXACT ? "one key" : percent.format((state.end - state.start) / SPACE));

function space(partitions) {
  return h("div", { className: "space", role: "img", ariaLabel: "load of each partition, in the order of key hashes" },
    ...partitions.map(({ state }) => {
      const height = `${Math.min(state.load, 1) * 100}%`;
      const kind = state.throttles_s > 0 ? "over" : state.load >= HOT ? "hot" : "";
      const fill = h("i", {});
      fill.style.height = height;
      const part = h("div", { className: kind, title: `partition ${state.number}: ${percent.format(state.load)}` }, fill, h("span", {}, String(state.number)));
      part.style.flexGrow = String((state.end - state.start) / SPACE);
      return part;
    }));
}

const short = (text) => (text.length > KEY_SHOWN ? `${text.slice(0, KEY_SHOWN)}…` : text);

function hottest({ state, hottest: key, moved }) {
  const words = [];
  if (key !== null && state.load > 0.01) words.push(`${short(key)} (${percent.format(state.hottest_share)})`);
  if (moved !== null) words.push(`moving: ${count.format(moved)} rows so far`);
  if (state.stuck) words.push(`cannot help: ${state.stuck}`);
  return words.join(" · ");
}

function row(report) {
  const { state, rows } = report;
  const burst = state.write_burst === null ? "–" : `${count.format(state.write_burst)} / ${count.format(state.read_burst)}`;
  const cells = [state.number, share(state), count.format(rows), count.format(state.writes_s), count.format(state.reads_s),
    count.format(state.refused_writes_s + state.refused_reads_s), percent.format(state.load), count.format(state.lent_s), burst, count.format(state.throttles_s), count.format(state.throttles)];
  return h("tr", {}, ...cells.map((cell, n) => h("td", { className: (n === 5 || n === 9) && state.throttles_s > 0 ? "bad" : "" }, String(cell))),
    h("td", { className: state.stuck ? "text bad" : "text", title: report.hottest ?? "" }, hottest(report)));
}

function event({ at_s, what, partition, reason, done }) {
  const time = new Date(at_s * 1000).toLocaleTimeString();
  return h("li", {}, h("b", {}, `${WORDS[what]}${done ? " done" : ""}`), `${time} · partition ${partition} · ${reason}`);
}

function table(report) {
  const throttles = Object.entries(report.throttles).map(([limit, number]) => `${count.format(number)} by ${limit}`).join(", ") || "none";
  const head = h("tr", {}, ...COLUMNS.map((name, n) => h("th", { scope: "col", className: n === 11 ? "text" : "" }, name)));
  return h("section", {},
    h("h2", {}, report.table, h("small", {}, ` · ${report.partitions.length} partitions, map version ${report.version}, throttled: ${throttles}`)),
    space(report.partitions),
    h("div", { className: "wide" }, h("table", {}, h("thead", {}, head), h("tbody", {}, ...report.partitions.map(row)))),
    h("h3", {}, "Changes"),
    report.events.length ? h("ol", {}, ...report.events.toReversed().map(event)) : h("p", { className: "soft" }, "No changes yet."));
}

async function look() {
  const link = document.getElementById("link");
  try {
    const answer = await fetch("/partitions");
    const tables = await answer.json();
    if (tables.length) document.getElementById("tables").replaceChildren(...tables.map(table));
    link.className = "live";
    link.textContent = "live";
  } catch {
    link.className = "lost";
    link.textContent = "the emulator does not answer";
  }
  setTimeout(look, EVERY_MS);
}

look();
