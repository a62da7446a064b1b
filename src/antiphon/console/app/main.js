import { html, nothing } from "../vendor/lit.js";
import { session, waitForServer } from "./lib/api.js";
import { View, icon, showError } from "./lib/view.js";

const PAGES = [
  { path: "chat", label: "Chat", icon: icon("message-square"), load: () => import("./pages/chat.js") },
  { path: "complete", label: "Completion", icon: icon("text-cursor-input"), load: () => import("./pages/complete.js") },
  { path: "compare", label: "Compare", icon: icon("columns-3"), load: () => import("./pages/compare.js") },
  { path: "models", label: "Models", icon: icon("box"), load: () => import("./pages/models.js") },
  { path: "requests", label: "Requests", icon: icon("list-tree"), load: () => import("./pages/requests.js") },
  { path: "usage", label: "Usage", icon: icon("chart-line"), load: () => import("./pages/usage.js") },
  { path: "knowledge", label: "Knowledge", icon: icon("library-big"), load: () => import("./pages/knowledge.js") },
  { path: "access", label: "Access", icon: icon("key-round"), load: () => import("./pages/access.js") },
  { path: "reference", label: "Reference", icon: icon("book-open"), load: () => import("./pages/reference.js") },
];

/** The frame around all pages: navigation, the key, the palette, and whether the server is there. */
class Shell extends View {
  static properties = {
    current: { state: true }, isReachable: { state: true }, asksKey: { state: true }, hasPalette: { state: true },
    found: { state: true }, problem: { state: true }, pageProblem: { state: true },
  };

  constructor() {
    super();
    this.current = PAGES[0];
    this.isReachable = true;
    this.asksKey = false;
    this.hasPalette = false;
    this.found = "";
    this.problem = "";
    /** @type {any} */
    this.pageProblem = null;
    /** @type {Record<string, any>} pages that were opened; they keep their state */
    this.opened = {};
  }

  connectedCallback() {
    super.connectedCallback();
    addEventListener("hashchange", () => this.follow());
    addEventListener("keydown", (event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        if (this.hasPalette) this.querySelector("dialog.palette")?.close();
        else this.hasPalette = true;
      }
    });
    session.addEventListener("refused", () => {
      this.problem = session.key ? "The server no longer accepts this key. What you typed is kept." : "";
      this.asksKey = true;
    });
    session.addEventListener("reachable", (event) => {
      const isReachable = /** @type {CustomEvent<boolean>} */ (event).detail;
      if (this.isReachable && !isReachable) {
        waitForServer().then(() => /** @type {any} */ (this.opened[this.current.path])?.refresh?.());
      }
      this.isReachable = isReachable;
    });
    this.follow();
  }

  /** Shows the page that the fragment names: `#/PAGE/rest`. */
  async follow() {
    const { hash } = location;
    const [, name = "", ...rest] = hash.split("?")[0].split("/");
    const page = PAGES.find((each) => each.path === name) ?? PAGES[0];
    try {
      await page.load();
      this.pageProblem = null;
    } catch {
      this.pageProblem = { message: "This page could not be loaded. Reload it when the server answers." };
    }
    if (hash !== location.hash) return; // another page was chosen while this one was loaded
    if (!this.pageProblem) {
      this.opened[page.path] ??= document.createElement(`${page.path}-page`);
      this.opened[page.path].rest = rest.map(decode);
      this.opened[page.path].query = new URLSearchParams(hash.split("?")[1] ?? "");
    }
    this.current = page;
    document.title = `${page.label} · Antiphon`;
    this.requestUpdate();
    await this.updateComplete;
    this.querySelector("nav.pages [aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  render() {
    return html`
      <a class="skip" href="#main" @click=${this.skip}>Skip to the content</a>
      <nav class="pages" aria-label="Pages">
        <a class="brand" href="#/chat" aria-label="Antiphon"><img src="icon.svg" alt="" width="24" height="24"><span>Antiphon</span></a>
        ${PAGES.map((page) => html`<a href="#/${page.path}" title=${page.label} aria-current=${page === this.current ? "page" : nothing}>
          ${page.icon}<span>${page.label}</span></a>`)}
        <span class="grow"></span>
        <button class="quiet" title="Search (Ctrl+K)" @click=${() => { this.hasPalette = true; }}>${icon("search")}<span>Search</span></button>
        <button class="quiet" title=${session.key ? "Key" : "Use a key"} @click=${() => { this.asksKey = true; }}>${icon("user-round")}<span>${session.key ? "Key" : "Use a key"}</span></button>
      </nav>
      <main id="main" tabindex="-1">
        ${this.isReachable ? nothing : html`<p class="banner" role="status">The server does not answer. The console waits for it; nothing is lost.</p>`}
        ${this.pageProblem ? showError(this.pageProblem) : this.opened[this.current.path] ?? html`<p class="muted pad">Loading …</p>`}
      </main>
      ${this.asksKey ? this.renderKey() : nothing}
      ${this.hasPalette ? this.renderPalette() : nothing}`;
  }

  /** @param {Event} event */
  skip(event) {
    event.preventDefault();
    this.querySelector("main")?.focus();
  }

  renderKey() {
    return html`<dialog class="key" aria-labelledby="key-title" @close=${() => { this.asksKey = false; }}>
      <form @submit=${this.useKey}>
        <h2 id="key-title">Your key</h2>
        <p>The console does what this key may do, and nothing else. It is kept in this page's memory.</p>
        ${this.problem ? html`<p class="error" role="alert">${this.problem}</p>` : nothing}
        <label>Key <input name="key" type="password" autocomplete="off" spellcheck="false" required placeholder="ak_…" autofocus></label>
        <label class="check"><input type="checkbox" name="remember"> Keep it until this tab is closed</label>
        <div class="row end">
          ${session.key ? html`<button type="button" class="danger" @click=${this.forgetKey}>Forget the key</button>` : nothing}
          <span class="grow"></span>
          <button type="button" @click=${this.closeDialog}>Cancel</button><button class="primary">Use it</button>
        </div>
      </form></dialog>`;
  }

  /** @param {Event} event */
  closeDialog(event) {
    /** @type {HTMLElement} */ (event.target).closest("dialog")?.close();
  }

  /** @param {SubmitEvent} event */
  useKey(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    session.set(String(form.get("key")).trim(), form.get("remember") !== null);
    this.problem = "";
    this.querySelector("dialog.key")?.close(); // which gives the focus back
    for (const page of Object.values(this.opened)) page.refresh?.();
  }

  forgetKey() {
    session.set(null);
    location.reload();
  }

  renderPalette() {
    const words = this.found.toLowerCase().split(/\s+/);
    const commands = [
      ...PAGES.map((page) => ({ label: page.label, run: () => { location.hash = `#/${page.path}`; } })),
      ...(this.opened.chat?.listCommands?.() ?? []).map((/** @type {{label: string, run: () => void}} */ { label, run }) => ({ label, run: () => { location.hash = "#/chat"; run(); } })),
    ].filter(({ label }) => words.every((word) => label.toLowerCase().includes(word)));
    return html`<dialog class="palette" aria-label="Commands" @close=${() => { this.hasPalette = false; this.found = ""; }}>
      <form @submit=${(/** @type {Event} */ event) => { event.preventDefault(); this.runCommand(commands[0]); }} @keydown=${this.moveInPalette}>
        <input aria-label="Search commands" placeholder="Search pages, models, conversations" autofocus .value=${this.found}
          @input=${(/** @type {any} */ event) => { this.found = event.target.value; }}>
        <ul>${commands.slice(0, 12).map((command) => html`<li><button type="button" class="quiet"
          @click=${() => this.runCommand(command)}>${command.label}</button></li>`)}</ul>
        ${commands.length > 12 ? html`<p class="muted small">${commands.length - 12} more: type some letters.</p>` : nothing}
        ${commands.length ? nothing : html`<p class="muted">Nothing has these words.</p>`}
      </form></dialog>`;
  }

  /** Moves the focus by the arrow keys. @param {KeyboardEvent} event */
  moveInPalette(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const places = [...this.querySelectorAll("dialog.palette :is(input, li button)")];
    const index = places.indexOf(/** @type {any} */ (document.activeElement)) + step;
    places[(index + places.length) % places.length].focus();
  }

  /** @param {{label: string, run: () => void} | undefined} command */
  runCommand(command) {
    this.querySelector("dialog.palette")?.close();
    command?.run();
  }

  updated() {
    for (const dialog of this.querySelectorAll("dialog.key, dialog.palette")) if (!dialog.open) dialog.showModal();
  }
}

/** A fragment that somebody typed can be no valid encoding. @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

customElements.define("antiphon-console", Shell);
