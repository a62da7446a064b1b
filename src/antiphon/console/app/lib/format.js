/** Numbers and dates as the reader's locale writes them. */

const LOCALE = globalThis.navigator?.language;
const WHOLE = new Intl.NumberFormat(LOCALE);
const SHORT = new Intl.NumberFormat(LOCALE, { notation: "compact", maximumFractionDigits: 1 });
const PERCENT = new Intl.NumberFormat(LOCALE, { style: "percent", maximumSignificantDigits: 3 });
const TIME = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium", timeStyle: "medium" });
const DAY = new Intl.DateTimeFormat(LOCALE, { dateStyle: "medium" });

/** @param {number | null | undefined} value */
export const formatCount = (value) => (value === null || value === undefined ? "–" : WHOLE.format(value));

/** @param {number} value */
export const formatShort = (value) => SHORT.format(value);

/** @param {number} prompt @param {number} output tokens */
export const formatTokens = (prompt, output) => `${WHOLE.format(prompt)} tokens in, ${WHOLE.format(output)} out`;

/** @param {number} value a share of 1 */
export const formatShare = (value) => PERCENT.format(value);

/** @param {number | null | undefined} seconds since 1970 */
export const formatTime = (seconds) => (seconds === null || seconds === undefined ? "–" : TIME.format(seconds * 1000));

/** @param {number} seconds since 1970 */
export const formatDay = (seconds) => DAY.format(seconds * 1000);

/** @param {number | null | undefined} ms */
export function formatDuration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${WHOLE.format(Math.round(ms))} ms`;
  if (ms < 60_000) return `${new Intl.NumberFormat(LOCALE, { maximumFractionDigits: 1 }).format(ms / 1000)} s`;
  return `${WHOLE.format(Math.floor(ms / 60_000))} min ${Math.round((ms % 60_000) / 1000)} s`;
}

/** @param {number} bytes */
export function formatBytes(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (bytes >= 1000 && power < units.length - 1) {
    bytes /= 1000;
    power += 1;
  }
  return `${new Intl.NumberFormat(LOCALE, { maximumFractionDigits: power ? 1 : 0 }).format(bytes)} ${units[power]}`;
}

/** @param {string} cost a decimal number @param {string | null} currency */
export function formatCost(cost, currency) {
  if (!currency) return "–";
  if (!/^[A-Z]{3}$/i.test(currency)) return `${cost} ${currency}`;
  return new Intl.NumberFormat(LOCALE, { style: "currency", currency, maximumFractionDigits: 6 }).format(Number(cost));
}
