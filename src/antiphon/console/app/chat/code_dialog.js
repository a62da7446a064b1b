import { html } from "../../vendor/lit.js";
import { ROOT, session } from "../lib/api.js";
import { View, copyText, icon } from "../lib/view.js";
import { writeCurl, writeOpenaiNode, writeOpenaiPython } from "./code.js";

const KINDS = { curl: writeCurl, Python: writeOpenaiPython, JavaScript: writeOpenaiNode };

/** Shows exactly this request as a program. */
class CodeDialog extends View {
  static properties = { path: { type: String }, body: { attribute: false }, kind: { state: true }, copied: { state: true } };

  constructor() {
    super();
    this.path = "v1/chat/completions";
    /** @type {any} */
    this.body = null;
    /** @type {keyof typeof KINDS} */
    this.kind = "curl";
    this.copied = false;
  }

  /** @param {string} path @param {any} body */
  open(path, body) {
    this.path = path;
    this.body = body;
    this.copied = false;
    this.updateComplete.then(() => this.querySelector("dialog").showModal());
  }

  render() {
    if (!this.body) return html``;
    const code = KINDS[this.kind](ROOT.href, this.path, this.body, Boolean(session.key));
    return html`<dialog class="wide" aria-label="This request as a program">
      <div class="row"><div role="tablist">${Object.keys(KINDS).map((kind) => html`<button role="tab" aria-selected=${kind === this.kind}
        @click=${() => { this.kind = /** @type {any} */ (kind); this.copied = false; }}>${kind}</button>`)}</div>
        <span class="grow"></span>
        <button @click=${async () => { this.copied = await copyText(code); }}>${icon("copy")} ${this.copied ? "Copied" : "Copy"}</button>
        <button @click=${() => this.querySelector("dialog")?.close()}>Close</button></div>
      <pre tabindex="0">${code}</pre></dialog>`;
  }
}

customElements.define("code-dialog", CodeDialog);
