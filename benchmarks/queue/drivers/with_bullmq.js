// BullMQ: 200 at once, added a thousand to a call, and deleted when they end: without that, every
// item stays in Redis. Speaks as stopwatch.py does.
const { Queue, Worker } = require("bullmq");
const { createInterface } = require("node:readline");

const url = new URL(process.env.QUEUE_URL);
const connection = { host: url.hostname, port: Number(url.port), maxRetriesPerRequest: null };
const now = () => Number(process.hrtime.bigint()) / 1e9;
const used = () => Object.values(process.cpuUsage()).reduce((a, b) => a + b) / 1e6;
const answer = (values) => process.stdout.write(JSON.stringify(values) + "\n");
const groups = new Map();

async function run({ data: [group, size, pause, began] }) {
  if (pause) await new Promise((resolve) => setTimeout(resolve, pause));
  if (!groups.has(group)) groups.set(group, { first: now(), used: used(), ended: 0, waited: 0 });
  const found = groups.get(group);
  found.waited += now() - (began || 0) / 1e6;
  if (++found.ended === size) {
    const ended = now();
    const [seconds, cpu_s] = [ended - found.first, used() - found.used];
    answer({ group, ended_s: ended, seconds, cpu_s, waited_s: found.waited / size });
  }
}

const job = (data) => ["item", data, { removeOnComplete: true, removeOnFail: true }];

async function enqueueJobs(queue, [group, size, producers]) {
  let left = size;
  const produce = async () => {
    while (left-- > 0) await queue.add(...job([group, size, 0, Math.round(now() * 1e6)]));
  };
  await Promise.all(Array.from({ length: producers }, produce));
}

async function enqueue(queue, order) {
  if (process.argv[2] === "jobs") return enqueueJobs(queue, order);
  const [name, data, opts] = job(order);
  for (let first = 0; first < order[1]; first += 1000) {
    const length = Math.min(1000, order[1] - first);
    await queue.addBulk(Array.from({ length }, () => ({ name, data, opts })));
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
  new Worker("bench", run, { connection, concurrency: 200 });
  process.stdin.on("end", () => process.exit()).resume();
} else {
  takeOrders();
}
