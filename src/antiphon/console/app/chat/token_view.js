import { html, nothing } from "../../vendor/lit.js";
import { formatShare } from "../lib/format.js";
import { View, icon } from "../lib/view.js";
import { classify, joinBefore, measureEntropy, showWhitespace } from "../tokens.js";

/** Shows tokens coloured by their probability. A click shows what else the model could have said. */
class TokenView extends View {
  static properties = { tokens: { attribute: false }, version: { type: Number }, canContinue: { type: Boolean }, chosen: { state: true } };

  constructor() {
    super();
    /** @type {import("../tokens.js").Token[]} */
    this.tokens = [];
    this.version = 0;
    this.canContinue = false;
    /** @type {number | null} */
    this.chosen = null;
  }

  render() {
    return html`<div class="tokens" @keydown=${this.move}>${this.tokens.map((token, index) => html`<button type="button"
        class="token sure-${Number.isNaN(token.logprob) ? "none" : classify(token.logprob)}" aria-pressed=${index === this.chosen} tabindex=${index === (this.chosen ?? 0) ? "0" : "-1"}
        title=${Number.isNaN(token.logprob) ? "the first token" : formatShare(Math.exp(token.logprob))}
        @click=${() => { this.chosen = this.chosen === index ? null : index; }}>${showWhitespace(token.text)}</button>${token.text.includes("\n") ? html`<br>` : nothing}`)}</div>
      ${this.chosen === null ? nothing : this.renderAlternatives(this.chosen)}`;
  }

  /** Tab leads past thousands of tokens; the arrows lead from one to the next. @param {KeyboardEvent} event */
  move(event) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const places = [...this.querySelectorAll(".tokens > button")];
    places[places.indexOf(event.target) + step]?.focus();
  }

  /** @param {number} index */
  renderAlternatives(index) {
    const token = this.tokens[index];
    if (!token) return nothing;
    return html`<section class="alternatives" aria-label="Alternatives of this token">
      <p>Token ${index + 1}: <code>${showWhitespace(token.text)}</code>${Number.isNaN(token.logprob) ? nothing
        : html`, probability ${formatShare(Math.exp(token.logprob))}, entropy ${measureEntropy(token).toFixed(2)} bits`}</p>
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

customElements.define("token-view", TokenView);
