// What the console's pure modules do, without a browser.
import assert from "node:assert/strict";
import { once } from "node:events";
import { createServer } from "node:http";
import { test } from "node:test";

const APP = new URL("../../src/antiphon/console/app/", import.meta.url);
const load = (name) => import(new URL(name, APP));

const { readEvents } = await load("lib/sse.js");
const tree = await load("chat/tree.js");
const { readFiles } = await load("chat/files.js");
const metrics = await load("metrics.js");
const { packState, unpackState } = await load("chat/link.js");
const code = await load("chat/code.js");
const settings = await load("chat/settings.js");
const tokens = await load("tokens.js");
const { layOut } = await load("requests/waterfall.js");
const schema = await load("reference/schema.js");
const format = await load("lib/format.js");
const signIn = await load("lib/sign_in.js");

const streamOf = (parts) => new ReadableStream({
  start(controller) {
    for (const part of parts) controller.enqueue(part);
    controller.close();
  },
});

const collect = async (events) => {
  const found = [];
  for await (const event of events) found.push(event);
  return found;
};

test("events are the same however the bytes are split", async () => {
  const bytes = new TextEncoder().encode(': alive\n\nevent: x\ndata: {"a":"é🦜"}\r\n\r\ndata: one\ndata: two\n\ndata:[DONE]\n\n');
  for (let size = 1; size <= bytes.length; size += 1) {
    const parts = [];
    for (let at = 0; at < bytes.length; at += size) parts.push(bytes.slice(at, at + size));
    assert.deepEqual(await collect(readEvents(streamOf(parts))), ['{"a":"é🦜"}', "one\ntwo", "[DONE]"], `parts of ${size}`);
  }
});

test("an event without its blank line is not whole", async () => {
  assert.deepEqual(await collect(readEvents(streamOf([new TextEncoder().encode("data: a\n\ndata: b\n")]))), ["a"]);
});

const grow = () => {
  let [value, first] = tree.add(tree.createTree(), { role: "user", text: "hi", parent: null, id: "u" });
  let answer;
  [value, answer] = tree.add(value, { role: "assistant", text: "a", parent: first.id, id: "a" });
  let again;
  [value, again] = tree.add(value, { role: "assistant", text: "b", parent: first.id, id: "b" });
  return { value, first, answer, again };
};

test("an answer that is made again is a branch, and both stay", () => {
  const { value } = grow();
  assert.deepEqual(tree.listPath(value).map((node) => node.text), ["hi", "b"]);
  assert.deepEqual([...tree.groupSiblings(value)], [[null, ["u"]], ["u", ["a", "b"]]]);
  assert.deepEqual(tree.listPath(tree.show(value, "a")).map((node) => node.text), ["hi", "a"]);
});

test("a removed message takes what follows it, and its sibling is shown", () => {
  const { value } = grow();
  const [longer] = tree.add(value, { role: "user", text: "more", parent: "b", id: "c" });
  const left = tree.remove(longer, "b");
  assert.deepEqual(Object.keys(left.nodes).sort(), ["a", "u"]);
  assert.equal(left.leaf, "a");
  assert.deepEqual(tree.remove(left, "u"), { nodes: {}, leaf: null });
});

test("messages of a request hold calls and their results", () => {
  const calls = [{ id: "c1", name: "f", arguments: "{}" }];
  const path = [{ role: "user", text: "x" }, { role: "assistant", text: "", calls }, { role: "tool", text: "7", callId: "c1" }];
  assert.deepEqual(tree.buildMessages(path, " be brief "), [
    { role: "system", content: " be brief " }, { role: "user", content: "x" },
    { role: "assistant", content: "", tool_calls: [{ id: "c1", type: "function", function: { name: "f", arguments: "{}" } }] },
    { role: "tool", tool_call_id: "c1", content: "7" },
  ]);
});

test("pictures and recordings come before the text", () => {
  const files = [{ kind: "image", name: "a.png", url: "data:image/png;base64,AA==", format: "" }, { kind: "audio", name: "a.wav", url: "data:audio/wav;base64,BB==", format: "wav" }];
  assert.deepEqual(tree.buildMessages([{ role: "user", text: "what?", files }], "")[0].content, [
    { type: "image_url", image_url: { url: "data:image/png;base64,AA==" } }, { type: "input_audio", input_audio: { data: "BB==", format: "wav" } },
    { type: "text", text: "what?" },
  ]);
});

test("a file that the model does not take is named", async () => {
  const file = (name, type, size = 3) => Object.defineProperty(new File(["abc"], name, { type }), "size", { value: size });
  await assert.rejects(readFiles([file("a.svg", "image/svg+xml")], ["text", "image"]), /a\.svg is no picture/);
  await assert.rejects(readFiles([file("a.png", "image/png")], ["text"]), /takes text, and no image/);
  await assert.rejects(readFiles([file("a.mp3", "audio/mpeg", 9e6)], ["text", "audio"]), /larger/);
});

test("an export is read back, and a damaged one is refused in words", () => {
  const { value } = grow();
  const read = tree.parseExport(tree.writeExport("title", value, { model: "m" }));
  assert.deepEqual([read.title, read.tree, read.settings], ["title", value, { model: "m" }]);
  for (const text of ["{", "[]", '{"format":"antiphon-conversation","tree":{"nodes":{"a":{"id":"a","parent":"x","role":"user","text":""}}}}',
    '{"format":"antiphon-conversation","tree":{"nodes":{"a":{"id":"a","parent":null,"role":"boss","text":""}}}}']) {
    assert.throws(() => tree.parseExport(text), /^Error: (This file|A message)/);
  }
});

const write = (nodes, more = {}) => JSON.stringify({ format: "antiphon-conversation", tree: { nodes, leaf: null }, ...more });

test("an import that would never end, or that breaks a page, is refused or loses what is wrong", () => {
  const user = { id: "a", parent: null, role: "user", text: "x" };
  for (const nodes of [{ a: user, b: { ...user, parent: "a" } }, { a: user, b: { ...user, id: 7 } }, { a: { ...user, parent: "constructor" } },
    { a: { ...user, parent: "a" } }, { a: null }, { a: { ...user, text: 7 } }, { a: { ...user, id: undefined } }]) {
    assert.throws(() => tree.parseExport(write(nodes)), /^Error: A message of this file/, JSON.stringify(nodes));
  }
  const wrong = { ...user, id: "__proto__", role: "assistant", reasoning: {}, calls: [{ id: 1 }, null], tokens: [{ top: "x" }, 7], files: "f", error: 7,
    prefix: [], callId: 3, facts: { model: {}, requestId: [], body: "x", outputTokens: "9", references: { chunks: [7, { text: "t", title: {} }] } } };
  const [read] = tree.listPath(tree.parseExport(write({ a: wrong })).tree);
  assert.deepEqual(read, { id: "__proto__", parent: null, role: "assistant", text: "x", error: { requestId: null },
    tokens: [{ text: "undefined", bytes: null, logprob: NaN, top: [] }, { text: "undefined", bytes: null, logprob: NaN, top: [] }],
    facts: { model: "", requestId: null, references: { chunks: [{}, { text: "t" }] } } });
});

test("messages of a link get their own places, whatever they say of themselves", () => {
  const read = tree.readMessages([{ role: "user", text: "x", id: "a", parent: "a" }, { role: "user", text: "y", id: "a", parent: "a" }]);
  assert.deepEqual(tree.listPath(read).map(({ role, text }) => [role, text]), [["user", "x"], ["user", "y"]]);
  for (const messages of [undefined, {}, "x", [7], [{ role: "system", text: "x" }]]) assert.throws(() => tree.readMessages(messages), /damaged/);
});

test("settings of a link keep only what the page can show", () => {
  const empty = { model: "", system: "", values: {}, tools: "", schema: "", tokens: false };
  for (const value of [undefined, null, 7, "x", [], { values: null, model: {}, tokens: "yes" }, { values: 7 }]) assert.deepEqual(settings.readSettings(value), empty);
  assert.deepEqual(settings.readSettings({ model: "m", values: { seed: "7", top_p: 1 }, tokens: true, other: 1 }), { ...empty, model: "m", values: { seed: "7" }, tokens: true });
});

test("a request is built again from its conversation, with the text it began with", () => {
  const { value } = grow();
  const answer = { ...value.nodes.b, prefix: "He", facts: { body: { model: "m" }, system: "s" } };
  assert.deepEqual(tree.rebuildRequest(value, answer), { model: "m", messages: [
    { role: "system", content: "s" }, { role: "user", content: "hi" }, { role: "assistant", content: "He" }] });
});

test("an answer that failed at once is not said again", () => {
  const path = [{ role: "user", text: "x" }, { role: "assistant", text: "", error: { message: "no" } }, { role: "user", text: "y" }];
  assert.deepEqual(tree.buildMessages(path, "").map(({ content }) => content), ["x", "y"]);
});

test("a link that unpacks to gigabytes is refused", async () => {
  await assert.rejects(unpackState(await packState("x".repeat(17 * 1024 * 1024))), /damaged/);
});

test("a link holds any state, and a damaged one is refused", async () => {
  const state = { settings: { values: { seed: "7" } }, messages: [{ role: "user", text: "é🦜 <b>&#?/" }] };
  const packed = await packState(state);
  assert.match(packed, /^[\w-]+$/);
  assert.deepEqual(await unpackState(packed), state);
  for (const damaged of ["", "!!!", packed.slice(3), "AAAA"]) await assert.rejects(unpackState(damaged), /damaged/);
});

const BODY = { model: "m", messages: [{ role: "user", content: "it's \"x\"\n" }], min_p: 0.1, stream: true, seed: null, logprobs: true };

test("a program names the key's variable and never the key", () => {
  for (const write of [code.writeCurl, code.writeOpenaiPython, code.writeOpenaiNode]) {
    const text = write("http://h/p/", "v1/chat/completions", BODY, true);
    assert.match(text, /ANTIPHON_API_KEY/);
    assert.match(text, /http:\/\/h\/p\/v1/);
  }
  assert.match(code.writeCurl("http://h/", "v1/completions", BODY, false), /it'\\''s/);
  const python = code.writeOpenaiPython("http://h/", "v1/chat/completions", BODY, false);
  assert.match(python, /extra_body=\{\n {8}"min_p": 0.1,/);
  assert.match(python, /seed=None/);
  assert.match(python, /logprobs=True/);
});

const DOCUMENT = {
  paths: { "/v1/chat/completions": { post: { requestBody: { content: { "application/json": { schema: { $ref: "#/components/schemas/C" } } } } } } },
  components: { schemas: { C: { properties: {
    model: { type: "string" },
    rag_params: { anyOf: [{ $ref: "#/components/schemas/R" }, { type: "null" }], description: "a table" },
    top_p: { anyOf: [{ type: "number", minimum: 0, maximum: 1 }, { type: "null" }], description: "mass" },
    temperature: { anyOf: [{ type: "number", minimum: 0, maximum: 2 }, { type: "null" }] },
    stop: { anyOf: [{ type: "string" }, { type: "array", items: { type: "string" } }, { type: "null" }] },
    seed: { anyOf: [{ type: "integer", minimum: -(2 ** 63), maximum: 2 ** 63 }, { type: "null" }] },
    a_new_field: { anyOf: [{ enum: ["x", "y"] }, { type: "null" }] },
    ignore_eos: { anyOf: [{ type: "boolean" }, { type: "null" }] },
  } }, R: { type: "object" } } },
};

test("parameters come from the server's description, in the order in which people look for them", () => {
  const found = settings.listParameters(DOCUMENT, "/v1/chat/completions", ["top_p"]);
  assert.deepEqual(found.map(({ name, kind, isRefused }) => [name, kind, isRefused]), [
    ["temperature", "number", false], ["top_p", "number", true], ["seed", "integer", false], ["stop", "list", false],
    ["ignore_eos", "boolean", false], ["rag_params", "json", false], ["a_new_field", "choice", false],
  ]);
  assert.equal(settings.describeRange(found[0]), "0 to 2");
  assert.equal(settings.describeRange(found[2]), "");
});

test("what was typed is checked before it is sent", () => {
  const number = { name: "t", kind: "number", help: "", group: "", isRefused: false, low: 0, high: 2 };
  assert.equal(settings.readValue(number, " 1.5 "), 1.5);
  assert.equal(settings.readValue(number, " "), undefined);
  for (const typed of ["x", "3", "-1", "Infinity"]) assert.throws(() => settings.readValue(number, typed));
  assert.throws(() => settings.readValue({ ...number, kind: "integer" }, "1.5"), /whole/);
  assert.throws(() => settings.readValue({ ...number, above: 0, low: undefined }, "0"), /Above 0/);
  assert.deepEqual(settings.readValue({ ...number, kind: "list" }, "a\n\\nb"), ["a", "\nb"]);
  assert.throws(() => settings.readValue({ ...number, kind: "json" }, "{"), /JSON/);
  assert.throws(() => settings.readJson("[]", "object"), /object/);
  assert.throws(() => settings.readJson("{}", "array"), /list/);
});

test("tokens tell how sure the model was", () => {
  const [token] = tokens.readTokens({ content: [{ token: "a", bytes: [97], logprob: Math.log(0.5), top_logprobs: [{ token: "a", logprob: Math.log(0.5) }, { token: "b", logprob: Math.log(0.25) }] }] });
  assert.equal(tokens.classify(token.logprob), 2);
  assert.ok(Math.abs(tokens.measureEntropy(token) - 1.5) < 1e-9);
  const parts = [[0xf0, 0x9f], [0xa6, 0x9c], [33]].map((bytes) => ({ text: "?", bytes, logprob: 0, top: [] }));
  assert.equal(tokens.joinBefore(parts, 2), "🦜");
  assert.equal(tokens.joinBefore([{ text: "x", bytes: null, logprob: 0, top: [] }, ...parts], 1), "x");
  const origins = ["forced", "drafted", "toString", undefined].map((origin) => ({ token: "a", logprob: 0, top_logprobs: [], origin }));
  assert.deepEqual(tokens.readTokens({ content: origins }).map(({ origin }) => origin), ["forced", "drafted", undefined, undefined]);
});

test("the time of a request is laid out without gaps or overflow", () => {
  const entry = { parent: null, at_ms: 1000, total_ms: 400, queue_ms: 40, ttft_ms: 200, routes: [{ route: "one", error: "timeout", ms: 60 }, { route: "two", error: null, ms: 340 }] };
  const child = { parent: "x", operation: "retrieval", model: "minilm", at_ms: 1010, total_ms: 20, status: "ok" };
  const { rows, totalMs } = layOut([child, entry]);
  assert.equal(totalMs, 400);
  assert.deepEqual(rows.map((row) => [row.kind, row.ms]), [["failed", 60], ["queue", 40], ["prefill", 100], ["tokens", 200], ["child", 20]]);
  for (const row of rows) assert.ok(row.left >= 0 && row.left + row.width <= 100.001, JSON.stringify(row));
  assert.deepEqual(layOut([{ parent: null, at_ms: 0, total_ms: null, routes: [] }]).rows.length, 1);
});

test("metrics become engines and routes", () => {
  const samples = metrics.readSamples(`# HELP x y
antiphon_engine_up{model="a\\"b"} 1.0
antiphon_engine_running{model="a\\"b"} 2.0
antiphon_engine_step_gap_seconds_sum{model="a\\"b"} 0.5
antiphon_engine_step_gap_seconds_count{model="a\\"b"} 100
antiphon_route_in_flight{model="m",route="r"} 1
antiphon_route_attempts_total{model="m",outcome="ok",route="r"} 5
antiphon_route_attempts_total{model="m",outcome="timeout",route="r"} 2
antiphon_route_unavailable{model="m",route="r"} 1
nonsense
`);
  const [engine] = metrics.listEngines(samples);
  assert.deepEqual([engine.model, engine.isUp, engine.running, engine.stepGap], ['a"b', true, 2, 0.005]);
  assert.deepEqual(metrics.listRoutes(samples), [{ model: "m", route: "r", inFlight: 1, isResting: true, attempts: 7, failed: 2 }]);
});

test("an example has what is required", () => {
  const document = { components: { schemas: { A: { type: "object", required: ["n", "c"], properties: { n: { type: "integer", minimum: 3 }, c: { anyOf: [{ enum: ["x"] }, { type: "null" }] } } } } } };
  assert.deepEqual(schema.buildExample(document, { $ref: "#/components/schemas/A" }), { n: 3, c: "x" });
  assert.equal(schema.describeType({ anyOf: [{ type: "array", items: { type: "string" } }, { type: "null" }] }), "list of string");
  assert.equal(schema.describeRange({ anyOf: [{ type: "number", exclusiveMinimum: 0, maximum: 2 }] }), " (above 0, at most 2)");
});

test("durations and sizes have fitting units", () => {
  assert.deepEqual([12, 1500, 61_000, null].map(format.formatDuration), ["12 ms", "1.5 s", "1 min 1 s", "–"]);
  assert.equal(format.formatBytes(5_270_528), "5.3 MB");
});

const encodeJson = (value) => Buffer.from(JSON.stringify(value)).toString("base64url");
const writeToken = (claims) => `${encodeJson({ alg: "ES256" })}.${encodeJson(claims)}.c2lnbmF0dXJl`;

/** Answers as an issuer whose documents can be changed, for as long as `act` takes. */
async function withIssuer(act) {
  const issuer = { found: {}, status: 200, answer: {}, sent: [] };
  const server = createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    if (request.method === "POST") issuer.sent.push(new URLSearchParams(Buffer.concat(parts).toString()));
    response.writeHead(request.method === "POST" ? issuer.status : 200).end(JSON.stringify(request.method === "POST" ? issuer.answer : issuer.found));
  }).listen(0, "127.0.0.1");
  await once(server, "listening");
  const url = `http://127.0.0.1:${server.address().port}/realm`;
  issuer.client = { issuer: url, client_id: "console", scope: "openid email" };
  issuer.found = { issuer: url, authorization_endpoint: `${url}/authorize?tenant=1`, token_endpoint: `${url}/token` };
  try {
    await act(issuer);
  } finally {
    server.close();
  }
}

test("a sign-in proves itself by its verifier, and takes the access token", () => withIssuer(async (issuer) => {
  const attempt = await signIn.prepareSignIn(issuer.client, "http://h/llm/console/");
  const page = new URL(attempt.address);
  assert.equal(page.origin + page.pathname, issuer.found.authorization_endpoint.split("?")[0]);
  const asked = Object.fromEntries(page.searchParams);
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(attempt.verifier));
  assert.deepEqual(asked, { tenant: "1", response_type: "code", client_id: "console", redirect_uri: "http://h/llm/console/", scope: "openid email",
    state: attempt.state, nonce: attempt.nonce, code_challenge: Buffer.from(digest).toString("base64url"), code_challenge_method: "S256" });
  assert.ok(attempt.verifier.length === 43 && attempt.state !== attempt.nonce && !attempt.address.includes(attempt.verifier));
  const claims = { iss: issuer.client.issuer, aud: ["console"], nonce: attempt.nonce, email: "zoë@example.org" };
  issuer.answer = { access_token: writeToken({ aud: "antiphon" }), id_token: writeToken(claims), expires_in: 60 };
  const found = await signIn.redeemReply(attempt, new URLSearchParams({ code: "c", state: attempt.state, iss: issuer.client.issuer }));
  assert.deepEqual(Object.fromEntries(issuer.sent[0]), { grant_type: "authorization_code", code: "c", redirect_uri: "http://h/llm/console/", client_id: "console", code_verifier: attempt.verifier });
  assert.deepEqual([found.key, found.who], [issuer.answer.access_token, "zoë@example.org"]);
  assert.ok(Math.abs(found.ends - Date.now() - 60_000) < 30_000);
}));

test("what an issuer answers wrongly is named, and gives no token", () => withIssuer(async (issuer) => {
  const redirect = "http://h/console/";
  const attempt = await signIn.prepareSignIn(issuer.client, redirect);
  const right = { iss: issuer.client.issuer, aud: "console", nonce: attempt.nonce, sub: "1" };
  const access_token = writeToken({});
  for (const [answer, status, words] of [
    [{ error: "invalid_grant", error_description: "the code is used" }, 400, /refused: the code is used/],
    [{ error: "invalid_client" }, 401, /refused: invalid_client/], [{}, 500, /refused: status 500/], [7, 200, /refused/],
    [{ access_token }, 200, /not for this sign-in/], [{ access_token, id_token: "x" }, 200, /not for this sign-in/],
    ...[{ nonce: "other" }, { nonce: undefined }, { iss: "other" }, { aud: "other" }].map((change) => [{ access_token, id_token: writeToken({ ...right, ...change }) }, 200, /not for this sign-in/]),
    ...["opaque", undefined, "a.b", "ey.ey.ey"].map((token) => [{ access_token: token, id_token: writeToken(right) }, 200, /no JWT/]),
  ]) {
    Object.assign(issuer, { answer, status });
    await assert.rejects(signIn.redeemReply(attempt, new URLSearchParams({ code: "c" })), words, JSON.stringify(answer));
  }
  const asked = issuer.sent.length;
  await assert.rejects(signIn.redeemReply(attempt, new URLSearchParams({ error: "access_denied" })), /access_denied/);
  await assert.rejects(signIn.redeemReply(attempt, new URLSearchParams({ code: "c", iss: "https://other" })), /Another issuer/);
  assert.equal(issuer.sent.length, asked);
  const { found } = issuer;
  for (const [change, words] of [
    [{ issuer: "https://other" }, /calls itself/], [{ token_endpoint: "https://other.example/token" }, /may reach only/], [{ token_endpoint: undefined }, /may reach only/],
    [{ authorization_endpoint: "javascript:alert(1)" }, /no https/], [{ authorization_endpoint: undefined }, /no https/],
  ]) {
    issuer.found = { ...found, ...change };
    await assert.rejects(signIn.prepareSignIn(issuer.client, redirect), words, JSON.stringify(change));
  }
  await assert.rejects(signIn.prepareSignIn({ ...issuer.client, issuer: "http://127.0.0.1:9" }, redirect), /CORS/);
}));

test("only the page that waits for a reply takes it, and once", async () => {
  assert.equal(signIn.readReply("?x=1&state=s"), null);
  const taken = [];
  for (const state of ["one", "two"]) signIn.waitForReply({ state }, (reply) => taken.push([state, reply.get("code")]));
  const relay = (state) => new Promise((resolve) => {
    const channel = signIn.relayReply(signIn.readReply(`?code=c%26&state=${state}`), () => { channel.close(); resolve(); });
    channel.unref();
  });
  relay("other");
  await relay("two");
  relay("two");
  await relay("one"); // whoever takes the replies before would have done so
  assert.deepEqual(taken, [["two", "c&"], ["one", "c&"]]);
});
