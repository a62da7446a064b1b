import { get, loadDescription } from "../lib/api.js";
import { listParameters } from "./settings.js";

/** Lists the models that answer texts: encoders and rerankers have no chat. @returns {Promise<any[]>} */
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
    get(`v1/models/${name.split("/").map(encodeURIComponent).join("/")}`).catch(() => null),
  ]);
  const profile = model?.profile ?? null;
  return { profile, parameters: listParameters(document, path, profile?.refused ?? []) };
}
