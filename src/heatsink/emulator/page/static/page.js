// Asks once a second what the partitions do, and draws it. Texts are only ever set as text.

const EVERY_MS = 1000;
const SPACE = 2 ** 64;
const EXACT = 2 ** 12; // bounds are 64 bits wide, numbers here 53
const HOT = 0.9;
const KEY_SHOWN = 40;
const NUMBERED_MAX = 20; // more partitions than that are too narrow for their numbers
const COLUMNS = ["partition", "share of hashes", "rows", "written units/s", "read units/s", "load", "refused units/s", "throttled requests/s", "throttled requests, total", "borrowed units/s", "burst left (write / read)", "hottest key"];
const BAD = [6, 7];
const ORDER = "In the order of key hashes, as in the bar, not by number.";
const WORDS = { Lend: "lend", Split: "split", Isolate: "isolate", Merge: "merge", CannotHelp: "cannot help" };

const count = new Intl.NumberFormat("en-GB", { maximumFractionDigits: 0 });
const percent = new Intl.NumberFormat("en-GB", { style: "percent", maximumSignificantDigits: 2 });

function h(tag, attributes, ...children) {
  const element = Object.assign(document.createElement(tag), attributes);
  element.append(...children);
  return element;
}

const share = (state) => (state.end - state.start < EXACT ? "one key" : percent.format((state.end - state.start) / SPACE));

function part({ state }) {
  const kind = state.throttles_s > 0 ? "over" : state.load >= HOT ? "hot" : "";
  const fill = h("i", {});
  fill.style.height = `${Math.min(state.load, 1) * 100}%`;
  const made = h("div", { className: kind, title: `partition ${state.number}: ${percent.format(state.load)}` }, h("u", {}, fill));
  made.style.flexGrow = String((state.end - state.start) / SPACE);
  return made;
}

function fillSpace(element, partitions) {
  const numbered = partitions.length <= NUMBERED_MAX;
  const parts = partitions.map(part);
  if (numbered) parts.forEach((made, n) => made.append(h("span", {}, String(partitions[n].state.number))));
  element.classList.toggle("numbered", numbered);
  element.replaceChildren(...parts);
}

const short = (text) => (text.length > KEY_SHOWN ? `${text.slice(0, KEY_SHOWN)}…` : text);

function hottest({ state, hottest: key, moved }) {
  const words = [];
  if (key !== null && state.load > 0.01) words.push(`${short(key)} (${percent.format(state.hottest_share)})`);
  if (moved !== null) words.push(`moving: ${count.format(moved)} rows so far`);
  return words.join(" · ");
}

const stuck = ({ state, hottest: key }) =>
  h("p", { className: "bad" }, `Partition ${state.number}${key === null ? "" : `, key ${short(key)}`}: the store cannot help. ${state.stuck}`);

function row(report) {
  const { state, rows } = report;
  const burst = state.write_burst === null ? "–" : `${count.format(state.write_burst)} / ${count.format(state.read_burst)}`;
  const refused_s = state.refused_writes_s + state.refused_reads_s;
  const cells = [state.number, share(state), count.format(rows), count.format(state.writes_s), count.format(state.reads_s), percent.format(state.load),
    count.format(refused_s), count.format(state.throttles_s), count.format(state.throttles), count.format(state.lent_s), burst];
  return h("tr", {}, ...cells.map((cell, n) => h("td", { className: BAD.includes(n) && state.throttles_s > 0 ? "bad" : "" }, String(cell))),
    h("td", { className: "text", title: report.hottest ?? "" }, hottest(report)));
}

function event({ at_s, what, partition, reason, done }) {
  const time = new Date(at_s * 1000).toLocaleTimeString();
  return h("li", {}, h("b", {}, `${WORDS[what]}${done ? " done" : ""}`), `${time} · partition ${partition} · ${reason}`);
}

// Made once for each table and then filled anew, so that what is scrolled or focused stays so.
const sections = new Map();

function makeSection(name) {
  const scrolled = (label, ...children) => h("div", { className: "wide", tabIndex: 0, role: "group", ariaLabel: `${label} of table ${name}` }, ...children);
  const summary = h("small", {});
  const bar = h("div", { className: "space", role: "img", ariaLabel: `Load of each partition of table ${name}, in the order of key hashes` });
  const helpless = h("div", {});
  const rows = h("tbody", {});
  const head = h("tr", {}, ...COLUMNS.map((title, n) => h("th", { scope: "col", className: n === COLUMNS.length - 1 ? "text" : "" }, title)));
  const changes = h("ol", {});
  const unchanged = h("p", { className: "soft" }, "No changes yet.");
  const element = h("section", {}, h("h2", {}, name, summary), bar, helpless, h("p", { className: "soft" }, ORDER),
    scrolled("Partitions", h("table", {}, h("thead", {}, head), rows)), h("h3", {}, "Changes"), scrolled("Changes", changes), unchanged);
  return { element, summary, bar, helpless, rows, changes, unchanged };
}

const nameOf = ({ table, index }) => (index === null ? table : `${table}, index ${index}`);

function table(report) {
  const name = nameOf(report);
  if (!sections.has(name)) sections.set(name, makeSection(name));
  const made = sections.get(name);
  const throttles = Object.entries(report.throttles).map(([limit, number]) => `${count.format(number)} by ${limit}`).join(", ") || "none";
  made.summary.textContent = ` · ${report.partitions.length} ${report.partitions.length === 1 ? "partition" : "partitions"}, map version ${report.version}, throttled: ${throttles}`;
  fillSpace(made.bar, report.partitions);
  made.helpless.replaceChildren(...report.partitions.filter(({ state }) => state.stuck).map(stuck));
  made.rows.replaceChildren(...report.partitions.map(row));
  made.changes.replaceChildren(...report.events.toReversed().map(event));
  made.changes.parentElement.hidden = !report.events.length;
  made.unchanged.hidden = report.events.length > 0;
  return made.element;
}

function show(tables) {
  const place = document.getElementById("tables");
  const wanted = tables.length ? tables.map(table) : [h("p", { className: "soft" }, "No table yet. Point an SDK at this address and create one.")];
  const same = wanted.length === place.children.length && wanted.every((element, n) => element === place.children[n]);
  if (!same) place.replaceChildren(...wanted);
}

let said = "";

function say(lines) {
  if (lines.join("\n") === said) return;
  said = lines.join("\n");
  document.getElementById("lines").replaceChildren(...lines.map((line) => h("p", {}, line)));
}

async function look() {
  const link = document.getElementById("link");
  try {
    const answer = await fetch("/partitions");
    const tables = await answer.json();
    show(tables);
    say((await (await fetch("/explain")).json()).lines);
    link.className = "live";
    link.textContent = "live";
  } catch {
    link.className = "lost";
    link.textContent = "the emulator does not answer";
  }
  setTimeout(look, EVERY_MS);
}

look();
