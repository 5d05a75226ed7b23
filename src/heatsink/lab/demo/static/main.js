// Follows the demo's events and shows one act at a time. The server sends the last run of every act on each
// connect, so a reload, or a connection that comes back, shows everything from the start.

import { h, keyed, write } from "/static/elements.js";
import { make as makeBulk } from "/demo/static/acts/bulk.js";
import { make as makeCelebrity } from "/demo/static/acts/celebrity.js";
import { make as makeChat } from "/demo/static/acts/chat.js";
import { make as makeLikes } from "/demo/static/acts/likes.js";
import { make as makeProduct } from "/demo/static/acts/product.js";
import { make as makeService } from "/demo/static/acts/service.js";

const STOPPED = "The demo has stopped. Run ./dev demo again: this page reconnects by itself.";
const MAKERS = { chat: makeChat, likes: makeLikes, product: makeProduct, celebrity: makeCelebrity, bulk: makeBulk, service: makeService };
const DASHBOARD = {
  chat: ["/keys", "Keys"], likes: ["/keys", "Keys"], product: ["/reads", "Reads"],
  celebrity: ["/timelines", "Timelines"], bulk: ["/bulk", "Bulk"], service: ["/keys", "Keys"],
};
const MARKS = { "": "", playing: "▶", held: "✓", not_held: "✗", too_busy: "–" };
const OUTCOMES = { held: "held", not_held: "did not hold", too_busy: "too busy" };
const find = (id) => document.getElementById(id);
const emptyRun = () => ({ plan: { limit: 1000 }, seconds: 30, snapshots: [], over: false, stopped: false, verdict: null, shrinks: false });

const pictures = {};
let acts = [];
let runs = {};
let shown = "";
let drawing = false;
let stopped = false;

// -- what the server tells

const handlers = {
  hello(_, event) {
    acts = event.acts;
    runs = {};
    const wanted = location.hash.slice(1);
    shown = acts.some((act) => act.name === wanted) ? wanted : shown || event.playing;
    showAct();
    if (!event.played.includes(shown)) play(shown);
  },
  start(act, event) {
    runs[act] = { ...emptyRun(), plan: event.plan, seconds: event.seconds, shrinks: event.shrinks };
    acts = acts.map((one) => (one.name === act ? event.about : one));
    if (act === shown) showWords();
  },
  snapshot(act, event) {
    runs[act].snapshots.push(event);
  },
  verdict(act, event) {
    Object.assign(runs[act], { over: true, verdict: event });
  },
  broken(act) {
    runs[act].stopped = true;
  },
  failed(act, event) {
    runs[act].stopped = true;
    banner(`The run failed: ${event.text}`);
  },
  stop() {
    stopped = true;
    banner(STOPPED);
  },
};

const isPlaying = (name) => Boolean(runs[name]) && !runs[name].over && !runs[name].stopped;
const place = () => acts.findIndex((act) => act.name === shown);

function follow() {
  const source = new EventSource("/demo/events");
  source.onopen = () => {
    stopped = false;
    banner("");
    say("live");
  };
  source.onmessage = (message) => {
    const { act, event } = JSON.parse(message.data);
    handlers[event.type](act, event);
    drawSoon();
  };
  source.onerror = () => {
    say("lost");
    if (!stopped) banner(STOPPED);
    if (source.readyState === EventSource.CLOSED) setTimeout(follow, 2000);
  };
}

function say(state) {
  write(find("link"), state === "live" ? "live" : "disconnected");
  find("link").className = state;
}

function banner(text) {
  write(find("banner"), text);
  find("banner").hidden = !text;
}

// -- what the visitor does

async function play(name, shape = "", smaller = false) {
  try {
    const asked = new URLSearchParams({ act: name, shape, smaller: smaller ? "1" : "" });
    const answer = await fetch(`/demo/run?${asked}`, { method: "POST" });
    if (!answer.ok && answer.status !== 409) banner(`The run could not be started: ${await answer.text()}.`);
  } catch {
    banner(STOPPED);
  }
}

// An act that was not seen to its end is played; one that was stays as it ended.
function go(name) {
  if (!name || name === shown) return;
  shown = name;
  history.pushState(null, "", `#${name}`);
  showAct();
  if (!runs[name] || runs[name].stopped) play(name);
}

const step = (by) => go(acts[place() + by]?.name);

function pressed(event) {
  if (event.altKey || event.ctrlKey || event.metaKey || event.target.closest("input, select, textarea")) return;
  if (event.key === "ArrowRight") step(1);
  if (event.key === "ArrowLeft") step(-1);
  if (event.key.toLowerCase() === "r" && !isPlaying(shown)) play(shown);
}

// -- what is shown

// The figures in the words belong to the size of the run that is shown.
function showWords() {
  const act = acts[place()];
  write(find("title"), act.title);
  document.title = `${act.title} · Heatsink`;
  find("story").replaceChildren(...act.sentences.map((text) => h("p", {}, text)));
  write(find("look"), act.look);
  write(find("small-print"), act.small_print);
}

function showAct() {
  const act = acts[place()];
  pictures[shown] ??= MAKERS[shown]();
  write(find("place"), `Act ${place() + 1} of ${acts.length}`);
  showWords();
  showDashboard();
  find("picture").replaceChildren(pictures[shown].element);
  find("replays").replaceChildren(...act.replays.map(([shape, text]) =>
    h("button", { type: "button", class: "quiet", onclick: () => play(shown, shape) }, text)));
  find("leg").textContent = find("clock").textContent = "";
  drawSoon();
}

function showDashboard() {
  const [path, name] = DASHBOARD[shown];
  const link = find("dashboard").querySelector("a");
  link.href = path;
  write(link, name);
  find("dashboard").hidden = false;
}

function drawSoon() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    if (shown) draw();
  });
}

function draw() {
  const run = runs[shown] ?? emptyRun();
  showSteps();
  showCourse(run);
  showVerdict(run);
  pictures[shown].draw(run);
  document.body.dataset.act = shown;
  document.body.dataset.snapshots = run.snapshots.length;
}

function showSteps() {
  const make = (act) => h("li", {}, h("button", { type: "button", class: "quiet", onclick: () => go(act.name) },
    h("span", { "data-number": acts.indexOf(act) + 1 }), h("span", { class: "name" }, act.title), h("span", { class: "mark", "aria-hidden": "true" })));
  keyed(find("steps"), acts, (act) => act.name, make, (item, act) => {
    const state = isPlaying(act.name) ? "playing" : runs[act.name]?.verdict?.outcome ?? "";
    const button = item.firstElementChild;
    item.dataset.state = state;
    write(button.lastElementChild, MARKS[state]);
    button.setAttribute("aria-label", [`Act ${acts.indexOf(act) + 1}: ${act.title}`, OUTCOMES[state] ?? state].filter(Boolean).join(", "));
    act.name === shown ? button.setAttribute("aria-current", "step") : button.removeAttribute("aria-current");
  });
}

function showCourse(run) {
  const now = run.snapshots.at(-1);
  const next = acts[place() + 1];
  find("previous").disabled = place() <= 0;
  find("next").disabled = false;
  write(find("next"), next ? `Next: ${next.title} →` : "Open the dashboard →");
  for (const button of find("replays").children) {
    button.disabled = isPlaying(shown);
  }
  write(find("leg"), legOf(run, now));
  write(find("clock"), run.over || !now ? "" : clockOf(run, now));
  find("progress").value = run.over ? 1 : Math.min(0.99, (now?.second ?? 0) / run.seconds);
}

function legOf(run, now) {
  if (run.over) return "The run is over";
  if (run.stopped) return "The run was stopped";
  return now ? now.leg[0].toUpperCase() + now.leg.slice(1) : "Waiting for the first numbers…";
}

function clockOf(run, now) {
  const left = Math.ceil(run.seconds - now.second);
  return left > 0 ? `· second ${Math.round(now.second)}, about ${left} to go` : "· waiting for the last answers, then reading everything back";
}

function showVerdict({ verdict, shrinks, plan }) {
  find("verdict").hidden = !verdict;
  if (!verdict) return;
  write(find("outcome"), `The verdict: ${OUTCOMES[verdict.outcome]}`);
  write(find("line"), verdict.line);
  find("verdict").dataset.outcome = verdict.outcome;
  find("smaller").hidden = verdict.outcome !== "too_busy" || !shrinks;
  find("smaller").onclick = () => play(shown, plan.shape, true);
  keyed(find("findings"), verdict.findings, (one) => one.text, () => h("li"), (item, one) => {
    write(item, one.text);
    item.className = one.good === false ? "bad" : one.good ? "" : "fact";
  });
}

find("previous").addEventListener("click", () => step(-1));
find("next").addEventListener("click", () => (place() + 1 < acts.length ? step(1) : location.assign(DASHBOARD[shown][0])));
addEventListener("keydown", pressed);
addEventListener("popstate", () => {
  const wanted = location.hash.slice(1) || acts[0]?.name;
  if (acts.some((act) => act.name === wanted)) {
    shown = wanted;
    showAct();
    if (!runs[wanted] || runs[wanted].stopped) play(wanted);
  }
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
follow();
