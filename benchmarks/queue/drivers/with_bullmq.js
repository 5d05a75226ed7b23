// BullMQ: a hundred at once, added a thousand to a call. Speaks as stopwatch.py does.
const { Queue, Worker } = require("bullmq");
const { createInterface } = require("node:readline");

const url = new URL(process.env.QUEUE_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const now = () => Number(process.hrtime.bigint()) / 1e9;
const used = () => Object.values(process.cpuUsage()).reduce((a, b) => a + b) / 1e6;
const answer = (values) => process.stdout.write(JSON.stringify(values) + "\n");
const groups = new Map();

async function run({ data: [group, size, pause] }) {
  if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
  if (!groups.has(group)) groups.set(group, { first: now(), used: used(), ended: 0 });
  const found = groups.get(group);
  if (++found.ended === size) {
    const ended = now();
    answer({ group, ended_s: ended, seconds: ended - found.first, cpu_s: used() - found.used });
  }
}

async function enqueue(queue, order) {
  for (let first = 0; first < order[1]; first += 1000) {
    const length = Math.min(1000, order[1] - first);
    await queue.addBulk(Array.from({ length }, () => ({ name: "item", data: order })));
  }
}

async function takeOrders() {
  const queue = new Queue("bench", { connection });
  for await (const line of createInterface({ input: process.stdin })) {
    const [began, before] = [now(), used()];
    await enqueue(queue, line.split(" ").map(Number));
    answer({ began_s: began, seconds: now() - began, cpu_s: used() - before });
  }
  process.exit();
}

if (process.argv[2] === "work") {
  new Worker("bench", run, { connection, concurrency: 100 });
  process.stdin.on("end", () => process.exit()).resume();
} else {
  takeOrders();
}
