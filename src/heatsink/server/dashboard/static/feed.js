// Follows /v1/events for ever. Not with EventSource, which cannot send a token.

import { open } from "/static/api.js";

const SILENT_MS = 20_000; // the server says something every 15 s, if only that it is there
const AGAIN_MS = 1_000;
const AGAIN_MS_MAX = 3_000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// `tell(name, value)` for each event, `say(state)` for "live" and "lost", and `askToken(refusal)`,
// which is waited for, when the server wants one.
export async function follow({ tell, say, askToken }) {
  const position = { id: "" };
  let wait = AGAIN_MS;
  for (;;) {
    try {
      await listen(position, tell, () => {
        wait = AGAIN_MS;
        say("live");
      });
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        await askToken(error);
        continue;
      }
    }
    say("lost");
    await pause(wait);
    wait = Math.min(wait * 1.5, AGAIN_MS_MAX);
  }
}

async function listen(position, tell, connected) {
  const abort = new AbortController();
  let alarm = setTimeout(() => abort.abort(), SILENT_MS);
  const headers = position.id ? { "Last-Event-ID": position.id } : {};
  try {
    const answer = await open("/v1/events", { headers, signal: abort.signal, cache: "no-store" });
    connected();
    const chunks = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (let read = await chunks.read(); !read.done; read = await chunks.read()) {
      clearTimeout(alarm);
      alarm = setTimeout(() => abort.abort(), SILENT_MS);
      const blocks = (rest + read.value).split("\n\n");
      rest = blocks.pop();
      blocks.forEach((block) => dispatch(block, position, tell));
    }
  } finally {
    clearTimeout(alarm);
  }
}

function dispatch(block, position, tell) {
  const fields = {};
  for (const line of block.split("\n")) {
    const colon = line.indexOf(": ");
    if (colon > 0) {
      fields[line.slice(0, colon)] = line.slice(colon + 2);
    }
  }
  if (fields.id) {
    position.id = fields.id;
  }
  if (fields.event) {
    tell(fields.event, JSON.parse(fields.data));
  }
}
