// Timelines: whose posts are pushed to homes, and whose posts followers pull.

import { get } from "/static/api.js";
import { card, figures, h, table, wide } from "/static/elements.js";
import { batches, latest } from "/static/history.js";
import { count, moment, NONE, number, seconds } from "/static/words.js";

const LEAD = "A post of most authors is pushed: copied to the home timeline of each follower. A post of an author with very many followers is pulled: followers read it from the author’s own log.";
const LOOK_MS = 3_000;
const FAN_OUT = "heatsink.fanout";
const NO_PUSHES = [
  "No recent posts. Post one: ",
  h("code", {}, `curl -H 'content-type: application/json' -d '{"body": "hey"}' ${location.origin}/v1/timelines/ada/posts`),
];
const NOBODY = { posts: 0, groups: 0, waiting: 0, eta_s: 0 };

// Who was pushed lately and is not pulled by now.
function pushersBut(pulled) {
  const byAuthor = new Map();
  const isPulled = (author) => pulled.some((one) => one.author === author);
  for (const batch of batches().filter((one) => one.action === FAN_OUT && !isPulled(one.tenant))) {
    const author = byAuthor.get(batch.tenant) ?? { ...NOBODY, author: batch.tenant, last: batch.submitted };
    author.posts += 1;
    author.groups += batch.items;
    author.waiting += batch.waiting + batch.running;
    author.eta_s = Math.max(author.eta_s, batch.eta_s ?? 0);
    byAuthor.set(batch.tenant, author);
  }
  return [...byAuthor.values()];
}

const modeTable = (empty) => table([
  { name: "author", text: (one) => one.author },
  { name: "since", text: (one) => moment(one.since), tight: true },
  { name: "why", text: (one) => one.reason },
], (one) => one.author, empty);

export function makeTimelines() {
  const state = { authors: null, asked_ms: 0, refusal: "" };
  const pulled = () => state.authors?.filter((one) => one.mode === "pull");
  const pushers = () => (latest.batches && pulled() ? pushersBut(pulled()) : undefined);
  const now = figures({
    "pulled authors": () => [number(pulled()?.length), "followers read the author’s own log"],
    "pushed recently": () => [pushers() ? count(pushers().length, "author") : NONE, "in the newest batches"],
    "unfinished posts": () => [number(pushers()?.filter((one) => one.waiting).length), "still being pushed"],
  });
  const refusal = h("p", { class: "empty" });
  const celebrities = modeTable("No author is pulled: none has enough followers. All posts are pushed.");
  const pushed = table([
    { name: "author", text: (one) => one.author },
    { name: "posts", number: true, text: (one) => number(one.posts) },
    { name: "groups of followers", number: true, text: (one) => number(one.groups) },
    { name: "left to push", number: true, text: (one) => number(one.waiting) },
    { name: "time left", number: true, text: (one) => (one.waiting ? seconds(one.eta_s) : "all pushed") },
    { name: "last post", text: (one) => moment(one.last), tight: true },
  ], (one) => one.author, NO_PUSHES);
  const back = modeTable("");
  const again = wide("Switched back to push ", back.element);
  const element = h("div", { class: "cards" }, wide("Now", now.element, refusal),
    card("Pulled ", celebrities.element), card("Pushed ", pushed.element), again);

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
    const before = state.authors?.filter((one) => one.mode === "push");
    again.hidden = !before?.length;
    back.update(before);
  };
  return { title: "Timelines", lead: LEAD, element, update };
}
