/** Keeps conversations in the browser's own database. Nothing of them is on the server. */

/** @type {Promise<IDBDatabase> | null} */
let opened = null;

function open() {
  opened ??= new Promise((resolve, reject) => {
    const request = indexedDB.open("antiphon", 2);
    request.onupgradeneeded = () => {
      const { result, transaction } = request;
      const store = result.objectStoreNames.contains("conversations") ? transaction?.objectStore("conversations")
        : result.createObjectStore("conversations", { keyPath: "id" });
      store?.createIndex("titles", ["updated", "title"]);
    };
    request.onsuccess = () => {
      request.result.onversionchange = () => request.result.close(); // a tab with a newer console needs this
      resolve(request.result);
    };
    request.onerror = () => reject(request.error);
    request.onblocked = () => reject(new Error("Another tab has an older console open: close it, and reload."));
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

/**
 * Lists conversations by an index, without their messages: these can be megabytes.
 *
 * @returns {Promise<Pick<Conversation, "id" | "title" | "updated">[]>} the newest first
 */
export async function listConversations() {
  const database = await open();
  /** @type {Pick<Conversation, "id" | "title" | "updated">[]} */
  const found = [];
  return new Promise((resolve, reject) => {
    const request = database.transaction("conversations").objectStore("conversations").index("titles").openKeyCursor(null, "prev");
    request.onsuccess = () => {
      const cursor = request.result;
      if (!cursor) return resolve(found);
      const [updated, title] = /** @type {[number, string]} */ (cursor.key);
      found.push({ id: String(cursor.primaryKey), title, updated });
      cursor.continue();
    };
    request.onerror = () => reject(request.error);
  });
}

/** @param {string} id @returns {Promise<Conversation | undefined>} */
export const loadConversation = (id) => run("readonly", (store) => store.get(id));

/** @param {Conversation} conversation */
export const keepConversation = (conversation) => run("readwrite", (store) => store.put(conversation));

/** @param {string} id */
export const removeConversation = (id) => run("readwrite", (store) => store.delete(id));
