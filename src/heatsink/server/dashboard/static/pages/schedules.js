// Schedules, on the page of bulk actions: when each runs, buttons to steer it, and a form to set one.

import { get, part, send } from "/static/api.js";
import { button, h, sureButton, table, write } from "/static/elements.js";
import { moment, NONE } from "/static/words.js";

const LOOK_MS = 3_000;
const HINT = "A schedule needs either a number of seconds or a cron text.";
const TEXTS = /"(?:[^"\\]|\\.)*"/g;
const LONG = /\d{16}/; // JavaScript rounds such numbers
const when = (one) => (one.every_s ? `every ${one.every_s} s` : `${one.cron} ${one.zone}`);
const input = (options = {}) => h("input", { autocomplete: "off", ...options });
const choice = (...values) => h("select", {}, ...values.map((each) => h("option", { value: each }, each)));

function checkNumbers(text) {
  if (LONG.test(text.replace(TEXTS, ""))) {
    throw new Error("the items have numbers that a browser would round: use heatsink schedules set");
  }
  return text;
}

// The fields of the form, each with its label and its input. An empty field is left out of the order.
const makeFields = () => ({
  action: ["Action", input({ required: true, maxlength: 100 })],
  every: ["Every (seconds)", input({ type: "number", min: 1, step: 1 })],
  cron: ["Cron", input({ placeholder: "0 9 * * MON-FRI" })],
  zone: ["Time zone", input({ placeholder: "UTC" })],
  items: ["Items (a JSON array)", h("textarea", { rows: 1, spellcheck: "false", placeholder: '[{"days": 30}]' })],
  items_from: ["Items from an action", input({ maxlength: 100 })],
  missed: ["Missed times", choice("skip", "once")],
  tenant: ["Tenant", input({ maxlength: 256, placeholder: "default" })],
  priority: ["Priority", input({ type: "number", min: -1000, max: 1000, step: 1, placeholder: "0" })],
  rate: ["Rate", input({ placeholder: "500/s" })],
});

// What the fields show for a schedule. It is the opposite of `orderOf`.
const shownOf = (one) => ({
  ...one,
  every: one.every_s || "",
  zone: one.cron ? one.zone : "",
  items: one.item_values === null ? "" : checkNumbers(JSON.stringify(one.item_values)),
});

function orderOf(fields) {
  const filled = Object.entries(fields).map(([key, [, field]]) => [key, field.value.trim()]).filter(([, value]) => value);
  const order = { ...Object.fromEntries(filled), by: "the dashboard", reason: "set in the dashboard" };
  for (const key of ["every", "priority"]) if (key in order) order[key] = Number(order[key]);
  if ("items" in order) order.items = JSON.parse(checkNumbers(order.items));
  return order;
}

export function makeSchedules(app) {
  const state = { asked_ms: 0, schedules: undefined, loaded: "" };
  const path = (name, verb = "") => `/v1/schedules/${part(name)}${verb}`;
  const steer = (name, verb, said) => () => app.attempt(() => send("POST", path(name, verb)).then(look), said);
  const remove = (name) => () => app.attempt(() => send("DELETE", path(name)).then(look), `${name} is removed. Its batches stay.`);
  const edit = (name) => () => app.attempt(() => show(name), `The form shows ${name}. Change it, then press Set.`);
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
      button("Edit", edit(name)),
      sureButton("Remove", "Really remove?", remove(name)));
  }

  function allow(made, one) {
    const [pause, resume] = made.children;
    pause.hidden = one.paused;
    resume.hidden = !one.paused;
  }

  const name = input({ required: true, maxlength: 100 });
  const fields = makeFields();

  function load(one) {
    const shown = shownOf(one);
    for (const [key, [, field]] of Object.entries(fields)) field.value = shown[key] ?? "";
    name.value = one.name;
    state.loaded = one.name;
  }

  // Answers overwrite the form. So nobody can type in it while it waits for one.
  async function held(text, work) {
    if (whole.disabled) throw new Error("the form still waits for the server");
    const focused = document.activeElement;
    whole.disabled = true;
    write(hint, text);
    try {
      await work();
    } finally {
      whole.disabled = false;
      write(hint, HINT);
      if (whole.contains(focused)) focused.focus();
    }
  }

  async function show(wanted) {
    details.open = true;
    await held(`Loading ${wanted}: the form is locked until it shows it…`, async () => load(await get(path(wanted))));
    fields.action[1].focus();
  }

  // A schedule is replaced as a whole. So nobody replaces one whose values the form has not shown.
  async function put(wanted) {
    if (state.loaded !== wanted) {
      await look();
      if (state.schedules.some((one) => one.name === wanted)) {
        load(await get(path(wanted)));
        throw new Error(`there is a schedule ${wanted}. The form shows it now: change it, then press Set again`);
      }
    }
    await send("PUT", path(wanted), orderOf(fields));
    state.loaded = wanted;
    await look();
  }

  const set = (event) => {
    event.preventDefault();
    const wanted = name.value.trim();
    app.attempt(() => held(`Setting ${wanted}…`, () => put(wanted)), `${wanted} is set.`);
  };
  const whole = h("fieldset", {},
    h("label", {}, "Schedule", name),
    ...Object.values(fields).map(([label, field]) => h("label", {}, label, field)),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Set")));
  const form = h("form", { class: "line", onsubmit: set }, whole);
  const summary = h("summary");
  write(summary, "Set a schedule");
  const hint = h("p", { class: "hint", role: "status" }, HINT);
  const details = h("details", {}, summary, hint, form);

  async function look() {
    state.asked_ms = Date.now();
    state.schedules = (await get("/v1/schedules")).schedules;
    rows.update(state.schedules);
  }

  const update = () => {
    if (Date.now() - state.asked_ms > LOOK_MS) look().catch((error) => app.say(error.message, true));
    rows.update(state.schedules);
  };
  return { element: h("div", {}, rows.element, details), update };
}
