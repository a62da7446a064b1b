// The tool loop of npm's openai, unchanged: it calls a function of ours with what the model asked for, and goes on.
//
// Each line of standard input: {"base_url", "body"}, a body of a chat without tools. A line of standard output: {"called", "final", "messages"}.
import OpenAI from "openai";
import { respondToLines } from "./lines.mjs";

await respondToLines(async ({ base_url: baseURL, body }) => {
  const client = new OpenAI({ baseURL, apiKey: "none", maxRetries: 0, timeout: 50_000, logLevel: "off" });
  const called = [];
  const weather = {
    type: "function",
    function: {
      name: "get_weather",
      description: "Get the weather of a city.",
      parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
      parse: JSON.parse,
      function: (given) => {
        called.push(given);
        return JSON.stringify({ weather: "sunny" });
      },
    },
  };
  const runner = client.chat.completions.runTools({ ...body, tools: [weather] });
  const final = await runner.finalContent();
  return { called, final, messages: runner.messages };
});
