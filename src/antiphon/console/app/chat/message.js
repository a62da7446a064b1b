import { html, nothing } from "../../vendor/lit.js";
import { formatCount, formatDuration, formatShort, formatTokens } from "../lib/format.js";
import { showMarkdown } from "../lib/markdown.js";
import { View, copyText, icon } from "../lib/view.js";
import "./token_view.js";

/** The longest that messages are made in one task, in milliseconds. */
const SLICE_MS = 10;

/** Messages that came near the screen and are not whole yet. @type {MessageView[]} */
let coming = [];

/** Makes a message whole when it is near the screen: a conversation can have hundreds. */
const watcher = new IntersectionObserver(
  (entries) => {
    const near = entries.filter(({ isIntersecting }) => isIntersecting);
    for (const { target } of near) watcher.unobserve(target);
    near.sort((one, other) => measureDistance(one) - measureDistance(other));
    const isBusy = coming.length > 0;
    coming.push(...near.map(({ target }) => /** @type {any} */ (target)));
    if (!isBusy) makeWhole();
  },
  /** @type {any} */ ({ rootMargin: "1500px", scrollMargin: "1500px" }),
);

/** @param {IntersectionObserverEntry} entry @returns {number} how far it is from the middle of the screen */
const measureDistance = ({ boundingClientRect: { top, bottom } }) => Math.abs(top + bottom - innerHeight);

/** Makes messages whole, a few in each task: all at once would hold up the page. */
async function makeWhole() {
  while (coming.length) {
    const end = performance.now() + SLICE_MS;
    let done = 0;
    for (; done < coming.length && performance.now() < end; done += 1) {
      coming[done].isNear = true;
      try {
        await coming[done].updateComplete; // in the same task
      } catch (problem) {
        reportError(problem); // the others come all the same
      }
    }
    await new Promise((resume) => setTimeout(resume));
    coming = coming.slice(done);
  }
}

/** One message of a conversation. It says what the user wants by events: `act` with {action, node, ...}. */
class MessageView extends View {
  static properties = {
    node: { attribute: false },
    // Lists are compared by their content: a conversation of hundreds of messages is shown anew for each word of an answer.
    place: { attribute: false, hasChanged: (/** @type {any} */ one, /** @type {any} */ other) => String(one?.ids) !== String(other?.ids) || one.index !== other.index },
    isRunning: { type: Boolean }, showsTokens: { type: Boolean },
    isNear: { state: true }, copied: { state: true }, edited: { state: true }, version: { type: Number },
  };

  constructor() {
    super();
    /** @type {import("./tree.js").Node} */
    this.node = { id: "", parent: null, role: "user", text: "" };
    /** @type {{index: number, ids: string[]}} the node among its siblings */
    this.place = { index: 0, ids: [] };
    this.isRunning = false;
    this.showsTokens = false;
    this.isNear = false;
    this.copied = "";
    /** @type {string | null} */
    this.edited = null;
    this.version = 0;
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.isNear) watcher.observe(this);
  }

  /** @param {string} action @param {object} [detail] */
  act(action, detail = {}) {
    this.dispatchEvent(new CustomEvent("act", { bubbles: true, detail: { action, node: this.node, ...detail } }));
  }

  render() {
    const { node } = this;
    if (!this.isNear) return html`<article class="message ${node.role}"><div class="plain">${node.text}</div></article>`;
    const name = { user: "You", assistant: node.facts?.model ?? "Assistant", tool: "Tool result" }[node.role];
    return html`<article class="message ${node.role}" aria-label=${name} aria-busy=${this.isRunning ? "true" : "false"}>
      <header><strong>${name}</strong>${this.renderBranches()}</header>
      ${node.reasoning ? html`<details class="reasoning" ?open=${this.isRunning && !node.text}><summary>Reasoning</summary>
        <div class="plain">${node.reasoning}</div></details>` : nothing}
      ${this.edited === null ? this.renderText() : this.renderEditor()}
      ${(node.calls ?? []).map((call) => this.renderCall(call))}
      ${node.error ? html`<p class="error" role="alert">${node.error.message}
        ${node.error.requestId ? html`<small>Request <a href="#/requests/${node.error.requestId}"><code>${node.error.requestId}</code></a></small>` : nothing}</p>` : nothing}
      ${node.facts?.references ? this.renderReferences() : nothing}
      ${this.isRunning ? html`<p class="muted working"><span class="pulse"></span>${node.facts?.requestId ? "Answering" : "Waiting"} …</p>` : this.renderFooter()}
    </article>`;
  }

  renderText() {
    const { node } = this;
    if (this.showsTokens && node.tokens?.length) {
      return html`<token-view .tokens=${node.tokens} .version=${node.tokens.length} ?canContinue=${!this.isRunning}
        @alternative=${(/** @type {CustomEvent} */ event) => this.act("continue", event.detail)}></token-view>`;
    }
    const files = (node.files ?? []).filter(({ url }) => /^data:(image|audio)\//.test(url)).map(({ kind, url, name }) => kind === "image"
      ? html`<img class="attached" src=${url} alt=${name}>` : html`<audio controls src=${url} aria-label=${name}></audio>`);
    return node.role === "assistant"
      ? html`<div class="markdown"></div>`
      : html`${files}<div class="plain">${node.text}</div>`;
  }

  updated() {
    const place = this.querySelector(".markdown");
    if (place) showMarkdown(place, this.node.text, this.isRunning);
  }

  renderBranches() {
    const { index, ids } = this.place;
    if (ids.length < 2) return nothing;
    const go = (/** @type {number} */ step) => this.act("show", { id: ids[index + step] });
    return html`<span class="branches">
      <button class="quiet" aria-label="The branch before" ?disabled=${index === 0} @click=${() => go(-1)}>${icon("chevron-left")}</button>
      ${index + 1}/${ids.length}
      <button class="quiet" aria-label="The next branch" ?disabled=${index === ids.length - 1} @click=${() => go(1)}>${icon("chevron-right")}</button></span>`;
  }

  renderEditor() {
    return html`<form class="editor" @submit=${this.saveEdit}>
      <textarea aria-label="Edit the message" rows="4" .value=${this.edited ?? ""} @keydown=${(/** @type {KeyboardEvent} */ event) => {
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) /** @type {any} */ (event.target).form.requestSubmit();
        if (event.key === "Escape") this.edited = null;
      }}></textarea>
      <div class="row end"><button type="button" @click=${() => { this.edited = null; }}>Cancel</button>
      <button class="primary">${this.node.role === "user" ? "Send as a new branch" : "Keep as a new branch"}</button></div></form>`;
  }

  /** @param {SubmitEvent} event */
  saveEdit(event) {
    event.preventDefault();
    const text = /** @type {HTMLFormElement} */ (event.target).querySelector("textarea")?.value ?? "";
    this.edited = null;
    this.act("edit", { text });
  }

  /** @param {{id: string, name: string, arguments: string}} call */
  renderCall(call) {
    return html`<div class="call"><div>${icon("wrench")} <code>${call.name}</code></div><pre>${formatJson(call.arguments)}</pre>
      ${this.isRunning ? nothing : html`<form @submit=${(/** @type {SubmitEvent} */ event) => {
        event.preventDefault();
        const field = /** @type {HTMLFormElement} */ (event.target).querySelector("textarea");
        this.act("result", { call, text: field?.value ?? "" });
      }}><textarea rows="2" aria-label="Result of ${call.name}" placeholder="The result of this call"></textarea>
      <button>Send the result</button></form>`}</div>`;
  }

  renderReferences() {
    const chunks = this.node.facts?.references?.chunks ?? [];
    return html`<details class="references"><summary>${formatCount(chunks.length)} passages found</summary>
      <ol>${chunks.map((/** @type {any} */ chunk) => html`<li><strong>${chunk.title || chunk.document_id || chunk.chunk_id}</strong>
        <div class="plain">${chunk.text}</div></li>`)}</ol></details>`;
  }

  renderFooter() {
    const { node } = this;
    const { facts } = node;
    const parts = [];
    if (facts?.outputTokens !== undefined) {
      parts.push(formatTokens(facts.promptTokens ?? 0, facts.outputTokens));
      if (facts.cachedTokens) parts.push(`${formatCount(facts.cachedTokens)} cached`);
      const seconds = ((facts.totalMs ?? 0) - (facts.firstMs ?? 0)) / 1000;
      if (facts.outputTokens > 1 && seconds > 0.1) parts.push(`${formatShort((facts.outputTokens - 1) / seconds)} tokens/s`);
    }
    if (facts?.firstMs !== undefined) parts.push(`first after ${formatDuration(facts.firstMs)}`);
    if (facts?.finish && facts.finish !== "stop") parts.push(facts.finish === "length" ? "cut by the length limit" : facts.finish);
    if (facts?.ignored) parts.push(`ignored: ${facts.ignored}`);
    const button = (/** @type {string} */ label, /** @type {any} */ sign, /** @type {() => void} */ run, /** @type {any} */ shown = nothing) =>
      html`<button class="quiet" title=${label} aria-label=${label} @click=${run}>${sign} ${shown}</button>`;
    const more = !facts?.body ? [] : [
      button("This request as a program", icon("code"), () => this.act("code"), "This request as a program"),
      button("The prompt that the model saw", icon("file-text"), () => this.act("prompt"), "The prompt that the model saw"),
      button("Copy a link that repeats this", icon("link"), () => this.act("link"), "Copy a link that repeats this"),
    ];
    return html`<footer><span class="actions">
      ${button("Copy", icon("copy"), async () => { this.copied = (await copyText(node.text)) ? "Copied" : "This browser cannot copy here."; })}${this.copied ? html`<small role="status">${this.copied}</small>` : nothing}
      ${node.role === "tool" ? nothing : button("Edit", icon("pencil"), () => { this.edited = node.text; })}
      ${node.role === "assistant" ? button("Answer again", icon("refresh-cw"), () => this.act("again")) : nothing}
      ${button("Remove", icon("trash-2"), () => this.act("remove"))}
      ${node.tokens?.length ? button(this.showsTokens ? "Show the text" : "Show the tokens", icon("scan-text"), () => this.act("tokens"), this.showsTokens ? "Text" : "Tokens") : nothing}
      ${more.length || facts?.requestId ? html`<details><summary class="quiet">More</summary>${more}
        ${facts?.requestId ? html`<a class="button quiet" aria-label="What the server knows of this request" href="#/requests/${facts.requestId}">${icon("list-tree")} What the server knows of this request</a>` : nothing}</details>` : nothing}
      </span><small class="muted">${parts.join(" · ")}</small></footer>`;
  }
}

/** @param {string} text */
function formatJson(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

customElements.define("message-view", MessageView);
