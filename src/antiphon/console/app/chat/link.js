/**
 * A link that repeats a request. Its state is in the fragment, which a browser never sends, so no server's log has it.
 */

/** @param {unknown} state @returns {Promise<string>} */
export async function packState(state) {
  const bytes = new TextEncoder().encode(JSON.stringify(state));
  const packed = await pipe(bytes, new CompressionStream("deflate-raw"));
  return btoa(Array.from(packed, (byte) => String.fromCharCode(byte)).join(""))
    .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/** The most bytes of a state. A short link can unpack to gigabytes. */
const MOST_BYTES = 16 * 1024 * 1024;

/** Raises an Error if the text is damaged. @param {string} text @returns {Promise<any>} */
export async function unpackState(text) {
  try {
    const packed = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (part) => part.charCodeAt(0));
    return JSON.parse(new TextDecoder().decode(await pipe(packed, new DecompressionStream("deflate-raw"))));
  } catch {
    throw new Error("This link is damaged: copy it again.");
  }
}

/** @param {Uint8Array} bytes @param {CompressionStream | DecompressionStream} through */
async function pipe(bytes, through) {
  const body = new Blob([/** @type {any} */ (bytes)]).stream().pipeThrough(/** @type {any} */ (through));
  const parts = [];
  let size = 0;
  for (const reader = body.getReader(); ;) {
    const { value, done } = await reader.read();
    if (done) break;
    parts.push(value);
    size += value.length;
    if (size > MOST_BYTES) {
      reader.cancel().catch(() => {});
      throw new Error("This is too much for a link.");
    }
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}
