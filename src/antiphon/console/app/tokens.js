/**
 * The tokens of an answer, with what else the model could have said.
 *
 * @typedef {{text: string, bytes: number[] | null, logprob: number, top: {text: string, logprob: number}[],
 *   origin?: "forced" | "drafted"}} Token
 */

/** Where a token comes from, if the model did not simply draw it. */
export const ORIGINS = {
  forced: "forced: the schema or grammar left no other token",
  drafted: "drafted: computed ahead, and confirmed by the draw",
};

/** Keeps an origin that is known. @param {any} origin @returns {Pick<Token, "origin">} */
export const readOrigin = (origin) => (Object.hasOwn(ORIGINS, String(origin)) ? { origin } : {});

/** Reads OpenAI's log-probabilities. @param {any} logprobs @returns {Token[]} */
export const readTokens = (logprobs) =>
  (logprobs?.content ?? []).map((/** @type {any} */ token) => ({
    text: token.token, bytes: token.bytes ?? null, logprob: token.logprob,
    top: token.top_logprobs.map((/** @type {any} */ other) => ({ text: other.token, logprob: other.logprob })),
    ...readOrigin(token.origin),
  }));

/** Reads the log-probabilities of a text completion; the first token of an echoed prompt has none. @param {any} logprobs @returns {Token[]} */
export const readTextTokens = (logprobs) =>
  (logprobs?.tokens ?? []).map((/** @type {string} */ text, /** @type {number} */ index) => ({
    text, bytes: null, logprob: logprobs.token_logprobs[index] ?? NaN,
    top: Object.entries(logprobs.top_logprobs?.[index] ?? {})
      .map(([other, logprob]) => ({ text: other, logprob: Number(logprob) }))
      .sort((one, other) => other.logprob - one.logprob),
  }));

/** Returns how sure the model was, as a class of five: 0 is least, 4 is most. @param {number} logprob */
export function classify(logprob) {
  const probability = Math.exp(logprob);
  return [0.05, 0.25, 0.6, 0.9].filter((border) => probability >= border).length;
}

/**
 * Returns the entropy in bits of what is known: the alternatives, and all others as one.
 *
 * @param {Token} token
 */
export function measureEntropy(token) {
  const shares = token.top.map(({ logprob }) => Math.exp(logprob));
  const rest = 1 - shares.reduce((sum, share) => sum + share, 0);
  return [...shares, rest].filter((share) => share > 1e-9).reduce((sum, share) => sum - share * Math.log2(share), 0);
}

/** Returns a token's text with signs for what is invisible. @param {string} text */
export const showWhitespace = (text) => text.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ +| +$/g, (run) => "·".repeat(run.length));

/**
 * Returns the text before a token, from the bytes if they are known: one character can be several tokens.
 *
 * @param {Token[]} tokens @param {number} index
 */
export function joinBefore(tokens, index) {
  const before = tokens.slice(0, index);
  if (before.every((token) => token.bytes)) {
    return new TextDecoder().decode(Uint8Array.from(before.flatMap((token) => /** @type {number[]} */ (token.bytes))));
  }
  return before.map((token) => token.text).join("");
}
