/**
 * Pictures and recordings of a message, as the API takes them.
 *
 * @typedef {{kind: "image" | "audio", name: string, url: string, format: string}} Attached
 */

const FORMATS = { "audio/wav": "wav", "audio/x-wav": "wav", "audio/mpeg": "mp3", "audio/mp3": "mp3", "audio/flac": "flac", "audio/x-flac": "flac" };
const PICTURES = ["image/png", "image/jpeg", "image/webp", "image/gif"];
const MOST_BYTES = 5_500_000;

/**
 * Reads files that were chosen, dropped or pasted. Throws an Error with a sentence about the first that does not fit.
 *
 * @param {Iterable<File>} files @param {string[]} modalities what the model takes
 * @returns {Promise<Attached[]>}
 */
export async function readFiles(files, modalities) {
  const read = [];
  for (const file of files) {
    const kind = PICTURES.includes(file.type) ? "image" : file.type in FORMATS ? "audio" : null;
    if (!kind) throw new Error(`${file.name} is no picture (PNG, JPEG, WebP, GIF) and no recording (WAV, MP3, FLAC).`);
    if (!modalities.includes(kind)) throw new Error(`This model takes ${modalities.join(" and ")}, and no ${kind}.`);
    if (file.size > MOST_BYTES) throw new Error(`${file.name} is larger than 5.5 MB.`);
    read.push({
      kind: /** @type {"image" | "audio"} */ (kind), name: file.name, url: await readAddress(file),
      format: FORMATS[/** @type {keyof typeof FORMATS} */ (file.type)] ?? "",
    });
  }
  return read;
}

/** @param {File} file @returns {Promise<string>} a `data:` address */
const readAddress = (file) => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(String(reader.result));
  reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
  reader.readAsDataURL(file);
});
