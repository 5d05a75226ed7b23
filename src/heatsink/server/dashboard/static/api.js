// Calls of the HTTP API. The token, where the server asks for one, lives as long as this tab.

const KEPT = "heatsink-token";

export class Refused extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

// A change was sent, and its answer was lost.
export class Unknown extends Error {}

const LOST = "The connection broke before the answer, so it is not known whether this was done. "
  + "Look at this page when it is connected again, before you repeat it.";
const OF_A_PROXY = [502, 504];

export const hasToken = () => Boolean(sessionStorage.getItem(KEPT));
export const keepToken = (token) => sessionStorage.setItem(KEPT, token);

function headers(more) {
  const token = sessionStorage.getItem(KEPT);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

async function answered(answer) {
  if (answer.ok) {
    return answer;
  }
  const problem = await answer.json().catch(() => ({}));
  throw new Refused(answer.status, problem.detail || problem.title || `refused with ${answer.status}`);
}

export async function open(path, options = {}) {
  const { headers: more = {}, ...rest } = options;
  return answered(await fetch(path, { ...rest, headers: headers(more) }));
}

export const get = async (path) => (await open(path)).json();

export async function send(method, path, body) {
  const options = { method };
  if (body !== undefined) {
    options.body = JSON.stringify(body);
    options.headers = { "Content-Type": "application/json" };
  }
  try {
    return await (await open(path, options)).json();
  } catch (error) {
    if (error instanceof Refused && !OF_A_PROXY.includes(error.status)) throw error;
    throw new Unknown(LOST);
  }
}

export const part = encodeURIComponent;
