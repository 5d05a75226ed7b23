// Starts everything: follows the events, shows the page of the URL, and the state of the connection.

import { hasToken, keepToken, Unknown } from "/static/api.js";
import { h, write } from "/static/elements.js";
import { follow } from "/static/feed.js";
import { catchUp, take, tick } from "/static/history.js";
import { makeBulk } from "/static/pages/bulk.js";
import { makeCluster } from "/static/pages/cluster.js";
import { makeKeys } from "/static/pages/keys.js";
import { makeOverview } from "/static/pages/overview.js";
import { makeReads } from "/static/pages/reads.js";
import { makeRegistry } from "/static/pages/registry.js";
import { makeSettings } from "/static/pages/settings.js";
import { makeTimelines } from "/static/pages/timelines.js";
import { moment } from "/static/words.js";

const MAKERS = {
  "/": makeOverview,
  "/keys": makeKeys,
  "/bulk": makeBulk,
  "/reads": makeReads,
  "/timelines": makeTimelines,
  "/cluster": makeCluster,
  "/registry": makeRegistry,
  "/settings": makeSettings,
};
const TICK_MS = 500;
const NOTICE_MS = 8_000;
const TRIES = "Is heatsink serve running? This page reconnects by itself.";
const find = (id) => document.getElementById(id);
const made = {};
let shown = null;
let live = false;
let lastWord = null;
let noticeEnds = null;

// What pages are given: `say` tells what became of a click, `go` changes the URL without a reload.
const app = {
  say(text, bad = false) {
    write(find("notice"), text);
    find("notice").classList.toggle("bad", bad);
    find("notice").hidden = false;
    clearTimeout(noticeEnds);
    noticeEnds = setTimeout(() => { find("notice").hidden = true; }, NOTICE_MS);
  },
  async attempt(act, done) {
    try {
      await act();
      app.say(done);
    } catch (error) {
      app.say(error instanceof Unknown ? error.message : `Failed: ${error.message}`, true);
    }
  },
  go(url) {
    history.pushState(null, "", url);
    show();
  },
};

function show() {
  const path = location.pathname in MAKERS ? location.pathname : "/";
  made[path] ??= MAKERS[path](app);
  shown = made[path];
  const page = find("page");
  if (!page.contains(shown.element)) {
    page.replaceChildren(h("h1", {}, shown.title), h("p", { class: "lead" }, shown.lead), shown.element);
  }
  for (const link of document.querySelectorAll("nav a[data-tab]")) {
    const current = link.getAttribute("href") === path;
    current ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  document.title = `${shown.title} · Heatsink`;
  shown.open?.(new URLSearchParams(location.search));
  draw();
}

function draw() {
  if (!document.hidden && shown) {
    shown.update();
  }
}

function say(state) {
  const lost = state === "lost";
  if (lost && live) lastWord = moment(new Date());
  live = !lost;
  const link = find("link");
  write(link, lost ? "disconnected" : "live");
  link.className = state;
  find("banner").hidden = !lost;
  find("other-token").hidden = !hasToken();
  if (lost) {
    const old = lastWord ? `Disconnected: the figures below are from ${lastWord}.` : "Not connected yet.";
    write(find("banner"), `${old} ${TRIES}`);
  } else {
    catchUp().catch((error) => app.say(error.message, true));
  }
}

function askToken(refusal) {
  const box = find("token-box");
  write(find("link"), "needs a token");
  find("banner").hidden = true;
  if (hasToken()) {
    write(find("token-why"), `The token was refused: ${refusal.message}. Paste another one.`);
  }
  box.showModal();
  return new Promise((resolve) => box.addEventListener("close", resolve, { once: true }));
}

find("token-box").querySelector("form").addEventListener("submit", (event) => {
  event.preventDefault();
  keepToken(find("token").value.trim());
  find("token").value = "";
  find("token-box").close();
});
find("other-token").addEventListener("click", () => find("token-box").showModal());

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-tab]");
  if (link && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault();
    app.go(link.getAttribute("href"));
  }
});
addEventListener("popstate", show);
document.addEventListener("visibilitychange", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
setInterval(() => {
  if (live) tick();
  draw();
}, TICK_MS);
show();
follow({ tell: take, say, askToken });
