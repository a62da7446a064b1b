import { html, nothing } from "../../vendor/lit.js";
import { buildModelPath } from "../chat/models.js";
import { ServerError, get } from "../lib/api.js";
import { formatBytes, formatCount } from "../lib/format.js";
import { View, asError, showError } from "../lib/view.js";

/** The models, their state and what each of them can do. */
class ModelsPage extends View {
  static properties = { rest: { attribute: false }, models: { state: true }, card: { state: true }, problem: { state: true }, cardProblem: { state: true }, load: { state: true } };

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
    /** @type {any} */
    this.cardProblem = null;
    /** @type {any} */
    this.load = null;
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
      this.load = await get("load").catch(() => null);
      this.problem = null;
      this.isRefused = false;
    } catch (problem) {
      this.problem = asError(problem);
      this.isRefused = problem instanceof ServerError && problem.status === 401;
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
      ${this.load ? html`<p class="muted">${Object.entries(this.load).filter(([, value]) => typeof value === "number")
        .map(([name, value]) => `${name.replaceAll("_", " ")}: ${formatCount(/** @type {number} */ (value))}`).join(" · ")}</p>` : nothing}
      ${this.models?.length === 0 ? html`<p class="muted">This key can use no model. Its list of models is on the page Access.</p>` : nothing}
      ${this.models || this.problem ? nothing : html`<p class="muted">Loading …</p>`}
      ${this.models?.length ? html`<div class="scroll"><table class="list"><thead><tr><th>Model</th><th>State</th><th>Base</th><th>Owner</th></tr></thead>
      <tbody>${(this.models ?? []).map((model) => html`<tr class=${model.id === chosen ? "current" : ""}>
        <td><a href="#/models/${encodeURIComponent(model.id)}">${model.id}</a></td>
        <td><span class="state ${model.state}">${model.state}</span></td><td>${model.parent ?? "–"}</td><td>${model.owned_by}</td></tr>`)}</tbody></table></div>` : nothing}
      ${showError(this.cardProblem)}${this.card ? this.renderCard(this.card) : nothing}</div>`;
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
