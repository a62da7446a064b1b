import { html, nothing } from "../vendor/lit.js";
import { get, session, waitForServer } from "./lib/api.js";
import { prepareSignIn, readReply, redeemReply, relayReply, waitForReply } from "./lib/sign_in.js";
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
    found: { state: true }, problem: { state: true }, pageProblem: { state: true }, client: { state: true }, attempt: { state: true },
  };

  constructor() {
    super();
    this.current = PAGES[0];
    this.isReachable = true;
    this.asksKey = false;
    this.hasPalette = false;
    this.found = "";
    this.problem = "";
    /** @type {import("./lib/sign_in.js").Client | null} the console at the issuer; nothing where it takes only keys */
    this.client = null;
    /** @type {import("./lib/sign_in.js").Attempt | null} a sign-in that can begin */
    this.attempt = null;
    this.endWait = () => {};
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
      const reason = session.hasEnded ? "Your sign-in has expired."
        : session.who ? "The server does not accept your sign-in. Its log says why." : "The server no longer accepts this key.";
      this.ask(session.key ? `${reason} What you typed is kept.` : "");
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
        <button class="quiet" title=${session.who ?? (session.key ? "Key" : "Use a key")} @click=${() => this.ask("")}>${icon("user-round")}<span>${session.who ?? (session.key ? "Key" : "Use a key")}</span></button>
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

  /** Asks for a key, or for signing in. @param {string} problem why */
  ask(problem) {
    this.problem = problem;
    if (this.asksKey) return; // another refusal: the address of the issuer's page stays
    this.asksKey = true;
    this.prepareSignIn();
  }

  /** Makes the address of the issuer's page now, so that the click itself opens it: browsers block later windows. */
  async prepareSignIn() {
    this.attempt = null;
    try {
      this.client ??= await get("console/sign-in.json");
      if (!this.client) return;
      const attempt = await prepareSignIn(this.client, new URL("./", document.baseURI).href);
      if (!this.asksKey) return; // closed meanwhile
      this.attempt = attempt;
      this.endWait();
      this.endWait = waitForReply(attempt, (reply) => this.finishSignIn(attempt, reply));
    } catch (problem) {
      this.problem ||= /** @type {Error} */ (problem).message;
    }
  }

  /** @param {import("./lib/sign_in.js").Attempt} attempt @param {URLSearchParams} reply */
  async finishSignIn(attempt, reply) {
    const isWanted = () => this.asksKey && this.attempt === attempt; // or the dialog was closed, or a key typed
    try {
      const credential = await redeemReply(attempt, reply);
      if (isWanted()) this.use(credential, this.querySelector("dialog.key [name=remember]")?.checked);
    } catch (problem) {
      if (!isWanted()) return;
      this.problem = /** @type {Error} */ (problem).message;
      this.prepareSignIn(); // a state and a code are used once
    }
  }

  renderKey() {
    return html`<dialog class="key" aria-labelledby="key-title" @close=${this.stopAsking}>
      <form @submit=${this.useKey}>
        <h2 id="key-title">${this.client ? "Sign in, or use a key" : "Your key"}</h2>
        <p>The console does what ${this.client ? "you or this key" : "this key"} may do, and nothing else. ${session.who ? html`You are signed in as <strong>${session.who}</strong>.` : "It is kept in this page's memory."}</p>
        ${this.problem ? html`<p class="error" role="alert">${this.problem}</p>` : nothing}
        ${this.client ? html`<p><a class="button primary sign-in" href=${this.attempt?.address ?? nothing} target="_blank" rel="opener">Sign in at ${new URL(this.client.issuer).host}</a></p>` : nothing}
        <label>Key <input name="key" type="password" autocomplete="off" spellcheck="false" required placeholder="ak_…" autofocus></label>
        <label class="check"><input type="checkbox" name="remember"> Keep it until this tab is closed</label>
        <div class="row end">
          ${session.key ? html`<button type="button" class="danger" @click=${this.forgetKey}>${session.who ? "Sign out" : "Forget the key"}</button>` : nothing}
          <span class="grow"></span>
          <button type="button" @click=${this.closeDialog}>Cancel</button><button class="primary">Use it</button>
        </div>
      </form></dialog>`;
  }

  /** A browser tells of a closed dialog with its next frame. It can be open again by then, since the new key was refused. */
  stopAsking() {
    if (this.querySelector("dialog.key")?.open) return;
    this.asksKey = false;
    this.endWait();
  }

  /** @param {Event} event */
  closeDialog(event) {
    /** @type {HTMLElement} */ (event.target).closest("dialog")?.close();
  }

  /** @param {SubmitEvent} event */
  useKey(event) {
    event.preventDefault();
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    this.use({ key: String(form.get("key")).trim() }, form.get("remember") !== null);
  }

  /** @param {import("./lib/api.js").Credential} credential @param {boolean} remember */
  use(credential, remember) {
    session.set(credential, remember);
    this.problem = "";
    this.querySelector("dialog.key")?.close(); // which gives the focus back
    this.stopAsking();
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

const reply = readReply(location.search);
if (reply) {
  // This is the window in which the issuer's page was.
  history.replaceState(null, "", location.pathname);
  document.body.className = "pad";
  document.body.textContent = "Go back to the page that asked you to sign in. You can close this window.";
  relayReply(reply, () => close());
} else {
  customElements.define("antiphon-console", Shell);
}
