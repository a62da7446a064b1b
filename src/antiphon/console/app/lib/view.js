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
  createRenderRoot() {
    return this;
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

/** @param {string} text */
export const copyText = (text) => navigator.clipboard?.writeText(text) ?? Promise.reject(new Error("This browser cannot copy here."));

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
