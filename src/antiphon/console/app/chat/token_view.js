import { html, nothing } from "../../vendor/lit.js";
import { formatShare } from "../lib/format.js";
import { View, icon } from "../lib/view.js";
import { ORIGINS, classify, joinBefore, measureEntropy, showWhitespace } from "../tokens.js";

/** The most tokens that one frame adds: thousands at once would hold up the page. */
const MOST_ADDED = 250;

/** A part ends with the first line break after so many tokens, or after the second number of them. Only visible parts are laid out. */
const [PART, LONGEST_PART] = [100, 500];

/** What the colours mean, the least probable first. */
const LEGEND = ["below 5 %", "5 to 25 %", "25 to 60 %", "60 to 90 %", "above 90 %"];

/** Shows tokens coloured by their probability. A click shows what else the model could have said. */
class TokenView extends View {
  static properties = { tokens: { attribute: false }, version: { type: Number }, canContinue: { type: Boolean }, chosen: { state: true }, origins: { state: true } };

  /** How many tokens are shown, and the last of them. What is shown stays, because an answer only grows. */
  #count = 0;
  /** @type {import("../tokens.js").Token | undefined} */
  #last;
  /** @type {HTMLElement | null} the part that grows */
  #part = null;
  #frame = 0;

  constructor() {
    super();
    /** @type {import("../tokens.js").Token[]} */
    this.tokens = [];
    this.version = 0;
    this.canContinue = false;
    /** @type {number | null} */
    this.chosen = null;
    /** @type {string[]} the origins that some tokens have */
    this.origins = [];
  }

  disconnectedCallback() {
    super.disconnectedCallback();
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
  }

  render() {
    return html`<div class="tokens" @keydown=${this.move} @click=${this.toggle}></div>
      <p class="legend small">Probability: ${LEGEND.map((words, index) => html`<span class="token sure-${index}">${words}</span> `)}
        ${this.origins.map((origin) => html`<span class="token ${origin}">${origin}</span> `)}</p>
      ${this.chosen === null ? nothing : this.renderAlternatives(this.chosen)}`;
  }

  /** @param {Map<string, any>} changed */
  updated(changed) {
    this.addTokens();
    if (!changed.has("chosen")) return;
    const before = this.findToken(changed.get("chosen") ?? 0);
    before?.setAttribute("aria-pressed", "false");
    before?.setAttribute("tabindex", "-1");
    const now = this.findToken(this.chosen ?? 0);
    now?.setAttribute("aria-pressed", String(this.chosen !== null));
    now?.setAttribute("tabindex", "0");
  }

  /** @param {number} index */
  findToken(index) {
    return this.querySelector(`.token[data-index="${index}"]`);
  }

  /** Shows the tokens that are new. */
  addTokens() {
    const { tokens } = this;
    const place = this.querySelector(".tokens");
    if (this.#count && tokens[this.#count - 1] !== this.#last) { // these are other tokens
      [this.#count, this.#part, this.chosen] = [0, null, null];
      this.origins = [];
      place.replaceChildren();
    }
    const end = Math.min(tokens.length, this.#count + MOST_ADDED);
    for (; this.#count < end; this.#count += 1) {
      if (!this.#part) {
        this.#part = document.createElement("div");
        this.#part.className = "part";
        place.append(this.#part);
      }
      this.#last = tokens[this.#count];
      const { origin } = this.#last;
      if (origin && !this.origins.includes(origin)) this.origins = [...this.origins, origin];
      const breaksLine = this.#last.text.includes("\n");
      this.#part.append(makeToken(this.#last, this.#count), ...(breaksLine ? [document.createElement("br")] : []));
      const { childElementCount } = this.#part;
      if (childElementCount >= LONGEST_PART || (breaksLine && childElementCount >= PART)) this.#part = null;
    }
    if (end < tokens.length) this.#frame ||= requestAnimationFrame(() => { this.#frame = 0; this.addTokens(); });
  }

  /** @param {Event} event */
  toggle(event) {
    const token = /** @type {HTMLElement} */ (event.target).closest(".token");
    if (!(token instanceof HTMLElement)) return;
    const index = Number(token.dataset.index);
    this.chosen = this.chosen === index ? null : index;
  }

  /** Tab leads past thousands of tokens; the arrows lead from one to the next. @param {KeyboardEvent} event */
  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.findToken(Number(/** @type {HTMLElement} */ (event.target).dataset.index) + step)?.focus();
  }

  /** @param {number} index */
  renderAlternatives(index) {
    const token = this.tokens[index];
    if (!token) return nothing;
    return html`<section class="alternatives" aria-label="Alternatives of this token">
      <p>Token ${index + 1}: <code>${showWhitespace(token.text)}</code>${Number.isNaN(token.logprob) ? nothing
        : html`, probability ${formatShare(Math.exp(token.logprob))}, entropy ${measureEntropy(token).toFixed(2)} bits`}${token.origin ? html`, ${ORIGINS[token.origin]}` : nothing}</p>
      <table><tbody>${token.top.map((other) => html`<tr class=${other.text === token.text ? "own" : ""}>
        <td><code>${showWhitespace(other.text)}</code></td>
        <td><meter min="0" max="1" .value=${Math.exp(other.logprob)}></meter></td>
        <td class="number">${formatShare(Math.exp(other.logprob))}</td>
        <td>${this.canContinue && other.text !== token.text ? html`<button class="quiet"
          @click=${() => this.choose(index, other)}>${icon("corner-down-right")} Continue from here with this</button>` : nothing}</td></tr>`)}
      </tbody></table></section>`;
  }

  /** @param {number} index @param {{text: string, logprob: number}} other */
  choose(index, other) {
    const detail = { before: joinBefore(this.tokens, index), index, other };
    this.chosen = null;
    this.dispatchEvent(new CustomEvent("alternative", { bubbles: true, detail }));
  }
}

/** @param {import("../tokens.js").Token} token @param {number} index */
function makeToken({ text, logprob, origin }, index) {
  const button = document.createElement("button");
  const isScored = !Number.isNaN(logprob);
  button.type = "button";
  button.className = `token sure-${isScored ? classify(logprob) : "none"} ${origin ?? ""}`;
  button.title = (isScored ? formatShare(Math.exp(logprob)) : "the first token") + (origin ? `, ${ORIGINS[origin]}` : "");
  button.dataset.index = String(index);
  button.tabIndex = index ? -1 : 0;
  button.ariaPressed = "false";
  button.textContent = showWhitespace(text);
  return button;
}

customElements.define("token-view", TokenView);
