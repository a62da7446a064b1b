import { html, nothing } from "../../vendor/lit.js";
import "../chat/code_dialog.js";
import { listModels, loadModel } from "../chat/models.js";
import { runRequest } from "../chat/run.js";
import { ALTERNATIVES, buildFields, createSettings } from "../chat/settings_panel.js";
import "../chat/token_view.js";
import { formatDuration, formatTokens } from "../lib/format.js";
import { View, asError, icon, showError } from "../lib/view.js";

const PATH = "v1/completions";

/** Continues a text as it is, without a chat template. Can score the text, too. */
class CompletePage extends View {
  static properties = {
    models: { state: true }, model: { state: true }, settings: { state: true }, text: { state: true }, answer: { state: true },
    running: { state: true }, problem: { state: true }, scores: { state: true },
  };

  constructor() {
    super();
    /** @type {any[]} */
    this.models = [];
    /** @type {{profile: any, parameters: import("../chat/settings.js").Parameter[]}} */
    this.model = { profile: null, parameters: [] };
    this.settings = { ...createSettings(""), values: { max_tokens: "64" } };
    this.text = "Once upon a time";
    /** @type {any} */
    this.answer = null;
    /** @type {AbortController | null} */
    this.running = null;
    /** @type {any} */
    this.problem = null;
    this.scores = false;
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.models.length) this.refresh();
  }

  async refresh() {
    try {
      this.models = await listModels();
      this.problem = null;
      await this.useSettings({ ...this.settings, model: this.settings.model || (this.models[0]?.id ?? "") });
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  /** @param {any} settings */
  async useSettings(settings) {
    const isOther = settings.model !== this.settings.model;
    this.settings = settings;
    if (isOther && settings.model) {
      try {
        const model = await loadModel(settings.model, `/${PATH}`);
        if (this.settings.model === settings.model) this.model = model;
      } catch (problem) {
        this.problem = asError(problem);
      }
    }
  }

  buildBody() {
    const { logprobs, top_logprobs, ...body } = buildFields({ ...this.settings, tools: "" }, this.model.parameters);
    body.prompt = this.text;
    if (logprobs || this.scores) body.logprobs = ALTERNATIVES;
    if (this.scores) body.echo = true;
    return body;
  }

  async run() {
    this.problem = null;
    this.answer = { text: "", tokens: [] };
    this.running = new AbortController();
    const { signal } = this.running;
    let frame = 0;
    try {
      await runRequest(PATH, this.buildBody(), signal, (answer) => {
        this.answer = { ...answer };
        frame ||= requestAnimationFrame(() => { frame = 0; this.requestUpdate(); });
      });
    } catch (problem) {
      if (!signal.aborted) this.problem = asError(problem);
    }
    this.running = null;
  }

  render() {
    const { answer } = this;
    const facts = answer?.facts;
    return html`<div class="playground two">
      <section class="talk pad">
        <h1>Continue a text</h1>
        <form @submit=${(/** @type {Event} */ event) => { event.preventDefault(); if (!this.running) this.run(); }}>
          <label>Text <textarea class="code" rows="8" .value=${this.text} @input=${(/** @type {any} */ event) => { this.text = event.target.value; }}
            @keydown=${(/** @type {any} */ event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit(); }}></textarea></label>
          <label class="check"><input type="checkbox" .checked=${this.scores} @change=${(/** @type {any} */ event) => { this.scores = event.target.checked; }}> Score the text too: the probability of each of its tokens</label>
          <div class="row wrap">${this.running ? html`<button type="button" class="danger" @click=${() => this.running?.abort()}>${icon("square")} Stop</button>`
            : html`<button class="primary" ?disabled=${!this.settings.model}>${icon("play")} Continue</button>`}
            ${answer?.text && !this.running ? html`<button type="button" @click=${() => { this.text = facts?.body.echo ? answer.text : this.text + answer.text; this.answer = null; }}>${icon("arrow-up")} Take over the text</button>` : nothing}
            ${facts?.body ? html`<button type="button" @click=${() => /** @type {any} */ (this.querySelector("code-dialog")).open(PATH, facts.body)}>${icon("code")} As a program</button>` : nothing}</div>
        </form>
        ${showError(this.problem)}
        ${answer ? html`<article class="message assistant" aria-busy=${this.running ? "true" : "false"}>
          ${answer.tokens?.length ? html`<token-view .tokens=${answer.tokens} .version=${answer.tokens.length} canContinue
              @alternative=${this.takeAlternative}></token-view>`
            : html`<div class="plain">${facts?.body.echo ? "" : html`<span class="muted">${this.text}</span>`}${answer.text}</div>`}
          ${facts?.outputTokens === undefined ? nothing : html`<small class="muted">${formatTokens(facts.promptTokens, facts.outputTokens)} · ${formatDuration(facts.totalMs)}${facts.finish === "length" ? " · cut by the length limit" : ""}</small>`}
        </article>` : nothing}
      </section>
      <aside class="settings" aria-label="Settings"><settings-panel isRaw .settings=${this.settings} .models=${this.models} .parameters=${this.model.parameters}
        .profile=${this.model.profile} @settings=${(/** @type {CustomEvent} */ event) => this.useSettings(event.detail)}></settings-panel></aside>
      <code-dialog></code-dialog></div>`;
  }

  /** @param {CustomEvent} event */
  takeAlternative({ detail: { before, other } }) {
    if (this.running) return;
    this.text = (this.answer?.facts?.body.echo ? "" : this.text) + before + other.text;
    this.scores = false;
    this.run();
  }
}

customElements.define("complete-page", CompletePage);
