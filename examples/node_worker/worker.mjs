// A Heatsink worker in plain Node (20 or newer), without packages.
//
//     HEATSINK_SERVER=http://127.0.0.1:8321 node worker.mjs ./handlers.mjs
//
// handlers.mjs exports an object with the actions: each has `run(item, context)` and the options of
// the claim. What `run` returns is the item's result. Protocol: docs/how-to/remote-workers.md.

import { EventEmitter, once } from "node:events";
import { resolve } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

export class Fail extends Error { reports = "fail" } // the item can never succeed
export class Retry extends Error { reports = "retry" } // new Retry("why", { cause: { afterS: 9 } })
export class RateLimited extends Error { reports = "rate_limited" } // a service says "too many"
const USED = 0.88; // of a lease: an item that is not renewed stops before its lease ends

export class Worker extends EventEmitter {
  #held = new Map(); // the items of this worker, by token: { item, abort, outcome, until }
  #isStopping = false;
  #reporting = Promise.resolve();
  #until = () => performance.now() + this.leaseS * 1000 * USED;

  constructor(actions, { server, token = "", concurrency = 10, leaseS = 10 }) {
    super();
    this.actions = actions;
    this.server = server.replace(/\/$/, "");
    this.headers = { "content-type": "application/json" };
    if (token) this.headers.authorization = `Bearer ${token}`;
    this.concurrency = concurrency;
    this.leaseS = leaseS;
  }

  // Run items until stop(). Then items that run may take graceS more seconds.
  async run(graceS = 8) {
    const isLate = (held) => !held.outcome && held.until < performance.now();
    const dropping = setInterval(() => this.#drop(isLate), this.leaseS * 20);
    const renewing = setInterval(() => this.#renew(), (this.leaseS * 1000) / 3);
    while (!this.#isStopping) {
      const free = this.concurrency - this.#held.size;
      if (free > 0) await this.#claim(Math.min(free, 100));
      else await once(this, "change");
    }
    const end = Date.now() + graceS * 1000;
    while (this.#held.size && Date.now() < end) await sleep(20);
    for (const held of this.#held.values()) this.#end(held, { outcome: "back" });
    await this.#reporting;
    for (const timer of [dropping, renewing]) clearInterval(timer);
  }

  stop() {
    this.#isStopping = true; // items that a claim still brings are given back
    this.emit("change");
  }

  // A lease counts from the call that asked for it. So a claim waits for a part of the lease only.
  async #claim(most) {
    const [lease_s, until] = [this.leaseS, this.#until()];
    const asked = { actions: this.actions, most, lease_s, wait_s: Math.min(lease_s / 4, 2) };
    try {
      for (const item of (await this.#call("claim", asked, 1)).items) this.#start(item, until);
      if (until < this.#until() - lease_s * 400) await this.#renew(); // the answer came late
    } catch (error) {
      console.error(`claim: ${error.message}`);
      await sleep(error.status < 429 ? 5000 : 500); // 4xx: only a person can help
    }
  }

  async #start(item, until) {
    const held = { item, until, abort: new AbortController() };
    this.#held.set(item.token, held);
    if (this.#isStopping) return this.#end(held, { outcome: "back" });
    const { item: body, token, ...context } = item;
    try {
      const signal = held.abort.signal; // aborted when the lease is lost, or ends soon
      const result = (await this.actions[item.action].run(body, { ...context, signal })) ?? null;
      JSON.stringify(result); // what cannot be sent is an error of the handler
      this.#end(held, { outcome: "done", result });
    } catch (error) {
      const reason = (error?.reports ? error.message : String(error)).slice(0, 500);
      const after_s = error?.cause?.afterS;
      this.#end(held, { outcome: error?.reports ?? "retry", reason, after_s });
    }
  }

  #end(held, outcome) {
    if (held.outcome) return;
    held.outcome = { token: held.item.token, ...outcome };
    this.#reporting = this.#reporting.then(() => this.#report());
  }

  // Report all outcomes that are not recorded. If this fails, the next renewal repeats it.
  async #report(most = 100) {
    const ended = [...this.#held.values()].filter((held) => held.outcome).slice(0, most);
    if (!ended.length) return;
    try {
      await this.#call("report", { items: ended.map((held) => held.outcome) }, 1);
    } catch (error) {
      if (error.status === 413 && most > 1) return this.#report(1); // results that are large
      if (![409, 413].includes(error.status)) return console.error(`report: ${error.message}`);
    }
    this.#drop((held) => ended.includes(held));
    return this.#report(most);
  }

  async #renew() {
    const [tokens, until] = [[...this.#held.keys()], this.#until()];
    if (!tokens.length) return;
    try {
      const { stale } = await this.#call("renew", { tokens }, 0.3);
      this.#drop((_, token) => stale.includes(token));
      for (const token of tokens) if (this.#held.has(token)) this.#held.get(token).until = until;
    } catch (error) {
      if (error.status === 409) this.#drop((_, token) => tokens.includes(token));
    }
    this.#reporting = this.#reporting.then(() => this.#report());
  }

  // Forget items that have an outcome, or that another worker may run from now on.
  #drop(isGone) {
    for (const [token, held] of this.#held) {
      if (!isGone(held, token)) continue;
      held.abort.abort();
      this.#held.delete(token);
    }
    this.emit("change");
  }

  async #call(name, body, share) {
    const signal = AbortSignal.timeout(this.leaseS * 1000 * share); // a part of the lease
    const request = { method: "POST", headers: this.headers, body: JSON.stringify(body), signal };
    const response = await fetch(`${this.server}/v1/work/${name}`, request);
    const answer = await response.json();
    if (response.ok) return answer;
    const { status } = response;
    throw Object.assign(new Error(`${status} ${answer.detail}`), { status });
  }
}

async function main() {
  const { default: actions } = await import(pathToFileURL(resolve(process.argv[2])).href);
  const { HEATSINK_SERVER: server = "http://127.0.0.1:8321", HEATSINK_TOKEN: token } = process.env;
  const { CONCURRENCY: most = 10, LEASE_S: leaseS = 10 } = process.env;
  const worker = new Worker(actions, { server, token, concurrency: +most, leaseS: +leaseS });
  for (const signal of ["SIGTERM", "SIGINT"]) process.once(signal, () => worker.stop());
  await worker.run();
}

// No `await` here: the module of the handlers imports this one, and would wait for it.
if (import.meta.url === pathToFileURL(resolve(process.argv[1] ?? "")).href) main();
