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

/** The most characters of a block of code that is coloured: more would hold up the page. */
const MOST_COLOURED = 20_000;

/**
 * What an element shows of a text. The first `closed` blocks are finished: they are not parsed again, and their nodes
 * stay. The others begin at `begin` in the text.
 *
 * @typedef {{text: string, isOpen: boolean, blocks: Block[], closed: number, begin: number, links: Record<string, any>}} Shown
 * @typedef {{raw: string, type: string, lang?: string, nodes: Node[]}} Block
 */

/** @type {WeakMap<Element, Shown>} */
const states = new WeakMap();

/**
 * Shows Markdown in an element. A text that grows costs its open blocks only. These are the last two: the first line of
 * the last one can still make it a part of the one before. Code is coloured when its block is finished.
 *
 * @param {Element} element @param {string} text @param {boolean} isOpen whether more text follows
 */
export function showMarkdown(element, text, isOpen = false) {
  let shown = states.get(element);
  if (shown?.text === text && shown.isOpen === isOpen) return;
  if (!shown || !text.startsWith(shown.text)) {
    element.replaceChildren();
    shown = { text: "", isOpen: true, blocks: [], closed: 0, begin: 0, links: {} };
    states.set(element, shown);
  }
  try {
    showBlocks(element, shown, text, isOpen);
  } catch (problem) {
    // Thousands of nested quotes are too deep for the parser.
    console.warn(problem);
    states.delete(element);
    element.replaceChildren(text);
  }
}

/** @param {Element} element @param {Shown} shown @param {string} text @param {boolean} isOpen */
function showBlocks(element, shown, text, isOpen) {
  if (!isOpen || !shown.isOpen) {
    // A whole text is shown as a reload shows it, so all of it is read once more. A link can be defined after its use.
    shown.closed = shown.begin = 0;
    if (Object.keys(shown.links).length) replaceBlocks(element, shown, 0, []);
  }
  const lexer = /** @type {any} */ (new marked.Lexer());
  Object.assign(lexer.tokens.links, shown.links);
  const tokens = lexer.lex(text.slice(shown.begin));
  const blocks = tokens.filter((/** @type {any} */ token) => token.type !== "space");
  let same = 0;
  while (same < blocks.length && blocks[same].raw === shown.blocks[shown.closed + same]?.raw) same += 1;
  replaceBlocks(element, shown, shown.closed + same, blocks.slice(same));
  Object.assign(shown, { text, isOpen, links: { ...lexer.tokens.links } });
  const first = shown.closed;
  let finished = isOpen ? blocks.length - 2 : blocks.length;
  for (const token of tokens) {
    const isBlock = token.type !== "space";
    // The parser changes some texts, such as the ends of lines. What follows is then parsed again each time.
    if ((isBlock && finished-- <= 0) || !text.startsWith(token.raw, shown.begin)) break;
    shown.begin += token.raw.length;
    shown.closed += Number(isBlock);
  }
  colourCode(shown.blocks.slice(first, isOpen ? shown.closed : undefined)).catch(() => {
    // Without colours the code is as readable; the library is loaded from a server that can be away.
  });
}

/** Shows other blocks in place of those from an index on. @param {Element} element @param {Shown} shown @param {number} index @param {any[]} blocks */
function replaceBlocks(element, shown, index, blocks) {
  const old = shown.blocks.splice(index);
  const code = old[0]?.type === "code" && blocks[0]?.type === "code" && old[0].lang === blocks[0].lang ? findCode(old[0])[0] : null;
  if (code) {
    // Code is one block until its end, so its text grows in place.
    code.textContent = blocks[0].text.replace(/\n?$/, blocks[0].text ? "\n" : "");
    code.removeAttribute("data-coloured");
    shown.blocks.push({ ...old[0], raw: blocks[0].raw });
  }
  for (const { nodes } of code ? old.slice(1) : old) for (const node of nodes) node.parentNode?.removeChild(node);
  for (const block of code ? blocks.slice(1) : blocks) {
    const fragment = /** @type {DocumentFragment} */ (DOMPurify.sanitize(marked.parser([block]), ALLOWED));
    shown.blocks.push({ raw: block.raw, type: block.type, lang: block.lang, nodes: [...fragment.childNodes] });
    element.append(fragment);
  }
}

/** Returns the code in a block; a list can have several pieces. @param {Block} block @returns {Element[]} */
const findCode = ({ nodes }) => nodes.flatMap((node) => (node instanceof Element ? [...node.querySelectorAll("pre > code")] : []));

/** Colours code, each piece in a task of its own. The library is loaded when it is first needed. @param {Block[]} blocks */
async function colourCode(blocks) {
  const places = blocks.flatMap(findCode).filter((place) => !place.hasAttribute("data-coloured"));
  if (!places.length) return;
  const { hljs } = await import("../../vendor/highlight.js");
  for (const place of places) {
    await new Promise((resume) => setTimeout(resume));
    const language = /language-(\S+)/.exec(place.className)?.[1];
    const text = place.textContent ?? "";
    place.setAttribute("data-coloured", "");
    if (!language || !hljs.getLanguage(language) || text.length > MOST_COLOURED) continue;
    const coloured = hljs.highlight(text, { language, ignoreIllegals: true }).value;
    const fragment = DOMPurify.sanitize(coloured, { ALLOWED_TAGS: ["span"], ALLOWED_ATTR: ["class"], RETURN_DOM_FRAGMENT: true });
    place.replaceChildren(fragment);
  }
}
