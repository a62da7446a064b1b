// Makes calls with npm's openai, unchanged, and prints what it gives back, as JSON.
//
// Each line of standard input: {"base_url", "calls": [{"call": "chat.completions.create", "with": [...], "leave_after"?, "signal_ms"?}]}.
// A line of standard output: a list with {"answer"}, {"chunks"} and {"error"} of each call, in order. "leave_after" leaves a stream
// after so many chunks; "signal_ms" gives the call an AbortSignal that fires after so many milliseconds.
import OpenAI from "openai";
import { respondToLines } from "./lines.mjs";

const told = (error) => ({
  class: error.constructor.name,
  message: error.message,
  status: error.status ?? null,
  code: error.code ?? null,
  param: error.param ?? null,
  type: error.type ?? null,
  request_id: error.requestID ?? null,
  retry_after: error.headers?.get("retry-after") ?? null,
});

const method = (client, path) => {
  const names = path.split(".");
  const last = names.pop();
  const owner = names.reduce((found, name) => found[name], client);
  return owner[last].bind(owner);
};

const gather = async (stream, leaveAfter, chunks) => {
  for await (const chunk of stream) {
    chunks.push(chunk);
    if (chunks.length === leaveAfter) {
      stream.controller.abort();
      break;
    }
  }
};

const make = async (client, { call, with: given, leave_after: leaveAfter, signal_ms: patience }) => {
  const chunks = [];
  try {
    const options = patience ? [{ signal: AbortSignal.timeout(patience) }] : [];
    const made = method(client, call)(...given, ...options);
    // The stream helper is one before it is awaited; so is a page of a list.
    if (typeof made.finalChatCompletion === "function") {
      await gather(made, leaveAfter, chunks);
      return { chunks, answer: await made.finalChatCompletion() };
    }
    const answer = await made;
    if (typeof answer[Symbol.asyncIterator] !== "function") return { answer, request_id: answer._request_id ?? null };
    await gather(answer, leaveAfter, chunks);
    return { chunks };
  } catch (error) {
    return { chunks, error: told(error) };
  }
};

await respondToLines(async ({ base_url: baseURL, calls }) => {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 50_000, logLevel: "off" });
  const results = [];
  for (const call of calls) results.push(await make(client, call));
  return results;
});
