import { html, nothing } from "../../vendor/lit.js";
import { buildModelPath } from "../chat/models.js";
import { ServerError, get, send } from "../lib/api.js";
import { formatBytes, formatCount, formatDuration, formatShare, formatShort } from "../lib/format.js";
import { View, asError, confirmAction, icon, showError } from "../lib/view.js";
import { listEngines, listRoutes, readSamples } from "../metrics.js";

/** The models, their state and what each of them can do. */
class ModelsPage extends View {
  static properties = { rest: { attribute: false }, models: { state: true }, card: { state: true }, problem: { state: true }, cardProblem: { state: true }, form: { state: true }, samples: { state: true }, formProblem: { state: true } };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    /** @type {any[] | null} */
    this.models = null;
    /** @type {any} */
    this.card = null;
    /** @type {any} */
    this.problem = null;
    /** @type {import("../metrics.js").Sample[]} empty if the key may not read the metrics */
    this.samples = [];
    /** @type {{at: number, decoded: Map<string, number>} | null} */
    this.last = null;
    /** @type {Map<string, number>} */
    this.rates = new Map();
    this.form = false;
    /** @type {any} */
    this.cardProblem = null;
    /** @type {any} */
    this.formProblem = null;
    this.seesMetrics = true;
    /** @type {ReturnType<typeof setInterval> | undefined} */
    this.timer = undefined;
    this.isRefused = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.refresh();
    // Not while nobody looks, nor without a key: each refusal would ask for one.
    this.timer = setInterval(() => { if (!document.hidden && !this.isRefused) this.refresh(); }, 5000);
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearInterval(this.timer);
  }

  async refresh() {
    try {
      this.models = (await get("v1/models")).data;
      if (this.seesMetrics) await this.loadMetrics();
      this.problem = null;
      this.isRefused = false;
    } catch (problem) {
      this.problem = asError(problem);
      this.isRefused = problem instanceof ServerError && problem.status === 401;
    }
  }

  /** Reads the metrics. Only an operator's key may; others see the list alone. */
  async loadMetrics() {
    let text;
    try {
      text = await (await send("metrics")).text();
    } catch (problem) {
      this.seesMetrics = /** @type {any} */ (problem).status !== 403;
      return;
    }
    this.samples = readSamples(text);
    const decoded = new Map(listEngines(this.samples).map((engine) => [engine.model, engine.decoded]));
    const at = performance.now();
    const { last } = this;
    if (last) this.rates = new Map([...decoded].map(([model, count]) => [model, Math.max(count - (last.decoded.get(model) ?? count), 0) / ((at - last.at) / 1000)]));
    this.last = { at, decoded };
  }

  /** @param {() => Promise<any>} act */
  async run(act) {
    try {
      await act();
      this.form = false;
      this.formProblem = null;
      await this.refresh();
    } catch (problem) {
      this.formProblem = asError(problem);
    }
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("rest")) this.showModel(this.rest.join("/"));
  }

  /** @param {string} name */
  async showModel(name) {
    const isWanted = this.beginLoad();
    [this.card, this.cardProblem] = [null, null];
    if (!name) return;
    try {
      const card = await get(buildModelPath(name));
      if (isWanted()) this.card = card;
    } catch (problem) {
      if (isWanted()) this.cardProblem = asError(problem);
    }
  }

  render() {
    const chosen = this.rest.join("/");
    return html`<div class="pad"><h1>Models</h1>${showError(this.problem)}
      ${this.models?.length === 0 ? html`<p class="muted">This key can use no model. Its list of models is on the page Access.</p>` : nothing}
      ${this.models || this.problem ? nothing : html`<p class="muted">Loading …</p>`}
      ${this.models?.length ? html`<div class="scroll" tabindex="0"><table class="list"><thead><tr><th>Model</th><th>State</th><th>Base</th><th>Owner</th><th></th></tr></thead>
      <tbody>${(this.models ?? []).map((model) => html`<tr class=${model.id === chosen ? "current" : ""}>
        <td><a href="#/models/${encodeURIComponent(model.id)}">${model.id}</a></td>
        <td><span class="state ${model.state}">${model.state}</span></td><td>${model.parent ?? "–"}</td><td>${model.owned_by}</td>
        <td>${model.parent ? html`<button class="quiet" aria-label="Unload ${model.id}" title="Unload the adapter" @click=${async () => {
          if (await confirmAction(`Unload the adapter “${model.id}”? Running requests finish.`, "Unload")) this.run(() => send("v1/unload_lora_adapter", { method: "POST", body: { lora_name: model.id } }));
        }}>${icon("x")} Unload</button>` : nothing}</td></tr>`)}</tbody></table></div>` : nothing}
      <div class="row"><button @click=${() => { this.form = !this.form; this.formProblem = null; }}>${icon("plus")} Load an adapter</button></div>
      ${this.form ? this.renderForm() : showError(this.formProblem)}
      ${this.samples.length ? this.renderEngines() : nothing}
      ${showError(this.cardProblem)}${this.card ? this.renderCard(this.card) : nothing}</div>`;
  }

  renderForm() {
    return html`<form class="card grid" @submit=${(/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
      const read = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
      const body = { lora_name: read("name"), lora_path: read("path"), ...(read("base") ? { base_model_name: read("base") } : {}) };
      this.run(() => send("v1/load_lora_adapter", { method: "POST", body }));
    }}><label>Name <input name="name" required placeholder="the name that callers use"></label>
      <label>File or folder <input name="path" required placeholder="in one of the server's directories of adapters"></label>
      <label>Base model <select name="base"><option value="">the only one</option>${(this.models ?? []).filter(({ parent }) => !parent).map(({ id }) => html`<option>${id}</option>`)}</select></label>
      ${showError(this.formProblem)}<div class="row end"><button class="primary">Load</button></div></form>`;
  }

  renderEngines() {
    const engines = listEngines(this.samples);
    const routes = listRoutes(this.samples);
    return html`<h2>Engines</h2><div class="scroll" tabindex="0"><table class="list"><thead><tr><th>Engine</th>${["Running", "Waiting", "Tokens/s", "Cells used", "Cached", "Prefix hits", "Drafts taken", "Between steps"].map((label) => html`<th class="number">${label}</th>`)}</tr></thead>
      <tbody>${engines.map((engine) => html`<tr><td>${engine.model} ${engine.isUp ? nothing : html`<span class="state failed">away</span>`}</td>
        ${[formatCount(engine.running), formatCount(engine.queued), formatShort(this.rates.get(engine.model) ?? 0), `${formatCount(engine.used)} of ${formatCount(engine.cells)}`, formatCount(engine.cached),
          engine.admitted ? formatShare(engine.hits / engine.admitted) : "–", engine.drafts ? formatShare(engine.accepted / engine.drafts) : "–",
          engine.stepGap === null ? "–" : formatDuration(engine.stepGap * 1000)].map((text) => html`<td class="number">${text}</td>`)}</tr>`)}</tbody></table></div>
      ${routes.length ? html`<h2>Routes</h2><div class="scroll" tabindex="0"><table class="list"><thead><tr><th>Model</th><th>Route</th><th>State</th><th class="number">Running</th><th class="number">Attempts</th><th class="number">Failed</th></tr></thead>
        <tbody>${routes.map((route) => html`<tr><td>${route.model}</td><td>${route.route}</td><td><span class="state ${route.isResting ? "failed" : "ready"}">${route.isResting ? "rests" : "serves"}</span></td>
          <td class="number">${formatCount(route.inFlight)}</td><td class="number">${formatCount(route.attempts)}</td><td class="number">${formatCount(route.failed)}</td></tr>`)}</tbody></table></div>` : nothing}`;
  }

  /** @param {any} card */
  renderCard({ id, profile, adapter }) {
    const facts = { ...(profile ?? {}), ...(adapter ? { adapter } : {}) };
    return html`<section aria-label="Profile"><h2>${id}</h2>
      ${profile ? nothing : html`<p class="muted">Its profile is known when its engine is ready.</p>`}
      <table class="facts"><tbody>${Object.entries(facts).filter(([, value]) => value !== null && !(Array.isArray(value) && !value.length))
        .map(([name, value]) => html`<tr><th scope="row">${name.replaceAll("_", " ")}</th><td>${describeFact(name, value)}</td></tr>`)}</tbody></table></section>`;
  }
}

/** @param {string} name @param {any} value */
function describeFact(name, value) {
  if (name === "size") return formatBytes(value);
  if (typeof value === "number") return formatCount(value);
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (Array.isArray(value)) return value.map((item) => (typeof item === "object" ? JSON.stringify(item) : item)).join(", ");
  if (typeof value === "object") {
    const set = Object.entries(value).filter(([, part]) => part !== null);
    return set.length ? set.map(([part, number]) => `${part}: ${typeof number === "object" ? JSON.stringify(number) : number}`).join(", ") : "–";
  }
  return value;
}

customElements.define("models-page", ModelsPage);
