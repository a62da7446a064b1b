import { html, live, nothing, repeat } from "../../vendor/lit.js";
import { listModels, loadModel } from "../chat/models.js";
import "../chat/message.js";
import { runRequest } from "../chat/run.js";
import { buildFields, createSettings } from "../chat/settings_panel.js";
import { makeId } from "../chat/tree.js";
import { View, asError, icon, showError } from "../lib/view.js";

const PATH = "v1/chat/completions";
const MOST = 4;

/**
 * Two to four models or settings side by side, with the same messages.
 *
 * @typedef {{id: string, settings: import("../chat/settings_panel.js").Settings, model: any, turns: any[], stop: AbortController | null, problem: any}} Column
 */
class ComparePage extends View {
  static properties = { models: { state: true }, columns: { state: true }, draft: { state: true }, problem: { state: true }, opened: { state: true } };

  constructor() {
    super();
    /** @type {any[]} */
    this.models = [];
    /** @type {Column[]} */
    this.columns = [];
    this.draft = "";
    /** @type {any} */
    this.problem = null;
    /** @type {number | null} the column whose settings are shown */
    this.opened = null;
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.models.length) this.refresh();
  }

  async refresh() {
    try {
      this.models = await listModels();
      if (!this.columns.length) for (const index of [0, 1]) await this.addColumn(this.models[index]?.id ?? this.models[0]?.id ?? "");
      this.problem = null;
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  /** @param {string} name */
  async addColumn(name) {
    const model = name ? await loadModel(name, `/${PATH}`) : { profile: null, parameters: [] };
    this.columns = [...this.columns, { id: makeId(), settings: createSettings(name), model, turns: [], stop: null, problem: null }];
  }

  /** @param {string} id @param {Partial<Column>} changes */
  change(id, changes) {
    this.columns = this.columns.map((column) => (column.id === id ? { ...column, ...changes } : column));
  }

  /** @param {Column} column @param {any} settings */
  async useSettings({ id, settings: { model: before } }, settings) {
    this.change(id, { settings });
    if (settings.model === before) return;
    try {
      const model = await loadModel(settings.model, `/${PATH}`);
      if (this.columns.find((column) => column.id === id)?.settings.model === settings.model) this.change(id, { model, problem: null });
    } catch (problem) {
      this.change(id, { problem: asError(problem) });
    }
  }

  /** @param {Column} removed */
  removeColumn(removed) {
    removed.stop?.abort();
    this.columns = this.columns.filter((column) => column.id !== removed.id);
    this.opened = null;
  }

  send() {
    const text = this.draft.trim();
    if (!text || !this.columns.length || this.columns.some((column) => column.stop)) return;
    this.draft = "";
    this.columns.forEach((column) => this.answer(column, text));
  }

  /** @param {Column} column @param {string} text */
  async answer({ id, settings, model, turns }, text) {
    let body;
    try {
      body = buildFields(settings, model.parameters);
    } catch (problem) {
      return this.change(id, { problem: asError(problem) });
    }
    const messages = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
    for (const turn of turns.filter(({ answer }) => answer.text)) messages.push({ role: "user", content: turn.text }, { role: "assistant", content: turn.answer.text });
    messages.push({ role: "user", content: text });
    const stop = new AbortController();
    const report = (/** @type {any} */ answer) => this.change(id, { turns: [...turns, { text, answer: { id: String(turns.length), role: "assistant", parent: null, ...answer } }] });
    this.change(id, { stop, problem: null });
    report({ text: "", facts: { model: settings.model, requestId: null } });
    try {
      await runRequest(PATH, { ...body, messages }, stop.signal, (answer) => report({ ...answer }));
    } catch (problem) {
      if (!stop.signal.aborted) this.change(id, { problem: asError(problem) });
    }
    this.change(id, { stop: null });
  }

  render() {
    const isRunning = this.columns.some((column) => column.stop);
    return html`<div class="compare">
      <header class="row wrap"><div class="grow"><h1>Side by side</h1><p class="muted">Each column has its own model and settings, and all answer the same message.</p></div>
        <button ?disabled=${this.columns.length >= MOST} @click=${() => this.addColumn(this.models[0]?.id ?? "").catch((problem) => { this.problem = asError(problem); })}>${icon("plus")} Add a column</button>
        <button ?disabled=${isRunning} @click=${() => { this.columns = this.columns.map((column) => ({ ...column, turns: [], problem: null })); }}>Clear</button></header>
      ${showError(this.problem)}
      <div class="columns">${repeat(this.columns, (/** @type {Column} */ column) => column.id, (/** @type {Column} */ column, /** @type {number} */ index) => this.renderColumn(column, index))}</div>
      <form class="composer" @submit=${(/** @type {Event} */ event) => { event.preventDefault(); this.send(); }}>
        <textarea class="draft" rows="2" aria-label="Message to all" placeholder="Write to all of them" .value=${live(this.draft)}
          @input=${(/** @type {any} */ event) => { this.draft = event.target.value; }}
          @keydown=${(/** @type {any} */ event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) { event.preventDefault(); this.send(); } }}></textarea>
        ${isRunning ? html`<button type="button" class="danger" @click=${() => this.columns.forEach((column) => column.stop?.abort())}>${icon("square")} Stop</button>`
          : html`<button class="primary" ?disabled=${!this.columns.length}>${icon("send-horizontal")} Send</button>`}</form></div>`;
  }

  /** @param {Column} column @param {number} index */
  renderColumn(column, index) {
    return html`<section class="column" aria-label="Column ${index + 1}">
      <header class="row"><strong class="grow">${column.settings.model}</strong>
        <button class="quiet" aria-label="Settings of column ${index + 1}" aria-expanded=${this.opened === index} @click=${() => { this.opened = this.opened === index ? null : index; }}>${icon("sliders-horizontal")}</button>
        <button class="quiet" aria-label="Remove column ${index + 1}" ?disabled=${this.columns.length < 2} @click=${() => this.removeColumn(column)}>${icon("x")}</button></header>
      ${this.opened === index ? html`<div class="settings"><settings-panel .settings=${column.settings} .models=${this.models} .parameters=${column.model.parameters}
        .profile=${column.model.profile} @settings=${(/** @type {CustomEvent} */ event) => this.useSettings(column, event.detail)}></settings-panel></div>` : nothing}
      ${column.turns.map((turn, place) => html`<article class="message user"><header><strong>You</strong></header><div class="plain">${turn.text}</div></article>
        <message-view class="read-only" .node=${turn.answer} ?isRunning=${Boolean(column.stop) && place === column.turns.length - 1}></message-view>`)}
      ${showError(column.problem)}</section>`;
  }
}

customElements.define("compare-page", ComparePage);
