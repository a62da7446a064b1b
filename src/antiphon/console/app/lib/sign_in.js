/**
 * Signs in at the server's OpenID Connect issuer: authorization code with PKCE, without a secret.
 *
 * The issuer's page opens in a window of its own. So this page keeps what was typed, and the state, nonce and verifier
 * are in no storage. The issuer leads that window to the console's address. There it hands the reply to this page.
 */

const CHANNEL = "antiphon.sign-in";
const DISCOVERY = "/.well-known/openid-configuration";

/**
 * @typedef {{issuer: string, client_id: string, scope: string}} Client the console, as the issuer knows it
 * @typedef {{client: Client, redirect: string, address: string, tokenEndpoint: string, state: string, nonce: string, verifier: string}} Attempt
 * @typedef {import("./api.js").Credential} Credential
 */

/**
 * Asks the issuer for its addresses, and makes the address of its page.
 *
 * @param {Client} client @param {string} redirect where the issuer leads the window back @returns {Promise<Attempt>}
 */
export async function prepareSignIn(client, redirect) {
  if (!globalThis.crypto?.subtle) throw new Error("A browser signs in only at an https address, or at localhost. Use a key here.");
  const { issuer, client_id, scope } = client;
  const found = await ask(issuer.replace(/\/+$/, "") + DISCOVERY);
  if (found.issuer !== issuer) throw new Error(`The issuer calls itself “${found.issuer}”, and the server calls it “${issuer}”.`);
  const { origin, protocol } = new URL(issuer);
  const tokenEndpoint = String(found.token_endpoint);
  if (!URL.canParse(tokenEndpoint) || new URL(tokenEndpoint).origin !== origin) {
    throw new Error(`The issuer gives tokens at “${tokenEndpoint}”. The page may reach only ${origin}.`);
  }
  const page = URL.parse(String(found.authorization_endpoint));
  if (page?.protocol !== "https:" && page?.protocol !== protocol) throw new Error("The issuer's page for signing in has no https address.");
  const [state, nonce, verifier] = [makeSecret(), makeSecret(), makeSecret()];
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(verifier));
  const query = {
    response_type: "code", client_id, redirect_uri: redirect, scope, state, nonce,
    code_challenge: encode(new Uint8Array(digest)), code_challenge_method: "S256",
  };
  for (const [name, value] of Object.entries(query)) page.searchParams.set(name, value);
  return { client, redirect, address: page.href, tokenEndpoint, state, nonce, verifier };
}

/** Calls `take` once, with the reply that has this attempt's state. @param {Attempt} attempt @param {(reply: URLSearchParams) => void} take @returns {() => void} ends the wait */
export function waitForReply({ state }, take) {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }) => {
    const reply = new URLSearchParams(String(data?.reply));
    if (reply.get("state") !== state) return;
    channel.postMessage({ taken: state });
    channel.close();
    take(reply);
  };
  return () => channel.close();
}

/** Reads the issuer's reply from the console's own address. @param {string} search @returns {URLSearchParams | null} */
export function readReply(search) {
  const reply = new URLSearchParams(search);
  return reply.has("state") && (reply.has("code") || reply.has("error")) ? reply : null;
}

/** Hands the issuer's reply to the page that waits for it. @param {URLSearchParams} reply @param {() => void} onTaken */
export function relayReply(reply, onTaken) {
  const channel = new BroadcastChannel(CHANNEL);
  channel.onmessage = ({ data }) => {
    if (data?.taken === reply.get("state")) onTaken();
  };
  channel.postMessage({ reply: String(reply) });
  return channel;
}

/**
 * Exchanges the code of a reply for the user's access token.
 *
 * @param {Attempt} attempt @param {URLSearchParams} reply @returns {Promise<Credential>}
 */
export async function redeemReply({ client, redirect, tokenEndpoint, nonce, verifier }, reply) {
  const { issuer, client_id } = client;
  if ((reply.get("iss") ?? issuer) !== issuer) throw new Error("Another issuer replied. Sign in again.");
  if (reply.has("error")) throw new Error(`The issuer did not sign you in: ${reply.get("error_description") || reply.get("error")}`);
  const answer = await ask(tokenEndpoint, {
    method: "POST",
    body: new URLSearchParams({ grant_type: "authorization_code", code: reply.get("code") ?? "", redirect_uri: redirect, client_id, code_verifier: verifier }),
  });
  // The token came from the issuer itself over TLS, so its claims need no signature here. The server checks the access token.
  const claims = readClaims(answer.id_token);
  if (claims?.nonce !== nonce || claims.iss !== issuer || ![claims.aud].flat().includes(client_id)) {
    throw new Error("The issuer's answer is not for this sign-in. Sign in again.");
  }
  if (!readClaims(answer.access_token)) {
    throw new Error("The issuer's access token is no JWT, so the server cannot check it. The issuer needs an API with this server's audience.");
  }
  const seconds = Number(answer.expires_in);
  return {
    key: answer.access_token,
    who: String(claims.email ?? claims.preferred_username ?? claims.name ?? claims.sub),
    ends: seconds > 0 ? Date.now() + seconds * 1000 : null,
  };
}

/** @param {string} url @param {RequestInit} [options] @returns {Promise<any>} the issuer's answer */
async function ask(url, options) {
  let response, answer;
  try {
    response = await fetch(url, { ...options, credentials: "omit", cache: "no-store", redirect: "error", headers: { accept: "application/json" } });
    answer = await response.json();
  } catch {
    throw new Error(`${new URL(url).origin} gave this page no answer. It must allow the origin of this page (CORS).`);
  }
  if (!response.ok || !answer || typeof answer !== "object") {
    throw new Error(`The issuer refused: ${answer?.error_description || answer?.error || `status ${response.status}`}`);
  }
  return answer;
}

/** Reads a JWT's claims without checking its signature. @param {unknown} token @returns {any} null if it is none */
function readClaims(token) {
  try {
    const [, claims, signature] = String(token).split(".");
    const bytes = Uint8Array.from(atob(claims.replaceAll("-", "+").replaceAll("_", "/")), (letter) => letter.charCodeAt(0));
    return signature ? JSON.parse(new TextDecoder().decode(bytes)) : null;
  } catch {
    return null;
  }
}

const makeSecret = () => encode(crypto.getRandomValues(new Uint8Array(32)));

/** @param {Uint8Array} bytes */
const encode = (bytes) => btoa(String.fromCharCode(...bytes)).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
