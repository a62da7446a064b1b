import { html, live, nothing, repeat } from "../../vendor/lit.js";
import "../chat/code_dialog.js";
import { readFiles } from "../chat/files.js";
import { packState, unpackState } from "../chat/link.js";
import "../chat/message.js";
import { listModels, loadModel } from "../chat/models.js";
import { runRequest } from "../chat/run.js";
import { ALTERNATIVES, buildFields, createSettings } from "../chat/settings_panel.js";
import {
  add, buildMessages, createTree, listPath, listSiblings, nameTree, parseExport, remove, show, update, writeExport,
} from "../chat/tree.js";
import { change } from "../lib/api.js";
import { formatTime } from "../lib/format.js";
import { keepConversation, listConversations, removeConversation } from "../lib/keep.js";
import { View, asError, confirmAction, copyText, icon, saveFile, showError } from "../lib/view.js";

const PATH = "v1/chat/completions";

/** The playground: conversations, their branches, and every setting of a request. */
class ChatPage extends View {
  static properties = {
    rest: { attribute: false }, query: { attribute: false }, conversations: { state: true }, current: { state: true }, models: { state: true },
    model: { state: true }, problem: { state: true }, running: { state: true }, version: { state: true }, draft: { state: true },
    withTokens: { state: true }, files: { state: true }, side: { state: true }, prompt: { state: true }, note: { state: true },
  };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    this.query = new URLSearchParams();
    /** @type {import("../lib/keep.js").Conversation[]} */
    this.conversations = [];
    this.current = startConversation(createSettings(""));
    /** @type {any[]} */
    this.models = [];
    /** @type {{profile: any, parameters: import("../chat/settings.js").Parameter[]}} */
    this.model = { profile: null, parameters: [] };
    /** @type {any} */
    this.problem = null;
    /** @type {{id: string, stop: AbortController} | null} */
    this.running = null;
    this.version = 0;
    this.draft = "";
    /** @type {import("../chat/files.js").Attached[]} of the message that is written */
    this.files = [];
    /** @type {Set<string>} ids of messages that show their tokens */
    this.withTokens = new Set();
    this.side = "";
    /** @type {any} */
    this.prompt = null;
    this.note = "";
    this.followsEnd = true;
    /** @type {Promise<void>} */
    this.loaded = Promise.resolve();
  }

  connectedCallback() {
    super.connectedCallback();
    if (!this.models.length) this.refresh();
  }

  /** Loads what depends on the key. A message that is sent meanwhile waits for it. */
  refresh() {
    this.loaded = this.load();
    return this.loaded;
  }

  async load() {
    try {
      this.models = await listModels();
      this.conversations = await listConversations();
      if (!this.current.settings.model) this.useSettings({ ...this.current.settings, model: this.models[0]?.id ?? "" });
      else await this.loadModel();
      await this.readLink();
      this.problem = null;
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  /** Takes over the state of a link that was followed. */
  async readLink() {
    const packed = this.query.get("state");
    if (!packed) return;
    history.replaceState(null, "", "#/chat");
    this.query = new URLSearchParams();
    const { settings, messages } = await unpackState(packed);
    this.current = startConversation({ ...createSettings(""), ...settings });
    let { tree } = this.current;
    let parent = null;
    for (const message of messages) {
      const [grown, node] = add(tree, { ...message, parent });
      tree = grown;
      parent = node.id;
    }
    this.current = { ...this.current, tree };
    this.note = "This link holds the settings and the messages of a request. “Answer” repeats it.";
    await this.loadModel();
  }

  async loadModel() {
    const { model } = this.current.settings;
    if (model) this.model = await loadModel(model, `/${PATH}`);
  }

  /** @param {any} settings */
  async useSettings(settings) {
    const isOther = settings.model !== this.current.settings.model;
    this.current = { ...this.current, settings };
    if (isOther) {
      this.loaded = this.loadModel().catch((problem) => { this.problem = asError(problem); });
      await this.loaded;
    }
  }

  listCommands() {
    return [
      { label: "New conversation", run: () => this.startNew() },
      ...this.models.map((model) => ({ label: `Use model ${model.id}`, run: () => this.useSettings({ ...this.current.settings, model: model.id }) })),
      ...this.conversations.map((each) => ({ label: `Open ${each.title}`, run: () => { location.hash = "#/chat"; this.openConversation(each); } })),
    ];
  }

  // --- the conversation ---

  startNew() {
    this.running?.stop.abort();
    this.current = startConversation(this.current.settings);
    this.note = "";
    this.problem = null;
    this.querySelector("textarea.draft")?.focus();
  }

  /** @param {import("../lib/keep.js").Conversation} conversation */
  openConversation(conversation) {
    this.running?.stop.abort();
    this.current = conversation;
    this.followsEnd = true;
    this.side = "";
    this.problem = null;
    this.loadModel().catch((problem) => { this.problem = asError(problem); });
  }

  /** @param {import("../chat/tree.js").Tree} tree */
  async useTree(tree, isKept = true) {
    this.current = { ...this.current, tree, title: nameTree(tree), updated: Date.now() };
    if (!isKept) return;
    try {
      await keepConversation(this.current);
      this.conversations = await listConversations();
    } catch {
      this.note = "This browser keeps no conversations: export what you want to keep.";
    }
  }

  async send() {
    await this.loaded;
    const text = this.draft.trim();
    const { files } = this;
    if (this.running || (!text && !files.length && !listPath(this.current.tree).length)) return;
    this.note = "";
    const { tree } = this.current;
    if (!text && !files.length) return this.answer(tree.leaf);
    const [grown, node] = add(tree, { role: "user", text, parent: tree.leaf, ...(files.length ? { files } : {}) });
    if (!(await this.answer(node.id, grown))) return;
    this.draft = "";
  }

  /**
   * Lets the model answer after a message. Returns false if the request could not be made.
   *
   * @param {string | null} parent @param {import("../chat/tree.js").Tree} tree
   * @param {{prefix: string, tokens: import("../tokens.js").Token[]} | null} prefill text with which the answer begins
   */
  async answer(parent, tree = this.current.tree, prefill = null) {
    let body;
    try {
      body = buildFields(this.current.settings, this.model.parameters);
    } catch (problem) {
      this.problem = asError(problem);
      return false;
    }
    this.problem = null;
    const messages = buildMessages(listPath(tree, parent), this.current.settings.system);
    if (prefill) {
      messages.push({ role: "assistant", content: prefill.prefix });
      Object.assign(body, { continue_final_message: true, add_generation_prompt: false, logprobs: true, top_logprobs: ALTERNATIVES });
    }
    body.messages = messages;
    const [grown, node] = add(tree, { role: "assistant", text: prefill?.prefix ?? "", parent, prefix: prefill?.prefix });
    if (this.current.settings.tokens || prefill) this.withTokens = new Set([...this.withTokens, node.id]);
    this.useTree(grown, false);
    this.followsEnd = true;
    this.draft = "";
    this.files = [];
    const stop = new AbortController();
    this.running = { id: node.id, stop };
    const conversation = this.current.id;
    /** @type {Partial<import("../chat/tree.js").Node>} */
    let answer = { text: "", facts: { model: body.model, requestId: null, body } };
    let frame = 0;
    const grow = () => update(this.current.tree, node.id, {
      ...answer, text: (prefill?.prefix ?? "") + answer.text, tokens: [...(prefill?.tokens ?? []), ...(answer.tokens ?? [])],
    });
    const show = () => {
      frame = 0;
      if (this.current.id === conversation) this.current = { ...this.current, tree: grow() };
    };
    try {
      await runRequest(PATH, body, stop.signal, (grown) => {
        answer = grown;
        frame ||= requestAnimationFrame(show);
      });
    } catch (problem) {
      if (!stop.signal.aborted) answer = { ...answer, error: asError(problem) };
    }
    cancelAnimationFrame(frame);
    this.running = null;
    if (this.current.id === conversation) await this.useTree(grow());
    return true;
  }

  /** @param {CustomEvent} event */
  async act({ detail }) {
    const { action, node } = detail;
    const { tree, settings } = this.current;
    if (action === "show") await this.useTree(show(tree, detail.id));
    else if (action === "again" && !this.running) await this.answer(node.parent);
    else if (action === "edit") {
      const [grown, added] = add(tree, { role: node.role, text: detail.text, parent: node.parent, calls: node.calls, files: node.files });
      if (node.role === "user" && !this.running) await this.answer(added.id, grown);
      else await this.useTree(grown);
    } else if (action === "result" && !this.running) {
      const [grown, added] = add(tree, { role: "tool", text: detail.text, parent: tree.leaf, callId: detail.call.id });
      const missing = listMissingResults(listPath(grown));
      if (missing.length) await this.useTree(grown);
      else await this.answer(added.id, grown);
    } else if (action === "continue" && !this.running) {
      const { before, other, index } = detail;
      const tokens = [...node.tokens.slice(0, index), { ...node.tokens[index], text: other.text, logprob: other.logprob, bytes: null }];
      await this.answer(node.parent, tree, { prefix: before + other.text, tokens });
    } else if (action === "tokens") {
      const shown = new Set(this.withTokens);
      if (!shown.delete(node.id)) shown.add(node.id);
      this.withTokens = shown;
    } else if (action === "code") /** @type {any} */ (this.querySelector("code-dialog")).open(PATH, node.facts.body);
    else if (action === "prompt") await this.showPrompt(node);
    else if (action === "link") {
      const messages = listPath(tree, node.parent).map(({ role, text, calls, callId, files }) => ({ role, text, calls, callId, files }));
      const link = new URL(`#/chat?state=${await packState({ settings, messages })}`, document.baseURI);
      await copyText(link.href);
      this.note = "The link is copied. Its state is in the part after #, which no server sees.";
    } else if (action === "remove" && (await confirmAction("Remove this message and what follows it?", "Remove"))) {
      await this.useTree(remove(tree, node.id));
    }
  }

  /** Returns what the model takes besides text. */
  listModalities() {
    return /** @type {string[]} */ (this.model.profile?.modalities ?? ["text"]);
  }

  /** @param {Iterable<File>} files */
  async attach(files) {
    try {
      this.files = [...this.files, ...(await readFiles([...files], this.listModalities()))];
      this.problem = null;
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  /** Shows what the chat template made of a request. @param {import("../chat/tree.js").Node} node */
  async showPrompt(node) {
    const { model, messages, tools, continue_final_message, add_generation_prompt } = node.facts?.body ?? {};
    const fields = { model, messages, tools, continue_final_message, add_generation_prompt };
    try {
      const [rendered, tokens] = await Promise.all([
        change("POST", "v1/apply-template", fields),
        change("POST", "v1/tokenize", { ...fields, return_token_strs: true }),
      ]);
      this.prompt = { text: rendered.prompt, ids: tokens.tokens, texts: tokens.token_strs ?? [] };
      await this.updateComplete;
      /** @type {any} */ (this.querySelector("dialog.prompt"))?.showModal();
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  /** @param {Event} event */
  async importFile(event) {
    const field = /** @type {HTMLInputElement} */ (event.target);
    const file = field.files?.[0];
    if (!file) return;
    try {
      const { title, tree, settings } = parseExport(await file.text());
      this.current = { ...startConversation({ ...createSettings(""), ...settings }), title };
      await this.useTree(tree);
      await this.loadModel();
    } catch (problem) {
      this.problem = asError(problem);
    }
    field.value = "";
  }

  // --- the view ---

  render() {
    const path = listPath(this.current.tree);
    return html`<div class="playground ${this.side}">
      <aside class="conversations" aria-label="Conversations">
        <div class="row"><button class="primary grow" @click=${this.startNew}>${icon("plus")} New conversation</button></div>
        <ul>${repeat(this.conversations, (/** @type {any} */ each) => each.id, (/** @type {any} */ each) => html`<li class=${each.id === this.current.id ? "current" : ""}>
          <button class="quiet title" @click=${() => this.openConversation(each)} title=${formatTime(each.updated / 1000)}>${each.title}</button>
          <button class="quiet" aria-label="Remove ${each.title}" @click=${() => this.removeOne(each)}>${icon("trash-2")}</button></li>`)}</ul>
        ${this.conversations.length ? nothing : html`<p class="muted small">Conversations stay in this browser.</p>`}
        <div class="row"><label class="button quiet">${icon("upload")} Import <input type="file" accept=".json,application/json" hidden @change=${this.importFile}></label>
          <button class="quiet" ?disabled=${!path.length} @click=${() => saveFile("conversation.json", writeExport(this.current.title, this.current.tree, this.current.settings))}>${icon("download")} Export</button></div>
      </aside>
      <section class="talk">
        <header class="row narrow-only">
          <button class="quiet" @click=${() => { this.side = this.side === "left" ? "" : "left"; }}>${icon("messages-square")} Conversations</button><span class="grow"></span>
          <button class="quiet" @click=${() => { this.side = this.side === "right" ? "" : "right"; }}>${icon("sliders-horizontal")} Settings</button></header>
        <div class="messages" role="log" aria-label="Conversation" @act=${this.act} @scroll=${this.noticeScroll}>
          ${path.length ? nothing : this.renderEmpty()}
          ${repeat(path, (/** @type {any} */ node) => node.id, (/** @type {any} */ node) => this.renderMessage(node))}
        </div>
        ${showError(this.problem)}${this.note ? html`<p class="muted small" role="status">${this.note}</p>` : nothing}
        ${this.files.length ? html`<ul class="files">${this.files.map((file, index) => html`<li>${file.kind === "image" ? html`<img src=${file.url} alt=${file.name}>` : file.name}
          <button class="quiet" aria-label="Remove ${file.name}" @click=${() => { this.files = this.files.filter((_, other) => other !== index); }}>${icon("x")}</button></li>`)}</ul>` : nothing}
        <form class="composer" @dragover=${(/** @type {Event} */ event) => event.preventDefault()} @drop=${(/** @type {DragEvent} */ event) => { event.preventDefault(); this.attach(event.dataTransfer?.files ?? []); }} @submit=${(/** @type {Event} */ event) => { event.preventDefault(); this.send(); }}>
          <textarea class="draft" rows="2" aria-label="Message" placeholder="Write a message. Ctrl+Enter sends it." .value=${live(this.draft)}
            @input=${(/** @type {any} */ event) => { this.draft = event.target.value; }} @keydown=${this.sendByKey}
            @paste=${(/** @type {ClipboardEvent} */ event) => { if (event.clipboardData?.files.length) { event.preventDefault(); this.attach(event.clipboardData.files); } }}></textarea>
          ${this.listModalities().length > 1 ? html`<label class="button" title="Attach pictures or recordings">${icon("paperclip")}<input type="file" multiple hidden aria-label="Attach"
            @change=${(/** @type {any} */ event) => { this.attach(event.target.files); event.target.value = ""; }}></label>` : nothing}
          ${this.running ? html`<button type="button" class="danger" @click=${() => this.running?.stop.abort()}>${icon("square")} Stop</button>`
            : html`<button class="primary">${icon("send-horizontal")} ${this.draft.trim() || !path.length || path.at(-1)?.role === "assistant" ? "Send" : "Answer"}</button>`}
        </form>
      </section>
      <aside class="settings" aria-label="Settings">
        <settings-panel .settings=${this.current.settings} .models=${this.models} .parameters=${this.model.parameters} .profile=${this.model.profile}
          @settings=${(/** @type {CustomEvent} */ event) => this.useSettings(event.detail)}></settings-panel></aside>
      <code-dialog></code-dialog>
      <dialog class="wide prompt" aria-label="The prompt that the model saw">${this.prompt ? this.renderPrompt() : nothing}</dialog>
    </div>`;
  }

  /** @param {import("../chat/tree.js").Node} node */
  renderMessage(node) {
    const siblings = listSiblings(this.current.tree, node).map((each) => each.id);
    const isRunning = this.running?.id === node.id;
    return html`<message-view .node=${node} .place=${{ index: siblings.indexOf(node.id), ids: siblings }} ?isRunning=${isRunning}
      ?showsTokens=${this.withTokens.has(node.id)}></message-view>`;
  }

  renderEmpty() {
    return html`<div class="empty"><h1>Talk to a model</h1>
      ${this.models.length ? html`<p>Ask <strong>${this.current.settings.model}</strong> something.</p>
        <p class="muted">Edit a message or answer again to make a branch. Ask for probabilities to see what else the model could have said.</p>`
        : html`<p class="muted">The server shows no model to this caller.</p>`}</div>`;
  }

  renderPrompt() {
    const { text, ids, texts } = this.prompt;
    return html`<div class="row"><h2>${ids.length} tokens</h2><span class="grow"></span>
      <button @click=${() => this.querySelector("dialog.prompt")?.close()}>Close</button></div>
      <pre tabindex="0">${text}</pre>
      <div class="tokens ids">${ids.map((/** @type {number} */ id, /** @type {number} */ index) => html`<span class="token" title="token ${id}">${texts[index] ?? ""}<small>${id}</small></span>`)}</div>`;
  }

  /** @param {import("../lib/keep.js").Conversation} conversation */
  async removeOne(conversation) {
    if (!(await confirmAction(`Remove “${conversation.title}” from this browser?`, "Remove"))) return;
    await removeConversation(conversation.id);
    this.conversations = await listConversations();
    if (conversation.id === this.current.id) this.startNew();
  }

  /** @param {KeyboardEvent} event */
  sendByKey(event) {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.send();
    }
  }

  /** @param {Event} event */
  noticeScroll(event) {
    const place = /** @type {HTMLElement} */ (event.target);
    this.followsEnd = place.scrollHeight - place.scrollTop - place.clientHeight < 80;
  }

  /** @param {Map<string, unknown>} changed */
  updated(changed) {
    if (changed.has("query") && this.query.get("state") && this.models.length) this.readLink().catch((problem) => { this.problem = asError(problem); });
    const place = this.querySelector(".messages");
    if (place && this.followsEnd && changed.has("current")) place.scrollTop = place.scrollHeight;
  }
}

/** @param {any} settings @returns {import("../lib/keep.js").Conversation} */
const startConversation = (settings) => ({ id: crypto.randomUUID(), title: "New conversation", updated: Date.now(), tree: createTree(), settings });

/** Returns the ids of calls of the last turn that have no result. @param {import("../chat/tree.js").Node[]} path */
function listMissingResults(path) {
  const turn = path.findLastIndex((node) => node.role === "assistant");
  const answered = new Set(path.slice(turn + 1).map((node) => node.callId));
  return (path[turn]?.calls ?? []).map((call) => call.id).filter((id) => !answered.has(id));
}

customElements.define("chat-page", ChatPage);
