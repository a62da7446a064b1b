/** Writes a request as a program. The key is read from the environment, so that nobody pastes it into a file. */

/** @param {any} value @param {number} indent @returns {string} */
function writePython(value, indent = 0) {
  const pad = "    ".repeat(indent + 1);
  const end = "    ".repeat(indent);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const isList = Array.isArray(value);
  const items = isList
    ? value.map((item) => writePython(item, indent + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${writePython(item, indent + 1)}`);
  if (!items.length) return isList ? "[]" : "{}";
  const lines = items.map((item) => `${pad}${item},\n`).join("");
  return isList ? `[\n${lines}${end}]` : `{\n${lines}${end}}`;
}

/** @param {string} root @param {string} path @param {any} body @param {boolean} needsKey */
export function writeCurl(root, path, body, needsKey) {
  const quoted = JSON.stringify(body, null, 2).replaceAll("'", "'\\''");
  const key = needsKey ? ' \\\n  -H "Authorization: Bearer $ANTIPHON_API_KEY"' : "";
  return `curl -s ${new URL(path, root)}${key} \\\n  -H 'Content-Type: application/json' \\\n  -d '${quoted}'\n`;
}

/** Fields that OpenAI's clients know; the others go into extra_body. */
const KNOWN = new Set(
  ("model messages prompt max_tokens max_completion_tokens temperature top_p n stop seed presence_penalty frequency_penalty " +
    "logit_bias logprobs top_logprobs tools tool_choice parallel_tool_calls response_format stream stream_options user " +
    "metadata reasoning_effort verbosity service_tier prediction modalities audio best_of echo suffix").split(" "),
);

/** @param {string} root @param {string} path @param {any} body @param {boolean} needsKey */
export function writeOpenaiPython(root, path, body, needsKey) {
  const [known, extra] = splitFields(body);
  const call = path.endsWith("chat/completions") ? "chat.completions" : "completions";
  const parts = Object.entries(known).map(([name, value]) => `    ${name}=${writePython(value, 1)},\n`);
  if (Object.keys(extra).length) parts.push(`    extra_body=${writePython(extra, 1)},\n`);
  const key = needsKey ? 'os.environ["ANTIPHON_API_KEY"]' : '"none"';
  const text = call === "completions" ? "text" : "message.content";
  const shown = body.stream
    ? `for chunk in answer:\n    if chunk.choices:\n        print(chunk.choices[0].${call === "completions" ? "text" : "delta.content"} or "", end="", flush=True)\n`
    : `print(answer.choices[0].${text})\n`;
  return `${needsKey ? "import os\n\n" : ""}from openai import OpenAI\n\nclient = OpenAI(base_url="${new URL("v1", root)}", api_key=${key})\n` +
    `answer = client.${call}.create(\n${parts.join("")})\n${shown}`;
}

/** @param {string} root @param {string} path @param {any} body @param {boolean} needsKey */
export function writeOpenaiNode(root, path, body, needsKey) {
  const call = path.endsWith("chat/completions") ? "chat.completions" : "completions";
  const key = needsKey ? "process.env.ANTIPHON_API_KEY" : '"none"';
  const value = JSON.stringify(body, null, 2);
  const text = call === "completions" ? "text" : body.stream ? "delta.content" : "message.content";
  const shown = body.stream
    ? `for await (const chunk of answer) process.stdout.write(chunk.choices[0]?.${text} ?? "");\n`
    : `console.log(answer.choices[0].${text});\n`;
  return `import OpenAI from "openai";\n\nconst client = new OpenAI({ baseURL: "${new URL("v1", root)}", apiKey: ${key} });\n` +
    `const answer = await client.${call}.create(${value});\n${shown}`;
}

/** @param {Record<string, any>} body @returns {[Record<string, any>, Record<string, any>]} */
function splitFields(body) {
  const fields = Object.entries(body);
  return [
    Object.fromEntries(fields.filter(([name]) => KNOWN.has(name))),
    Object.fromEntries(fields.filter(([name]) => !KNOWN.has(name))),
  ];
}
