// A program that uses the types which openapi-typescript generates for Heatsink's HTTP API.

import assert from "node:assert/strict";
import { setTimeout as sleep } from "node:timers/promises";
import createClient from "openapi-fetch";
import type { components, paths } from "./api.d.ts";

const LOOK_MS = 50;
const key = "conv/typescript"; // a key may have a slash
const [url, token] = process.argv.slice(2);
const client = createClient<paths>({
  baseUrl: url!,
  headers: { authorization: `Bearer ${token}` },
});

async function keepALog(): Promise<void> {
  const messages = "/v1/conversations/{key}/messages";
  const params = { path: { key }, header: { "Idempotency-Key": "one" } };
  let id = "";
  for (const status of [201, 200]) { // the second one is a retry
    const { data, response } = await client.POST(messages, { params, body: { body: "hey", ttl: 3600 } });
    assert.equal(response.status, status);
    id = data!.id;
  }
  await client.POST(messages, { params: { path: { key } }, body: { body: { base64: "/w==" } } });

  const first = await client.GET(messages, { params: { path: { key }, query: { limit: 1 } } });
  const cursor: string | null = first.data!.cursor;
  assert.deepEqual(first.data!.messages[0]!.body, { base64: "/w==" });
  const query = { limit: 1, cursor: cursor! };
  const second = await client.GET(messages, { params: { path: { key }, query } });
  assert.deepEqual(second.data!.messages.map((each) => [each.id, each.body]), [[id, "hey"]]);

  const message = "/v1/conversations/{key}/messages/{id}";
  const deleted = await client.DELETE(message, { params: { path: { key, id } } });
  assert.equal(deleted.data!.deleted, true);
  const gone = await client.GET(message, { params: { path: { key, id } } });
  assert.equal(gone.error!.status, 404);
  const erased = await client.DELETE(messages, { params: { path: { key } } });
  assert.ok(erased.data!.erased >= 1);
}

async function count(): Promise<void> {
  const path = { key: "typescript-views" };
  const added = await client.POST("/v1/counters/{key}", { params: { path }, body: { amount: 3 } });
  assert.deepEqual(added.data, {});
  const { data } = await client.GET("/v1/counters/{key}", { params: { path } });
  assert.equal(data!.value, 3);
}

async function ended(name: string): Promise<components["schemas"]["Progress"]> {
  for (;;) {
    const { data } = await client.GET("/v1/bulk/{name}", { params: { path: { name } } });
    if (data!.done + data!.failed === data!.accepted) return data!;
    await sleep(LOOK_MS);
  }
}

async function runABatch(): Promise<void> {
  const { data } = await client.POST("/v1/bulk/{name}", {
    params: { path: { name: "double" }, query: { results: "keep" } },
    body: '{"n": 1}\n{"n": 2}\n{"n": "odd"}\n', // or an array
    bodySerializer: (lines) => lines,
    headers: { "content-type": "application/x-ndjson" },
  });
  const progress = await ended(data!.id);
  assert.deepEqual([progress.done, progress.failed], [2, 1]);
  const params = { path: { name: data!.id } };
  const results = await client.GET("/v1/bulk/{name}/results", { params, parseAs: "text" });
  assert.equal(results.data, '{"index":0,"value":2}\n{"index":1,"value":4}\n');
  const failures = await client.GET("/v1/bulk/{name}/failures", { params, parseAs: "text" });
  const failure: components["schemas"]["Failure"] = JSON.parse(failures.data!);
  assert.deepEqual(failure.item, { n: "odd" });
}

async function seeAnError(): Promise<void> {
  const { error } = await client.GET("/v1/conversations/{key}/messages", {
    params: { path: { key }, query: { limit: 0 } },
  });
  assert.deepEqual([error!.status, error!.field], [400, "limit"]);
}

await keepALog();
await count();
await runABatch();
await seeAnError();
