/**
 * The parameters of a request, read from the server's own description, so that a new field appears by itself.
 *
 * @typedef {{name: string, kind: "number" | "integer" | "boolean" | "choice" | "text" | "list" | "json", help: string,
 *   low?: number, high?: number, above?: number, choices?: string[], group: string, isRefused: boolean}} Parameter
 */

/** Fields that the page itself writes. */
const OWN = new Set(["model", "messages", "prompt", "stream", "stream_options", "logprobs", "top_logprobs", "n", "best_of", "echo",
  "continue_final_message", "add_generation_prompt", "return_token_ids", "return_tokens_as_token_ids", "tools", "response_format",
  "prompt_logprobs", "modalities", "audio", "max_completion_tokens", "safety_identifier", "suffix"]);

/** Parameters in the order in which people look for them. The others follow under "More". */
const GROUPS = {
  Sampling: ["temperature", "top_p", "top_k", "min_p", "typical_p", "seed", "max_tokens", "stop"],
  Penalties: ["presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words", "min_tokens", "ignore_eos"],
  Reasoning: ["reasoning_effort", "thinking_token_budget", "include_reasoning"],
  Tools: ["tool_choice", "parallel_tool_calls"],
  "Knowledge and memory": ["rag_params", "memory_strategy"],
};

/** @param {any} document the OpenAPI document @param {string} path @param {string[]} refused names that the model refuses */
export function listParameters(document, path, refused = []) {
  const body = document.paths[path]?.post.requestBody.content["application/json"].schema;
  const schema = resolve(document, body);
  const group = new Map(Object.entries(GROUPS).flatMap(([name, fields]) => fields.map((field) => [field, name])));
  const order = Object.values(GROUPS).flat();
  const found = Object.entries(schema.properties ?? {}).filter(([name]) => !OWN.has(name));
  const parameters = found.map(([name, property]) =>
    describeParameter(document, name, property, group.get(name) ?? "More", refused.includes(name)));
  return parameters.sort((one, other) => rank(order, one) - rank(order, other));
}

/** @param {string[]} order @param {Parameter} parameter */
function rank(order, parameter) {
  const index = order.indexOf(parameter.name);
  return index < 0 ? order.length : index;
}

/** @param {any} document @param {any} schema */
function resolve(document, schema) {
  let found = schema;
  while (found?.$ref) {
    found = found.$ref.split("/").slice(1).reduce((/** @type {any} */ part, /** @type {string} */ name) => part[name], document);
  }
  return found ?? {};
}

/**
 * @param {any} document @param {string} name @param {any} property @param {string} group @param {boolean} isRefused
 * @returns {Parameter}
 */
function describeParameter(document, name, property, group, isRefused) {
  const shapes = (property.anyOf ?? [property])
    .map((/** @type {any} */ shape) => resolve(document, shape))
    .filter((/** @type {any} */ shape) => shape.type !== "null");
  const common = { name, group, isRefused, help: property.description ?? "" };
  const [shape = {}] = shapes;
  if (shapes.length === 1) {
    if (shape.type === "number" || shape.type === "integer") {
      const huge = (/** @type {number} */ value) => value !== undefined && Math.abs(value) < 2 ** 31 - 1;
      return {
        ...common, kind: shape.type, above: shape.exclusiveMinimum,
        low: huge(shape.minimum) ? shape.minimum : undefined,
        high: huge(shape.maximum) ? shape.maximum : undefined,
      };
    }
    if (shape.type === "boolean") return { ...common, kind: "boolean" };
    if (shape.enum) return { ...common, kind: "choice", choices: shape.enum };
    if (shape.type === "string") return { ...common, kind: "text" };
    if (shape.type === "array" && shape.items?.type === "string") return { ...common, kind: "list" };
  }
  if (shapes.length === 2 && shapes.some((/** @type {any} */ part) => part.type === "array" && part.items?.type === "string")) {
    return { ...common, kind: "list" };
  }
  return { ...common, kind: "json" };
}

/**
 * Turns what was typed into a value. Throws an Error with a sentence for the user; undefined means that the field is not sent.
 *
 * @param {Parameter} parameter @param {string} typed
 */
export function readValue(parameter, typed) {
  const text = typed.trim();
  if (!text) return undefined;
  switch (parameter.kind) {
    case "number":
    case "integer": {
      const value = Number(text);
      if (!Number.isFinite(value)) throw new Error("This must be a number.");
      if (parameter.kind === "integer" && !Number.isInteger(value)) throw new Error("This must be a whole number.");
      if (parameter.low !== undefined && value < parameter.low) throw new Error(`At least ${parameter.low}.`);
      if (parameter.above !== undefined && value <= parameter.above) throw new Error(`Above ${parameter.above}.`);
      if (parameter.high !== undefined && value > parameter.high) throw new Error(`At most ${parameter.high}.`);
      return value;
    }
    case "boolean":
      return text === "true";
    case "list":
      return text.split("\n").filter((line) => line !== "").map((line) => line.replaceAll("\\n", "\n"));
    case "json":
      try {
        return JSON.parse(text);
      } catch {
        throw new Error("This must be JSON.");
      }
    default:
      return text;
  }
}

/** Returns the range of a parameter in words. @param {Parameter} parameter */
export function describeRange({ low, above, high, choices, kind }) {
  if (choices) return choices.join(", ");
  if (kind === "list") return "one in each line";
  if (kind === "json") return "JSON";
  if (low !== undefined && high !== undefined) return `${low} to ${high}`;
  if (above !== undefined) return high === undefined ? `above ${above}` : `above ${above}, at most ${high}`;
  if (low !== undefined) return `at least ${low}`;
  return high === undefined ? "" : `at most ${high}`;
}

/**
 * Takes over what is known of settings that anybody can have written.
 *
 * @param {any} value @returns {import("./settings_panel.js").Settings}
 */
export function readSettings(value) {
  const text = (/** @type {string} */ name) => (typeof value?.[name] === "string" ? value[name] : "");
  const values = Object.entries(value?.values ?? {}).filter(([, typed]) => typeof typed === "string");
  return {
    model: text("model"), system: text("system"), tools: text("tools"), schema: text("schema"), tokens: value?.tokens === true,
    values: /** @type {Record<string, string>} */ (Object.fromEntries(values)),
  };
}

/**
 * Checks a JSON Schema as far as an editor can: it must be an object of JSON.
 *
 * @param {string} typed @param {"object" | "array"} shape
 */
export function readJson(typed, shape) {
  if (!typed.trim()) return undefined;
  let value;
  try {
    value = JSON.parse(typed);
  } catch (problem) {
    throw new Error(`This is no JSON: ${/** @type {Error} */ (problem).message}`);
  }
  if (shape === "array" ? !Array.isArray(value) : typeof value !== "object" || value === null || Array.isArray(value)) {
    throw new Error(shape === "array" ? "This must be a list." : "This must be an object.");
  }
  return value;
}
