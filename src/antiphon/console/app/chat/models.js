import { get, loadDescription } from "../lib/api.js";
import { listParameters } from "./settings.js";

/** @param {string} name which a link can hold: "../x" must not lead elsewhere @returns {string} the path of a model */
export const buildModelPath = (name) =>
  `v1/models/${name.split("/").map((part) => (/^\.+$/.test(part) ? "-" : encodeURIComponent(part))).join("/")}`;

/** @returns {Promise<any[]>} */
export async function listModels() {
  return (await get("v1/models")).data;
}

/**
 * Loads what the settings need to know of a model.
 *
 * @param {string} name @param {string} path of the endpoint, with a leading slash
 */
export async function loadModel(name, path) {
  const [document, model] = await Promise.all([
    loadDescription(),
    get(buildModelPath(name)).catch(() => null), // a model that is gone still has the fields of all
  ]);
  const profile = model?.profile ?? null;
  return { profile, parameters: listParameters(document, path, profile?.refused ?? []) };
}
