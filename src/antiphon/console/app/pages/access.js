import { html, nothing } from "../../vendor/lit.js";
import { ServerError, change, get, list, loadDescription, session } from "../lib/api.js";
import { formatCost, formatCount, formatDay, formatTime } from "../lib/format.js";
import { View, asError, confirmAction, copyText, icon, showError } from "../lib/view.js";

const TABS = { keys: "Keys", projects: "Projects", limits: "Limits", prices: "Prices", audit: "Audit" };
const DAY = 86_400;

/** Projects, members, keys, limits, prices and the audit: what the admin API shows to this key. */
class AccessPage extends View {
  static properties = { rest: { attribute: false }, data: { state: true }, problem: { state: true }, secret: { state: true }, form: { state: true }, formProblem: { state: true }, isCopied: { state: true }, warnings: { state: true } };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    /** @type {{projects: any[], users: any[], keys: any[], limits: any[], prices: any[], audit: any[], members: any[], schemas: any, hidden: Set<string>} | null} */
    this.data = null;
    /** @type {any} */
    this.problem = null;
    /** @type {any} a new key, which is shown once */
    this.secret = null;
    /** @type {string | null} the form that is open; to change a price, its id */
    this.form = null;
    /** @type {string[]} what the server warned of at the last change */
    this.warnings = [];
    /** @type {any} */
    this.formProblem = null;
    this.isBusy = false;
    this.isCopied = false;
  }

  connectedCallback() {
    super.connectedCallback();
    this.refresh();
  }

  /** @param {Map<string, unknown>} changed */
  willUpdate(changed) {
    if (changed.has("rest")) [this.formProblem, this.warnings] = [null, []];
    if (changed.has("rest") && this.data && this.rest[0] === "projects") this.refresh();
  }

  async refresh() {
    const isWanted = this.beginLoad();
    const project = this.rest[0] === "projects" ? this.rest[1] : undefined;
    try {
      /** @type {Set<string>} lists that this key may not see */
      const hidden = new Set();
      /** @param {string} name @param {Promise<any[]>} loading */
      const load = (name, loading) => loading.catch((problem) => {
        if (!(problem instanceof ServerError && problem.status === 403)) throw problem;
        hidden.add(name);
        return [];
      });
      const [projects, users, keys, limits, prices] = await Promise.all(["projects", "users", "keys", "limits", "prices"].map((name) => load(name, list(`admin/v1/${name}`))));
      const audit = await load("audit", get("admin/v1/audit?limit=100").then(({ data }) => data));
      const states = await Promise.all(limits.slice(0, 100).map((limit) => get(`admin/v1/limits/${limit.id}`).catch(() => limit)));
      const { schemas } = (await loadDescription()).components;
      const members = project ? await load("members", list(`admin/v1/projects/${encodeURIComponent(project)}/members`)) : [];
      if (!isWanted()) return;
      this.data = { projects, users, keys, limits: states, prices, audit, members, schemas, hidden };
      this.problem = null;
    } catch (problem) {
      if (!isWanted()) return;
      this.data = null;
      this.problem = problem instanceof ServerError && problem.status === 404 && !session.key
        ? { message: "This server has no keys. Start it with ANTIPHON_KEYS=true to make projects, keys and limits here." }
        : asError(problem);
    }
  }

  /** @param {() => Promise<any>} act */
  async run(act) {
    if (this.isBusy) return; // a second click makes no second key
    this.isBusy = true;
    try {
      const made = await act();
      if (made?.secret) [this.secret, this.isCopied] = [made, false];
      this.form = null;
      this.formProblem = null;
      this.warnings = made?.warnings ?? [];
      await this.refresh();
    } catch (problem) {
      this.formProblem = asError(problem);
    }
    this.isBusy = false;
  }

  /** @param {string | null} id */
  nameProject(id) {
    return this.data?.projects.find((project) => project.id === id)?.name ?? id ?? "–";
  }

  render() {
    const tab = Object.hasOwn(TABS, this.rest[0] ?? "") ? this.rest[0] : "keys";
    return html`<div class="pad"><h1>Access</h1>${showError(this.problem)}
      ${this.data ? html`<nav class="tabs" aria-label="Access">${Object.entries(TABS).map(([name, label]) => html`<a href="#/access/${name}" aria-current=${name === tab ? "page" : nothing}>${label}</a>`)}</nav>
        ${this.form ? nothing : showError(this.formProblem)}${this.warnings.map((text) => html`<p class="warning" role="status">${text}</p>`)}${this.renderTab(tab)}` : this.problem ? nothing : html`<p class="muted">Loading …</p>`}
      ${this.secret ? this.renderSecret() : nothing}</div>`;
  }

  /** @param {string} tab */
  renderTab(tab) {
    if (tab === "projects") return this.renderProjects();
    if (tab === "limits") return this.renderLimits();
    if (tab === "prices") return this.renderPrices();
    return tab === "audit" ? this.renderAudit() : this.renderKeys();
  }

  // --- keys ---

  renderKeys() {
    const keys = this.data?.keys ?? [];
    return html`<div class="row"><button class="primary" @click=${() => this.open("key")}>${icon("plus")} Create a key</button></div>
      ${this.form === "key" ? this.renderKeyForm() : nothing}
      ${keys.length ? html`<div class="scroll" tabindex="0"><table class="list"><thead><tr><th>Key</th><th>Note</th><th>Kind</th><th>Project</th><th>Models</th><th>Ends</th><th></th></tr></thead>
        <tbody>${keys.map((key) => html`<tr class=${key.revoked_at ? "ended" : ""}><td><code>${key.prefix}</code></td><td>${key.note}</td><td>${key.kind.replace("_", " ")}</td>
          <td>${this.nameProject(key.project)}</td><td>${key.models?.join(", ") ?? "all"}</td>
          <td>${key.revoked_at ? `ended ${formatDay(key.revoked_at)}` : key.expires_at ? formatDay(key.expires_at) : "–"}</td>
          <td class="row end">${key.revoked_at ? nothing : html`
            <button class="quiet" @click=${() => this.rotate(key)}>${icon("refresh-cw")} Rotate</button>
            <button class="quiet" @click=${() => this.revoke(key)}>${icon("ban")} End</button>`}</td></tr>`)}</tbody></table></div>`
        : this.renderNone("keys", "You see no key. Create one, and give it to a program.")}`;
  }

  renderKeyForm() {
    const projects = (this.data?.projects ?? []).filter((project) => !project.archived_at);
    return html`<form class="card grid" @submit=${this.createKey}>
      <label>Kind <select name="kind"><option value="service">service: a program of a project</option>
        <option value="access_token">access token: a user</option><option value="admin">admin: everything</option></select></label>
      <label>Project <select name="project"><option value=""></option>${projects.map((project) => html`<option value=${project.id} ?selected=${project.name === "default"}>${project.name}</option>`)}</select></label>
      <label>User <select name="user"><option value=""></option>${(this.data?.users ?? []).map((user) => html`<option value=${user.id}>${user.name}</option>`)}</select></label>
      <label>Models <input name="models" placeholder="all; patterns such as cantor*, by commas"></label>
      <label>Ends after <select name="days"><option value="">never</option><option value="1">a day</option><option value="30">30 days</option><option value="365">a year</option></select></label>
      <label>Requests a minute <input name="requests" inputmode="numeric" placeholder="no limit"></label>
      <label>Note <input name="note" placeholder="who or what uses it"></label>
      ${showError(this.formProblem)}
      <div class="row end"><button type="button" @click=${() => this.open(null)}>Cancel</button><button class="primary">Create</button></div></form>`;
  }

  /** @param {SubmitEvent} event */
  createKey(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const read = (/** @type {string} */ name) => String(form.get(name) ?? "").trim();
    /** @type {Record<string, any>} */
    const body = { kind: read("kind"), note: read("note") };
    if (read("project") && read("kind") !== "admin") body.project = read("project");
    if (read("user") && read("kind") === "access_token") body.user = read("user");
    if (read("models")) body.models = read("models").split(",").map((name) => name.trim()).filter(Boolean);
    if (read("days")) body.expires_at = Math.floor(Date.now() / 1000) + Number(read("days")) * DAY;
    if (read("requests")) body.limits = [{ measure: "requests", amount: Number(read("requests")), window: "minute" }];
    this.run(() => change("POST", "admin/v1/keys", body));
  }

  /** @param {any} key */
  async rotate(key) {
    if (!(await confirmAction(`Make a successor of ${key.prefix}? The old key works for one more hour.`, "Rotate"))) return;
    this.run(() => change("POST", `admin/v1/keys/${key.id}/rotate`, { overlap: 3600 }));
  }

  /** @param {any} key */
  async revoke(key) {
    if (!(await confirmAction(`End ${key.prefix} now? Programs that use it are refused at once.`, "End the key"))) return;
    this.run(() => change("POST", `admin/v1/keys/${key.id}/revoke`, {}));
  }

  renderSecret() {
    return html`<dialog class="secret" aria-label="The new key" @close=${() => { this.secret = null; }}><h2>The key, once</h2>
      <p>Copy it now: the server keeps only its digest and cannot show it again.</p>
      <pre><code class="secret-text">${this.secret.secret}</code></pre>
      <div class="row end"><button @click=${async () => { this.isCopied = await copyText(this.secret.secret); }}>${icon("copy")} ${this.isCopied ? "Copied" : "Copy"}</button>
        <button class="primary" @click=${() => this.querySelector("dialog.secret")?.close()}>I have it</button></div></dialog>`;
  }

  // --- projects ---

  renderProjects() {
    const { projects = [], keys = [], users = [], members = [] } = this.data ?? {};
    const chosen = this.rest[1];
    return html`<div class="row"><button class="primary" @click=${() => this.open("project")}>${icon("plus")} Create a project</button></div>
      ${this.form === "project" ? html`<form class="card grid" @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
        this.run(() => change("POST", "admin/v1/projects", { name: String(form.get("name")).trim(), note: String(form.get("note")) }));
      }}><label>Name <input name="name" required></label><label>Note <input name="note"></label>${showError(this.formProblem)}
        <div class="row end"><button type="button" @click=${() => this.open(null)}>Cancel</button><button class="primary">Create</button></div></form>` : nothing}
      <div class="scroll"><table class="list"><thead><tr><th>Project</th><th>Note</th><th>Created</th><th class="number">Keys</th><th>Words of requests</th><th></th></tr></thead>
      <tbody>${projects.map((project) => html`<tr class=${project.archived_at ? "ended" : project.id === chosen ? "current" : ""}><td>${project.name}</td><td>${project.note}</td><td>${project.created_at ? formatDay(project.created_at) : "–"}</td>
        <td class="number">${formatCount(keys.filter((key) => key.project === project.id && !key.revoked_at).length)}</td>
        <td>${project.recording ? `kept ${project.recording.days} days` : "not kept"}</td>
        <td><button class="quiet" @click=${() => { location.hash = `#/access/projects/${project.id}`; }}>${icon("users-round")} Members</button></td></tr>`)}</tbody></table></div>
      ${projects.length ? nothing : this.renderNone("projects", "There is no project yet.")}
      ${chosen ? html`<section class="card" aria-label="Members"><h2>Members of ${this.nameProject(chosen)}</h2>
        ${members.length ? html`<table class="list"><tbody>${members.map((member) => html`<tr><td>${users.find((user) => user.id === member.user)?.name ?? member.user}</td><td>${member.role}</td>
          <td class="row end"><button class="quiet" @click=${() => this.run(() => change("DELETE", `admin/v1/projects/${chosen}/members/${member.user}`))}>Remove</button></td></tr>`)}</tbody></table>`
          : this.renderNone("members", "It has no members; service keys act for it without one.")}
        <form class="row wrap" @submit=${(/** @type {SubmitEvent} */ event) => {
          event.preventDefault();
          const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
          this.run(() => change("PUT", `admin/v1/projects/${chosen}/members/${form.get("user")}`, { role: form.get("role") }));
        }}><label>User <select name="user" required>${users.map((user) => html`<option value=${user.id}>${user.name}</option>`)}</select></label>
          <label>Role <select name="role"><option>member</option><option>owner</option><option>viewer</option></select></label><button>Add</button></form></section>` : nothing}`;
  }

  // --- limits ---

  renderLimits() {
    const { limits = [], keys = [], users = [], projects = [] } = this.data ?? {};
    const nameTarget = (/** @type {any} */ limit) =>
      projects.find((each) => each.id === limit.target)?.name ?? users.find((each) => each.id === limit.target)?.name ??
      keys.find((each) => each.id === limit.target)?.note ?? limit.target;
    return html`<div class="row"><button class="primary" @click=${() => this.open("limit")}>${icon("plus")} Set a limit</button></div>
      ${this.form === "limit" ? this.renderLimitForm() : nothing}
      ${limits.length ? html`<div class="scroll" tabindex="0"><table class="list"><thead><tr><th>Applies to</th><th>Measure</th><th class="number">Amount</th><th>Per</th><th>Used</th><th>Models</th><th></th></tr></thead>
        <tbody>${limits.map((limit) => html`<tr><td>${limit.subject} ${nameTarget(limit)}</td><td>${limit.measure}</td><td class="number">${showAmount(limit, limit.amount)}</td><td>${limit.window ?? "–"}</td>
          <td>${limit.remaining === undefined ? "–" : html`<meter aria-label="Used" min="0" max=${limit.amount || 1} high=${limit.amount * 0.9} .value=${limit.amount - limit.remaining}></meter> ${showAmount(limit, limit.amount - limit.remaining)}`}</td>
          <td>${limit.models ?? "all"}</td><td class="row end"><button class="quiet" @click=${async () => {
            if (await confirmAction("Remove this limit?", "Remove")) this.run(() => change("DELETE", `admin/v1/limits/${limit.id}`));
          }}>${icon("trash-2")} Remove</button></td></tr>`)}</tbody></table></div>` : this.renderNone("limits", "No limit applies. Set one for a project, a user or a key.")}`;
  }

  renderLimitForm() {
    const { keys = [], users = [], projects = [], schemas = {} } = this.data ?? {};
    const targets = [
      ...projects.map((each) => ["project", each.id, `project ${each.name}`]),
      ...keys.filter((each) => !each.revoked_at).map((each) => ["key", each.id, `key ${each.note || each.prefix}`]),
      ...users.map((each) => ["user", each.id, `user ${each.name}`]),
    ];
    return html`<form class="card grid" @submit=${(/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
      const [subject, target] = String(form.get("target")).split("/");
      const measure = String(form.get("measure"));
      const typed = Number(form.get("amount"));
      const body = { subject, target, measure, amount: measure === "cost" ? Math.round(typed * 1e9) : typed,
        ...(measure === "concurrent" ? {} : { window: form.get("window") }), ...(form.get("models") ? { models: form.get("models") } : {}) };
      this.run(() => change("POST", "admin/v1/limits", body));
    }}><label>Applies to <select name="target">${targets.map(([subject, id, label]) => html`<option value="${subject}/${id}">${label}</option>`)}</select></label>
      <label>Measure <select name="measure">${schemas.AdminMeasure.enum.map((/** @type {string} */ measure) => html`<option>${measure}</option>`)}</select></label>
      <label>Amount <input name="amount" required inputmode="decimal"></label>
      <label>Per <select name="window">${schemas.AdminWindow.enum.map((/** @type {string} */ window) => html`<option>${window}</option>`)}</select></label>
      <label>Models <input name="models" placeholder="all"></label>${showError(this.formProblem)}
      <div class="row end"><button type="button" @click=${() => this.open(null)}>Cancel</button><button class="primary">Set</button></div></form>`;
  }

  // --- prices ---

  renderPrices() {
    const { prices = [], hidden } = this.data ?? {};
    const now = Date.now() / 1000;
    return html`${hidden?.has("prices") ? nothing : html`<div class="row"><button class="primary" @click=${() => this.open("price")}>${icon("plus")} Add a price</button></div>`}
      ${this.form === "price" ? this.renderPriceForm() : nothing}
      ${prices.length ? html`<div class="scroll" tabindex="0"><table class="list"><caption class="muted small">For a million tokens, and for each request. The longest pattern that fits a model counts; among equals, the latest price.</caption>
        <thead><tr><th>Models</th>${["Input", "Cached", "Output", "Request"].map((label) => html`<th class="number">${label}</th>`)}<th>From</th><th>Until</th><th>Note</th><th></th></tr></thead>
        <tbody>${[...prices].reverse().map((price) => html`<tr class=${price.until !== null && price.until <= now ? "ended" : ""}><td>${price.models}</td>
          ${[price.input, price.cached ?? price.input, price.output, price.request].map((amount) => html`<td class="number">${formatCost(amount, price.currency)}</td>`)}
          <td>${formatTime(price.since)}</td><td>${formatTime(price.until)}</td><td>${price.note}</td>
          <td class="row end"><button class="quiet" @click=${() => this.open(price.id)}>${icon("pencil")} Change</button>
            ${price.until !== null && price.until <= now ? nothing : html`<button class="quiet" @click=${() => this.endPrice(price)}>${icon("ban")} End</button>`}</td></tr>
          ${this.form === price.id ? html`<tr><td colspan="9">${this.renderPriceChange(price)}</td></tr>` : nothing}`)}</tbody></table></div>`
        : this.renderNone("prices", "There is no price, so requests have no cost. Add one for the models that you name; * names all.")}`;
  }

  renderPriceForm() {
    const currency = this.data?.prices.at(-1)?.currency ?? "USD"; // a server has one
    return html`<form class="card grid" @submit=${(/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
      const typed = ["models", "currency", "input", "cached", "output", "request", "note"].map((name) => [name, String(form.get(name)).trim()]);
      const times = ["since", "until"].map((name) => [name, readTime(form.get(name))]);
      this.run(() => change("POST", "admin/v1/prices", Object.fromEntries([...typed, ...times].filter(([, value]) => value))));
    }}><label>Models <input name="models" required placeholder="big-*, or * for all"></label>
      <label>Input, a million tokens <input name="input" required inputmode="decimal" placeholder="0.15"></label>
      <label>Cached input <input name="cached" inputmode="decimal" placeholder="as input"></label>
      <label>Output, a million tokens <input name="output" required inputmode="decimal" placeholder="0.60"></label>
      <label>Each request <input name="request" inputmode="decimal" placeholder="0"></label>
      <label>Currency <input name="currency" required .value=${currency} maxlength="3"></label>
      <label>From <input name="since" type="datetime-local"></label>
      <label>Until <input name="until" type="datetime-local"></label>
      <label>Note <input name="note"></label>${showError(this.formProblem)}
      <div class="row end"><button type="button" @click=${() => this.open(null)}>Cancel</button><button class="primary">Add</button></div></form>`;
  }

  /** @param {any} price */
  renderPriceChange(price) {
    return html`<form class="row wrap" @submit=${(/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
      const until = readTime(form.get("until"));
      this.run(() => change("PATCH", `admin/v1/prices/${price.id}`, { note: String(form.get("note")), ...(until ? { until } : {}) }));
    }}><label class="grow">Note <input name="note" .value=${price.note}></label><label>Until <input name="until" type="datetime-local"></label>
      ${showError(this.formProblem)}<button type="button" @click=${() => this.open(null)}>Cancel</button><button class="primary">Change</button></form>`;
  }

  /** @param {any} price */
  async endPrice(price) {
    if (!(await confirmAction(`End the price of ${price.models} now? Earlier requests keep their cost.`, "End the price"))) return;
    this.run(() => change("DELETE", `admin/v1/prices/${price.id}`));
  }

  // --- audit ---

  renderAudit() {
    const audit = this.data?.audit ?? [];
    return audit.length ? html`<div class="scroll" tabindex="0"><table class="list"><thead><tr><th>Time</th><th>Who</th><th>What</th><th>About</th><th>Before and after</th></tr></thead>
      <tbody>${audit.map((entry) => html`<tr><td>${formatTime(entry.at)}</td><td>${entry.actor}</td><td>${entry.action}</td><td>${entry.about || entry.target}</td>
        <td>${(entry.changes ?? []).map((/** @type {any} */ each) => html`<div><code>${each.field}</code>: ${each.before ?? "–"} → ${each.after ?? "–"}</div>`)}</td></tr>`)}</tbody></table></div>`
      : this.renderNone("audit", "You see no changes. The operator sees those of all projects.");
  }

  /** @param {string} name of a list without items @param {string} text */
  renderNone(name, text) {
    return html`<p class="muted">${this.data?.hidden.has(name) ? "This key may not see them." : text}</p>`;
  }

  /** @param {string | null} form */
  open(form) {
    this.form = form;
    this.formProblem = null;
  }

  updated() {
    const dialog = this.querySelector("dialog.secret");
    if (dialog && !dialog.open) dialog.showModal();
  }
}

/** Costs are counted in billionths. @param {any} limit @param {number} amount */
const showAmount = (limit, amount) => (limit.measure === "cost" ? formatCount(amount / 1e9) : formatCount(amount));

/** @param {FormDataEntryValue | null} typed a local time @returns {number | undefined} Unix seconds */
const readTime = (typed) => (typed ? Math.floor(Date.parse(String(typed)) / 1000) : undefined);

customElements.define("access-page", AccessPage);
