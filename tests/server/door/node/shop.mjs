// A chat with a shop in one table, as a team would write it in Node: 34 calls, mixed collections.
// It knows nothing of Heatsink. Usage: node shop.mjs ENDPOINT TABLE chat|shop TIMES_AS_JSON
// Prints the answer to each call as one line of JSON.
import { DynamoDBClient } from "@aws-sdk/client-dynamodb";
import {
  BatchGetCommand, BatchWriteCommand, DeleteCommand, DynamoDBDocumentClient, GetCommand, PutCommand,
  QueryCommand, ScanCommand, TransactGetCommand, TransactWriteCommand, UpdateCommand,
} from "@aws-sdk/lib-dynamodb";

const [endpoint, TableName, part, times] = process.argv.slice(2);
const at = JSON.parse(times);
const credentials = { accessKeyId: "any", secretAccessKey: "any" };
const client = new DynamoDBClient({ endpoint, region: "us-east-1", credentials, maxAttempts: 1 });
const db = DynamoDBDocumentClient.from(client);
const pk = "ROOM#1";
const key = (kind, number) => ({ pk, sk: `${kind}#${at[number]}#${number}` });

function shown(value) {
  if (value instanceof Set) return [...value].sort();
  if (value instanceof Uint8Array) return Buffer.from(value).toString("base64");
  if (Array.isArray(value)) return value.map(shown);
  if (value === null || typeof value !== "object") return value;
  const names = Object.keys(value).filter((name) => name !== "$metadata").sort();
  return Object.fromEntries(names.map((name) => [name === TableName ? "TABLE" : name, shown(value[name])]));
}

async function call(command) {
  let answer;
  try {
    answer = await db.send(command);
  } catch (error) {
    if (error.$metadata?.httpStatusCode === undefined) throw error;
    const { name, message, Item, CancellationReasons } = error;
    answer = { error: { name, message, Item, CancellationReasons } };
  }
  const rows = answer.Responses?.[TableName];
  if (rows) rows.sort((one, other) => (one.sk < other.sk ? -1 : 1));
  console.log(JSON.stringify(shown(answer)));
  return answer;
}

function message(number) {
  const author = number % 2 ? "ada" : "bob";
  return { ...key("MSG", number), author, kind: "message", score: number, body: Buffer.from("hey") };
}

const messages = (others) => new QueryCommand({
  TableName,
  KeyConditionExpression: "pk = :p AND begins_with(sk, :m)",
  ExpressionAttributeValues: { ":p": pk, ":m": "MSG#", ...others?.values },
  ConsistentRead: true,
  ...Object.fromEntries(Object.entries(others ?? {}).filter(([name]) => name !== "values")),
});

async function chat() {
  const absent = { ConditionExpression: "attribute_not_exists(pk)" };
  await call(new PutCommand({ TableName, Item: { pk, sk: "META", title: "Launch", likes: 0 }, ...absent }));
  await call(new PutCommand({ TableName, Item: { pk, sk: "META" }, ...absent }));
  for (const user of ["ada", "bob"]) {
    await call(new PutCommand({ TableName, Item: { pk, sk: `MEMBER#${user}`, kind: "member" } }));
  }
  for (let number = 0; number < 4; number++) {
    await call(new PutCommand({ TableName, Item: message(number) }));
  }
  const puts = [];
  for (let number = 4; number < 20; number++) puts.push({ PutRequest: { Item: message(number) } });
  await call(new BatchWriteCommand({ RequestItems: { [TableName]: puts } }));
  const Key = key("MSG", 2);
  for (let time = 0; time < 2; time++) {
    await call(new UpdateCommand({
      TableName, Key, UpdateExpression: "ADD likes :one SET room = pk",
      ExpressionAttributeValues: { ":one": 1 }, ReturnValues: "ALL_NEW",
    }));
  }
  await call(new UpdateCommand({
    TableName, Key, UpdateExpression: "SET body = :b",
    ConditionExpression: "likes = :n AND author = :a",
    ExpressionAttributeValues: { ":b": "new", ":n": 9, ":a": "ada" },
    ReturnValuesOnConditionCheckFailure: "ALL_OLD",
  }));
  await call(new GetCommand({ TableName, Key, ConsistentRead: true }));
  await call(new GetCommand({ TableName, Key, ProjectionExpression: "pk, likes", ConsistentRead: true }));
  const newest = await call(messages({ Limit: 5, ScanIndexForward: false }));
  const ExclusiveStartKey = newest.LastEvaluatedKey;
  await call(messages({ Limit: 5, ScanIndexForward: false, ExclusiveStartKey }));
  await call(new QueryCommand({
    TableName, KeyConditionExpression: "pk = :p", ExpressionAttributeValues: { ":p": pk },
    ConsistentRead: true,
  }));
  await call(messages({ FilterExpression: "likes > :z", values: { ":z": 0 } }));
  await call(messages({ Select: "COUNT" }));
  await call(new DeleteCommand({
    TableName, Key: key("MSG", 3), ConditionExpression: "author = :a",
    ExpressionAttributeValues: { ":a": "ada" }, ReturnValues: "ALL_OLD",
  }));
}

const stock = { pk: "STOCK", sk: "mug" };

function order(number) {
  const Item = { ...key("ORDER", number), qty: 1, paid_by: "ada" };
  return new TransactWriteCommand({
    TransactItems: [
      { Update: {
        TableName, Key: stock, UpdateExpression: "ADD #l :minus", ConditionExpression: "#l > :zero",
        ExpressionAttributeNames: { "#l": "left" },
        ExpressionAttributeValues: { ":minus": -1, ":zero": 0 },
      } },
      { Put: {
        TableName, Item, ConditionExpression: "attribute_not_exists(sk)",
        ReturnValuesOnConditionCheckFailure: "ALL_OLD",
      } },
    ],
  });
}

async function shop() {
  await call(new PutCommand({ TableName, Item: { ...stock, left: 2 } }));
  for (let number = 0; number < 3; number++) await call(order(number));
  await call(order(1));
  await call(new QueryCommand({
    TableName, KeyConditionExpression: "pk = :p AND sk BETWEEN :f AND :t", ConsistentRead: true,
    ExpressionAttributeValues: { ":p": pk, ":f": `ORDER#${at[0]}`, ":t": `ORDER#${at[2]}~` },
  }));
  const keys = [0, 1, 2].map((number) => key("ORDER", number));
  const gets = keys.slice(0, 2).map((Key) => ({ Get: { TableName, Key } }));
  await call(new TransactGetCommand({ TransactItems: gets }));
  const Keys = [stock, keys[0], keys[1]];
  await call(new BatchGetCommand({ RequestItems: { [TableName]: { Keys, ConsistentRead: true } } }));
  await call(new UpdateCommand({
    TableName, Key: keys[0], UpdateExpression: "SET paid = :t REMOVE qty",
    ConditionExpression: "pk = :p AND attribute_not_exists(paid)",
    ExpressionAttributeValues: { ":t": true, ":p": pk }, ReturnValues: "UPDATED_NEW",
  }));
  await call(new QueryCommand({
    TableName, IndexName: "by-kind", KeyConditionExpression: "kind = :k AND score > :s",
    ExpressionAttributeValues: { ":k": "message", ":s": 16 },
  }));
  await call(new ScanCommand({
    TableName, FilterExpression: "pk = :p AND kind = :k",
    ExpressionAttributeValues: { ":p": pk, ":k": "member" },
  }));
  const deletes = keys.map((Key) => ({ DeleteRequest: { Key } }));
  await call(new BatchWriteCommand({ RequestItems: { [TableName]: deletes } }));
  await call(new GetCommand({ TableName, Key: keys[0], ConsistentRead: true }));
  await call(new DeleteCommand({ TableName, Key: stock }));
}

await (part === "chat" ? chat() : shop());
