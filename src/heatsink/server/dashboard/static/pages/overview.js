// Overview: the load, what is refused or waits, and in words which keys are hot.

import { overTime } from "/static/charts.js";
import { bar, card, chart, figures, fillBar, h, keyed, table, wide, write } from "/static/elements.js";
import { decided, latest, older, rateOf, requestsNow, series } from "/static/history.js";
import { count, hotNow, keyName, moment, number, pageOf, seconds, subject, target } from "/static/words.js";

const SHOWN = 6;
const LEAD = "Which keys are hot, what is refused or waits, and what Heatsink decided about it.";
const UNITS = "A write unit is one write of up to 1 KB. A bucket is one of the store’s partitions that a key is spread over.";
const FINAL = ["done", "failed", "lost", "cancelled", "aborted"];
const last = (name) => series[name].at(-1) ?? {};
const waiting = () => last("partitions").waiting?.reduce((sum, one) => sum + one, 0);

function waitWords(kind) {
  const { p50_s, p99_s } = requestsNow(kind);
  return [seconds(p99_s), p99_s == null ? "no recent calls" : `median ${seconds(p50_s)}`];
}

function callWords() {
  const [writes, reads] = [requestsNow(0), requestsNow(1)];
  const refused = writes.refused + reads.refused;
  const rate_s = writes.rate_s == null ? null : writes.rate_s + reads.rate_s;
  return [number(rate_s), refused ? `${number(refused)} refused recently` : "none refused", refused > 0];
}

const queueWords = () => (latest.partitions?.partitions.length === 0 ? "no queue" : `${number(waiting())} waiting`);

function serverWords() {
  const status = latest.status;
  return [number(status?.servers), status ? (status.leads ? "this one leads" : status.leader ? "another one leads" : "no leader: nothing is decided") : ""];
}

const makeFigures = () => figures({
  "write units a second": () => [number(last("heat").units), `${number(last("heat").reads)} reads a second`],
  "throttled a second": () => [number(last("heat").throttles), "refused by the store", last("heat").throttles > 0],
  "keys spread": () => [number(latest.status?.spread_keys), `with ${count(latest.status?.extra_buckets, "extra bucket")}`],
  "HTTP calls a second": callWords,
  "99 % of writes within": () => waitWords(0),
  "99 % of reads within": () => waitWords(1),
  "bulk items a second": () => [number(rateOf("partitions", "done")), queueWords()],
  "servers": serverWords,
});

function sentence(line) {
  const link = line.id ? h("a", { href: pageOf(line.id), "data-tab": true }) : null;
  return h("p", {}, link, h("span"));
}

function saySentence(element, line) {
  if (line.id) {
    write(element.firstElementChild, keyName(line.id));
  }
  write(element.lastElementChild, line.text);
  element.classList.toggle("bad", Boolean(line.bad));
}

function showProgress(element, one) {
  fillBar(element, (one.accepted - one.waiting - one.running) / (one.accepted || 1));
}

// In milliseconds, or in seconds where there are many of those.
function drawWaits(element) {
  const slowest_s = Math.max(0, ...series.requests.flatMap((one) => [one.writes.p99_s ?? 0, one.reads.p99_s ?? 0]));
  const [factor, unit] = slowest_s > 0.8 ? [1, " s"] : [1000, " ms"];
  const shown = (value_s) => (value_s == null ? null : factor * value_s);
  overTime(element, series.requests, [
    { name: "writes, 99 %", style: "line", of: (one) => shown(one.writes.p99_s) },
    { name: "writes, median", style: "dotted", of: (one) => shown(one.writes.p50_s) },
    { name: "reads, 99 %", style: "soft", of: (one) => shown(one.reads.p99_s) },
  ], "No HTTP calls in the last minutes.", { ticksuffix: unit });
}

export function makeOverview() {
  const now = makeFigures();
  const says = h("div", { class: "says", "aria-live": "off" });
  const heat = chart("Write units, reads and throttles a second over the last minutes");
  const wait = chart("How long HTTP writes and reads took over the last minutes");
  const news = table([
    { name: "when", text: (one) => moment(one.time), tight: true },
    { name: "what", text: (one) => `${subject(one)}: ${target(one)}` },
    { name: "why", text: (one) => one.reason },
  ], (one) => `${one.version} ${subject(one)} ${one.setting}`, "No decisions yet. The first one is made when a key gets hot.");
  const batches = table([
    { name: "batch", text: (one) => [one.action, one.tenant, one.reason].filter(Boolean).join(" · ") },
    { name: "progress", make: () => bar("Progress of the batch"), update: showProgress },
    { name: "left", number: true, text: (one) => seconds(one.eta_s) },
  ], (one) => one.id, "No unfinished batches.");
  const element = h("div", { class: "cards" },
    wide("What is hot now", says, h("p", { class: "hint" }, UNITS)),
    wide("Now", now.element),
    card("Load of the hottest keys, per second", heat),
    card("HTTP latency of this server", wait),
    wide("Unfinished batches", batches.element),
    wide("Latest decisions", news.element));
  const update = () => {
    keyed(says, hotNow(latest.heat), (line) => line.id ?? "", sentence, saySentence);
    now.update();
    overTime(heat, series.heat, [
      { name: "write units", style: "main", of: (one) => one.units },
      { name: "reads", style: "soft", of: (one) => one.reads },
      { name: "throttled", style: "bad", of: (one) => one.throttles },
    ], "No key had enough traffic to be reported in the last minutes.");
    drawWaits(wait);
    news.update(older.known && decided().slice(0, SHOWN));
    batches.update(latest.progress?.progress.filter((one) => !FINAL.includes(one.state)).slice(0, SHOWN));
  };
  return { title: "Overview", lead: LEAD, element, update };
}
