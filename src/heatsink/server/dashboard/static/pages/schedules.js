// Schedules, on the page of bulk actions: when each runs, buttons to steer it, and a form to set one.

import { get, part, send } from "/static/api.js";
import { button, h, sureButton, table, write } from "/static/elements.js";
import { moment, NONE } from "/static/words.js";

const LOOK_MS = 3_000;
const when = (one) => (one.every_s ? `every ${one.every_s} s` : `${one.cron} ${one.zone}`);
const input = (options = {}) => h("input", { autocomplete: "off", ...options });

export function makeSchedules(app) {
  const state = { asked_ms: 0, schedules: undefined };
  const path = (name, verb = "") => `/v1/schedules/${part(name)}${verb}`;
  const steer = (name, verb, said) => () => app.attempt(() => send("POST", path(name, verb)).then(look), said);
  const remove = (name) => () => app.attempt(() => send("DELETE", path(name)).then(look), `${name} is removed. Its batches stay.`);
  const rows = table([
    { name: "schedule", text: (one) => one.name, tight: true },
    { name: "action", text: (one) => one.action, tight: true },
    { name: "when", text: when },
    { name: "next", text: (one) => (one.paused ? "paused" : moment(one.next)) },
    { name: "last", text: (one) => (one.last ? moment(one.last) : NONE), less: true },
    { name: "actions", make: buttons, update: allow },
  ], (one) => one.name, "No schedules. A schedule starts a batch at certain times.");

  function buttons(name) {
    return h("div", { class: "buttons" },
      button("Pause", steer(name, "/pause", `${name} is paused.`)),
      button("Resume", steer(name, "/resume", `${name} goes on from now on.`)),
      sureButton("Remove", "Really remove?", remove(name)));
  }

  function allow(made, one) {
    const [pause, resume] = made.children;
    pause.hidden = one.paused;
    resume.hidden = !one.paused;
  }

  const name = input({ required: true, maxlength: 100 });
  const action = input({ required: true, maxlength: 100 });
  const cron = input({ required: true, placeholder: "0 9 * * MON-FRI" });
  const zone = input({ placeholder: "UTC" });
  const set = (event) => {
    event.preventDefault();
    const body = { action: action.value.trim(), cron: cron.value.trim(), by: "the dashboard", reason: "set in the dashboard" };
    if (zone.value.trim()) body.zone = zone.value.trim();
    app.attempt(() => send("PUT", path(name.value.trim()), body).then(look), `${name.value} is set.`);
  };
  const form = h("form", { class: "line", onsubmit: set },
    h("label", {}, "Schedule", name), h("label", {}, "Action", action), h("label", {}, "Cron", cron),
    h("label", {}, "Time zone", zone), h("div", { class: "buttons" }, h("button", { type: "submit" }, "Set")));
  const summary = h("summary");
  write(summary, "Set a schedule");

  async function look() {
    state.asked_ms = Date.now();
    try {
      state.schedules = (await get("/v1/schedules")).schedules;
      rows.update(state.schedules);
    } catch (error) {
      app.say(error.message, true);
    }
  }

  const update = () => {
    if (Date.now() - state.asked_ms > LOOK_MS) look();
    rows.update(state.schedules);
  };
  return { element: h("div", {}, rows.element, h("details", {}, summary, form)), update };
}
