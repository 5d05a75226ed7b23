// Controls, on the page of bulk actions: limits and their use, paused tenants and actions, weights.

import { get, part, send } from "/static/api.js";
import { button, h, table, write } from "/static/elements.js";
import { moment, NONE, number } from "/static/words.js";

const LOOK_MS = 2_000;
const WHOLE = "(all)";
const KINDS = {
  "bulk.paused_tenants.": "tenant",
  "bulk.paused_actions.": "action",
  "bulk.weights.": "tenant",
  "bulk.limits.": "limit",
};
const input = (options = {}) => h("input", { required: true, autocomplete: "off", ...options });

function meant(one) {
  const prefix = Object.keys(KINDS).find((each) => one.name.startsWith(each));
  const name = one.name.slice(prefix.length);
  const state = {
    "bulk.weights.": `weight ${one.value}`,
    "bulk.limits.": `allows ${one.value}`,
  }[prefix] ?? (one.value ? "paused" : "runs");
  return { ...one, what: `${KINDS[prefix]} ${name}`, state };
}

function showButton(buttons, one) {
  write(buttons.firstElementChild, one.state === "paused" ? "Resume" : "Unset");
}

// One line for each key of a limit that is in use.
function usesOf(limits) {
  return limits.flatMap((limit) => {
    const uses = limit.uses.length ? limit.uses : [{ key: "", running: 0, waiting: 0 }];
    return uses.map((use) => ({ ...use, limit: limit.name, allows: limit.allows + (limit.changed ? " (changed)" : ""), id: `${limit.name} ${use.key}` }));
  });
}

export function makeControls(app) {
  const state = { asked_ms: 0, found: undefined };
  const path = (name) => `/v1/settings/${part(name)}`;
  const change = (work, said) => app.attempt(() => work().then(look), said);
  const unset = (name) => () => change(() => send("DELETE", path(name)), `${meant({ name }).what}: back to normal.`);
  const limits = table([
    { name: "limit", text: (one) => one.limit, tight: true },
    { name: "allows", text: (one) => one.allows },
    { name: "key", text: (one) => one.key || WHOLE },
    { name: "running", number: true, text: (one) => number(one.running) },
    { name: "waiting", number: true, text: (one) => number(one.waiting) },
  ], (one) => one.id, "No worker has a limit on running items.");
  const changes = table([
    { name: "changed", text: (one) => one.what },
    { name: "to", text: (one) => one.state, tight: true, bad: (one) => one.state === "paused" },
    { name: "by", text: (one) => one.by, less: true },
    { name: "when", text: (one) => (one.changed ? moment(one.changed) : NONE), tight: true },
    { name: "why", text: (one) => one.reason },
    { name: "actions", make: (name) => h("div", { class: "buttons" }, button("", unset(name))), update: showButton },
  ], (one) => one.name, "Nothing is paused, and no weight or limit is changed.");

  const kind = h("select", {}, ...["tenant", "action"].map((each) => h("option", { value: each }, each)));
  const name = input({ maxlength: 256 });
  const reason = input({ maxlength: 500 });
  const set = (value) => {
    const body = { value, reason: reason.value.trim(), by: "the dashboard" };
    const chosen = `${kind.value} ${name.value.trim()}`;
    const setting = `bulk.paused_${kind.value}s.${name.value.trim()}`;
    change(() => send("PUT", path(setting), body), value ? `The ${chosen} is paused. Running items still finish.` : `The ${chosen} goes on.`);
  };
  const pause = (event) => {
    event.preventDefault();
    set(true);
  };
  const resume = () => { if (form.reportValidity()) set(false); };
  const form = h("form", { class: "line", onsubmit: pause },
    h("label", {}, "Tenant or action", kind), h("label", {}, "Name", name),
    h("label", { class: "grow" }, "Reason", reason),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Pause"), button("Resume", resume)));
  const summary = h("summary");
  write(summary, "Pause or resume a tenant or an action");

  async function look() {
    state.asked_ms = Date.now();
    try {
      state.found = await get("/v1/controls");
      paint();
    } catch (error) {
      app.say(error.message, true);
    }
  }

  function paint() {
    limits.update(state.found && usesOf(state.found.limits));
    changes.update(state.found?.settings.map(meant));
  }

  const update = () => {
    if (Date.now() - state.asked_ms > LOOK_MS) look();
    paint();
  };
  const hint = h("p", { class: "hint" }, "Weights and limits are changed in Settings, as ",
    h("code", {}, "bulk.weights.TENANT"), " and ", h("code", {}, "bulk.limits.NAME"), ".");
  const control = h("div", {}, changes.element, h("details", {}, summary, form), hint);
  return { limits: limits.element, changes: control, update };
}
