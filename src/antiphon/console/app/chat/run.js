import { stream } from "../lib/api.js";
import { readTextTokens, readTokens } from "../tokens.js";

/**
 * Sends a request and reports the growing answer. Returns when it is whole; throws a ServerError if it breaks, and what
 * came until then has been reported.
 *
 * @param {string} path @param {any} body @param {AbortSignal} signal
 * @param {(answer: Partial<import("./tree.js").Node>) => void} report called for each chunk
 */
export async function runRequest(path, body, signal, report) {
  const began = performance.now();
  const { messages, ...fields } = body;
  /** @type {import("./tree.js").Facts} */
  const facts = { model: body.model, requestId: null, body: fields };
  /** @type {Partial<import("./tree.js").Node>} */
  const answer = { text: "", reasoning: "", calls: [], tokens: [], facts };
  const sent = { ...body, stream: true, stream_options: { include_usage: true } };
  for await (const chunk of stream(path, sent, signal, (response) => {
    facts.requestId = response.headers.get("x-request-id");
    facts.route = response.headers.get("x-antiphon-route");
    facts.ignored = response.headers.get("x-antiphon-ignored");
    report(answer);
  })) {
    const choice = chunk.choices?.[0];
    if (choice) {
      const delta = choice.delta ?? {};
      const text = choice.text ?? delta.content ?? "";
      const reasoning = delta.reasoning ?? delta.reasoning_content ?? "";
      if (facts.firstMs === undefined && (text || reasoning || delta.tool_calls)) facts.firstMs = performance.now() - began;
      answer.text += text;
      answer.reasoning += reasoning;
      for (const part of delta.tool_calls ?? []) addCallPart(/** @type {any[]} */ (answer.calls), part);
      const tokens = choice.delta ? readTokens(choice.logprobs) : readTextTokens(choice.logprobs);
      if (tokens.length) answer.tokens?.push(...tokens);
      if (choice.finish_reason) facts.finish = choice.finish_reason;
    }
    if (chunk.references) facts.references = chunk.references;
    if (chunk.usage) {
      facts.promptTokens = chunk.usage.prompt_tokens;
      facts.cachedTokens = chunk.usage.prompt_tokens_details?.cached_tokens ?? 0;
      facts.outputTokens = chunk.usage.completion_tokens;
    }
    facts.totalMs = performance.now() - began;
    report(answer);
  }
  facts.totalMs = performance.now() - began;
  report(answer);
}

/** @param {{id: string, name: string, arguments: string}[]} calls @param {any} part */
function addCallPart(calls, part) {
  calls[part.index] ??= { id: "", name: "", arguments: "" };
  const call = calls[part.index];
  if (part.id) call.id = part.id;
  if (part.function?.name) call.name += part.function.name;
  call.arguments += part.function?.arguments ?? "";
}
