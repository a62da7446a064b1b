import { html, nothing, repeat } from "../../vendor/lit.js";
import { ROOT, loadDescription, send } from "../lib/api.js";
import { View, asError, showError } from "../lib/view.js";
import { buildExample, describeRange, describeType, listOperations, resolve, withoutNull } from "../reference/schema.js";

/** Every operation of /openapi.json with its fields, and a way to try it. */
class ReferencePage extends View {
  static properties = { rest: { attribute: false }, document: { state: true }, problem: { state: true }, found: { state: true }, opened: { state: true } };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    /** @type {any} */
    this.document = null;
    /** @type {any} */
    this.problem = null;
    this.found = "";
    /** @type {Set<string>} */
    this.opened = new Set();
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.document) this.refresh();
  }

  async refresh() {
    try {
      this.document = await loadDescription();
      this.problem = null;
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  render() {
    if (!this.document) return html`<div class="pad"><h1>Reference</h1>${showError(this.problem)}${this.problem ? nothing : html`<p class="muted">Loading …</p>`}</div>`;
    const words = this.found.toLowerCase().split(/\s+/).filter(Boolean);
    const operations = listOperations(this.document).filter(({ method, path, summary }) =>
      words.every((word) => `${method} ${path} ${summary}`.toLowerCase().includes(word)));
    const tags = [...new Set(operations.map((operation) => operation.tag))];
    return html`<div class="pad reference"><h1>Reference</h1>
      <p class="muted">${this.document.info.title} ${this.document.info.version}, from <a href=${new URL("openapi.json", ROOT).href}>openapi.json</a>. Open an operation to read its fields and to try it.</p>
      <label>Search <input type="search" .value=${this.found} placeholder="chat, limits, POST …" @input=${(/** @type {any} */ event) => { this.found = event.target.value; }}></label>
      ${operations.length ? nothing : html`<p class="muted">No operation has these words.</p>`}
      ${tags.map((tag) => html`<h2>${tag}</h2>${repeat(operations.filter((operation) => operation.tag === tag), (/** @type {any} */ operation) => operation.id, (/** @type {any} */ operation) => this.renderOperation(operation))}`)}</div>`;
  }

  /** @param {import("../reference/schema.js").Operation} operation */
  renderOperation(operation) {
    const isOpen = this.opened.has(operation.id);
    return html`<details class="operation" @toggle=${(/** @type {any} */ event) => {
      if (event.target !== event.currentTarget) return;
      const opened = new Set(this.opened);
      if (event.target.open) opened.add(operation.id);
      else opened.delete(operation.id);
      this.opened = opened;
    }}><summary><span class="method">${operation.method}</span><code>${operation.path}</code><span class="muted">${operation.summary}</span></summary>
      ${isOpen ? html`<try-operation .operation=${operation} .document=${this.document}></try-operation>` : nothing}</details>`;
  }
}

/** One operation: its fields, and a form that sends it. */
class TryOperation extends View {
  static properties = { operation: { attribute: false }, document: { attribute: false }, answer: { state: true }, running: { state: true }, problem: { state: true } };

  constructor() {
    super();
    /** @type {import("../reference/schema.js").Operation} */
    this.operation = /** @type {any} */ (null);
    /** @type {any} */
    this.document = null;
    /** @type {{head: string, text: string} | null} */
    this.answer = null;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {any} */
    this.problem = null;
  }

  render() {
    const { description, parameters, bodies } = this.operation;
    return html`${description ? html`<p>${description}</p>` : nothing}
      <form @submit=${this.run}>
        ${parameters.map((/** @type {any} */ parameter) => this.renderInput(parameter.name, parameter.in, parameter.schema, parameter.required, parameter.description))}
        ${bodies.map(({ media, schema }) => media === "multipart/form-data"
          ? Object.entries(resolve(this.document, schema).properties ?? {}).map(([name, property]) => this.renderInput(name, "form", property,
            (resolve(this.document, schema).required ?? []).includes(name), /** @type {any} */ (property).description))
          : html`<label>Body <textarea name="body" class="code" spellcheck="false" rows="10" .value=${JSON.stringify(buildExample(this.document, schema), null, 2)}></textarea></label>`)}
        <div class="row"><button class="primary" ?disabled=${Boolean(this.running)}>Send</button>
          ${this.running ? html`<button type="button" class="danger" @click=${() => this.running?.abort()}>Stop</button>` : nothing}</div></form>
      ${showError(this.problem)}
      ${this.answer ? html`<pre class="answer" tabindex="0"><span class="muted">${this.answer.head}</span>\n${this.answer.text}</pre>` : nothing}
      ${bodies.map(({ schema }) => this.renderFields(schema))}`;
  }

  /** @param {string} name @param {string} place @param {any} schema @param {boolean} required @param {string} [description] */
  renderInput(name, place, schema, required, description) {
    const found = withoutNull(this.document, schema);
    const values = found.enum ?? (found.type === "boolean" ? ["true", "false"] : null);
    const field = values
      ? html`<select name="${place}:${name}"><option value=""></option>${values.map((/** @type {string} */ value) => html`<option>${value}</option>`)}</select>`
      : found.format === "binary" ? html`<input type="file" name="${place}:${name}">`
      : html`<input name="${place}:${name}" autocomplete="off" ?required=${required}>`;
    return html`<label class="parameter"><span><code>${name}</code> <small class="muted">${place}${required ? ", required" : ""}, ${describeType(schema)}${describeRange(schema)}</small></span>
      ${field}${description ? html`<small class="muted">${description}</small>` : nothing}</label>`;
  }

  /** @param {any} schema */
  renderFields(schema) {
    const found = resolve(this.document, schema);
    const required = new Set(found.required ?? []);
    const refused = Object.entries(found["x-antiphon-refused"] ?? {});
    return html`<table class="fields"><tbody>${Object.entries(found.properties ?? {}).map(([name, property]) => html`<tr><td><code>${name}${required.has(name) ? " *" : ""}</code></td>
        <td>${describeType(property)}${describeRange(property)}</td><td>${/** @type {any} */ (property).description ?? ""}</td></tr>`)}</tbody></table>
      ${refused.length ? html`<details><summary>${refused.length} known fields that are refused</summary><table class="fields"><tbody>${refused.map(([name, note]) => html`<tr><td><code>${name}</code></td><td>${/** @type {any} */ (note).says}</td></tr>`)}</tbody></table></details>` : nothing}`;
  }

  /** @param {SubmitEvent} event */
  async run(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const { method, path, bodies } = this.operation;
    const query = new URLSearchParams();
    /** @type {Record<string, string>} */
    const headers = {};
    let address = path;
    /** @type {any} */
    let body;
    this.problem = null;
    this.answer = null;
    try {
      for (const [field, value] of form) {
        const [place, name] = field.split(":");
        if (field === "body") body = JSON.parse(String(value));
        else if (value === "" || (value instanceof File && !value.name)) continue;
        else if (place === "path") address = address.replace(`{${name}}`, () => String(value).split("/").map(encodeURIComponent).join("/"));
        else if (place === "query") query.append(name, String(value));
        else if (place === "header") headers[name] = String(value);
        else (body ??= new FormData()).append(name, value);
      }
    } catch (problem) {
      this.problem = { message: `The body is no JSON: ${/** @type {Error} */ (problem).message}` };
      return;
    }
    if (body === undefined && bodies.some(({ media }) => media === "multipart/form-data")) body = new FormData();
    this.running = new AbortController();
    try {
      const search = query.toString();
      const response = await send(address.slice(1) + (search ? `?${search}` : ""), { method, body, headers, signal: this.running.signal });
      const head = [`${response.status} ${response.statusText}`, ...["content-type", "x-request-id", "x-antiphon-ignored"]
        .filter((name) => response.headers.has(name)).map((name) => `${name}: ${response.headers.get(name)}`)].join("\n");
      this.answer = { head, text: "" };
      if (response.headers.get("content-type")?.startsWith("application/json")) {
        const text = await response.text();
        this.answer = { head, text: text && JSON.stringify(JSON.parse(text), null, 2) };
      } else if (response.body) {
        const reader = response.body.pipeThrough(/** @type {any} */ (new TextDecoderStream())).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) this.answer = { head, text: this.answer.text + part.value };
      }
    } catch (problem) {
      if (!this.running.signal.aborted) this.problem = asError(problem);
    }
    this.running = null;
  }
}

customElements.define("try-operation", TryOperation);
customElements.define("reference-page", ReferencePage);
