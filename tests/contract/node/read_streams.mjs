// Reads streams with npm's openai, @anthropic-ai/sdk and the AI SDK, and prints what each makes of them.
//
// Each line of standard input: {"base_url", "runs": [[client, number], ...]}; below base_url/number is a server that answers with one
// stream. A line of standard output: what was shown and the answer, or the error, of each run.
import { respondToLines } from "./lines.mjs";

const usual = { apiKey: "none", maxRetries: 0, timeout: 30_000, logLevel: "off" };
const asked = { role: "user", content: "Hi" };

// What an application gets on the way: deltas, joined by their places, and what else the client tells, in order.
const makeShown = () => {
  const shown = { told: [] };
  return {
    shown,
    show: (place, text) => (shown[place] = (shown[place] ?? "") + text),
    tell: (...told) => shown.told.push(structuredClone(told)),
  };
};

const withOpenAI = async () => {
  const { default: OpenAI } = await import("openai");
  return async (baseURL) => {
    const { shown, show } = makeShown();
    const { responses } = new OpenAI({ ...usual, baseURL: `${baseURL}/v1` });
    const stream = responses.stream({ model: "m", input: "Hi" });
    stream.on("event", ({ type, item_id, delta }) => delta !== undefined && show(`${type} ${item_id}`, delta));
    return { shown, read: () => stream.finalResponse() };
  };
};

const withAnthropic = async () => {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  return async (baseURL) => {
    const { shown, show, tell } = makeShown();
    const { messages } = new Anthropic({ ...usual, baseURL });
    const stream = messages.stream({ model: "m", max_tokens: 100, messages: [asked] });
    stream.on("text", (text) => show("text", text));
    stream.on("thinking", (text) => show("thinking", text));
    stream.on("inputJson", (text) => show("input", text));
    stream.on("contentBlock", (block) => tell(block));
    stream.on("message", (message) => tell(message.stop_reason));
    return { shown, read: () => stream.finalMessage() };
  };
};

const withAiSdk = async (provider) => {
  const { streamText, tool } = await import("ai");
  const { z } = await import("zod");
  const tools = { get_weather: tool({ description: "Weather", inputSchema: z.object({ city: z.string() }) }) };
  return async (baseURL) => {
    const { shown, show, tell } = makeShown();
    const model = (await provider(`${baseURL}/v1`))("m");
    const made = streamText({ model, messages: [asked], tools, maxOutputTokens: 100, maxRetries: 0, onError: () => {} });
    const read = async () => {
      const errors = [];
      for await (const part of made.fullStream) {
        if (part.type === "error") errors.push(String(part.error?.message ?? part.error));
        else if (part.text ?? part.delta) show(`${part.type} ${part.id}`, part.text ?? part.delta);
        else tell(part.type, part.id);
      }
      const { reasoningText, text, toolCalls, finishReason, usage, content } = made;
      return Promise.all([errors, reasoningText, text, toolCalls, finishReason, usage, content]);
    };
    return { shown, read };
  };
};

globalThis.AI_SDK_LOG_WARNINGS = false;

const CLIENTS = {
  npm_openai: withOpenAI,
  npm_anthropic: withAnthropic,
  ai_sdk_openai: () =>
    withAiSdk(async (baseURL) => (await import("@ai-sdk/openai")).createOpenAI({ baseURL, apiKey: "none" })),
  ai_sdk_anthropic: () =>
    withAiSdk(async (baseURL) => (await import("@ai-sdk/anthropic")).createAnthropic({ baseURL, apiKey: "none" })),
};

const run = async (open, baseURL) => {
  const { shown, read } = await open(baseURL);
  try {
    return { shown, answer: await read() };
  } catch (error) {
    return { shown, error: error.message };
  }
};

const opened = {};

await respondToLines(async ({ base_url: baseURL, runs }) => {
  const results = [];
  for (const [client, number] of runs) {
    opened[client] ??= await CLIENTS[client]();
    results.push(await run(opened[client], `${baseURL}/${number}`));
  }
  return results;
});
