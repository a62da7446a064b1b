/**
 * Lays out where the time of a request went, from its entries in the ledger: its attempts, the queue, the time to the first
 * token, the tokens, and its children (retrieval, memory, summaries).
 *
 * @typedef {{label: string, kind: string, ms: number, left: number, width: number, note: string | null}} Row
 * @param {any[]} entries of one request
 * @returns {{rows: Row[], totalMs: number}} left and width in percent of the whole
 */
export function layOut(entries) {
  const main = entries.find((entry) => !entry.parent) ?? entries[0];
  const total = Math.max(main.total_ms ?? 0, 1);
  const began = main.at_ms;
  /** @type {Row[]} */
  const rows = [];
  /** @param {string} label @param {string} kind @param {number} start @param {number} ms @param {string | null} note */
  const put = (label, kind, start, ms, note = null) => {
    const left = Math.min((Math.max(start, 0) / total) * 100, 100);
    rows.push({ label, kind, ms, left, width: Math.max(Math.min((ms / total) * 100, 100 - left), 0.3), note });
  };
  let elapsed = 0;
  const failed = (main.routes ?? []).filter((/** @type {any} */ route) => route.error);
  for (const route of failed) {
    put(`attempt ${route.route}`, "failed", elapsed, route.ms, route.error);
    elapsed += route.ms;
  }
  if (main.queue_ms) put("waited in the queue", "queue", elapsed, main.queue_ms);
  if (main.ttft_ms !== null && main.ttft_ms !== undefined) {
    const start = elapsed + (main.queue_ms ?? 0);
    put("until the first token", "prefill", start, Math.max(main.ttft_ms - start, 0));
    put("tokens", "tokens", main.ttft_ms, Math.max(total - main.ttft_ms, 0));
  } else if (!failed.length || total > elapsed) {
    put("answer", "tokens", elapsed, Math.max(total - elapsed, 0));
  }
  for (const child of entries.filter((entry) => entry !== main)) {
    const ms = child.total_ms ?? 0;
    put(`${child.operation} ${child.model}`, "child", child.at_ms - began, ms, child.status === "ok" ? null : child.status);
  }
  return { rows, totalMs: total };
}
