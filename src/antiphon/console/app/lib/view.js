import { LitElement, html, nothing, svg } from "../../vendor/lit.js";
import { ServerError } from "./api.js";

/**
 * @typedef {Omit<HTMLElement, "querySelector" | "querySelectorAll"> & {
 *   requestUpdate(): void, updateComplete: Promise<boolean>, connectedCallback(): void, disconnectedCallback(): void,
 *   querySelector(selector: string): any, querySelectorAll(selector: string): NodeListOf<any>}} Component
 */

const Base = /** @type {new () => Component} */ (/** @type {unknown} */ (LitElement));

/** A component whose parts are in the page itself, so that one style sheet applies to all. */
export class View extends Base {
  #turn = 0;

  createRenderRoot() {
    return this;
  }

  /** Begins to load something. Returns whether it is still wanted: not when another load began meanwhile. @returns {() => boolean} */
  beginLoad() {
    const turn = ++this.#turn;
    return () => turn === this.#turn;
  }
}

/** @param {string} name of a symbol in vendor/icons.svg */
export const icon = (name) => html`<svg class="icon" aria-hidden="true">${svg`<use href=${`vendor/icons.svg#${name}`}></use>`}</svg>`;

/** Shows an error in the server's own words, with the id under which its log has it. @param {unknown} problem */
export function showError(problem) {
  if (!problem) return nothing;
  const { message, requestId } = /** @type {any} */ (problem);
  return html`<p class="error" role="alert">${message}${requestId ? html` <small>Request <code>${requestId}</code></small>` : nothing}</p>`;
}

/** @param {unknown} problem */
export const asError = (problem) =>
  problem instanceof ServerError
    ? { message: problem.message, requestId: problem.requestId }
    : { message: /** @type {Error} */ (problem).message ?? String(problem), requestId: null };

/**
 * Copies a text. A page that came by plain HTTP from another machine has no clipboard, but can copy what is selected.
 *
 * @param {string} text @returns {Promise<boolean>} whether it was copied
 */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.setAttribute("aria-label", "What is copied");
    // Below an open dialog nothing else can be selected.
    ([...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body).append(field);
    field.select();
    const isCopied = document.execCommand("copy");
    field.remove();
    return isCopied;
  }
}

/** Offers a file. @param {string} name @param {string} text @param {string} type */
export function saveFile(name, text, type = "application/json") {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** Waits for the user's yes. @param {string} question @param {string} action what the button says @returns {Promise<boolean>} */
export function confirmAction(question, action) {
  const dialog = document.createElement("dialog");
  const text = document.createElement("p");
  text.textContent = question;
  const row = document.createElement("div");
  row.className = "row end";
  const [no, yes] = [document.createElement("button"), document.createElement("button")];
  no.textContent = "Cancel";
  yes.textContent = action;
  yes.className = "danger";
  row.append(no, yes);
  dialog.setAttribute("aria-label", question);
  dialog.append(text, row);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) => {
    no.onclick = () => dialog.close();
    yes.onclick = () => dialog.close("yes");
    dialog.onclose = () => {
      resolve(dialog.returnValue === "yes");
      dialog.remove();
    };
  });
}
