/** Keeps conversations in the browser's own database. Nothing of them is on the server. */

/** @type {Promise<IDBDatabase> | null} */
let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("antiphon", 1);
    request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
  return opened;
}

/**
 * @template T
 * @param {IDBTransactionMode} mode @param {(store: IDBObjectStore) => IDBRequest<T>} act @returns {Promise<T>}
 */
async function run(mode, act) {
  const database = await open();
  return new Promise((resolve, reject) => {
    const request = act(database.transaction("conversations", mode).objectStore("conversations"));
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/**
 * @typedef {{id: string, title: string, updated: number, tree: import("../chat/tree.js").Tree, settings: any}} Conversation
 */

/** @returns {Promise<Pick<Conversation, "id" | "title" | "updated">[]>} without their messages, the newest first */
export const listConversations = async () =>
  (await run("readonly", (store) => store.getAll()))
    .map(({ id, title, updated }) => ({ id, title, updated })).sort((one, other) => other.updated - one.updated);

/** @param {string} id @returns {Promise<Conversation | undefined>} */
export const loadConversation = (id) => run("readonly", (store) => store.get(id));

/** @param {Conversation} conversation */
export const keepConversation = (conversation) => run("readwrite", (store) => store.put(conversation));

/** @param {string} id */
export const removeConversation = (id) => run("readwrite", (store) => store.delete(id));
