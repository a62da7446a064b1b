// Runs the scenarios of tests/contract/sdks with the AI SDK, over three of its providers, and with npm's openai and @anthropic-ai/sdk.
//
// Each line of standard input: {"base_url", "model", "runs": [[client, scenario], ...]}, and the client is a key of CLIENTS below. A line of
// standard output: a list with the `result` or the `error` of each run.
import { respondToLines } from "./lines.mjs";

globalThis.AI_SDK_LOG_WARNINGS = false;

const QUESTIONS = ["Who are you?", "What can you do?"];
const WEATHER_QUESTION = "What is the weather in Berlin?";
const PERSON_QUESTION = "Name somebody, and say how old they are.";
const TOO_LONG = "water and bread ".repeat(3000);
const WEATHER = "Get the weather of a city.";
const CITY = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };

const weather = () => {
  const cities = [];
  return {
    cities,
    getWeather: ({ city }) => {
      cities.push(city);
      return `It is sunny in ${city}.`;
    },
  };
};

const withAiSdk = async (kind, { base_url: baseURL, model: name }) => {
  const { embedMany, generateText, isStepCount, Output, streamText, tool } = await import("ai");
  const { z } = await import("zod");
  const options = { baseURL, apiKey: "none", name: "antiphon", supportsStructuredOutputs: true };
  const providers = {
    ai_sdk_compatible: async () => (await import("@ai-sdk/openai-compatible")).createOpenAICompatible(options),
    ai_sdk_openai: async () => (await import("@ai-sdk/openai")).createOpenAI(options),
    ai_sdk_anthropic: async () => (await import("@ai-sdk/anthropic")).createAnthropic(options),
  };
  const provider = await providers[kind.split("@")[0]]();
  const model = kind === "ai_sdk_openai" ? provider.chat(name) : provider(name);
  const usual = { model, temperature: 0, maxOutputTokens: 120, maxRetries: 0 };
  const person = Output.object({ schema: await makePerson() });
  const tools = (getWeather) => ({
    get_weather: tool({
      description: WEATHER,
      inputSchema: z.object({ city: z.string() }),
      execute: getWeather,
    }),
  });

  // Without the store of responses, reasoning goes back sealed.
  const thinking = {
    openai: { store: false, include: ["reasoning.encrypted_content"], forceReasoning: true, reasoningSummary: "auto" },
  };

  // What both ways give: the text, the output where one is asked for, and the messages that go into the next turn.
  const answer = async (stream, asked) => {
    if (!stream) return generateText({ ...usual, ...asked });
    const made = streamText({ ...usual, ...asked, onError: () => {} });
    await made.consumeStream();
    return { text: await made.text, responseMessages: await made.responseMessages, steps: await made.steps };
  };

  const followCalls = async (stream, more = {}) => {
    const { cities, getWeather } = weather();
    const asked = { prompt: WEATHER_QUESTION, tools: tools(getWeather), stopWhen: isStepCount(3), ...more };
    return { cities, made: await answer(stream, asked) };
  };

  return {
    talk: async () => {
      const texts = [];
      for (const stream of [false, true]) {
        const messages = [];
        for (const content of QUESTIONS) {
          messages.push({ role: "user", content });
          const made = await answer(stream, { messages });
          messages.push(...made.responseMessages);
          texts.push(made.text);
        }
      }
      return texts;
    },
    call_tools: async () => {
      const { cities, made } = await followCalls(false);
      return { cities, text: made.text };
    },
    stream_tools: async () => {
      const { cities, made } = await followCalls(true);
      return { cities, text: made.text };
    },
    think: async () => {
      const { made } = await followCalls(false, { stopWhen: isStepCount(9), providerOptions: thinking });
      return { text: made.text, reasoning: made.steps.map((step) => step.reasoningText) };
    },
    stream_think: async () => {
      const { made } = await followCalls(true, { stopWhen: isStepCount(9), providerOptions: thinking });
      return { text: made.text, reasoning: made.steps.map((step) => step.reasoningText) };
    },
    structure: async () => {
      const { output } = await generateText({ ...usual, prompt: PERSON_QUESTION, output: person });
      return { output_object: output };
    },
    structure_beside_tools: async () => {
      const { cities, made } = await followCalls(false, {
        output: person,
        // So small a model would call for ever, where it may.
        prepareStep: ({ stepNumber }) => (stepNumber > 0 ? { toolChoice: "none" } : {}),
      });
      return { cities, person: made.output };
    },
    stream_structure: async () => {
      const made = streamText({ ...usual, prompt: PERSON_QUESTION, output: person });
      const pieces = [];
      for await (const piece of made.partialOutputStream) pieces.push(piece);
      return { pieces: pieces.length, person: await made.output };
    },
    overflow: async () => {
      try {
        await generateText({ ...usual, prompt: TOO_LONG });
      } catch (error) {
        const { code, message } = JSON.parse(error.responseBody).error;
        return { classes: [error.name], status: error.statusCode, code, text: message };
      }
      return {};
    },
    embed: async () => {
      const { embeddings } = await embedMany({
        model: provider.embeddingModel("encoder"),
        values: ["water", "bread"],
      });
      return embeddings.map((each) => each.length);
    },
  };
};

const withOpenAI = async ({ base_url: baseURL, model }) => {
  const { default: OpenAI } = await import("openai");
  const { completions } = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 50_000, logLevel: "off" }).chat;
  const usual = { model, temperature: 0, max_tokens: 120 };

  const answer = async (stream, messages) => {
    const made = stream
      ? await completions.stream({ ...usual, messages }).finalChatCompletion()
      : await completions.create({ ...usual, messages });
    return made.choices[0].message;
  };

  // The client's own tool loop.
  const followCalls = async (stream) => {
    const { cities, getWeather } = weather();
    const described = { name: "get_weather", description: WEATHER, parameters: CITY };
    const made = { type: "function", function: { ...described, parse: JSON.parse, function: getWeather } };
    const messages = [{ role: "user", content: WEATHER_QUESTION }];
    return { cities, text: await completions.runTools({ ...usual, messages, tools: [made], stream }).finalContent() };
  };

  return {
    talk: async () => {
      const texts = [];
      for (const stream of [false, true]) {
        const messages = [];
        for (const content of QUESTIONS) {
          messages.push({ role: "user", content });
          messages.push(await answer(stream, messages));
          texts.push(messages.at(-1).content);
        }
      }
      return texts;
    },
    call_tools: () => followCalls(false),
    stream_tools: () => followCalls(true),
  };
};

const makePerson = async () => {
  const { z } = await import("zod");
  return z.object({ name: z.string().max(12), age: z.int().min(0).max(120) });
};

// Responses by npm's openai: streamed by its helper, parsed, and continued both by the items and by the id of the answer before.
const withResponses = async ({ base_url: baseURL, model }) => {
  const { default: OpenAI } = await import("openai");
  const { zodTextFormat } = await import("openai/helpers/zod");
  const { responses } = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 50_000, logLevel: "off" });
  const usual = { model, temperature: 0, max_output_tokens: 120 };

  const answer = (stream, asked) =>
    stream ? responses.stream({ ...usual, ...asked }).finalResponse() : responses.create({ ...usual, ...asked });

  const followCalls = async (stream) => {
    const { cities, getWeather } = weather();
    const tools = [{ type: "function", name: "get_weather", description: WEATHER, parameters: CITY, strict: false }];
    const input = [{ role: "user", content: WEATHER_QUESTION }];
    const first = await answer(stream, { input, tools });
    input.push(...first.output);
    for (const { type, call_id, arguments: given } of first.output) {
      if (type !== "function_call") continue;
      input.push({ type: "function_call_output", call_id, output: getWeather(JSON.parse(given)) });
    }
    return { cities, text: (await answer(stream, { input, tools })).output_text };
  };

  const askPerson = async () => ({
    input: PERSON_QUESTION,
    text: { format: zodTextFormat(await makePerson(), "person") },
  });

  return {
    talk: async () => {
      const [first, second] = QUESTIONS;
      const whole = await answer(false, { input: first });
      const chained = await answer(false, { input: second, previous_response_id: whole.id });
      const streamed = await answer(true, { input: first });
      const input = [{ role: "user", content: first }, ...streamed.output, { role: "user", content: second }];
      return [whole, chained, streamed, await answer(true, { input })].map((each) => each.output_text);
    },
    call_tools: () => followCalls(false),
    stream_tools: () => followCalls(true),
    structure: async () => ({ parse: (await responses.parse({ ...usual, ...(await askPerson()) })).output_parsed }),
    stream_structure: async () => {
      const made = responses.stream({ ...usual, ...(await askPerson()) });
      let pieces = 0;
      made.on("response.output_text.delta", () => (pieces += 1));
      const { output_parsed: person } = await made.finalResponse();
      return { pieces, person };
    },
    overflow: async () => {
      try {
        await answer(false, { input: TOO_LONG });
      } catch (error) {
        return { classes: [error.constructor.name], status: error.status, code: error.code, text: error.message };
      }
      return {};
    },
    keep: async () => {
      const made = await answer(false, { input: QUESTIONS[0] });
      const kept = await responses.retrieve(made.id);
      const items = [];
      for await (const item of responses.inputItems.list(made.id)) items.push(item);
      await responses.delete(made.id);
      const missing = await responses.retrieve(made.id).catch((error) => error.constructor.name);
      return { texts: [made.output_text, kept.output_text], asked: items[0].content[0].text, missing };
    },
  };
};

const withAnthropic = async ({ base_url, model }) => {
  const { default: Anthropic } = await import("@anthropic-ai/sdk");
  const { jsonSchemaOutputFormat } = await import("@anthropic-ai/sdk/helpers/json-schema");
  const baseURL = base_url.replace(/\/v1$/, "");
  const { messages } = new Anthropic({ baseURL, apiKey: "none", maxRetries: 0, timeout: 50_000, logLevel: "off" });
  const usual = { model, temperature: 0, max_tokens: 120 };

  const answer = (stream, asked) =>
    stream ? messages.stream({ ...usual, ...asked }).finalMessage() : messages.create({ ...usual, ...asked });
  const textOf = ({ content }) => content.map((block) => block.text ?? "").join("");

  // Turns until the model calls no tool, with the answers' blocks sent back as they came.
  const followCalls = async (stream, more = {}) => {
    const { cities, getWeather } = weather();
    const tools = [{ name: "get_weather", description: WEATHER, input_schema: CITY }];
    const told = [{ role: "user", content: WEATHER_QUESTION }];
    let made = await answer(stream, { messages: told, tools, ...more });
    while (made.stop_reason === "tool_use") {
      const calls = made.content.filter(({ type }) => type === "tool_use");
      const results = calls.map(({ id, input }) => ({ type: "tool_result", tool_use_id: id, content: getWeather(input) }));
      told.push({ role: "assistant", content: made.content }, { role: "user", content: results });
      made = await answer(stream, { messages: told, tools, ...more });
    }
    return { cities, text: textOf(made), blocks: told.filter(({ role }) => role === "assistant").map(({ content }) => content) };
  };

  // The client would move bounds, which Anthropic does not keep, into descriptions.
  const person = {
    type: "object",
    properties: { name: { type: "string", maxLength: 12 }, age: { type: "integer", minimum: 0, maximum: 120 } },
    required: ["name", "age"],
    additionalProperties: false,
  };
  const asked = {
    messages: [{ role: "user", content: PERSON_QUESTION }],
    output_config: { format: jsonSchemaOutputFormat(person, { transform: false }) },
  };

  return {
    talk: async () => {
      const texts = [];
      for (const stream of [false, true]) {
        const told = [];
        for (const content of QUESTIONS) {
          told.push({ role: "user", content });
          const made = await answer(stream, { messages: told });
          told.push({ role: "assistant", content: made.content });
          texts.push(textOf(made));
        }
      }
      return texts;
    },
    call_tools: async () => {
      const { cities, text } = await followCalls(false);
      return { cities, text };
    },
    stream_tools: async () => {
      const { cities, text } = await followCalls(true);
      return { cities, text };
    },
    think: () => followCalls(false, { thinking: { type: "adaptive" } }),
    stream_think: () => followCalls(true, { thinking: { type: "adaptive" } }),
    structure: async () => ({ parse: (await messages.parse({ ...usual, ...asked })).parsed_output }),
    stream_structure: async () => {
      const made = messages.stream({ ...usual, ...asked });
      let pieces = 0;
      made.on("text", () => (pieces += 1));
      const { parsed_output: person } = await made.finalMessage();
      return { pieces, person };
    },
    overflow: async () => {
      try {
        await answer(false, { messages: [{ role: "user", content: TOO_LONG }] });
      } catch (error) {
        return { classes: [error.constructor.name], status: error.status, text: error.message };
      }
      return {};
    },
  };
};

const CLIENTS = {
  ai_sdk_compatible: (told) => withAiSdk("ai_sdk_compatible", told),
  ai_sdk_openai: (told) => withAiSdk("ai_sdk_openai", told),
  "ai_sdk_openai@responses": (told) => withAiSdk("ai_sdk_openai@responses", told),
  "ai_sdk_anthropic@messages": (told) => withAiSdk("ai_sdk_anthropic@messages", told),
  npm_openai: withOpenAI,
  "npm_openai@responses": withResponses,
  "npm_anthropic@messages": withAnthropic,
};

const run = async (told, client, scenario) => {
  try {
    const scenarios = await CLIENTS[client](told);
    return { result: await scenarios[scenario]() };
  } catch (error) {
    return { error: `${error.stack}\n${JSON.stringify(error.responseBody ?? null)}` };
  }
};

await respondToLines(async (told) => {
  const results = [];
  for (const [client, scenario] of told.runs) results.push(await run(told, client, scenario));
  return results;
});
