// Elements of the page. What is there is updated in place, so that focus and clicks survive.

import { NONE } from "/static/words.js";

export const LOADING = "Loading: waiting for the server’s answer…";

const SCROLLED = { tabindex: "0", role: "group", "aria-label": "A table that scrolls sideways" };

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (value === true) {
      element.setAttribute(name, "");
    } else if (value !== false && value != null) {
      element.setAttribute(name, value);
    }
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

export function write(element, text) {
  const shown = String(text ?? NONE);
  if (element.textContent !== shown) {
    element.textContent = shown;
  }
}

export const card = (title, ...children) => h("section", { class: "card" }, h("h2", {}, title), ...children);
export const wide = (title, ...children) => {
  const made = card(title, ...children);
  made.classList.add("wide");
  return made;
};
export const chart = (label, low) => h("div", { class: low ? "chart low" : "chart", role: "img", "aria-label": label });

// `{ label: () => text or [text, note, bad] }` as a row of figures.
export function figures(texts) {
  const cells = Object.keys(texts).map((label) => {
    const value = h("span");
    const note = h("small");
    const box = h("dd", {}, value, note);
    return { label, value, note, box };
  });
  const boxes = cells.map(({ label, box }) => h("div", {}, h("dt", {}, label), box));
  const element = h("dl", { class: cells.length > 6 ? "figures many" : "figures" }, ...boxes);
  const update = () => {
    for (const { label, value, note, box } of cells) {
      const [text, hint = "", bad = false] = [texts[label]()].flat();
      write(value, text);
      write(note, hint);
      box.classList.toggle("bad", bad);
    }
  };
  return { element, update };
}

// Children of `parent`, one for each item, made once and kept while its key is there.
export function keyed(parent, items, keyOf, make, update) {
  const known = parent.known ?? (parent.known = new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, child] of known) {
    if (!wanted.has(key)) {
      child.remove();
      known.delete(key);
    }
  }
  items.forEach((item, place) => {
    const key = keyOf(item);
    if (!known.has(key)) {
      known.set(key, make(item));
    }
    const child = known.get(key);
    if (parent.children[place] !== child) {
      parent.insertBefore(child, parent.children[place] ?? null);
    }
    update(child, item);
  });
}

// Columns: { name, text(row), number, tight, bad(row) }, or with make(key) and update(node, row).
// `less`: left out on a phone unless it is bad. Until the first `update` with rows it says so.
// `few`: small enough to stay a table on a phone.
export function table(columns, keyOf, empty, few = false) {
  const heads = columns.map((column) => h("th", { scope: "col", class: column.number ? "number" : null }, column.name));
  const body = h("tbody");
  const rows = h("table", { class: few ? "few" : null }, h("thead", {}, h("tr", {}, ...heads)), body);
  const whole = h("div", { class: "scroll" }, rows);
  const nothing = h("p", { class: "empty" }, ...[empty].flat());
  const loading = h("p", { class: "empty", "aria-busy": "true" }, LOADING);
  const element = h("div", {}, whole, nothing, loading);
  const make = (row) => h("tr", {}, ...columns.map((column) => cell(column, keyOf(row))));
  whole.hidden = nothing.hidden = true;
  const update = (items, selected) => {
    loading.hidden = Boolean(items);
    if (!items) return;
    whole.hidden = items.length === 0;
    nothing.hidden = items.length > 0;
    keyed(body, items, keyOf, make, (line, row) => {
      if (selected !== undefined) {
        line.setAttribute("aria-selected", keyOf(row) === selected);
      }
      columns.forEach((column, place) => fill(line.children[place], column, row));
    });
    reachable(whole);
  };
  return { element, update };
}

// What is wider than the screen can be scrolled with the keyboard too.
function reachable(whole) {
  if (whole.scrollWidth > whole.clientWidth && getComputedStyle(whole).overflowX !== "visible") {
    Object.entries(SCROLLED).forEach(([name, value]) => whole.setAttribute(name, value));
  } else {
    Object.keys(SCROLLED).forEach((name) => whole.removeAttribute(name));
  }
}

function cell(column, key) {
  const classes = [column.number && "number", column.tight && "tight", column.less && "less"].filter(Boolean).join(" ");
  return h("td", { "data-name": column.name, class: classes || null }, column.make ? column.make(key) : h("span"));
}

function fill(td, column, row) {
  const inner = td.firstElementChild;
  if (column.update) {
    column.update(inner, row);
  } else {
    write(inner, column.text(row));
  }
  if (column.bad) {
    td.classList.toggle("bad", Boolean(column.bad(row)));
  }
}

export const bar = (label) => h("progress", { max: 1, "aria-label": label });

// Rounded, because it is read aloud too.
export function fillBar(element, share) {
  element.value = Math.round(100 * Math.min(1, share)) / 100;
}

export const button = (text, onclick, kind = "quiet") => h("button", { type: "button", class: kind, onclick }, text);

// For what cannot be taken back: the first click asks, the second within four seconds does it.
export function sureButton(text, question, act) {
  let timer = null;
  const calm = () => {
    clearTimeout(timer);
    timer = null;
    made.className = "quiet";
    write(made, text);
  };
  const made = button(text, () => {
    if (timer) {
      calm();
      act();
      return;
    }
    timer = setTimeout(calm, 4000);
    made.className = "sure";
    write(made, question);
  });
  return made;
}
