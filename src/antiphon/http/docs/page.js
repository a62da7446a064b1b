// Lists every operation of /openapi.json with its fields, and sends requests. The key exists only in the field that it was
// typed into. Text of the document goes into the page as text, never as markup.
"use strict";

const METHODS = ["get", "post", "put", "patch", "delete", "options"];

let api;

const element = (name, attributes = {}, ...children) => {
  const created = Object.assign(document.createElement(name), attributes);
  created.append(...children);
  return created;
};

const buildHeaders = () => {
  const key = document.getElementById("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
};

// Schemas, parameters and headers of components are named as #/components/KIND/NAME.
const resolve = (part) => {
  while (part?.$ref) {
    part = part.$ref.split("/").slice(1).reduce((object, name) => object[name], api);
  }
  return part ?? {};
};

// The schema of a value that can also be null.
const withoutNull = (schema) => {
  const found = resolve(schema);
  const others = (found.anyOf || []).filter((choice) => choice.type !== "null");
  return others.length === 1 ? { ...found, ...withoutNull(others[0]), anyOf: undefined } : found;
};

// --- the description of fields ---

const describeType = (schema) => {
  if (!schema) return ["anything"];
  if (schema.$ref) {
    const name = schema.$ref.split("/").pop();
    const link = element("a", { href: `#schema-${name}`, textContent: name });
    link.addEventListener("click", () => { document.getElementById(`schema-${name}`).open = true; });
    return [link];
  }
  const choices = schema.anyOf || schema.oneOf;
  if (choices) return choices.flatMap((choice, index) => [...(index ? [" or "] : []), ...describeType(choice)]);
  if (schema.enum) return [schema.enum.map((value) => JSON.stringify(value)).join(" or ")];
  if (schema.format === "binary") return ["file"];
  if (schema.type === "array") return ["list of ", ...describeType(schema.items)];
  if (typeof schema.additionalProperties === "object") {
    return ["object of ", ...describeType(schema.additionalProperties)];
  }
  return [schema.type || "anything"];
};

const describeRange = (schema) => {
  const parts = [schema, ...(schema?.anyOf || [])];
  const find = (name) => parts.map((part) => part?.[name]).find((value) => value !== undefined);
  const [low, above, high, start] = [find("minimum"), find("exclusiveMinimum"), find("maximum"), find("default")];
  const limits = [];
  if (above !== undefined) limits.push(`above ${above}`);
  if (low !== undefined) limits.push(high === undefined ? `at least ${low}` : `${low} to ${high}`);
  else if (high !== undefined) limits.push(`at most ${high}`);
  if (start !== undefined && start !== null) limits.push(`default ${JSON.stringify(start)}`);
  return limits.length ? ` (${limits.join(", ")})` : "";
};

const buildRow = (name, type, description) =>
  element("tr", {}, element("td", {}, element("code", { textContent: name })), element("td", {}, ...type),
    element("td", { textContent: description || "" }));

const buildFieldTables = (schema) => {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, property]) =>
    buildRow(required.has(name) ? `${name} *` : name, [...describeType(property), describeRange(property)],
      property.description));
  const refused = Object.entries(schema["x-antiphon-refused"] || {}).map(([name, note]) =>
    buildRow(name, ["refused"], note.says));
  const parts = rows.length ? [element("table", {}, ...rows)] : [element("p", {}, ...describeType(schema))];
  if (refused.length) {
    parts.push(element("details", {},
      element("summary", { textContent: `${refused.length} known fields that are refused` }),
      element("table", {}, ...refused)));
  }
  return parts;
};

// --- requests ---

// The example of a schema, or its required fields with empty values.
const buildExample = (schema) => {
  const found = withoutNull(schema);
  if (found.examples) return found.examples[0];
  if (found.enum) return found.enum[0];
  if (found.anyOf || found.oneOf) return buildExample((found.anyOf || found.oneOf)[0]);
  if (found.type === "array") return found.minItems ? [buildExample(found.items)] : [];
  if (found.type === "object") {
    return Object.fromEntries((found.required || []).map((name) => [name, buildExample(found.properties[name])]));
  }
  return { string: "", integer: found.minimum ?? 0, number: found.minimum ?? 0, boolean: false }[found.type] ?? null;
};

// A field for one value of the path, the query, a header or a form. An empty one is not sent.
const buildInput = (name, schema, required) => {
  const found = withoutNull(schema);
  const common = { name, required, className: "argument" };
  const values = found.enum || (found.type === "boolean" ? [true, false] : null);
  if (values) {
    return element("select", common, element("option", { value: "", textContent: "" }),
      ...values.map((value) => element("option", { value: String(value), textContent: String(value) })));
  }
  if (found.type === "array" && found.items?.enum) {
    return element("select", { ...common, multiple: true },
      ...found.items.enum.map((value) => element("option", { value, textContent: value })));
  }
  if (found.type === "array") return element("textarea", { ...common, rows: 2, placeholder: "one in each line" });
  if (found.format === "binary") return element("input", { ...common, type: "file" });
  const isNumber = found.type === "integer" || found.type === "number";
  return element("input", { ...common, type: isNumber ? "number" : "text", step: "any", autocomplete: "off",
    placeholder: found.default ?? "" });
};

const readInput = (input) => {
  if (input.type === "file") return [...input.files];
  if (input.multiple) return [...input.selectedOptions].map((option) => option.value);
  const values = input.tagName === "TEXTAREA" ? input.value.split("\n") : [input.value];
  return values.filter((value) => value !== "");
};

const buildRequest = (method, path, fields) => {
  const values = (place) => fields.filter((field) => field.place === place)
    .flatMap(({ name, input }) => readInput(input).map((value) => [name, value]));
  const parts = new Map(values("path"));
  // A model's name can contain slashes, which the server takes as they are.
  const address = path.replace(/\{(\w+)\}/g, (_, name) =>
    parts.get(name).split("/").map(encodeURIComponent).join("/"));
  const query = new URLSearchParams(values("query")).toString();
  const options = { method: method.toUpperCase(), headers: { ...buildHeaders(), ...Object.fromEntries(values("header")) } };
  for (const { place, media, input } of fields) {
    if (place === "body") {
      options.headers["Content-Type"] = media;
      options.body = input.value;
    } else if (place === "form") {
      options.body ??= new FormData();
    }
  }
  for (const [name, value] of values("form")) options.body.append(name, value);
  return [query ? `${address}?${query}` : address, options];
};

const showResponse = async (response, output) => {
  const type = response.headers.get("content-type") || "";
  output.textContent = `${response.status} ${response.statusText}\n`;
  for (const name of ["content-type", "x-request-id", "x-antiphon-ignored", "retry-after"]) {
    if (response.headers.has(name)) output.append(`${name}: ${response.headers.get(name)}\n`);
  }
  output.append("\n");
  if (type.startsWith("application/json")) {
    const text = await response.text();
    output.append(text && JSON.stringify(JSON.parse(text), null, 2));
  } else if (response.body) {
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let part = await reader.read(); !part.done; part = await reader.read()) output.append(part.value);
  }
};

const listFields = (operation) => {
  const fields = (operation.parameters || []).map((parameter) => {
    const { name, in: place, required = false, schema, description } = resolve(parameter);
    return { name, place, schema, description, input: buildInput(name, schema, required) };
  });
  for (const [media, { schema }] of Object.entries(operation.requestBody?.content || {})) {
    const found = resolve(schema);
    if (media === "multipart/form-data") {
      fields.push(...Object.entries(found.properties).map(([name, property]) => ({ name, place: "form", schema: property,
        description: property.description, input: buildInput(name, property, (found.required || []).includes(name)) })));
    } else {
      const value = JSON.stringify(buildExample(schema), null, 2);
      const rows = Math.min(value.split("\n").length + 1, 16);
      fields.push({ place: "body", media, schema, input: element("textarea",
        { name: "body", ariaLabel: "body", className: "argument", rows, spellcheck: false, value }) });
    }
  }
  return fields;
};

const buildOperation = (method, path, operation) => {
  const fields = listFields(operation);
  const inputs = fields.filter(({ place }) => place !== "body").map(({ name, place, schema, description, input }) =>
    element("label", {}, element("span", {}, element("code", { textContent: input.required ? `${name} *` : name }),
      ` ${place}, `, ...describeType(schema), describeRange(schema), description ? `: ${description}` : ""), input));
  const bodies = fields.filter(({ place }) => place === "body");
  const output = element("pre", { hidden: true });
  const send = element("button", { textContent: "Send" });
  const stop = element("button", { type: "button", textContent: "Stop", hidden: true });
  const form = element("form", {}, ...inputs, ...bodies.map(({ input }) => input), send, " ", stop, output,
    ...bodies.flatMap(({ schema }) => buildFieldTables(resolve(schema))));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    const running = new AbortController();
    stop.onclick = () => running.abort();
    [send.disabled, stop.hidden, output.hidden] = [true, false, false];
    output.textContent = "...";
    try {
      const [address, options] = buildRequest(method, path, fields);
      await showResponse(await fetch(address, { ...options, signal: running.signal }), output);
    } catch (problem) {
      output.append(running.signal.aborted ? "\n(stopped)" : `\n${problem}`);
    }
    [send.disabled, stop.hidden] = [false, true];
  });
  const description = operation.description ? [element("p", { textContent: operation.description })] : [];
  return [...description, form];
};

// --- the page ---

// Builds its content when it is opened first: there are hundreds.
const buildDetails = (summary, build, attributes = {}) => {
  const details = element("details", attributes, element("summary", {}, ...summary));
  details.addEventListener("toggle", () => details.append(...build()), { once: true });
  return details;
};

const render = () => {
  const groups = new Map();
  for (const [path, item] of Object.entries(api.paths)) {
    for (const method of METHODS.filter((name) => item[name])) {
      const operation = item[method];
      const [tag] = operation.tags || ["other"];
      if (!groups.has(tag)) groups.set(tag, []);
      groups.get(tag).push(buildDetails([
        element("span", { className: "method", textContent: method.toUpperCase() }),
        element("span", { className: "path", textContent: path }),
        element("span", { className: "says", textContent: operation.summary }),
      ], () => buildOperation(method, path, operation), { className: "operation" }));
    }
  }
  const schemas = Object.entries(api.components.schemas).map(([name, schema]) => buildDetails([
    element("code", { textContent: name }),
    element("span", { className: "says", textContent: schema.description || "" }),
  ], () => buildFieldTables(schema), { id: `schema-${name}` }));
  document.getElementById("paths").replaceChildren(
    ...[...groups].flatMap(([tag, operations]) => [element("h2", { textContent: tag }), ...operations]),
    element("h2", { textContent: "schemas" }), ...schemas);
};

const load = async () => {
  const status = document.getElementById("status");
  try {
    const response = await fetch("/openapi.json", { headers: buildHeaders() });
    const content = await response.json();
    if (response.ok) {
      api = content;
      render();
    }
    status.textContent = response.ok ? `${api.info.title} ${api.info.version}` : content.error.message;
  } catch (problem) {
    status.textContent = `/openapi.json could not be loaded: ${problem}`;
  }
};

const keyForm = document.getElementById("key-form");
keyForm.addEventListener("submit", (event) => {
  event.preventDefault();
  load();
});
// Where the server has keys, /openapi.json needs one.
if (document.body.dataset.keys === "on") keyForm.hidden = false;
else load();
