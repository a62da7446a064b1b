import { readOrigin } from "../tokens.js";

/**
 * A conversation is a tree: an edited or regenerated message is a sibling of the old one. The leaf says which branch is
 * shown. Functions return new values, so a view can compare them.
 *
 * @typedef {{id: string, parent: string | null, role: "user" | "assistant" | "tool", text: string, reasoning?: string,
 *   calls?: {id: string, name: string, arguments: string}[], callId?: string, tokens?: import("../tokens.js").Token[],
 *   files?: import("./files.js").Attached[], facts?: Facts, error?: {message: string, requestId: string | null} | null, prefix?: string}} Node
 * @typedef {{model: string, requestId: string | null, promptTokens?: number, cachedTokens?: number, outputTokens?: number,
 *   firstMs?: number, totalMs?: number, finish?: string | null, route?: string | null, ignored?: string | null,
 *   body?: any, system?: string, references?: any}} Facts the body has no messages: they are the path to the answer
 * @typedef {{nodes: Record<string, Node>, leaf: string | null}} Tree
 */

/** Makes a random id. A page that came by plain HTTP from another machine has no crypto.randomUUID. */
export const makeId = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** @returns {Tree} */
export const createTree = () => ({ nodes: {}, leaf: null });

/** @param {Tree} tree @param {Omit<Node, "id"> & {id?: string}} node @returns {[Tree, Node]} */
export function add(tree, node) {
  const added = { ...node, id: node.id ?? makeId() };
  return [{ nodes: { ...tree.nodes, [added.id]: added }, leaf: added.id }, added];
}

/** @param {Tree} tree @param {string} id @param {Partial<Node>} changes @returns {Tree} */
export function update(tree, id, changes) {
  const node = tree.nodes[id];
  return node ? { ...tree, nodes: { ...tree.nodes, [id]: { ...node, ...changes } } } : tree;
}

/** Returns the nodes from the root to a node. @param {Tree} tree @param {string | null} id @returns {Node[]} */
export function listPath(tree, id = tree.leaf) {
  const path = [];
  for (let node = id ? tree.nodes[id] : null; node; node = node.parent ? tree.nodes[node.parent] : null) path.push(node);
  return path.reverse();
}

/** Groups the ids of nodes by their parent, the oldest first. @param {Tree} tree @returns {Map<string | null, string[]>} */
export function groupSiblings(tree) {
  const groups = new Map();
  for (const { id, parent } of Object.values(tree.nodes)) {
    const group = groups.get(parent);
    if (group) group.push(id);
    else groups.set(parent, [id]);
  }
  return groups;
}

/** Shows another branch: the newest leaf below a node. @param {Tree} tree @param {string} id @returns {Tree} */
export function show(tree, id) {
  let leaf = id;
  for (;;) {
    const children = Object.values(tree.nodes).filter((node) => node.parent === leaf);
    const last = children.at(-1);
    if (!last) return { ...tree, leaf };
    leaf = last.id;
  }
}

/** Removes a node and what follows it. @param {Tree} tree @param {string} id @returns {Tree} */
export function remove(tree, id) {
  const removed = tree.nodes[id];
  if (!removed) return tree;
  const gone = new Set([id]);
  for (const node of Object.values(tree.nodes)) if (node.parent && gone.has(node.parent)) gone.add(node.id);
  const nodes = Object.fromEntries(Object.entries(tree.nodes).filter(([name]) => !gone.has(name)));
  const siblings = Object.values(nodes).filter((node) => node.parent === removed.parent);
  const next = siblings.at(-1)?.id ?? removed.parent;
  return next ? show({ nodes, leaf: next }, next) : { nodes, leaf: null };
}

/**
 * Returns the messages of a request.
 *
 * @param {Node[]} path @param {string} system
 */
export function buildMessages(path, system) {
  /** @type {any[]} */
  const messages = system.trim() ? [{ role: "system", content: system }] : [];
  for (const node of path) {
    if (node.role === "tool") messages.push({ role: "tool", tool_call_id: node.callId, content: node.text });
    else if (node.role === "user") messages.push({ role: "user", content: node.files?.length ? buildParts(node) : node.text });
    else if (node.text || node.calls?.length) { // an answer that failed at once says nothing
      /** @type {any} */
      const message = { role: "assistant", content: node.text };
      if (node.calls?.length) {
        message.tool_calls = node.calls.map(({ id, name, arguments: text }) => ({
          id, type: "function", function: { name, arguments: text },
        }));
      }
      messages.push(message);
    }
  }
  return messages;
}

/** Returns a text with its pictures and recordings. @param {Node} node */
function buildParts({ text, files = [] }) {
  const parts = files.map(({ kind, url, format }) => kind === "image"
    ? { type: "image_url", image_url: { url } }
    : { type: "input_audio", input_audio: { data: url.slice(url.indexOf(",") + 1), format } });
  return text ? [...parts, { type: "text", text }] : parts;
}

/** Returns the request that led to an answer. @param {Tree} tree @param {Node} node */
export function rebuildRequest(tree, node) {
  const messages = buildMessages(listPath(tree, node.parent), node.facts?.system ?? "");
  if (node.prefix) messages.push({ role: "assistant", content: node.prefix });
  return { ...node.facts?.body, messages };
}

/** Returns a title for a list. @param {Tree} tree */
export function nameTree(tree) {
  const first = Object.values(tree.nodes).find((node) => node.role === "user")?.text.trim() ?? "";
  return first.split("\n")[0].slice(0, 80) || "New conversation";
}

/**
 * Reads an exported conversation. Throws an Error with a sentence for the user.
 *
 * @param {string} text @returns {{title: string, tree: Tree, settings: any}}
 */
export function parseExport(text) {
  let value;
  try {
    value = JSON.parse(text);
  } catch {
    throw new Error("This file is no JSON.");
  }
  if (value?.format !== "antiphon-conversation" || typeof value.tree?.nodes !== "object") {
    throw new Error("This file is no conversation of this console.");
  }
  /** @type {Map<string, Node>} a parent comes before its children, so no message is below itself */
  const nodes = new Map();
  for (const part of Object.values(value.tree.nodes)) {
    const node = { id: part?.id, parent: part?.parent ?? null, ...readMessage(part) };
    if (typeof node.id !== "string" || nodes.has(node.id)) throw new Error("A message of this file is damaged.");
    if (node.parent !== null && !nodes.has(node.parent)) throw new Error("A message of this file has no place.");
    nodes.set(node.id, node);
  }
  const leaf = nodes.has(value.tree.leaf) ? value.tree.leaf : [...nodes.keys()].at(-1) ?? null;
  return { title: String(value.title ?? ""), tree: { nodes: Object.fromEntries(nodes), leaf }, settings: value.settings ?? {} };
}

/** Builds a conversation without branches from the messages of a link. Throws as `parseExport` does. @param {any} messages @returns {Tree} */
export function readMessages(messages) {
  if (!Array.isArray(messages)) throw new Error("This link is damaged: it has no messages.");
  let tree = createTree();
  for (const message of messages) [tree] = add(tree, { ...readMessage(message), parent: tree.leaf });
  return tree;
}

const FACTS = {
  model: "string", requestId: "string", promptTokens: "number", cachedTokens: "number", outputTokens: "number", firstMs: "number",
  totalMs: "number", finish: "string", route: "string", ignored: "string", system: "string", body: "object",
};
const FILE = { kind: "string", name: "string", url: "string", format: "string" };
const CALL = { id: "string", name: "string", arguments: "string" };
const CHUNK = { title: "string", document_id: "string", chunk_id: "string", text: "string" };

/** Takes over what is known of a message that anybody can have written. @param {any} value @returns {Omit<Node, "id" | "parent">} */
function readMessage(value) {
  if (!["user", "assistant", "tool"].includes(value?.role) || typeof value.text !== "string") {
    throw new Error("A message of this file is damaged.");
  }
  /** @type {any} */
  const message = { role: value.role, text: value.text, ...pick(value, { reasoning: "string", callId: "string", prefix: "string" }) };
  const calls = pickAll(value.calls, CALL);
  const files = pickAll(value.files, FILE);
  if (calls.length) message.calls = calls;
  if (files.length) message.files = files;
  if (Array.isArray(value.tokens)) message.tokens = value.tokens.map(readToken);
  if (value.error) message.error = { requestId: null, ...pick(value.error, { message: "string", requestId: "string" }) };
  if (value.facts) {
    message.facts = { model: "", requestId: null, ...pick(value.facts, FACTS) };
    if (value.facts.references) message.facts.references = { chunks: pickAll(value.facts.references.chunks, CHUNK, 0) };
  }
  return message;
}

/** @param {any} token @returns {import("../tokens.js").Token} */
const readToken = (token) => ({
  text: String(token?.text), bytes: Array.isArray(token?.bytes) ? token.bytes : null, logprob: typeof token?.logprob === "number" ? token.logprob : NaN,
  top: /** @type {any[]} */ (pickAll(token?.top, { text: "string", logprob: "number" })),
  ...readOrigin(token?.origin),
});

/** Keeps those fields of a value that have the type they should have. @param {any} value @param {Record<string, string>} types */
const pick = (value, types) =>
  Object.fromEntries(Object.entries(types).filter(([name, type]) => typeof value?.[name] === type && value[name] !== null).map(([name]) => [name, value[name]]));

/** Keeps what has all fields. @param {any} values @param {Record<string, string>} types @param {number} [least] fields that must be there */
const pickAll = (values, types, least = Object.keys(types).length) =>
  (Array.isArray(values) ? values : []).map((value) => pick(value, types)).filter((value) => Object.keys(value).length >= least);

/** @param {string} title @param {Tree} tree @param {any} settings */
export const writeExport = (title, tree, settings) =>
  JSON.stringify({ format: "antiphon-conversation", title, tree, settings }, null, 2);
