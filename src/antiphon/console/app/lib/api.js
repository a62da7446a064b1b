import { readEvents } from "./sse.js";

/** The address under which the server is seen: the console lies in `console/`, maybe behind a proxy's prefix. */
export const ROOT = new URL("../", document.baseURI);

const REMEMBERED = "antiphon.key";

/** @returns {Storage | null} nothing where the browser forbids pages to keep data */
function findStorage() {
  try {
    return sessionStorage;
  } catch {
    return null;
  }
}

/** @typedef {{key: string, who?: string, ends?: number | null}} Credential a key; or an issuer's token, with its user and its end in milliseconds */

/** @returns {Credential | null} what an earlier page of this tab was asked to keep */
function recall() {
  try {
    const kept = JSON.parse(findStorage()?.getItem(REMEMBERED) ?? "null");
    return typeof kept?.key === "string" ? kept : null;
  } catch {
    return null;
  }
}

/** Where the console keeps the caller's key or token: in memory, and in sessionStorage only if the user asked for it. */
class Session extends EventTarget {
  #credential = recall();

  get key() {
    return this.#credential?.key ?? null;
  }

  /** The user whom the issuer signed in. */
  get who() {
    return this.#credential?.who ?? null;
  }

  get hasEnded() {
    return Date.now() >= (this.#credential?.ends ?? Infinity);
  }

  /** @param {Credential | null} credential @param {boolean} remember */
  set(credential, remember = false) {
    this.#credential = credential;
    if (credential && remember) findStorage()?.setItem(REMEMBERED, JSON.stringify(credential));
    else findStorage()?.removeItem(REMEMBERED);
    this.dispatchEvent(new Event("change"));
  }

  /** Tells the page that the server no longer accepts the key. What was typed stays. */
  refuse() {
    this.dispatchEvent(new Event("refused"));
  }

  /** @param {boolean} isReachable */
  report(isReachable) {
    this.dispatchEvent(new CustomEvent("reachable", { detail: isReachable }));
  }
}

export const session = new Session();

/** An answer that is no success, in the server's own words. */
export class ServerError extends Error {
  /** @param {string} message @param {number} status @param {string | null} requestId @param {string | null} code */
  constructor(message, status = 0, requestId = null, code = null) {
    super(message);
    this.status = status;
    this.requestId = requestId;
    this.code = code;
  }
}

/** The server could not be reached at all. */
export class Unreachable extends ServerError {}

/**
 * @param {string} path below the server's root, such as `v1/models`
 * @param {{method?: string, body?: unknown, signal?: AbortSignal, headers?: Record<string, string>}} options
 */
export async function send(path, { method = "GET", body, signal, headers = {} } = {}) {
  /** @type {Record<string, string>} */
  const sent = { ...headers };
  const { key } = session;
  if (key) sent.authorization = `Bearer ${key}`;
  if (body !== undefined && !(body instanceof FormData)) sent["content-type"] = "application/json";
  let response;
  try {
    response = await fetch(new URL(path, ROOT), {
      method,
      headers: sent,
      body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
      signal,
      credentials: "omit",
      cache: "no-store",
    });
  } catch (problem) {
    if (signal?.aborted) throw problem;
    session.report(false);
    throw new Unreachable("The server cannot be reached. Try again when it answers.");
  }
  session.report(true);
  if (response.ok) return response;
  const error = await readError(response);
  if (response.status === 401 && key === session.key) session.refuse(); // not if another key was entered meanwhile
  throw error;
}

/** @param {Response} response */
async function readError(response) {
  const requestId = response.headers.get("x-request-id");
  const text = await response.text().catch(() => "");
  try {
    const { error } = JSON.parse(text);
    return new ServerError(String(error.message), response.status, requestId, error.code ?? error.type);
  } catch {
    return new ServerError(`The server answered ${response.status}.`, response.status, requestId);
  }
}

/** @param {string} path @param {AbortSignal} [signal] @returns {Promise<any>} */
export const get = async (path, signal) => (await send(path, { signal })).json();

/** @param {string} method @param {string} path @param {unknown} [body] @returns {Promise<any>} */
export async function change(method, path, body) {
  const response = await send(path, { method, body });
  return response.status === 204 ? null : response.json();
}

/**
 * Returns all items of a list of the admin API, page after page.
 *
 * @param {string} path @param {number} most
 * @returns {Promise<any[]>}
 */
export async function list(path, most = 1000) {
  const items = [];
  let after = null;
  do {
    const page = await get(withQuery(path, { limit: Math.min(most - items.length, 500), after }));
    items.push(...page.data);
    after = page.next;
  } while (after && items.length < most);
  return items;
}

/** @param {string} path @param {Record<string, string | number | null | undefined>} query */
export function withQuery(path, query) {
  const values = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(values.map(([name, value]) => [name, String(value)])).toString();
  return text ? `${path}${path.includes("?") ? "&" : "?"}${text}` : path;
}

/**
 * Sends a request whose answer is a stream, and yields its chunks. An error inside the stream is thrown.
 *
 * @param {string} path @param {unknown} body @param {AbortSignal} signal
 * @param {(response: Response) => void} onStart called when the headers are there
 * @returns {AsyncGenerator<any>}
 */
export async function* stream(path, body, signal, onStart = () => {}) {
  const response = await send(path, { method: "POST", body, signal });
  onStart(response);
  const requestId = response.headers.get("x-request-id");
  let isWhole = false;
  try {
    for await (const data of readEvents(/** @type {ReadableStream<Uint8Array>} */ (response.body))) {
      if (data === "[DONE]") {
        isWhole = true;
        break;
      }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ServerError(chunk.error.message, response.status, requestId, chunk.error.code);
      yield chunk;
    }
  } catch (problem) {
    if (signal.aborted || problem instanceof ServerError) throw problem;
    throw new ServerError("The connection broke before the answer was whole.", 0, requestId);
  }
  if (!isWhole) throw new ServerError("The stream ended before the answer was whole.", 0, requestId);
}

/** Resolves when the server answers again. */
export async function waitForServer() {
  for (;;) {
    try {
      const response = await fetch(new URL("health", ROOT), { cache: "no-store" });
      if (response.ok) return session.report(true);
    } catch {
      // still away
    }
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
}

/** @type {Promise<any> | null} */
let description = null;

/** Returns the OpenAPI document, which is loaded once for each key. */
export function loadDescription() {
  description ??= get("openapi.json").catch((problem) => {
    description = null;
    throw problem;
  });
  return description;
}

session.addEventListener("change", () => {
  description = null;
});
