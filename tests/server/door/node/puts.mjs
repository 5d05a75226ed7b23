// Puts new items of one hot key at a steady rate, without retries, and counts throttled ones.
// Usage: node puts.mjs ENDPOINT TABLE PUTS_A_SECOND SECONDS
// Prints {"accepted": …, "throttled": …} for each second. Ends early after 3 seconds in a row in
// which nothing was throttled, if a fifth argument is given.
import { DynamoDBClient } from "@aws-sdk/client-dynamodb";
import { DynamoDBDocumentClient, PutCommand } from "@aws-sdk/lib-dynamodb";

const [endpoint, TableName, rate, seconds, untilCalm] = process.argv.slice(2);
const credentials = { accessKeyId: "any", secretAccessKey: "any" };
const client = new DynamoDBClient({ endpoint, region: "us-east-1", credentials, maxAttempts: 1 });
const db = DynamoDBDocumentClient.from(client);
const THROTTLES = ["ThrottlingException", "ProvisionedThroughputExceededException"];
const TICKS = 10;
let number = 0;
let calm = 0;

async function put(counts) {
  const sk = `MSG#${new Date().toISOString()}#${number++}`;
  try {
    await db.send(new PutCommand({ TableName, Item: { pk: "ROOM#1", sk, text: "hey" } }));
    counts.accepted++;
  } catch (error) {
    if (!THROTTLES.includes(error.name)) throw error;
    counts.throttled++;
  }
}

for (let second = 0; second < Number(seconds) && !(untilCalm && calm >= 3); second++) {
  const counts = { accepted: 0, throttled: 0 };
  const sent = [];
  for (let tick = 0; tick < TICKS; tick++) {
    const pause = new Promise((done) => setTimeout(done, 1000 / TICKS));
    for (let one = 0; one < Number(rate) / TICKS; one++) sent.push(put(counts));
    await pause;
  }
  await Promise.all(sent);
  calm = counts.throttled ? 0 : calm + 1;
  console.log(JSON.stringify(counts));
}
