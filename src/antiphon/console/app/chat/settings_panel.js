import { html, live, nothing } from "../../vendor/lit.js";
import { View } from "../lib/view.js";
import { describeRange, readJson, readValue } from "./settings.js";

const TOOL_EXAMPLE = `[{"type": "function", "function": {"name": "weather",
  "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]`;
/** How many alternatives the inspector shows for each token. */
export const ALTERNATIVES = 5;

const SCHEMA_EXAMPLE = `{"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}`;

/**
 * The settings of a request: model, system prompt, all parameters, tools and a schema. Fires `settings` with the new ones.
 *
 * @typedef {{model: string, system: string, values: Record<string, string>, tools: string, schema: string, tokens: boolean}} Settings
 */
class SettingsPanel extends View {
  static properties = {
    settings: { attribute: false }, models: { attribute: false }, parameters: { attribute: false }, profile: { attribute: false },
    isRaw: { type: Boolean },
  };

  constructor() {
    super();
    /** @type {Settings} */
    this.settings = createSettings("");
    /** @type {any[]} */
    this.models = [];
    /** @type {import("./settings.js").Parameter[]} */
    this.parameters = [];
    /** @type {any} */
    this.profile = null;
    this.isRaw = false;
  }

  /** @param {Partial<Settings>} changes */
  change(changes) {
    this.dispatchEvent(new CustomEvent("settings", { detail: { ...this.settings, ...changes } }));
  }

  render() {
    const { settings } = this;
    const names = this.models.map((model) => model.id);
    if (settings.model && !names.includes(settings.model)) names.unshift(settings.model);
    return html`<label>Model <select @change=${(/** @type {any} */ event) => this.change({ model: event.target.value })}>
        ${names.map((name) => html`<option .selected=${live(name === settings.model)}>${name}</option>`)}</select></label>
      ${this.profile ? html`<p class="muted small">${this.describeModel()}</p>` : nothing}
      ${this.isRaw ? nothing : html`<label>System prompt <textarea rows="3" .value=${settings.system} placeholder="How the model should behave"
        @input=${(/** @type {any} */ event) => this.change({ system: event.target.value })}></textarea></label>`}
      <label class="check"><input type="checkbox" .checked=${settings.tokens}
        @change=${(/** @type {any} */ event) => this.change({ tokens: event.target.checked })}> Ask for each token's probability</label>
      ${this.renderGroups()}
      ${this.isRaw ? nothing : html`
        <details ?open=${Boolean(settings.tools)}><summary>Tools</summary>${this.renderJson("tools", "array", TOOL_EXAMPLE, "Functions that the model may call.")}</details>`}
      <details ?open=${Boolean(settings.schema)}><summary>Schema of the answer</summary>
        ${this.renderJson("schema", "object", SCHEMA_EXAMPLE, "A JSON Schema that the answer follows.")}</details>`;
  }

  describeModel() {
    const { profile } = this;
    const parts = [];
    if (profile.context_length) parts.push(`${profile.context_length.toLocaleString()} tokens of context`);
    if (profile.reasoning) parts.push("reasons");
    if (profile.modalities?.length > 1) parts.push(`takes ${profile.modalities.join(", ")}`);
    return parts.join(" · ");
  }

  renderGroups() {
    /** @type {Map<string, import("./settings.js").Parameter[]>} */
    const groups = new Map();
    for (const parameter of this.parameters) groups.set(parameter.group, [...(groups.get(parameter.group) ?? []), parameter]);
    if (!groups.size && this.settings.model) return html`<p class="muted small">The parameters are being loaded …</p>`;
    return [...groups].map(([name, parameters]) => html`<details ?open=${name === "Sampling"}><summary>${name}</summary>
      ${parameters.map((parameter) => this.renderParameter(parameter))}</details>`);
  }

  /** @param {import("./settings.js").Parameter} parameter */
  renderParameter(parameter) {
    const { name, kind, choices } = parameter;
    const typed = this.settings.values[name] ?? "";
    const change = (/** @type {any} */ event) => {
      const values = { ...this.settings.values, [name]: event.target.value };
      if (!event.target.value.trim()) delete values[name];
      this.change({ values });
    };
    const start = this.profile?.sampling?.[name];
    const hint = start === null || start === undefined ? describeRange(parameter) : `${describeRange(parameter)}; this model has ${start}`;
    const problem = findProblem(parameter, typed);
    const options = choices ?? (kind === "boolean" ? ["true", "false"] : null);
    const field = options
      ? html`<select name=${name} @change=${change} ?disabled=${parameter.isRefused}><option value="" .selected=${live(typed === "")}>as the model does</option>
          ${options.map((option) => html`<option .selected=${live(option === typed)}>${option}</option>`)}</select>`
      : kind === "number" || kind === "integer"
        ? html`<input name=${name} inputmode="decimal" autocomplete="off" .value=${typed} placeholder=${hint} @input=${change} ?disabled=${parameter.isRefused}>`
        : html`<textarea name=${name} rows=${kind === "text" ? 1 : 2} .value=${typed} placeholder=${hint} @input=${change} ?disabled=${parameter.isRefused}></textarea>`;
    return html`<label class="parameter"><span><code>${name}</code>${parameter.isRefused ? html` <small class="muted">this model refuses it</small>` : nothing}</span>
      ${field}<small class="muted">${parameter.help}</small>${problem ? html`<small class="error">${problem}</small>` : nothing}</label>`;
  }

  /** @param {"tools" | "schema"} name @param {"array" | "object"} shape @param {string} example @param {string} help */
  renderJson(name, shape, example, help) {
    const typed = this.settings[name];
    let problem = null;
    try {
      readJson(typed, shape);
    } catch (found) {
      problem = /** @type {Error} */ (found).message;
    }
    return html`<label><small class="muted">${help}</small><textarea name=${name} class="code" rows="8" spellcheck="false" .value=${typed}
      placeholder=${example} @input=${(/** @type {any} */ event) => this.change({ [name]: event.target.value })}></textarea>
      ${problem ? html`<small class="error">${problem}</small>` : nothing}</label>
      ${typed ? nothing : html`<button @click=${() => this.change({ [name]: formatExample(example) })}>Insert an example</button>`}`;
  }
}

/** @param {string} example */
const formatExample = (example) => JSON.stringify(JSON.parse(example), null, 2);

/** @param {import("./settings.js").Parameter} parameter @param {string} typed */
function findProblem(parameter, typed) {
  try {
    readValue(parameter, typed);
    return null;
  } catch (problem) {
    return /** @type {Error} */ (problem).message;
  }
}

/** @param {string} model @returns {Settings} */
export const createSettings = (model) => ({ model, system: "", values: {}, tools: "", schema: "", tokens: false });

/**
 * Returns the fields of a request. Throws an Error that names a field whose value cannot be sent.
 *
 * @param {Settings} settings @param {import("./settings.js").Parameter[]} parameters
 */
export function buildFields(settings, parameters) {
  /** @type {Record<string, any>} */
  const body = { model: settings.model };
  for (const parameter of parameters) {
    const typed = settings.values[parameter.name];
    if (typed === undefined || parameter.isRefused) continue;
    try {
      body[parameter.name] = readValue(parameter, typed);
    } catch (problem) {
      throw new Error(`${parameter.name}: ${/** @type {Error} */ (problem).message}`);
    }
  }
  const tools = readJson(settings.tools, "array");
  if (tools?.length) body.tools = tools;
  const schema = readJson(settings.schema, "object");
  if (schema) body.response_format = { type: "json_schema", json_schema: { name: "answer", schema } };
  if (settings.tokens) Object.assign(body, { logprobs: true, top_logprobs: ALTERNATIVES });
  return body;
}

customElements.define("settings-panel", SettingsPanel);
