// Reads /openapi.json with the key that was typed in, lists every path with its fields, and lets each be tried.
// Text goes into the page as text, never as markup.
"use strict";

const element = (name, attributes = {}, ...children) => {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...children);
  return made;
};

const headers = () => {
  const key = document.getElementById("key").value.trim();
  return key ? { Authorization: `Bearer ${key}` } : {};
};

const resolve = (api, schema) =>
  schema && schema.$ref ? api.components.schemas[schema.$ref.split("/").pop()] : schema;

const named = (schema) => {
  if (!schema) return "anything";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(named).join(" or ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" or ");
  if (schema.type === "array") return `list of ${named(schema.items)}`;
  return schema.type || "anything";
};

const bounded = (schema) => {
  const parts = schema && schema.anyOf ? schema.anyOf : [schema || {}];
  const low = parts.map((part) => part.minimum).find((value) => value !== undefined);
  const high = parts.map((part) => part.maximum).find((value) => value !== undefined);
  return low === undefined && high === undefined ? "" : ` (${low ?? ""} to ${high ?? ""})`;
};

const row = (name, type, says) =>
  element("tr", {}, element("td", {}, element("code", { textContent: name })), element("td", { textContent: type }),
    element("td", { textContent: says || "" }));

const fields = (schema) => {
  const required = new Set(schema.required || []);
  const rows = Object.entries(schema.properties || {}).map(([name, property]) =>
    row(required.has(name) ? `${name} *` : name, named(property) + bounded(property), property.description));
  const refused = Object.entries(schema["x-antiphon-refused"] || {}).map(([name, note]) =>
    row(name, "refused", note.says));
  const parts = [element("table", {}, ...rows)];
  if (refused.length) {
    parts.push(element("details", {},
      element("summary", { textContent: `${refused.length} known fields that are refused` }),
      element("table", {}, ...refused)));
  }
  return parts;
};

const show = async (response, output) => {
  output.textContent = `${response.status} ${response.statusText}\n\n`;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    output.textContent += part.value;
  }
};

const attempt = async (method, path, inputs, body, output) => {
  const address = path.replace(/\{(\w+)\}/g, (_, name) => encodeURI(inputs[name].value));
  const options = { method: method.toUpperCase(), headers: headers() };
  if (body) {
    options.body = body.value;
    options.headers["Content-Type"] = "application/json";
  }
  output.hidden = false;
  output.textContent = "...";
  try {
    await show(await fetch(address, options), output);
  } catch (problem) {
    output.textContent += `\n${problem}`;
  }
};

const form = (api, method, path, operation) => {
  const inputs = {};
  const parts = (operation.parameters || []).map(({ name }) => {
    inputs[name] = element("input", { className: "argument", placeholder: name });
    return inputs[name];
  });
  const schema = resolve(api, operation.requestBody?.content["application/json"].schema);
  const body = schema && element("textarea", {
    rows: 6, spellcheck: false, value: JSON.stringify((schema.examples || [{}])[0], null, 2),
  });
  const output = element("pre", { hidden: true });
  const send = element("button", { type: "button", textContent: "Send" });
  send.addEventListener("click", () => attempt(method, path, inputs, body, output));
  return [...(schema ? fields(schema) : []), ...parts, ...(body ? [body] : []), send, output];
};

const nested = (api) => Object.entries(api.components.schemas).map(([name, schema]) =>
  element("details", {}, element("summary", {}, element("code", { textContent: name }),
    element("span", { className: "says", textContent: schema.description || "" })), ...fields(schema)));

const render = (api) => {
  const operations = Object.entries(api.paths).flatMap(([path, item]) =>
    Object.entries(item).map(([method, operation]) =>
      element("details", {},
        element("summary", {}, element("span", { className: "method", textContent: method.toUpperCase() }),
          element("span", { className: "path", textContent: path }),
          element("span", { className: "says", textContent: operation.summary })),
        ...form(api, method, path, operation))));
  document.getElementById("paths").replaceChildren(...operations,
    element("h2", { textContent: "Schemas" }), ...nested(api));
};

const load = async () => {
  const status = document.getElementById("status");
  const response = await fetch("/openapi.json", { headers: headers() });
  const api = await response.json();
  status.textContent = response.ok ? `${api.info.title} ${api.info.version}` : api.error.message;
  if (response.ok) render(api);
};

document.getElementById("load").addEventListener("click", load);
load();
