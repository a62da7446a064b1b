import { DOMPurify as purifier, marked } from "../../vendor/markdown.js";

/** @type {any} */
const DOMPurify = purifier;

/** HTML in an answer is text: a model that explains a tag must not make one. */
const renderer = { html: (/** @type {{text: string}} */ { text }) => escapeText(text) };

marked.use({ gfm: true, breaks: false, async: false, renderer });

/** @param {string} text */
const escapeText = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

const ALLOWED = {
  ALLOWED_TAGS: ["a", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "img", "input", "li",
    "ol", "p", "pre", "s", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul"],
  ALLOWED_ATTR: ["alt", "checked", "class", "disabled", "href", "src", "start", "title", "type", "align"],
  ALLOWED_URI_REGEXP: /^(?:https?:|mailto:|data:image\/(?:png|jpeg|gif|webp);)/i,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (/** @type {Element} */ node) => {
  if (node.tagName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  } else if (node.tagName === "IMG" && !node.getAttribute("src")?.startsWith("data:")) {
    // The page loads nothing from elsewhere: the picture becomes a link that a person may follow.
    const link = document.createElement("a");
    const address = node.getAttribute("src");
    if (address) Object.assign(link, { href: address, target: "_blank", rel: "noopener noreferrer nofollow" });
    link.textContent = node.getAttribute("alt") || address || "image";
    node.replaceWith(link);
  } else if (node.tagName === "INPUT") {
    if (node.getAttribute("type") !== "checkbox") node.remove();
    else node.setAttribute("disabled", "");
  }
});

/** @type {WeakMap<Element, {raw: string, nodes: Node[]}[]>} */
const shown = new WeakMap();
/** @type {WeakMap<Element, string>} */
const texts = new WeakMap();

/**
 * Shows Markdown in an element. Blocks that did not change since the last call stay as they are, so an answer that grows
 * costs its last block only.
 *
 * @param {Element} element @param {string} text
 */
export function showMarkdown(element, text) {
  if (texts.get(element) === text) return;
  texts.set(element, text);
  try {
    showBlocks(element, text);
  } catch (problem) {
    // Thousands of nested quotes are too deep for the parser.
    console.warn(problem);
    shown.delete(element);
    element.replaceChildren(text);
  }
}

/** @param {Element} element @param {string} text */
function showBlocks(element, text) {
  const blocks = marked.lexer(text).filter((/** @type {any} */ block) => block.type !== "space");
  const old = shown.get(element) ?? [];
  let same = 0;
  while (same < blocks.length && same < old.length && old[same].raw === blocks[same].raw) same += 1;
  for (const { nodes } of old.slice(same)) for (const node of nodes) node.parentNode?.removeChild(node);
  const kept = old.slice(0, same);
  for (const block of blocks.slice(same)) {
    const fragment = /** @type {DocumentFragment} */ (DOMPurify.sanitize(marked.parser([block]), ALLOWED));
    kept.push({ raw: block.raw, nodes: [...fragment.childNodes] });
    element.append(fragment);
  }
  shown.set(element, kept);
}

/** Colours the code of an element. The library is loaded when it is first needed. @param {Element} element */
export async function highlightCode(element) {
  const blocks = [...element.querySelectorAll("pre code:not([data-coloured])")];
  if (!blocks.length) return;
  const { hljs } = await import("../../vendor/highlight.js");
  for (const block of blocks) {
    const language = /language-(\S+)/.exec(block.className)?.[1];
    const text = block.textContent ?? "";
    block.setAttribute("data-coloured", "");
    if (!language || !hljs.getLanguage(language) || text.length > 20_000) continue;
    const coloured = hljs.highlight(text, { language, ignoreIllegals: true }).value;
    const fragment = DOMPurify.sanitize(coloured, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
    block.replaceChildren(fragment);
  }
}
