import { html, live, nothing, repeat } from "../../vendor/lit.js";
import "../chat/code_dialog.js";
import { readFiles } from "../chat/files.js";
import { packState, unpackState } from "../chat/link.js";
import "../chat/message.js";
import { listModels, loadModel } from "../chat/models.js";
import { runRequest } from "../chat/run.js";
import { readSettings } from "../chat/settings.js";
import { ALTERNATIVES, buildFields, createSettings } from "../chat/settings_panel.js";
import {
  add, buildMessages, createTree, groupSiblings, listPath, makeId, nameTree, parseExport, readMessages, rebuildRequest, remove, show, update,
  writeExport,
} from "../chat/tree.js";
import { change } from "../lib/api.js";
import { formatTime } from "../lib/format.js";
import { keepConversation, listConversations, loadConversation, removeConversation } from "../lib/keep.js";
import { View, asError, confirmAction, copyText, icon, saveFile, showError } from "../lib/view.js";

const PATH = "v1/chat/completions";
/** A phone has no Ctrl key. */
const HINT = matchMedia("(hover: none)").matches ? "Write a message" : "Write a message. Ctrl+Enter sends it.";
const NOT_KEPT = "This browser keeps no conversations: export what you want to keep.";
const MOST_IMPORTED_BYTES = 256 * 1024 * 1024;

/** How many messages a frame adds when a conversation is opened: the last ones come first. */
const MESSAGES_A_FRAME = 50;

/** The playground: conversations, their branches, and every setting of a request. */
class ChatPage extends View {
  static properties = {
    rest: { attribute: false }, query: { attribute: false }, conversations: { state: true }, current: { state: true }, models: { state: true },
    model: { state: true }, problem: { state: true }, running: { state: true }, version: { state: true }, draft: { state: true },
    withTokens: { state: true }, files: { state: true }, side: { state: true }, prompt: { state: true }, note: { state: true },
    room: { state: true },
  };

  constructor() {
    super();
    /** @type {string[]} */
    this.rest = [];
    this.query = new URLSearchParams();
    /** @type {Awaited<ReturnType<typeof listConversations>>} */
    this.conversations = [];
    this.current = startConversation(createSettings(""));
    /** @type {any[]} */
    this.models = [];
    /** @type {{profile: any, parameters: import("../chat/settings.js").Parameter[]}} */
    this.model = { profile: null, parameters: [] };
    /** @type {any} */
    this.problem = null;
    /**
     * The answer that comes. `left`: its conversation, when another was opened meanwhile; null when it was removed.
     *
     * @type {{id: string, stop: AbortController, left?: import("../lib/keep.js").Conversation | null} | null}
     */
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
    /** The number of messages that are shown, from the end. It grows until all are. */
    this.room = MESSAGES_A_FRAME;
    /** Keeps the end in sight while messages grow. */
    this.growth = new ResizeObserver(() => this.showEnd());
    this.isLoaded = false;
    /** @type {Promise<void>} */
    this.loaded = Promise.resolve();
  }

  connectedCallback() {
    super.connectedCallback();
    document.addEventListener("visibilitychange", this.followOtherTabs);
    const list = this.querySelector(".thread");
    if (list) this.growth.observe(list);
    if (!this.models.length) this.refresh();
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    document.removeEventListener("visibilitychange", this.followOtherTabs);
    this.growth.disconnect();
  }

  /** Takes over what another tab did to the conversations, so that this one does not overwrite it. */
  followOtherTabs = async () => {
    if (document.hidden) return;
    try {
      this.conversations = await listConversations();
      const { id, updated } = this.current;
      if (this.running || !this.conversations.some((each) => each.id === id && each.updated > updated)) return;
      const kept = await loadConversation(id);
      if (kept && !this.running && this.current.id === id) this.current = kept;
    } catch {
      this.note = NOT_KEPT;
    }
  };

  /** Loads what depends on the key. A message that is sent meanwhile waits for it. */
  refresh() {
    this.loaded = this.load();
    return this.loaded;
  }

  async load() {
    try {
      this.conversations = await listConversations();
    } catch {
      this.note = NOT_KEPT;
    }
    try {
      this.models = await listModels();
      this.isLoaded = true;
      this.problem = null;
      if (!this.current.settings.model) await this.useSettings({ ...this.current.settings, model: this.models[0]?.id ?? "" });
      else await this.loadModel();
      await this.readLink();
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
    const { settings, messages } = (await unpackState(packed)) ?? {};
    const tree = readMessages(messages);
    this.leave();
    this.current = { ...startConversation(readSettings(settings)), tree, title: nameTree(tree) };
    this.problem = null;
    this.note = "This link holds the settings and the messages of a request. “Answer” repeats it.";
    await this.loadModel();
  }

  async loadModel() {
    const { model } = this.current.settings;
    const loaded = model ? await loadModel(model, `/${PATH}`) : { profile: null, parameters: [] };
    if (this.current.settings.model === model) this.model = loaded;
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
      ...this.conversations.map((each) => ({ label: `Open ${each.title}`, run: () => this.openConversation(each.id) })),
    ];
  }

  // --- the conversation ---

  /** Stops the answer that comes. What came of it is kept in its own conversation. */
  leave() {
    if (this.running) this.running.left = this.current;
    this.running?.stop.abort();
    this.running = null;
  }

  startNew() {
    this.leave();
    this.side = "";
    this.current = startConversation(this.current.settings);
    this.note = "";
    this.problem = null;
    this.querySelector("textarea.draft")?.focus();
  }

  /** @param {string} id */
  async openConversation(id) {
    if (id === this.current.id) {
      this.side = "";
      return;
    }
    this.leave();
    this.problem = null;
    this.note = "";
    try {
      const conversation = await loadConversation(id);
      if (!conversation) throw new Error("This conversation was removed in another tab.");
      this.current = { ...conversation, settings: readSettings(conversation.settings) };
      this.followsEnd = true;
      this.side = "";
      await this.loadModel();
    } catch (problem) {
      this.problem = asError(problem);
    }
  }

  /** Shows a changed tree, and keeps it. @param {import("../chat/tree.js").Tree} tree */
  async useTree(tree) {
    this.current = { ...this.current, tree, title: nameTree(tree), updated: Date.now() };
    await this.keep(this.current);
  }

  /** @param {import("../lib/keep.js").Conversation} conversation */
  async keep(conversation) {
    try {
      await keepConversation(conversation);
      const { id, title, updated } = conversation;
      this.conversations = [{ id, title, updated }, ...this.conversations.filter((other) => other.id !== id)];
    } catch {
      this.note = NOT_KEPT;
    }
  }

  async send() {
    await this.loaded;
    const { draft, files } = this;
    const { tree } = this.current;
    if (this.running) return;
    this.note = "";
    if (!draft.trim() && !files.length) {
      // A click on an empty field repeats what waits for an answer, and nothing else.
      if (listPath(tree).at(-1)?.role === "user" || listPath(tree).at(-1)?.role === "tool") await this.answer(tree.leaf);
      return;
    }
    const [grown, node] = add(tree, { role: "user", text: draft.trim(), parent: tree.leaf, ...(files.length ? { files } : {}) });
    [this.draft, this.files] = ["", []]; // what is typed while the answer comes is the next message
    if (!(await this.answer(node.id, grown))) [this.draft, this.files] = [draft, files];
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
    this.useTree(grown); // what was sent is kept, even if the page is closed before the answer is whole
    this.followsEnd = true;
    const stop = new AbortController();
    /** @type {NonNullable<typeof this.running>} */
    const running = { id: node.id, stop };
    this.running = running;
    const { system } = this.current.settings;
    /** @type {Partial<import("../chat/tree.js").Node>} */
    let answer = { text: "", facts: { model: body.model, requestId: null } };
    let frame = 0;
    /** @param {import("../lib/keep.js").Conversation} conversation @returns {import("../lib/keep.js").Conversation} */
    const grow = (conversation) => ({ ...conversation, tree: update(conversation.tree, node.id, {
      ...answer, text: (prefill?.prefix ?? "") + answer.text, tokens: [...(prefill?.tokens ?? []), ...(answer.tokens ?? [])],
      facts: { model: body.model, requestId: null, ...answer.facts, system },
    }) });
    const show = () => {
      frame = 0;
      if (this.running === running) this.current = grow(this.current);
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
    if (this.running === running) {
      this.running = null;
      await this.useTree(grow(this.current).tree);
    } else if (running.left) await this.keep(grow(running.left));
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
    } else if (action === "code") /** @type {any} */ (this.querySelector("code-dialog")).open(PATH, rebuildRequest(tree, node));
    else if (action === "prompt") await this.showPrompt(node);
    else if (action === "link") {
      const messages = listPath(tree, node.parent).map(({ role, text, calls, callId, files }) => ({ role, text, calls, callId, files }));
      const link = new URL(`#/chat?state=${await packState({ settings, messages })}`, document.baseURI);
      this.note = (await copyText(link.href)) ? "The link is copied. Its state is in the part after #, which no server sees." : "This browser cannot copy here.";
    } else if (action === "remove" && (await confirmAction("Remove this message and what follows it?", "Remove"))) {
      await this.useTree(remove(this.current.tree, node.id));
      if (this.running && !this.current.tree.nodes[this.running.id]) this.running.stop.abort();
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
    const { model, messages, tools, continue_final_message, add_generation_prompt } = rebuildRequest(this.current.tree, node);
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
      if (file.size > MOST_IMPORTED_BYTES) throw new Error("This file is larger than 256 MB.");
      const { tree, settings } = parseExport(await file.text());
      this.leave();
      this.current = startConversation(readSettings(settings));
      this.problem = null;
      this.side = "";
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
    const siblings = groupSiblings(this.current.tree);
    return html`<div class="playground ${this.side}">
      <aside class="conversations" aria-label="Conversations">
        <div class="row"><button class="primary grow" @click=${this.startNew}>${icon("plus")} New conversation</button></div>
        <ul>${repeat(this.conversations, (/** @type {any} */ each) => each.id, (/** @type {any} */ each) => html`<li class=${each.id === this.current.id ? "current" : ""}>
          <button class="quiet title" aria-current=${each.id === this.current.id ? "true" : nothing} @click=${() => this.openConversation(each.id)} title=${formatTime(each.updated / 1000)}>${each.title}</button>
          <button class="quiet" aria-label="Remove ${each.title}" @click=${() => this.removeOne(each)}>${icon("trash-2")}</button></li>`)}</ul>
        ${this.conversations.length ? nothing : html`<p class="muted small">Conversations stay in this browser.</p>`}
        <div class="row"><label class="button quiet">${icon("upload")} Import <input type="file" accept=".json,application/json" hidden @change=${this.importFile}></label>
          <button class="quiet" ?disabled=${!path.length} @click=${() => saveFile("conversation.json", writeExport(this.current.title, this.current.tree, this.current.settings))}>${icon("download")} Export</button></div>
      </aside>
      <section class="talk">
        <header class="row narrow-only">
          <button class="quiet" @click=${() => { this.side = this.side === "left" ? "" : "left"; }}>${icon("messages-square")} Conversations</button><strong class="grow center">${this.current.settings.model}</strong>
          <button class="quiet" @click=${() => { this.side = this.side === "right" ? "" : "right"; }}>${icon("sliders-horizontal")} Settings</button></header>
        <div class="messages" role="log" aria-label="Conversation" @act=${this.act} @scroll=${this.noticeScroll}>
          <div class="thread">${path.length ? nothing : this.renderEmpty()}
            ${repeat(path.slice(-this.room), (/** @type {any} */ node) => node.id, (/** @type {any} */ node) => this.renderMessage(node, siblings.get(node.parent) ?? []))}</div>
        </div>
        ${showError(this.problem)}${this.note ? html`<p class="muted small" role="status">${this.note}</p>` : nothing}
        ${this.files.length ? html`<ul class="files">${this.files.map((file, index) => html`<li>${file.kind === "image" ? html`<img src=${file.url} alt=${file.name}>` : file.name}
          <button class="quiet" aria-label="Remove ${file.name}" @click=${() => { this.files = this.files.filter((_, other) => other !== index); }}>${icon("x")}</button></li>`)}</ul>` : nothing}
        <form class="composer" @dragover=${(/** @type {Event} */ event) => event.preventDefault()} @drop=${(/** @type {DragEvent} */ event) => { event.preventDefault(); this.attach(event.dataTransfer?.files ?? []); }} @submit=${(/** @type {Event} */ event) => { event.preventDefault(); this.send(); }}>
          <textarea class="draft" rows="2" aria-label="Message" placeholder=${HINT} .value=${live(this.draft)}
            @input=${(/** @type {any} */ event) => { this.draft = event.target.value; }} @keydown=${this.sendByKey}
            @paste=${(/** @type {ClipboardEvent} */ event) => { if (event.clipboardData?.files.length) { event.preventDefault(); this.attach(event.clipboardData.files); } }}></textarea>
          ${this.listModalities().length > 1 ? html`<label class="button" title="Attach pictures or recordings">${icon("paperclip")}<input type="file" multiple hidden aria-label="Attach"
            @change=${(/** @type {any} */ event) => { this.attach(event.target.files); event.target.value = ""; }}></label>` : nothing}
          ${this.running ? html`<button type="button" class="danger" @click=${() => this.running?.stop.abort()}>${icon("square")} Stop</button>`
            : html`<button class="primary">${icon("send-horizontal")} ${this.draft.trim() || this.files.length || !path.length || path.at(-1)?.role === "assistant" ? "Send" : "Answer"}</button>`}
        </form>
      </section>
      <aside class="settings" aria-label="Settings">
        <settings-panel .settings=${this.current.settings} .models=${this.models} .parameters=${this.model.parameters} .profile=${this.model.profile}
          @settings=${(/** @type {CustomEvent} */ event) => this.useSettings(event.detail)}></settings-panel></aside>
      <code-dialog></code-dialog>
      <dialog class="wide prompt" aria-label="The prompt that the model saw">${this.prompt ? this.renderPrompt() : nothing}</dialog>
    </div>`;
  }

  /** @param {import("../chat/tree.js").Node} node @param {string[]} siblings */
  renderMessage(node, siblings) {
    const isRunning = this.running?.id === node.id;
    return html`<message-view .node=${node} .place=${{ index: siblings.indexOf(node.id), ids: siblings }} ?isRunning=${isRunning}
      ?showsTokens=${this.withTokens.has(node.id)}></message-view>`;
  }

  renderEmpty() {
    return html`<div class="empty"><h1>Talk to a model</h1>
      ${this.models.length ? html`<p>Ask <strong>${this.current.settings.model}</strong> something.</p>
        <p class="muted">Edit a message or answer again to make a branch. Ask for probabilities to see what else the model could have said.</p>`
        : html`<p class="muted">${this.isLoaded ? "The server shows no model to this caller." : "Loading …"}</p>`}</div>`;
  }

  renderPrompt() {
    const { text, ids, texts } = this.prompt;
    return html`<div class="row"><h2>${ids.length} tokens</h2><span class="grow"></span>
      <button @click=${() => this.querySelector("dialog.prompt")?.close()}>Close</button></div>
      <pre tabindex="0">${text}</pre>
      <div class="tokens ids">${ids.map((/** @type {number} */ id, /** @type {number} */ index) => html`<span class="token" title="token ${id}">${texts[index] ?? ""}<small>${id}</small></span>`)}</div>`;
  }

  /** @param {{id: string, title: string}} conversation */
  async removeOne({ id, title }) {
    if (!(await confirmAction(`Remove “${title}” from this browser?`, "Remove"))) return;
    const { running } = this;
    if (id === this.current.id) {
      this.startNew();
      if (running) running.left = null;
    }
    try {
      await removeConversation(id);
      this.conversations = this.conversations.filter((each) => each.id !== id);
    } catch (problem) {
      this.problem = asError(problem);
    }
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

  showEnd() {
    const place = this.querySelector(".messages");
    if (this.followsEnd) place.scrollTop = place.scrollHeight;
  }

  /** @param {Map<string, any>} changed */
  willUpdate(changed) {
    if (changed.has("current") && changed.get("current")?.id !== this.current.id) this.room = MESSAGES_A_FRAME;
  }

  firstUpdated() {
    this.growth.observe(this.querySelector(".thread"));
  }

  /** @param {Map<string, any>} changed */
  updated(changed) {
    if (changed.has("query") && this.query.get("state") && this.models.length) this.readLink().catch((problem) => { this.problem = asError(problem); });
    if (changed.has("current") && changed.get("current")?.id !== this.current.id) this.showEnd();
    if (this.room < Object.keys(this.current.tree.nodes).length) requestAnimationFrame(() => { this.room += MESSAGES_A_FRAME; });
    else this.room = Infinity;
  }
}

/** @param {any} settings @returns {import("../lib/keep.js").Conversation} */
const startConversation = (settings) => ({ id: makeId(), title: "New conversation", updated: Date.now(), tree: createTree(), settings });

/** Returns the ids of calls of the last turn that have no result. @param {import("../chat/tree.js").Node[]} path */
function listMissingResults(path) {
  const turn = path.findLastIndex((node) => node.role === "assistant");
  const answered = new Set(path.slice(turn + 1).map((node) => node.callId));
  return (path[turn]?.calls ?? []).map((call) => call.id).filter((id) => !answered.has(id));
}

customElements.define("chat-page", ChatPage);
