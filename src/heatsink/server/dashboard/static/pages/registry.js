// Registry: every decision with its reason, the newest first, searchable.

import { button, h, table, wide, write } from "/static/elements.js";
import { decided, loadOlder, older } from "/static/history.js";
import { count, moment, number, subject, target } from "/static/words.js";

const LEAD = "All decisions, past and present, newest first, each with its reason. All servers act on those in force.";
const SHOWN_MAX = 400;
const NO_DECISIONS = [
  "No decisions yet. One is made when a key gets hot, or by ", h("code", {}, "heatsink pin KEY"), ".",
];

export function makeRegistry(app) {
  const box = h("input", { type: "search", placeholder: "a key, a reason, a number…", oninput: () => update() });
  const found = h("p", { class: "soft", role: "status" });
  const rows = table([
    { name: "version", number: true, text: (one) => number(one.version) },
    { name: "decided", text: (one) => moment(one.time), tight: true },
    { name: "subject", text: subject },
    { name: "decision", text: target },
    { name: "reason", text: (one) => one.reason },
  ], (one) => `${one.version} ${subject(one)} ${one.setting}`, NO_DECISIONS);
  const none = h("p", { class: "empty" });
  const refused = (error) => app.say(error.message, true);
  const more = button("Load older decisions", () => loadOlder().then(update, refused));
  const form = h("form", { class: "line", role: "search", onsubmit: (event) => event.preventDefault() },
    h("label", { class: "grow" }, "Search decisions", box));
  const element = h("div", { class: "cards" }, wide("Decisions ", form, found, rows.element, none, h("p", {}, more)));

  function update() {
    const words = box.value.toLowerCase().split(/\s+/).filter(Boolean);
    const all = decided();
    const matches = all.filter((one) => {
      const text = `${one.version} ${subject(one)} ${target(one)} ${one.reason}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    rows.update(older.known && matches.slice(0, SHOWN_MAX));
    rows.element.hidden = all.length > 0 && matches.length === 0;
    write(none, `No loaded decision matches “${box.value}”.`);
    none.hidden = !rows.element.hidden;
    const loaded = count(all.length, "decision");
    found.hidden = !older.known;
    write(found, words.length ? `${number(matches.length)} of ${loaded} match` : `${loaded} loaded`);
    more.hidden = !older.before;
  }

  return { title: "Registry", lead: LEAD, element, update };
}
