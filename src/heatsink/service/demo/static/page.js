"use strict";

// Follows the demo's events and shows them. The server sends the whole present run on every connect,
// so a reload, or a connection that comes back, shows everything from the start.

const STOPPED = "The demo stopped. Run ./dev demo again, and this page comes back by itself.";
const LANES = ["plain", "heatsink"];
const find = (id) => document.getElementById(id);
const number = (value) => value.toLocaleString("en");
const emptyRun = () => ({
  plan: { limit: 1000 }, seconds: 50, over: false, snapshots: [], partitions: { plain: [], heatsink: [] },
});

let run = emptyRun();
let drawing = false;
let stopped = false;

const handlers = {
  start(event) {
    run = { ...emptyRun(), plan: event.plan, seconds: event.seconds };
    find("verdict").hidden = true;
    for (const element of document.querySelectorAll("[data-limit]")) {
      element.textContent = number(event.plan.limit);
    }
    setBusy(true);
    drawSoon();
  },
  snapshot(event) {
    run.snapshots.push(event);
    for (const lane of LANES) {
      rememberPartitions(lane, event[lane]);
    }
    drawSoon();
  },
  verdict(event) {
    run.over = true;
    showVerdict(event);
    setBusy(false);
    drawSoon();
  },
  failed(event) {
    banner(`The run failed: ${event.text}`);
    setBusy(false);
  },
  stop() {
    stopped = true;
    banner(STOPPED);
  },
};

function rememberPartitions(lane, now) {
  const known = new Set(run.partitions[lane]);
  now.rates.partitions.forEach((one) => known.add(one.name));
  const order = (a, b) => a.length - b.length || (a < b ? -1 : 1);
  run.partitions[lane] = [...known].sort(order);
}

function drawSoon() {
  if (!drawing) {
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      draw();
    });
  }
}

function draw() {
  const now = run.snapshots.at(-1);
  if (now) {
    showNow(now);
  }
  for (const lane of LANES) {
    if (now) {
      showLane(find(lane), now[lane], now.narration[lane]);
    }
    drawLane(run, lane);
  }
  document.body.dataset.snapshots = run.snapshots.length;
}

function showNow(now) {
  const { rates, totals, spread } = now.heatsink;
  const left = Math.max(0, Math.ceil(run.seconds - now.second));
  find("offered").textContent = number(run.over ? totals.offered : rates.offered_s);
  find("offered-what").textContent = run.over ? "messages were offered to both" : "writes a second are offered to both";
  find("leg").textContent = run.over ? "The run is over" : now.leg[0].toUpperCase() + now.leg.slice(1);
  find("clock").textContent = run.over ? "" : left ? `· second ${Math.round(now.second)}, ${left} to go` : "· reading everything back";
  find("progress").value = Math.min(1, now.second / run.seconds);
  find("why").textContent = spread.widest > 1 ? `Last decision: ${spread.target} because of ${spread.reason}` : "";
  for (const element of document.querySelectorAll(".moment")) {
    element.textContent = run.over ? "at the peak" : "now";
  }
}

function showLane(card, now, says) {
  card.querySelector(".says").textContent = says;
  for (const cell of card.querySelectorAll("[data-total]")) {
    const value = now.totals[cell.dataset.total];
    cell.textContent = number(value);
    cell.classList.toggle("bad", cell.dataset.total !== "accepted" && value > 0);
  }
  const wait = card.querySelector("[data-wait]");
  wait.textContent = now.rates.p99_ms < 1000 ? `${now.rates.p99_ms} ms` : `${(now.rates.p99_ms / 1000).toFixed(1)} s`;
  wait.classList.toggle("bad", now.rates.p99_ms >= 1000);
}

function showVerdict(verdict) {
  find("findings").replaceChildren(...verdict.findings.map((finding) => {
    const item = document.createElement("li");
    item.textContent = finding.text;
    item.classList.toggle("bad", finding.good === false);
    item.classList.toggle("fact", finding.good === null);
    return item;
  }));
  for (const lane of LANES) {
    showEnd(find(`ended-${lane}`), verdict[lane]);
  }
  const { lost, duplicated, totals } = verdict.heatsink;
  find("verdict").classList.toggle("failed", lost + duplicated + totals.dropped > 0);
  find("verdict").hidden = false;
}

function showEnd(row, ended) {
  const { offered, accepted, throttled, dropped } = ended.totals;
  const numbers = [offered, accepted, throttled, dropped, ended.found, ended.lost, ended.duplicated];
  row.replaceChildren(row.firstElementChild, ...numbers.map((value) => {
    const cell = document.createElement("td");
    cell.textContent = number(value);
    return cell;
  }));
}

function setBusy(busy) {
  for (const button of document.querySelectorAll("[data-shape]")) {
    button.disabled = busy;
  }
}

function banner(text) {
  find("banner").textContent = text;
  find("banner").hidden = !text;
}

async function startRun(shape) {
  setBusy(true);
  try {
    const answer = await fetch(`/run?shape=${shape}`, { method: "POST" });
    if (!answer.ok) {
      banner(`No new run: ${await answer.text()}.`);
    }
  } catch {
    banner(STOPPED);
  }
}

function follow() {
  const source = new EventSource("/events");
  source.onopen = () => {
    stopped = false;
    banner("");
  };
  source.onmessage = (message) => {
    const event = JSON.parse(message.data);
    handlers[event.type](event);
  };
  source.onerror = () => {
    setBusy(true);
    if (!stopped) {
      banner(STOPPED);
    }
    if (source.readyState === EventSource.CLOSED) {
      setTimeout(follow, 2000);
    }
  };
}

for (const button of document.querySelectorAll("[data-shape]")) {
  button.addEventListener("click", () => startRun(button.dataset.shape));
}
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawSoon);
drawSoon();
follow();
