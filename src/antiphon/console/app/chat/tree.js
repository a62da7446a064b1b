/**
 * A conversation is a tree: an edited or regenerated message is a sibling of the old one. The leaf says which branch is
 * shown. Functions return new values, so a view can compare them.
 *
 * @typedef {{id: string, parent: string | null, role: "user" | "assistant" | "tool", text: string, reasoning?: string,
 *   calls?: {id: string, name: string, arguments: string}[], callId?: string, tokens?: import("../tokens.js").Token[],
 *   files?: import("./files.js").Attached[], facts?: Facts, error?: {message: string, requestId: string | null} | null, prefix?: string}} Node
 * @typedef {{model: string, requestId: string | null, promptTokens?: number, cachedTokens?: number, outputTokens?: number,
 *   firstMs?: number, totalMs?: number, finish?: string | null, route?: string | null, ignored?: string | null,
 *   body?: any, references?: any}} Facts
 * @typedef {{nodes: Record<string, Node>, leaf: string | null}} Tree
 */

/** @returns {Tree} */
export const createTree = () => ({ nodes: {}, leaf: null });

/** @param {Tree} tree @param {Omit<Node, "id"> & {id?: string}} node @returns {[Tree, Node]} */
export function add(tree, node) {
  const added = { ...node, id: node.id ?? crypto.randomUUID() };
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

/** Returns the nodes with the same parent, oldest first. @param {Tree} tree @param {Node} node */
export const listSiblings = (tree, node) => Object.values(tree.nodes).filter((other) => other.parent === node.parent);

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
    else {
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
  /** @type {Record<string, Node>} */
  const nodes = {};
  for (const node of Object.values(value.tree.nodes)) {
    const known = ["user", "assistant", "tool"].includes(node?.role) && typeof node.id === "string";
    if (!known || typeof node.text !== "string") throw new Error("A message of this file is damaged.");
    if (node.parent !== null && !nodes[node.parent]) throw new Error("A message of this file has no place.");
    nodes[node.id] = node;
  }
  const leaf = nodes[value.tree.leaf] ? value.tree.leaf : Object.keys(nodes).at(-1) ?? null;
  return { title: String(value.title ?? ""), tree: { nodes, leaf }, settings: value.settings ?? {} };
}

/** @param {string} title @param {Tree} tree @param {any} settings */
export const writeExport = (title, tree, settings) =>
  JSON.stringify({ format: "antiphon-conversation", title, tree, settings }, null, 2);
