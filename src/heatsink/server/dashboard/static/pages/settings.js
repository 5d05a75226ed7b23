// Settings: what is in force for the whole deployment, where it comes from, and a form to change it.

import { get, part, send } from "/static/api.js";
import { button, h, table, wide } from "/static/elements.js";
import { moment } from "/static/words.js";

const LEAD = "Settings that all processes of this deployment follow. A change is in force everywhere within a second.";
const LOOK_MS = 3_000;
const PHONE = 640; // pixels, as in parts.css: there the list is long, so it is folded
const shown = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function origin(one) {
  if (one.source === "deployment") return `set by ${one.by}, ${moment(one.changed)}: ${one.reason}`;
  return one.source === "default" ? "default" : "this server was started with it";
}

export function makeSettings(app) {
  const state = { settings: null, asked_ms: 0 };
  const names = h("datalist", { id: "setting-names" });
  const name = h("input", { required: true, list: "setting-names", autocomplete: "off" });
  const value = h("input", { required: true, autocomplete: "off" });
  const reason = h("input", { required: true, maxlength: 500, autocomplete: "off" });
  const path = () => `/v1/settings/${part(name.value.trim())}`;
  const change = (event) => {
    event.preventDefault();
    const body = { value: value.value.trim(), reason: reason.value.trim(), by: "the dashboard" };
    app.attempt(() => send("PUT", path(), body).then(look), `${name.value} is set for all processes.`);
  };
  const takeBack = () => app.attempt(() => send("DELETE", path()).then(look), `${name.value} is unset: each process uses its own value or the default.`);
  const form = h("form", { class: "line", onsubmit: change }, names,
    h("label", {}, "Setting", name), h("label", {}, "Value", value),
    h("label", { class: "grow" }, "Reason", reason),
    h("div", { class: "buttons" }, h("button", { type: "submit" }, "Set"), button("Unset", takeBack)));
  const columns = [
    { name: "setting", text: (one) => one.name, tight: true },
    { name: "about", text: (one) => one.about.replaceAll("`", "") },
    { name: "value", text: (one) => shown(one.value), tight: true },
    { name: "default", text: (one) => shown(one.default) },
    { name: "from", text: origin },
  ];
  const changed = table(columns, (one) => one.name, "Every setting is at its default.");
  const others = table(columns.slice(0, 3), (one) => one.name, "");
  const folded = h("details", { open: innerWidth > PHONE }, h("summary", {}, "All other settings, with what they do"), others.element);
  const element = h("div", { class: "cards" }, wide("Change ", form),
    wide("Not at their default ", changed.element), wide("At their default ", folded));

  async function look() {
    state.asked_ms = Date.now();
    try {
      state.settings = (await get("/v1/settings")).settings;
      names.replaceChildren(...state.settings.map((one) => h("option", { value: one.name })));
      paint();
    } catch (error) {
      app.say(error.message, true);
    }
  }

  function paint() {
    changed.update(state.settings?.filter((one) => one.source !== "default"));
    others.update(state.settings?.filter((one) => one.source === "default"));
  }

  const update = () => {
    if (Date.now() - state.asked_ms > LOOK_MS) look();
    paint();
  };
  return { title: "Settings", lead: LEAD, element, update };
}
