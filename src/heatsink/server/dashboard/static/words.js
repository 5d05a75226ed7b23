// Figures and names as people read them.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FINE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

const HOT_SHOWN = 4;
export const NONE = "–";
export const number = (value) => (value == null ? NONE : (Math.abs(value) < 10 ? FINE : WHOLE).format(value));
export const count = (value, one, many = `${one}s`) => `${number(value)} ${value === 1 ? one : many}`;
export const percent = (share) => (share == null ? NONE : `${FINE.format(100 * share)} %`);

export function seconds(value) {
  if (value == null) return NONE;
  if (value < 0.0995) return `${FINE.format(1000 * value)} ms`;
  if (value < 1) return `${WHOLE.format(1000 * value)} ms`;
  if (value < 90) return `${FINE.format(value)} s`;
  if (value < 5400) return `${WHOLE.format(value / 60)} min`;
  if (value < 129_600) return `${FINE.format(value / 3600)} h`;
  return `${FINE.format(value / 86_400)} days`;
}

export function moment(text) {
  if (!text) return NONE;
  const time = new Date(text);
  const today = time.toDateString() === new Date().toDateString();
  return today ? CLOCK.format(time) : `${DAY.format(time)} ${CLOCK.format(time)}`;
}

// What heat and decisions are about: a user's key, or a subject of Heatsink's own.
const KINDS = {
  key: "",
  posts: "posts of ",
  followers: "followers of ",
  following: "follows of ",
  trial: "dry run of table ",
  adopted: "table ",
  declared: "table ",
  spread: "spreading of index ",
  swept: "sweep of index ",
  workers: "workers of partition ",
  redis: "Redis server ",
  started: "schedule ",
};

function nameOf(kind, name) {
  const shown = kind === "adopted" ? name.slice(0, name.lastIndexOf("/")) : name;
  return (KINDS[kind] ?? `${kind} `) + shown;
}

// Pages know a line of heat by its id, so that a user's key and a subject of ours never mix.
export const idOf = (one) => `${one.kind}:${one.key}`;

export function subjectOf(id) {
  const at = id.indexOf(":");
  return { kind: id.slice(0, at), key: id.slice(at + 1) };
}

export function pageOf(id) {
  const { kind, key } = subjectOf(id);
  return `/keys?key=${encodeURIComponent(key)}${isOwn(id) ? `&kind=${kind}` : ""}`;
}

export const keyName = (id) => nameOf(subjectOf(id).kind, subjectOf(id).key);

export const isOwn = (id) => !id.startsWith("key:");

export const subject = (decision) => nameOf(decision.subject.kind, decision.subject.name);

export const target = (decision) => decision.words;

// What is hot now: one sentence for each key that matters, and whether it is bad news.
export function hotNow(heat) {
  if (!heat) return [{ text: "Waiting for the first data from the server…" }];
  if (!heat.window && !heat.leads) {
    if (heat.nobody_leads) return [{ text: `The load of the fleet is unknown: ${heat.nobody_leads}.` }];
    return [{ text: `This server is not the leader. The leader knows the load of the fleet: ${heat.leader || "none yet"}.` }];
  }
  if (!heat.window) return [{ text: "Waiting for the first load reports…" }];
  const room = heat.bucket_units_s;
  const hot = heat.keys.filter((one) => one.throttles_s > 0 || one.write_units_s > room / 2);
  if (!hot.length) return [{ text: calmWords(heat.keys, room) }];
  return hot.slice(0, HOT_SHOWN).map((one) => ({ id: idOf(one), text: heatWords(one, room), bad: one.throttles_s > 0 }));
}

function calmWords(keys, room) {
  const nothing = `No key is hot. A bucket should get at most ${number(room)} write units/s, and no key gets half of that.`;
  const busiest = keys[0];
  return busiest ? `${nothing} The busiest is ${keyName(idOf(busiest))} with ${number(busiest.write_units_s)}.` : nothing;
}

function heatWords(one, room) {
  const each = number(one.write_units_s / one.buckets);
  const where = one.buckets > 1 ? `spread over ${one.buckets} buckets, about ${each} each` : "in one bucket";
  const takes = ` gets ${number(one.write_units_s)} write units/s, ${where}`;
  return `${takes}. A bucket should get at most ${number(room)}.${throttledWords(one, room)}`;
}

function throttledWords(one, room) {
  if (!(one.throttles_s > 0)) return "";
  const why = one.write_units_s / one.buckets < room ? ", although its buckets get less than that: the limit of the store is lower" : "";
  return ` It is throttled ${number(one.throttles_s)} times a second${why}.`;
}
