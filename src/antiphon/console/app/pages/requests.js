import { html, nothing } from "../../vendor/lit.js";
import { ServerError, get, withQuery } from "../lib/api.js";
import { formatCost, formatCount, formatDuration, formatTime } from "../lib/format.js";
import { View, asError, icon, saveFile, showError } from "../lib/view.js";
import { layOut } from "../requests/waterfall.js";

const PAGE = 100;
const PERIODS = { hour: 3600, day: 86_400, week: 604_800, month: 2_592_000 };

/** What the ledger knows: the requests of a period, and one request with its attempts and its time. */
class RequestsPage extends View {
  static properties = {
    rest: { attribute: false }, entries: { state: true }, next: { state: true }, filter: { state: true }, problem: { state: true },
    found: { state: true }, kept: { state: true }, sorted: { state: true },
  };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    /** @type {any[] | null} */
    this.entries = null;
    /** @type {string | null} */
    this.next = null;
    this.filter = { period: "day", model: "", status: "", request_id: "" };
    /** @type {any} */
    this.problem = null;
    /** @type {any[] | null} the entries of one request */
    this.found = null;
    /** @type {any} the words of the request, where its project keeps them */
    this.kept = null;
    this.sorted = { field: "at_ms", isDown: true };
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.entries) this.refresh();
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("rest")) this.showRequest(this.rest[0]);
  }

  async refresh() {
    this.filter = { ...this.filter }; // what an earlier key may see comes too late
    await Promise.all([this.load(), this.showRequest(this.rest[0])]);
  }

  /** @param {string | null} after */
  async load(after = null) {
    const { period, ...filter } = this.filter;
    const { filter: wanted } = this;
    const since = Math.floor(Date.now() / 1000) - PERIODS[/** @type {keyof typeof PERIODS} */ (period)];
    try {
      const page = await get(withQuery("admin/v1/usage/entries", { since, limit: PAGE, after, ...filter }));
      if (wanted !== this.filter || (after && after !== this.next)) return;
      this.entries = after ? [...(this.entries ?? []), ...page.data] : page.data;
      this.next = page.next;
      this.problem = null;
    } catch (problem) {
      if (wanted !== this.filter) return;
      this.entries = null;
      this.problem = problem instanceof ServerError && problem.status === 404
        ? { message: "This server keeps no records, because it runs without keys. Start it with ANTIPHON_KEYS=true to see each request here." }
        : asError(problem);
    }
  }

  /** @param {string | undefined} id */
  async showRequest(id) {
    const isWanted = this.beginLoad();
    [this.found, this.kept] = [null, null];
    if (!id) return;
    try {
      // A child has the entry of its request as its parent, and the same request id.
      const { data } = await get(withQuery("admin/v1/usage/entries", { request_id: id, since: 0, limit: PAGE }));
      if (isWanted()) this.found = data;
      const kept = data.length ? await get(`admin/v1/requests/${encodeURIComponent(id)}`).catch(() => null) : null;
      if (isWanted()) this.kept = kept;
    } catch (problem) {
      if (!isWanted()) return;
      if (problem instanceof ServerError && problem.status === 404) this.found = [];
      else this.problem = asError(problem);
    }
  }

  /** @param {Record<string, string>} changes */
  choose(changes) {
    this.filter = { ...this.filter, ...changes };
    this.load();
  }

  render() {
    return html`<div class="pad"><h1>Requests</h1>${showError(this.problem)}
      ${this.rest[0] ? this.renderRequest(this.rest[0]) : nothing}
      ${this.entries ? this.renderList() : this.problem ? nothing : html`<p class="muted">Loading …</p>`}</div>`;
  }

  renderList() {
    const { field, isDown } = this.sorted;
    const entries = [...(this.entries ?? [])].sort((one, other) => {
      const [first, second] = [one[field] ?? -1, other[field] ?? -1];
      const order = first < second ? -1 : first > second ? 1 : 0;
      return isDown ? -order : order;
    });
    const column = (/** @type {string} */ label, /** @type {string} */ name, number = false) => html`<th class=${number ? "number" : ""}
      aria-sort=${field === name ? (isDown ? "descending" : "ascending") : "none"}><button class="quiet" @click=${() => { this.sorted = { field: name, isDown: field === name ? !isDown : true }; }}>${label}${field === name ? (isDown ? " ↓" : " ↑") : ""}</button></th>`;
    return html`<form class="row wrap filters" @submit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>Period <select @change=${(/** @type {any} */ event) => this.choose({ period: event.target.value })}>${Object.keys(PERIODS).map((name) => html`<option value=${name} ?selected=${name === this.filter.period}>the last ${name}</option>`)}</select></label>
      <label>Status <select @change=${(/** @type {any} */ event) => this.choose({ status: event.target.value })}><option value="">all</option>
        ${["ok", "cancelled", "aborted"].map((name) => html`<option ?selected=${name === this.filter.status}>${name}</option>`)}</select></label>
      <label>Model <input .value=${this.filter.model} placeholder="all" @change=${(/** @type {any} */ event) => this.choose({ model: event.target.value.trim() })}></label>
      <label>Request id <input .value=${this.filter.request_id} placeholder="req-…" @change=${(/** @type {any} */ event) => this.choose({ request_id: event.target.value.trim() })}></label>
      <span class="grow"></span><button @click=${() => this.load()}>${icon("refresh-cw")} Refresh</button>
      <button ?disabled=${!entries.length} @click=${() => saveFile("requests.csv", writeCsv(entries), "text/csv")}>${icon("download")} CSV</button></form>
      ${entries.length ? html`<div class="scroll" tabindex="0"><table class="list"><thead><tr>${column("Time", "at_ms")}${column("Model", "model")}${column("Status", "status")}
        ${column("Prompt", "prompt_tokens", true)}${column("Output", "output_tokens", true)}${column("First token", "ttft_ms", true)}${column("Total", "total_ms", true)}
        ${column("Cost", "cost_nano", true)}${column("Request", "request_id")}</tr></thead>
      <tbody>${entries.map((entry) => html`<tr class=${entry.request_id === this.rest[0] ? "current" : ""}>
        <td class="nowrap">${formatTime(entry.at_ms / 1000)}</td><td>${entry.model}${entry.operation.endsWith("/chat/completions") ? nothing : html` <small class="muted">${entry.operation}</small>`}</td>
        <td><span class="state ${entry.status === "ok" ? "ready" : "failed"}">${entry.status}</span></td>
        <td class="number">${formatCount(entry.prompt_tokens)}</td><td class="number">${formatCount(entry.output_tokens)}</td>
        <td class="number">${formatDuration(entry.ttft_ms)}</td><td class="number">${formatDuration(entry.total_ms)}</td>
        <td class="number">${entry.price ? formatCost(entry.cost, entry.currency) : "–"}</td>
        <td><a href="#/requests/${encodeURIComponent(entry.request_id)}"><code>${shorten(entry.request_id)}</code></a></td></tr>`)}</tbody></table></div>
        ${this.next ? html`<button @click=${() => this.load(this.next)}>More</button>` : nothing}`
        : html`<p class="muted">No request of this period fits. Send one from the page Chat, or choose a longer period.</p>`}`;
  }

  /** @param {string} id */
  renderRequest(id) {
    const { found } = this;
    if (!found) return this.problem ? nothing : html`<p class="muted">Loading …</p>`;
    if (!found.length) {
      return html`<section class="card"><h2><code>${id}</code></h2><p class="muted">The ledger has no entry of this request that you may see. A request that was
        refused before it reached a model has none; a new one appears within seconds.</p><a class="button" href="#/requests">Close</a></section>`;
    }
    const main = found.find((entry) => !entry.parent) ?? found[0];
    return html`<section class="card" aria-label="Request"><header class="row"><h2><code>${id}</code></h2><span class="grow"></span><a class="button" href="#/requests">Close</a></header>
      <p><span class="state ${main.status === "ok" ? "ready" : "failed"}">${main.status}</span> ${main.operation} of <strong>${main.model}</strong>
        ${main.asked === main.model ? nothing : html`(asked as ${main.asked})`} on ${main.engine}, ${formatTime(main.at_ms / 1000)}</p>
      ${this.renderWaterfall(found)}
      <table class="facts"><tbody>${[
        ["tokens", `${formatCount(main.prompt_tokens)} prompt, ${formatCount(main.cached_tokens)} of them cached; ${formatCount(main.output_tokens)} output, ${formatCount(main.reasoning_tokens)} of them reasoning`],
        ["cost", main.price ? formatCost(main.cost, main.currency) : "no price"],
        ["attempts", main.attempts], ["project", main.project], ["user", main.user], ["key", main.key], ["end user", main.end_user], ["dialect", main.dialect],
        ["tokens counted by", main.source], ["tags", Object.entries(main.tags ?? {}).map(([name, value]) => `${name}=${value}`).join(", ")],
      ].filter(([, value]) => value !== null && value !== undefined && value !== "").map(([name, value]) => html`<tr><th scope="row">${name}</th><td>${value}</td></tr>`)}</tbody></table>
      ${this.kept ? html`<details open><summary>Its words</summary><h3>Request</h3><pre tabindex="0">${this.kept.request}</pre><h3>Answer</h3><pre tabindex="0">${this.kept.answer}</pre></details>`
        : html`<p class="muted small">Its words are not kept. A project keeps them with “antiphon requests on”.</p>`}</section>`;
  }

  /** @param {any[]} entries */
  renderWaterfall(entries) {
    const { rows, totalMs } = layOut(entries);
    return html`<div class="waterfall" role="table" aria-label="Where the time went">${rows.map((row) => html`<div class="bar-row" role="row">
      <span class="bar-label" role="cell">${row.label}</span>
      <span class="bar-track" role="cell"><svg class="bar ${row.kind}" role="img" aria-label="${row.label}: ${formatDuration(row.ms)}"><rect x="${row.left}%" width="${row.width}%" height="100%" rx="2"></rect></svg></span>
      <span class="bar-ms number" role="cell">${formatDuration(row.ms)}</span>${row.note ? html`<small class="error">${row.note}</small>` : nothing}</div>`)}
      <p class="muted small">${formatDuration(totalMs)} in all</p></div>`;
  }
}

/** @param {string} id */
const shorten = (id) => (id.length > 16 ? `${id.slice(0, 12)}…` : id);

/** @param {any[]} entries */
function writeCsv(entries) {
  const names = Object.keys(entries[0]);
  const quote = (/** @type {any} */ value) => {
    const text = value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value);
    // A spreadsheet would compute a text that begins like a formula.
    const safe = /^[=+\-@\t\r]/.test(text) && Number.isNaN(Number(text)) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [names, ...entries.map((entry) => names.map((name) => entry[name]))].map((row) => row.map(quote).join(",")).join("\r\n");
}

customElements.define("requests-page", RequestsPage);
