import { html, nothing } from "../../vendor/lit.js";
import { change, get, send } from "../lib/api.js";
import { formatBytes, formatCount, formatTime } from "../lib/format.js";
import { View, asError, confirmAction, icon, showError } from "../lib/view.js";

/** Knowledge tables: documents, and a search that shows what each ranking found. */
class KnowledgePage extends View {
  static properties = {
    rest: { attribute: false }, tables: { state: true }, documents: { state: true }, models: { state: true }, results: { state: true },
    problem: { state: true }, form: { state: true }, query: { attribute: false },
  };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    /** @type {any[] | null} */
    this.tables = null;
    /** @type {any[]} */
    this.documents = [];
    /** @type {any[]} */
    this.models = [];
    /** @type {any[] | null} */
    this.results = null;
    /** @type {any} */
    this.problem = null;
    this.form = false;
    this.query = new URLSearchParams();
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    this.timer = undefined;
  }

  connectedCallback() {
    super.connectedCallback();
    this.refresh();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    clearTimeout(this.timer);
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("rest")) {
      [this.results, this.documents] = [null, []];
      this.loadDocuments();
    }
  }

  get table() {
    return this.rest[0] ?? "";
  }

  async refresh() {
    try {
      [this.tables, this.models] = await Promise.all([get("v1/knowledge/tables").then((page) => page.data), get("v1/models").then((page) => page.data)]);
      this.problem = null;
      await this.loadDocuments();
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  async loadDocuments() {
    clearTimeout(this.timer);
    const isWanted = this.beginLoad();
    if (!this.table) return;
    try {
      const documents = (await get(`v1/knowledge/tables/${encodeURIComponent(this.table)}/documents?limit=100`)).data;
      if (!isWanted()) return;
      this.documents = documents;
      // What is still read and split is looked at again.
      if (this.isConnected && this.documents.some(({ state }) => state !== "ready" && state !== "failed")) {
        this.timer = setTimeout(() => this.loadDocuments(), 1000);
      }
    } catch (problem) {
      if (isWanted()) this.problem = asError(problem);
    }
  }

  /** @param {() => Promise<any>} act */
  async run(act) {
    try {
      await act();
      this.form = false;
      await this.refresh();
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  render() {
    const chosen = this.tables?.find(({ name }) => name === this.table);
    return html`<div class="pad"><h1>Knowledge</h1>${showError(this.problem)}
      ${this.tables ? html`<div class="row"><button class="primary" @click=${() => { this.form = !this.form; }}>${icon("plus")} Create a table</button></div>
        ${this.form ? this.renderForm() : nothing}
        ${this.tables.length ? html`<div class="scroll"><table class="list"><thead><tr><th>Table</th><th>Search</th><th>Vectors of</th><th class="number">Documents</th><th class="number">Chunks</th><th class="number">Size</th><th></th></tr></thead>
          <tbody>${this.tables.map((table) => html`<tr class=${table.name === this.table ? "current" : ""}><td><a href="#/knowledge/${encodeURIComponent(table.name)}">${table.name}</a></td><td>${table.search}</td><td>${table.embedding_model ?? "–"}</td>
            <td class="number">${formatCount(table.documents)}</td><td class="number">${formatCount(table.chunks)}</td><td class="number">${formatBytes(table.bytes)}</td>
            <td><button class="quiet" aria-label="Remove ${table.name}" @click=${async () => {
              if (await confirmAction(`Remove the table “${table.name}” with all its documents?`, "Remove")) this.run(() => change("DELETE", `v1/knowledge/tables/${encodeURIComponent(table.name)}`));
            }}>${icon("trash-2")}</button></td></tr>`)}</tbody></table></div>`
          : html`<p class="muted">There is no table yet. Create one, add documents, and ask them from the page Chat with the parameter rag_params.</p>`}` : this.problem ? nothing : html`<p class="muted">Loading …</p>`}
      ${chosen ? this.renderTable() : nothing}</div>`;
  }

  renderForm() {
    return html`<form class="card grid" @submit=${(/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
      this.run(() => change("POST", "v1/knowledge/tables", { name: String(form.get("name")).trim(), embedding_model: form.get("model") || null }));
    }}><label>Name <input name="name" required></label>
      <label>Vectors of <select name="model"><option value="">none: search by words</option>${this.models.map(({ id }) => html`<option>${id}</option>`)}</select></label>
      <div class="row end"><button class="primary">Create</button></div></form>`;
  }

  renderTable() {
    const path = `v1/knowledge/tables/${encodeURIComponent(this.table)}`;
    return html`<section class="card" aria-label="Table"><header class="row wrap"><h2>${this.table}</h2><span class="grow"></span>
      <label class="button">${icon("upload")} Add documents <input type="file" multiple hidden aria-label="Add documents" @change=${(/** @type {any} */ event) => {
        const files = [...event.target.files];
        event.target.value = "";
        this.run(async () => {
          for (const file of files) {
            const form = new FormData();
            form.append("file", file);
            await send(`${path}/documents`, { method: "POST", body: form });
          }
        });
      }}></label></header>
      ${this.documents.length ? html`<div class="scroll"><table class="list"><thead><tr><th>Document</th><th>State</th><th class="number">Chunks</th><th class="number">Size</th><th>Added</th><th></th></tr></thead>
        <tbody>${this.documents.map((document) => html`<tr><td>${document.name}${(document.warnings ?? []).map((/** @type {string} */ warning) => html`<br><small class="muted">${warning}</small>`)}</td>
          <td><span class="state ${document.state}">${document.state}</span>${document.error ? html` <small class="error">${document.error}</small>` : nothing}
            ${document.state === "ready" || document.state === "failed" ? nothing : html`<progress max="1" .value=${document.progress ?? 0} aria-label="Progress of ${document.name}"></progress>`}</td>
          <td class="number">${formatCount(document.chunks)}</td><td class="number">${formatBytes(document.bytes)}</td><td class="nowrap">${formatTime(document.created_at)}</td>
          <td><button class="quiet" aria-label="Remove ${document.name}" @click=${() => this.run(() => change("DELETE", `${path}/documents/${document.id}`))}>${icon("trash-2")}</button></td></tr>`)}</tbody></table></div>`
        : html`<p class="muted">It has no documents. Add texts, Markdown, HTML or tables; with the extra “documents” also PDF and Office files.</p>`}
      <form class="row wrap" @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const query = String(new FormData(/** @type {HTMLFormElement} */ (event.target)).get("query")).trim();
        if (query) this.run(async () => { this.results = (await change("POST", `${path}/search`, { query, k: 10 })).data; });
      }}><label class="grow">Search <input name="query" placeholder="What would somebody ask?"></label><button>${icon("search")} Search</button></form>
      ${this.results ? this.renderResults(this.results) : nothing}</section>`;
  }

  /** @param {any[]} results */
  renderResults(results) {
    if (!results.length) return html`<p class="muted">Nothing was found.</p>`;
    return html`<div class="scroll" tabindex="0"><table class="list results"><thead><tr><th>Chunk</th><th class="number">Fused</th><th class="number">By words</th><th class="number">By vectors</th><th class="number">Similarity</th></tr></thead>
      <tbody>${results.map((result, index) => html`<tr><td class="text"><strong>${result.chunk.title || result.chunk.file_name || ""}</strong>${result.chunk.page === null || result.chunk.page === undefined ? nothing : ` page ${result.chunk.page}`}<div class="plain">${result.chunk.text}</div></td>
        <td class="number">${index + 1}</td><td class="number">${formatCount(result.words_rank)}</td><td class="number">${formatCount(result.vector_rank)}</td>
        <td class="number">${result.similarity === null ? "–" : result.similarity.toFixed(3)}</td></tr>`)}</tbody></table></div>`;
  }
}

customElements.define("knowledge-page", KnowledgePage);
