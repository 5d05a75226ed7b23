// Timelines: whose posts are pushed to homes, and whose readers pull them.

import { get } from "/static/api.js";
import { card, figures, h, table, wide } from "/static/elements.js";
import { latest } from "/static/history.js";
import { count, moment, number, seconds } from "/static/words.js";
import { batches } from "/static/pages/bulk.js";

const LOOK_MS = 3_000;
const FAN_OUT = "heatsink.fanout";
const NO_PUSHES = ["Nobody posted lately. Post: ", h("code", {}, "curl -d '{\"body\": \"hey\"}' localhost:8321/v1/timelines/ada/posts")];

function pushers() {
  const byAuthor = new Map();
  for (const batch of batches().filter((one) => one.action === FAN_OUT)) {
    const author = byAuthor.get(batch.tenant) ?? { author: batch.tenant, posts: 0, groups: 0, waiting: 0, last: batch.submitted, eta_s: null };
    author.posts += 1;
    author.groups += batch.items;
    author.waiting += batch.waiting + batch.running;
    author.eta_s = Math.max(author.eta_s ?? 0, batch.eta_s ?? 0);
    byAuthor.set(batch.tenant, author);
  }
  return [...byAuthor.values()];
}

export function makeTimelines() {
  const state = { authors: [], asked_ms: 0, refusal: "" };
  const pulled = () => state.authors.filter((one) => one.mode === "pull");
  const now = figures({
    "pulled authors": () => [number(pulled().length), "read where their posts are"],
    "pushed lately": () => [count(pushers().length, "author"), "of the newest batches"],
    "pushes under way": () => [number((latest.progress?.progress ?? []).filter((one) => one.action === FAN_OUT).length), "batches"],
  });
  const refusal = h("p", { class: "empty" });
  const celebrities = table([
    { name: "author", text: (one) => one.author },
    { name: "since", text: (one) => moment(one.since), tight: true },
    { name: "why", text: (one) => one.reason },
  ], (one) => one.author, "No author is pulled: nobody has that many followers. Posts of all authors are pushed.");
  const pushed = table([
    { name: "author", text: (one) => one.author },
    { name: "posts", number: true, text: (one) => number(one.posts) },
    { name: "groups of followers", number: true, text: (one) => number(one.groups) },
    { name: "left to push", number: true, text: (one) => number(one.waiting) },
    { name: "time left", number: true, text: (one) => (one.waiting ? seconds(one.eta_s) : "all pushed") },
    { name: "last post", text: (one) => moment(one.last), tight: true },
  ], (one) => one.author, NO_PUSHES);
  const back = table([
    { name: "author", text: (one) => one.author },
    { name: "since", text: (one) => moment(one.since), tight: true },
    { name: "why", text: (one) => one.reason },
  ], (one) => one.author, "");
  const again = wide("Pushed again ", back.element);
  const element = h("div", { class: "cards" }, wide("Now", now.element, refusal), card("Pulled ", celebrities.element), card("Pushed ", pushed.element), again);

  async function look() {
    state.asked_ms = Date.now();
    try {
      state.authors = (await get("/v1/timelines?limit=200")).authors;
      state.refusal = "";
    } catch (error) {
      state.refusal = error.message;
    }
  }

  const update = () => {
    if (Date.now() - state.asked_ms > LOOK_MS) look();
    now.update();
    refusal.textContent = state.refusal;
    refusal.hidden = !state.refusal;
    celebrities.update(pulled());
    pushed.update(pushers());
    const before = state.authors.filter((one) => one.mode === "push");
    again.hidden = before.length === 0;
    back.update(before);
  };
  return { title: "Timelines", element, update };
}
