// Runs the scenarios of tests/contract/sdks with the AI SDK, over both of its providers, and with npm's openai.
//
// Each line of standard input: {"base_url", "model", "runs": [[client, scenario], ...]}, and the client is `ai_sdk_compatible`,
// `ai_sdk_openai`, `ai_sdk_openai@responses` or `npm_openai`. A line of standard output: a list with the `result` or the `error` of each run.
import { respondToLines } from "./lines.mjs";

const QUESTIONS = ["Who are you?", "What can you do?"];
const WEATHER_QUESTION = "What is the weather in Berlin?";
const PERSON_QUESTION = "Name somebody, and say how old they are.";
const TOO_LONG = "water and bread ".repeat(3000);

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
  const provider =
    kind === "ai_sdk_compatible"
      ? (await import("@ai-sdk/openai-compatible")).createOpenAICompatible(options)
      : (await import("@ai-sdk/openai")).createOpenAI(options);
  const model = kind === "ai_sdk_openai" ? provider.chat(name) : provider(name);
  const usual = { model, temperature: 0, maxOutputTokens: 120, maxRetries: 0 };
  const person = Output.object({ schema: z.object({ name: z.string().max(12), age: z.int().min(0).max(120) }) });
  const tools = (getWeather) => ({
    get_weather: tool({
      description: "Get the weather of a city.",
      inputSchema: z.object({ city: z.string() }),
      execute: getWeather,
    }),
  });

  // What both ways give: the text, the output where one is asked for, and the messages that go into the next turn.
  const answer = async (stream, asked) => {
    if (!stream) return generateText({ ...usual, ...asked });
    const made = streamText({ ...usual, ...asked, onError: () => {} });
    await made.consumeStream();
    return { text: await made.text, responseMessages: await made.responseMessages };
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
    const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
    const described = { name: "get_weather", description: "Get the weather of a city.", parameters };
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

const run = async (told, client, scenario) => {
  try {
    const scenarios = client === "npm_openai" ? await withOpenAI(told) : await withAiSdk(client, told);
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
