/**
 * Reads the OpenAPI document.
 *
 * @typedef {{id: string, method: string, path: string, tag: string, summary: string, description: string,
 *   parameters: any[], bodies: {media: string, schema: any}[]}} Operation
 */

const METHODS = ["get", "post", "put", "patch", "delete", "options"];

/** @param {any} document @param {any} part */
export function resolve(document, part) {
  let found = part;
  while (found?.$ref) {
    found = found.$ref.split("/").slice(1).reduce((/** @type {any} */ object, /** @type {string} */ name) => object[name], document);
  }
  return found ?? {};
}

/** @param {any} document @returns {Operation[]} */
export const listOperations = (document) =>
  Object.entries(document.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => {
      const operation = item[method];
      return {
        id: `${method} ${path}`, method: method.toUpperCase(), path, tag: operation.tags?.[0] ?? "other",
        summary: operation.summary ?? "", description: operation.description ?? "",
        parameters: (operation.parameters ?? []).map((/** @type {any} */ parameter) => resolve(document, parameter)),
        bodies: Object.entries(operation.requestBody?.content ?? {}).map(([media, { schema }]) => ({ media, schema })),
      };
    }));

/** Returns the schema of a value that can also be null. @param {any} document @param {any} schema @returns {any} */
export function withoutNull(document, schema) {
  const found = resolve(document, schema);
  const others = (found.anyOf ?? []).filter((/** @type {any} */ choice) => choice.type !== "null");
  return others.length === 1 ? { ...found, ...withoutNull(document, others[0]), anyOf: undefined } : found;
}

/** @param {any} schema @returns {string} */
export function describeType(schema) {
  if (!schema) return "anything";
  if (schema.$ref) return schema.$ref.split("/").pop();
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices) return choices.map(describeType).filter((/** @type {string} */ name) => name !== "null").join(" or ");
  if (schema.enum) return schema.enum.map((/** @type {any} */ value) => JSON.stringify(value)).join(" or ");
  if (schema.format === "binary") return "file";
  if (schema.type === "array") return `list of ${describeType(schema.items)}`;
  if (typeof schema.additionalProperties === "object") return `object of ${describeType(schema.additionalProperties)}`;
  return schema.type ?? "anything";
}

/** @param {any} schema */
export function describeRange(schema) {
  const parts = [schema, ...(schema?.anyOf ?? [])];
  const find = (/** @type {string} */ name) => parts.map((part) => part?.[name]).find((value) => value !== undefined);
  const [low, above, high, start] = [find("minimum"), find("exclusiveMinimum"), find("maximum"), find("default")];
  const limits = [];
  if (above !== undefined) limits.push(`above ${above}`);
  if (low !== undefined) limits.push(high === undefined ? `at least ${low}` : `${low} to ${high}`);
  else if (high !== undefined) limits.push(`at most ${high}`);
  if (start !== undefined && start !== null) limits.push(`default ${JSON.stringify(start)}`);
  return limits.length ? ` (${limits.join(", ")})` : "";
}

/** Returns the example of a schema, or its required fields with empty values. @param {any} document @param {any} schema @returns {any} */
export function buildExample(document, schema) {
  const found = withoutNull(document, schema);
  if (found.examples) return found.examples[0];
  if (found.enum) return found.enum[0];
  if (found.anyOf ?? found.oneOf) return buildExample(document, (found.anyOf ?? found.oneOf)[0]);
  if (found.type === "array") return found.minItems ? [buildExample(document, found.items)] : [];
  if (found.type === "object") {
    return Object.fromEntries((found.required ?? []).map((/** @type {string} */ name) => [name, buildExample(document, found.properties[name])]));
  }
  /** @type {Record<string, any>} */
  const empty = { string: "", integer: found.minimum ?? 0, number: found.minimum ?? 0, boolean: false };
  return empty[found.type] ?? null;
}
