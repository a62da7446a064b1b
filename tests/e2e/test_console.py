"""The console in a real browser, with and without keys. An error of the page, which a breach of its content
security policy is too, fails each test, and so does a request to anywhere else."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import httpx2
import pytest
from aiohttp import web

import antiphon.bundled
from tests.support.browser import Browser, open_browser
from tests.support.oidc_issuer import AUDIENCE, CONSOLE, Issuer, listening
from tests.support.server import Server, serving

AXE = Path(__file__).parents[1] / "console" / "node_modules" / "axe-core" / "axe.min.js"

ADAPTERS = Path(antiphon.bundled.__path__[0]) / "adapters"

TYPE = """((selector, value) => {
  const field = document.querySelector(selector);
  field.value = value;
  field.dispatchEvent(new Event(field.tagName === "SELECT" ? "change" : "input", { bubbles: true }));
})"""
"""Types into a field as a user does."""

KEEP_COPY = """Object.defineProperty(navigator, "clipboard", {
  value: { writeText: async (text) => { window.copied = text; } },
})"""
"""Keeps what the page copies, since a page without a window has no clipboard."""

SETTLE = "new Promise((done) => requestIdleCallback(done))"
"""Waits until the page has done what it began."""

HOSTILE = "<img src=x onerror=alert(1)><script>alert(2)</script>"

HOSTILE_TEXT = f"""{HOSTILE}

[link](javascript:alert(3)) ![image](https://evil.example/x.png) <b onclick=alert(4)>b</b>

<svg><a xlink:href='javascript:alert(5)'>x</a></svg> <iframe src='https://evil.example'></iframe>

```html
{HOSTILE}
```"""

PAGES = ("chat", "complete", "compare", "models", "requests", "usage", "knowledge", "access", "reference")


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    """An issuer that signs everybody in."""
    with listening(Issuer()) as running:
        yield running


@pytest.fixture
async def browser(chromium: Browser, issuer: Issuer) -> AsyncIterator[Browser]:
    """The browser, without what earlier tests left in it."""
    await chromium.open("about:blank")
    chromium.problems.clear()
    chromium.requests.clear()
    yield chromium
    assert chromium.problems == []
    hosts = {
        request["url"].split("/")[2] for request in chromium.requests if request["url"].startswith("http")
    }
    assert len(hosts - {issuer.address.removeprefix("http://")}) <= 1, hosts


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def guarded(home: Path, issuer: Issuer) -> Iterator[Server]:
    """A server with keys and an issuer, with adapters, and with knowledge tables that need no database."""
    env = {
        "ANTIPHON_KEYS": "true",
        "ANTIPHON_HOME": str(home),
        "ANTIPHON_KNOWLEDGE_STORAGE": "files",
        "ANTIPHON_LORA_DIRECTORIES": str(ADAPTERS),
        "ANTIPHON_OIDC_ISSUER": issuer.address,
        "ANTIPHON_OIDC_AUDIENCE": AUDIENCE,
        "ANTIPHON_OIDC_ADD_USERS": "true",
        "ANTIPHON_OIDC_GROUPS": "owners=default:owner,members=default:member,viewers=default:viewer",
        "ANTIPHON_OIDC_CONSOLE_CLIENT_ID": CONSOLE,
    }
    with serving(env=env) as running:
        issuer.redirects.add(f"{running.url}/console/")
        yield running


@pytest.fixture
def key(guarded: Server, home: Path) -> str:
    return (home / "admin.key").read_text().strip()


async def open_page(browser: Browser, server: str, page: str = "chat", key: str = "") -> None:
    """Opens a page of the console anew. With a key, enters it in the dialog that asks for one."""
    await browser.open("about:blank")
    await browser.open(f"{server}/console/#/{page}")
    await browser.wait_for(f"document.querySelector('{page.split('/', maxsplit=1)[0]}-page')")
    if key:
        await enter_key(browser, key)


async def enter_key(browser: Browser, key: str) -> None:
    await browser.wait_for("document.querySelector('dialog.key[open]')")
    await browser.expect_problems("401")  # the first refusal opens the dialog, and others come later
    await type_into(browser, "dialog.key [name=key]", key)
    await browser.run("document.querySelector('dialog.key form').requestSubmit()")
    await browser.wait_for("!document.querySelector('dialog.key')")
    browser.problems.clear()


async def type_into(browser: Browser, selector: str, value: str) -> None:
    await browser.wait_for(f"document.querySelector({json.dumps(selector)})")
    await browser.run(f"{TYPE}({json.dumps(selector)}, {json.dumps(value)})")


async def click(browser: Browser, selector: str) -> None:
    await browser.wait_for(f"document.querySelector({json.dumps(selector)})")
    await browser.run(f"document.querySelector({json.dumps(selector)}).click()")


async def read(browser: Browser, selector: str) -> str:
    await browser.wait_for(f"document.querySelector({json.dumps(selector)})")
    return str(await browser.run(f"document.querySelector({json.dumps(selector)}).innerText"))


async def refresh_until(browser: Browser, page: str, script: str) -> None:
    """Asks a page again until an expression is true: a row of the ledger comes within seconds."""
    await browser.run(
        f"(async () => {{ while (!({script})) {{ await document.querySelector('{page}').refresh();"
        " await new Promise((done) => setTimeout(done, 50)); } })()"
    )


async def say(browser: Browser, text: str) -> str:
    """Sends a message and returns the whole answer."""
    await type_into(browser, "textarea.draft", text)
    await browser.run("document.querySelector('.composer').requestSubmit()")
    return await read_answer(browser)


async def read_answer(browser: Browser) -> str:
    """Waits until the last answer is whole."""
    last = "[...document.querySelectorAll('message-view .message.assistant')].at(-1)"
    await browser.wait_for(f"{last}?.ariaBusy === 'false' && !document.querySelector('.composer .danger')")
    return str(await browser.run(f"{last}.querySelector('.markdown, .tokens, .plain').innerText"))


# --- talk ---


async def test_a_first_chat_stays_in_the_browser(browser: Browser, server: Server) -> None:
    """`/` leads a browser here; a new visit finds the conversation, and the server never had it."""
    await browser.open(server.url)
    await browser.wait_for("document.querySelector('chat-page') && location.pathname === '/console/'")
    answer = await say(browser, "What is Antiphon?")
    assert "Antiphon" in answer
    assert await browser.run("document.querySelector('textarea.draft').value") == ""
    assert "tokens" in await read(browser, ".message.assistant footer small")
    await open_page(browser, server.url)
    await click(browser, ".conversations .title")
    assert await read_answer(browser) == answer
    assert await browser.run("sessionStorage.length + localStorage.length + document.cookie.length") == 0


async def test_an_answer_made_again_is_a_branch(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url)
    first = await say(browser, "What is Antiphon?")
    await type_into(browser, "[name=temperature]", "2")
    await type_into(browser, "[name=seed]", "3")
    await click(browser, ".message.assistant [aria-label='Answer again']")
    await browser.wait_for("document.querySelector('.branches')?.innerText.includes('2/2')")
    second = await read_answer(browser)
    body = json.loads(str(next(r for r in reversed(browser.requests) if r["method"] == "POST")["postData"]))
    assert (body["temperature"], body["seed"]) == (2, 3)
    assert second != first
    await click(browser, ".branches [aria-label='The branch before']")
    await browser.wait_for("document.querySelector('.branches')?.innerText.includes('1/2')")
    assert await read_answer(browser) == first


async def test_a_token_is_inspected_and_the_answer_goes_another_way(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url)
    await click(browser, ".settings .check input")
    first = await say(browser, "Who are you?")
    await click(browser, ".tokens .token")
    shown = await read(browser, ".alternatives")
    assert "probability" in shown and "entropy" in shown
    other = await browser.run("document.querySelectorAll('.alternatives tr code')[1].textContent")
    await click(browser, ".alternatives tr:nth-child(2) button")
    await browser.wait_for("document.querySelector('.branches')?.innerText.includes('2/2')")
    second = await read_answer(browser)
    assert second.startswith(other.strip("·")) and second != first


async def test_forced_tokens_are_marked(browser: Browser, server: Server) -> None:
    """With a legend, and in words for who sees no colours."""
    await open_page(browser, server.url)
    await click(browser, ".settings .check input")
    shape = {
        "type": "object",
        "properties": {"harbour": {"enum": [1, 2]}},
        "required": ["harbour"],
        "additionalProperties": False,  # or the model fills its context with further ones
    }
    await type_into(browser, "textarea[name=schema]", json.dumps(shape))
    await say(browser, "A number")
    assert "forced" in await read(browser, ".legend")
    assert await browser.run(
        "document.querySelector('.tokens .token.forced').title.includes('no other token')"
    )
    assert await browser.run("document.querySelectorAll('.tokens .token:not(.forced)').length") > 0
    await click(browser, ".tokens .token.forced")
    assert "no other token" in await read(browser, ".alternatives")


async def test_a_message_that_cannot_be_shown_holds_up_no_other(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url)
    await browser.run(
        """(() => {
          const view = customElements.get("message-view").prototype;
          const { renderFooter } = view;
          view.renderFooter = function () {
            if (this.node.role === "user") throw new Error("broken");
            return renderFooter.call(this);
          };
        })()"""
    )
    for _ in range(2):
        assert "Antiphon" in await say(browser, "What is Antiphon?")
    assert browser.problems
    await browser.expect_problems("broken")


async def test_a_link_repeats_a_request(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url)
    await type_into(browser, "[name=temperature]", "1.5")
    await type_into(browser, "[name=seed]", "11")
    answer = await say(browser, "Tell me a story")
    await browser.run(KEEP_COPY)
    await click(browser, ".message.assistant [aria-label='Copy a link that repeats this']")
    await browser.wait_for("window.copied")
    link = await browser.run("window.copied")
    browser.requests.clear()
    await browser.open("about:blank")
    await browser.open(link)
    await browser.wait_for("document.querySelector('.composer .primary')?.innerText.includes('Answer')")
    await browser.run("document.querySelector('.composer').requestSubmit()")
    assert await read_answer(browser) == answer
    assert not any("state=" in request["url"].split("#")[0] for request in browser.requests)


async def test_a_schema_holds_and_a_wrong_value_is_named(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url)
    shape = {
        "type": "object",
        "properties": {"n": {"enum": [1, 2]}},
        "required": ["n"],
        "additionalProperties": False,
    }
    await type_into(browser, "textarea[name=schema]", json.dumps(shape))
    assert json.loads(await say(browser, "A number"))["n"] in (1, 2)
    await type_into(browser, "textarea[name=schema]", "{")
    await browser.wait_for("document.querySelector('.settings .error')?.innerText.includes('no JSON')")
    await type_into(browser, "textarea[name=schema]", "")
    await type_into(browser, "[name=temperature]", "5")
    await type_into(browser, "textarea.draft", "kept")
    await browser.run("document.querySelector('.composer').requestSubmit()")
    assert "temperature: At most 2." in await read(browser, ".talk > .error")
    assert await browser.run("document.querySelector('textarea.draft').value") == "kept"


async def test_two_columns_answer_the_same_message(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url, "compare")
    await browser.wait_for("document.querySelectorAll('.column').length === 2")
    await click(browser, ".column:nth-child(2) [aria-label^='Settings']")
    await type_into(browser, ".column [name=max_tokens]", "2")
    await click(browser, ".column:nth-child(2) [aria-label^='Settings']")
    await type_into(browser, "compare-page textarea.draft", "What is Antiphon?")
    await browser.run("document.querySelector('compare-page .composer').requestSubmit()")
    await browser.wait_for("!document.querySelector('compare-page .danger')")
    await browser.wait_for("document.querySelectorAll('.column .message.assistant .markdown').length === 2")
    texts = await browser.run(
        "[...document.querySelectorAll('.column .markdown')].map((each) => each.innerText)"
    )
    assert texts[0].startswith(texts[1].strip()) and len(texts[0]) > len(texts[1])


async def test_a_column_keeps_its_own_answers(browser: Browser, server: Server) -> None:
    """Also when another one is removed while they answer. What failed at once is not said again."""
    model = HeldModel()
    async with proxying(server.url, "/llm", chat=model) as url:
        try:
            await open_page(browser, url, "compare")
            await browser.wait_for("document.querySelectorAll('.column').length === 2")
            await click(browser, "compare-page header button")
            await browser.wait_for("document.querySelectorAll('.column').length === 3")
            shown = "[...document.querySelectorAll('.column %s')].map((each) => each.innerText)"
            last = "message-view:last-of-type .markdown"
            for text, place, expected in (("fail", "> .error", HOSTILE), ("first", last, "It began")):
                await type_into(browser, "compare-page textarea.draft", text)
                await browser.run("document.querySelector('compare-page .composer').requestSubmit()")
                expected_texts = f"JSON.stringify({json.dumps([expected] * 3)})"
                await browser.wait_for(f"JSON.stringify({shown % place}) === {expected_texts}")
            await click(browser, ".column [aria-label='Remove column 1']")
            model.go.set()
            await browser.wait_for("!document.querySelector('compare-page .composer .danger')")
            assert await browser.run(shown % last) == ["It began and ended."] * 2
            assert [len(body["messages"]) for body in model.bodies] == [1] * 6
        finally:
            model.go.set()
    assert all("500" in problem for problem in browser.problems), browser.problems
    browser.problems.clear()


async def test_a_text_is_continued_and_scored(browser: Browser, server: Server) -> None:
    await open_page(browser, server.url, "complete")
    await type_into(browser, "complete-page textarea.code", "Hello there")
    await click(browser, "complete-page .talk .check input")
    await type_into(browser, "[name=max_tokens]", "3")
    await browser.run("document.querySelector('complete-page form').requestSubmit()")
    await browser.wait_for("document.querySelector('complete-page article')?.ariaBusy === 'false'")
    shown = await browser.run(
        "[...document.querySelectorAll('complete-page .token')].map((each) => each.textContent)"
    )
    assert "Hello" in shown and len(shown) > 4


async def test_engines_are_shown_as_they_work(browser: Browser, server: Server) -> None:
    """Also a model's profile, and the server's own words for an adapter that is not there."""
    await open_page(browser, server.url, "models/cantor")
    await browser.wait_for(
        "document.querySelector('models-page .facts')?.innerText.includes('context length')"
    )
    await browser.wait_for("document.querySelectorAll('models-page tbody').length >= 2")
    assert "cantor" in await read(browser, "models-page .scroll tbody")
    await click(browser, "models-page .row button")
    await type_into(browser, "models-page [name=name]", "nobody")
    await type_into(browser, "models-page [name=path]", "nowhere.gguf")
    await browser.run("document.querySelector('models-page form').requestSubmit()")
    assert await read(browser, "models-page form .error")
    await browser.expect_problems("Failed to load resource")


async def test_scripts_in_texts_are_shown_as_text(browser: Browser, server: Server, tmp_path: Path) -> None:
    """Names, messages, reasoning, calls, links and images of a conversation that somebody else made."""
    hostile = {
        "id": "a",
        "parent": "u",
        "role": "assistant",
        "reasoning": HOSTILE,
        "text": HOSTILE_TEXT,
        "calls": [{"id": "c", "name": HOSTILE, "arguments": HOSTILE}],
        "facts": {
            "model": HOSTILE,
            "requestId": HOSTILE,
            "finish": HOSTILE,
            "references": {"chunks": [{"title": HOSTILE, "text": HOSTILE, "chunk_id": "1"}]},
        },
    }
    deep = {"id": "d", "parent": None, "role": "assistant", "text": ">" * 20_000 + "deep"}
    nodes = {"d": deep, "u": {"id": "u", "parent": "d", "role": "user", "text": HOSTILE}, "a": hostile}
    file = tmp_path / "hostile.json"
    tree = {"nodes": nodes, "leaf": "a"}
    file.write_text(
        json.dumps(
            {
                "format": "antiphon-conversation",
                "title": HOSTILE,
                "tree": tree,
                "settings": {"model": "cantor"},
            }
        )
    )
    await open_page(browser, server.url)
    await browser.run("window.alert = (what) => { throw new Error(`alert ${what}`); }")
    await browser.choose_file(".conversations input[type=file]", file)
    await browser.wait_for("document.querySelector('.markdown pre code[data-coloured]')")
    await browser.run(SETTLE)
    made = "img, script, iframe, svg a, [onclick], [onerror], a[href^=javascript]"
    assert await browser.run(f"document.querySelectorAll('.messages :is({made})').length") == 0
    assert HOSTILE in await browser.run("document.querySelector('.message.user').textContent")
    await browser.wait_for("document.querySelector('.markdown').textContent.endsWith('deep')")
    assert (
        await browser.run(
            "document.querySelector('.markdown a[href=\"https://evil.example/x.png\"]').textContent"
        )
        == "image"
    )


async def test_an_answer_lands_in_its_own_conversation(
    browser: Browser, server: Server, tmp_path: Path
) -> None:
    """Two clicks send once, what is typed meanwhile stays, and a conversation that is left keeps its part."""
    nodes = {
        str(n): {
            "id": f"m{n}",
            "parent": f"m{n - 1}" if n else None,
            "role": "assistant",
            "text": f"line {n}",
        }
        for n in range(300)
    }
    file = tmp_path / "long.json"
    file.write_text(json.dumps({"format": "antiphon-conversation", "tree": {"nodes": nodes, "leaf": "m299"}}))
    model = HeldModel()
    async with proxying(server.url, "/llm", chat=model) as url:
        try:
            await open_page(browser, url)
            await browser.wait_for("document.querySelector('.settings option')")
            await type_into(browser, "textarea.draft", "first")
            await browser.run("document.querySelector('.composer').requestSubmit()")
            await browser.run("document.querySelector('.composer')?.requestSubmit()")
            await browser.wait_for("document.querySelector('.markdown')?.innerText === 'It began'")
            await click(browser, ".conversations .primary")
            await browser.choose_file(".conversations input[type=file]", file)
            await browser.wait_for("document.querySelectorAll('message-view').length === 300")
            await browser.run(
                "(() => { const view = customElements.get('message-view').prototype;"
                "const { updated } = view; window.updates = 0;"
                "view.updated = function () { window.updates += 1; updated.call(this); }; })()"
            )
            await type_into(browser, "textarea.draft", "second")
            await browser.run("document.querySelector('.composer').requestSubmit()")
            last = "[...document.querySelectorAll('.markdown')].at(-1)"
            await browser.wait_for(f"{last}.innerText === 'It began'")
            await type_into(browser, "textarea.draft", "typed meanwhile")
            model.go.set()
            assert await read_answer(browser) == "It began and ended."
            # All could be shown anew once when the new ones come near the screen, but not for each word.
            assert await browser.run("window.updates") < 100
            await browser.run(
                "[...document.querySelectorAll('.conversations .title')]"
                ".find((each) => each.innerText === 'first').click()"
            )
            await browser.wait_for("document.querySelectorAll('message-view').length === 2")
            assert await read_answer(browser) == "It began"
            assert await browser.run("document.querySelector('textarea.draft').value") == "typed meanwhile"
            assert [body["messages"][-1]["content"] for body in model.bodies] == ["first", "second"]
        finally:
            model.go.set()


GROW = """(async (text, step) => {
  const [{ showMarkdown }, { marked }] = await Promise.all(
    ["app/lib/markdown.js", "vendor/markdown.js"].map((path) => import(new URL(path, document.baseURI))));
  const { lex } = marked.Lexer.prototype;
  const counts = { parsed: 0, added: 0, steps: 0, unlike: [] };
  const [grown, fresh] = [document.createElement("div"), document.createElement("div")];
  const watcher = new MutationObserver(() => {});
  watcher.observe(grown, { childList: true, subtree: true });
  for (let end = step; end < text.length + step; end += step) {
    const shown = text.slice(0, end);
    marked.Lexer.prototype.lex = function (part) {
      counts.parsed += part.length;
      return lex.call(this, part);
    };
    showMarkdown(grown, shown, end < text.length);
    marked.Lexer.prototype.lex = lex;
    counts.steps += 1;
    for (const { addedNodes } of watcher.takeRecords()) counts.added += addedNodes.length;
    if (step > 1) continue;
    showMarkdown(fresh.appendChild(document.createElement("div")), shown, end < text.length);
    if (grown.innerHTML !== fresh.lastChild.innerHTML) counts.unlike.push(end);
  }
  return counts;
})"""
"""Shows a text as it grows, and counts what is parsed and made."""

GROWING = """A line
of *text* with [a link](https://h/ 'x') and `code`
===
- one

- two
  1. deep

1. first

2. second
> quoted

> again
```js
let x = 1;

```
| a | b |
|---|---|
| 1 | 2 |

<!-- hidden

-->
    indented

---
last ``` one
``` & done"""
"""Blocks whose meaning depends on what follows."""

GROW_TOKENS = """(async (count) => {
  const view = document.body.appendChild(document.createElement("token-view"));
  let reads = 0, most = 0;
  const watcher = new MutationObserver((records) => {
    most = Math.max(most, records.reduce((sum, { addedNodes }) => sum + addedNodes.length, 0));
  });
  watcher.observe(view, { childList: true, subtree: true });
  const make = (index) => ({
    get text() { reads += 1; return index % 20 ? "word " : "\\n"; }, bytes: null, logprob: -1, top: [],
  });
  const tokens = [];
  const shown = () => view.querySelectorAll(".tokens .token").length;
  const waitFor = async (number) => {
    while (shown() < number) await new Promise((done) => requestAnimationFrame(done));
  };
  for (let end = 8; end <= count; end += 8) {
    while (tokens.length < end) tokens.push(make(tokens.length));
    Object.assign(view, { tokens: [...tokens], version: end });
    await view.updateComplete;
  }
  await waitFor(count);
  const grown = { reads, most };
  [reads, most] = [0, 0];
  Object.assign(view, { tokens: tokens.map((_, index) => make(index)), version: 0 });
  await view.updateComplete;
  await waitFor(count);
  view.remove();
  return [grown, { reads, most }];
})"""
"""Shows tokens as they come, then as many others at once. Counts how often a token is read, and the nodes of
the largest task."""

OPEN_LONG = """(async (count) => {
  const page = document.querySelector("chat-page");
  let most = 0;
  const watcher = new MutationObserver((records) => {
    const added = records.flatMap(({ addedNodes }) => [...addedNodes]);
    most = Math.max(most, added.filter(({ tagName }) => tagName === "MESSAGE-VIEW").length);
  });
  watcher.observe(page, { childList: true, subtree: true });
  const nodes = {};
  for (let index = 0; index < count; index += 1) {
    const parent = index ? `${index - 1}` : null;
    nodes[index] = { id: `${index}`, parent, role: "assistant", text: "line\\n\\n".repeat(index % 30) };
  }
  page.current = { ...page.current, id: "long", tree: { nodes, leaf: `${count - 1}` } };
  while (page.querySelectorAll("message-view").length < count) {
    await new Promise((done) => requestAnimationFrame(done));
  }
  watcher.disconnect();
  return most;
})"""


async def test_a_long_answer_costs_what_is_new(browser: Browser, server: Server) -> None:
    """Finished blocks are not parsed again, tokens are made once, and no task makes thousands of nodes."""
    await open_page(browser, server.url)
    await browser.wait_for("document.querySelector('.settings option')")
    assert (await browser.run(f"{GROW}({json.dumps(GROWING)}, 1)"))["unlike"] == []
    part = "A line of *text*, and more of it.\n\n- one\n- two\n\n```\ncode\n```\n\n"
    counts = await browser.run(f"{GROW}({json.dumps(part * 200)}, 5)")
    assert counts["parsed"] < counts["steps"] * len(part) * 3
    assert counts["added"] < counts["steps"] * 12
    for found in await browser.run(f"{GROW_TOKENS}(4000)"):
        assert found["reads"] < 4000 * 4 and found["most"] < 1000, found
    assert await browser.run(f"{OPEN_LONG}(300)") <= 60
    end = "(({ scrollHeight, scrollTop, clientHeight }) => scrollHeight - scrollTop - clientHeight < 2)"
    await browser.wait_for("[...document.querySelectorAll('message-view')].at(-1).querySelector('.markdown')")
    await browser.wait_for(f"{end}(document.querySelector('.messages'))")


OLD_DATABASE = """(async () => {
  await new Promise((done) => { indexedDB.deleteDatabase("antiphon").onsuccess = done; });
  const request = indexedDB.open("antiphon", 1);
  request.onupgradeneeded = () => request.result.createObjectStore("conversations", { keyPath: "id" });
  await new Promise((done) => { request.onsuccess = done; });
  const node = { id: "m", parent: null, role: "user", text: "an old word" };
  const tree = { nodes: { m: node }, leaf: "m" };
  const kept = { id: "c", title: "kept before", updated: 1, tree, settings: {} };
  const writing = request.result.transaction("conversations", "readwrite");
  writing.objectStore("conversations").put(kept);
  await new Promise((done) => { writing.oncomplete = done; });
  request.result.close();
})()"""


async def test_conversations_of_an_older_console_are_still_there(browser: Browser, server: Server) -> None:
    await browser.open("about:blank")
    await browser.open(f"{server.url}/console/icon.svg")
    await browser.run(OLD_DATABASE)
    await open_page(browser, server.url)
    assert await read(browser, ".conversations .title") == "kept before"
    await click(browser, ".conversations .title")
    await browser.wait_for("document.querySelector('.message.user')?.innerText.includes('an old word')")


async def test_a_link_of_somebody_else_sends_nothing_and_breaks_nothing(
    browser: Browser, server: Server
) -> None:
    hostile = {
        "settings": {"model": "../../admin/v1/keys", "values": None, "system": {}, "tools": 7},
        "messages": [{"role": "user", "text": HOSTILE, "id": "a", "parent": "a"}] * 2,
    }
    pack = "import(new URL('app/chat/link.js', document.baseURI)).then(({ packState }) => packState(%s))"
    await open_page(browser, server.url)
    await browser.wait_for("document.querySelector('.settings option')")
    browser.requests.clear()
    packed = await browser.run(pack % json.dumps(hostile))
    await browser.run(f"location.hash = '#/chat?state={packed}'")
    await browser.wait_for("document.querySelectorAll('.message.user').length === 2")
    assert HOSTILE in await browser.run("document.querySelector('.message.user').textContent")
    damaged = await browser.run(pack % json.dumps({"settings": [], "messages": {"length": 9}}))
    await browser.run(f"location.hash = '#/chat?state={damaged}'")
    assert "damaged" in await read(browser, ".talk > .error")
    await browser.run("location.hash = '#/models/%'")  # no valid encoding
    await browser.wait_for("document.querySelector('models-page .error')")
    assert {request["method"] for request in browser.requests} == {"GET"}
    assert not any("admin" in request["url"].split("/v1/models/")[0] for request in browser.requests)
    await browser.expect_problems("404")


BARE = """delete Crypto.prototype.randomUUID;
Object.defineProperty(navigator, "clipboard", { value: undefined });
for (const name of ["indexedDB", "sessionStorage", "localStorage"]) {
  Object.defineProperty(window, name, { get() { throw new DOMException("denied", "SecurityError"); } });
}"""
"""A page as a browser has it that came by plain HTTP from another machine, and may keep nothing."""


async def test_a_page_without_storage_or_clipboard_talks_and_says_so(
    browser: Browser, server: Server
) -> None:
    script = await browser.call("Page.addScriptToEvaluateOnNewDocument", source=BARE)
    try:
        await open_page(browser, server.url)
        await browser.wait_for("document.querySelector('.settings option')")
        assert "Antiphon" in await say(browser, "What is Antiphon?")
        assert "keeps no conversations" in await read(browser, ".talk > [role=status]")
        click_copy = "document.querySelector('.message.assistant [aria-label=Copy]').click()"
        await browser.call("Runtime.evaluate", expression=click_copy, userGesture=True)
        await browser.wait_for("document.querySelector('.message.assistant .actions [role=status]')")
    finally:
        await browser.call("Page.removeScriptToEvaluateOnNewDocument", identifier=script["identifier"])


# --- access and records ---


async def test_a_wrong_key_is_told_and_what_was_typed_stays(
    browser: Browser, guarded: Server, key: str
) -> None:
    """So is a key that ends."""

    def post(path: str, **body: Any) -> Any:
        return httpx2.post(f"{guarded.url}/admin/v1/{path}", headers={"x-api-key": key}, json=body).json()

    made = post("keys", kind="service", project="default")
    await open_page(browser, guarded.url)
    await browser.wait_for("document.querySelector('dialog.key[open]')")
    await type_into(browser, "textarea.draft", "What is Antiphon?")
    await type_into(browser, "dialog.key [name=key]", "wrong")
    await browser.run("document.querySelector('dialog.key form').requestSubmit()")
    await browser.wait_for("document.querySelector('dialog.key[open] .error')")
    assert "no longer accepts" in await read(browser, "dialog.key .error")
    await enter_key(browser, made["secret"])
    await browser.wait_for("document.querySelector('.settings option')")
    assert await browser.run("document.querySelector('textarea.draft').value") == "What is Antiphon?"
    assert post(f"keys/{made['id']}/revoke")["revoked_at"]
    await browser.run("document.querySelector('.composer').requestSubmit()")
    assert "no longer accepts" in await read(browser, "dialog.key[open] .error")
    await enter_key(browser, key)
    await click(browser, ".message.assistant .error ~ footer [aria-label='Answer again']")
    await browser.wait_for("document.querySelector('.branches')?.innerText.includes('2/2')")
    assert "Antiphon" in await read_answer(browser)
    assert all("401" in problem for problem in browser.problems), browser.problems
    browser.problems.clear()
    assert await browser.run("sessionStorage.length + localStorage.length + document.cookie.length") == 0


async def begin_sign_in(browser: Browser) -> None:
    """Opens the issuer's window, as a user's click does, and waits until it has closed itself."""
    await browser.wait_for("document.querySelector('dialog.key[open] a.sign-in[href]')")
    click = "document.querySelector('a.sign-in').click()"
    await browser.call("Runtime.evaluate", expression=click, userGesture=True)
    await browser.wait_for_only_page()


async def test_a_user_signs_in_at_the_issuer(browser: Browser, guarded: Server, issuer: Issuer) -> None:
    """Below a proxy's prefix. A refusal and an end are told, and what was typed stays. A sign-in that is kept
    lasts as long as the tab."""
    error = "document.querySelector('dialog.key[open] .error')?.textContent.includes"
    async with proxying(guarded.url, "/llm") as url:
        issuer.redirects.add(f"{url}/console/")
        await open_page(browser, url)
        await type_into(browser, "textarea.draft", "typed before")
        issuer.refusal = {"error": "access_denied", "error_description": HOSTILE}
        await begin_sign_in(browser)
        await browser.wait_for(f"{error}({json.dumps(HOSTILE)})")
        issuer.refusal = None
        issuer.claims = {"aud": "another API"}
        await begin_sign_in(browser)
        await browser.wait_for(f"{error}('does not accept your sign-in')")
        # The server accepts tokens for 30 more seconds than the issuer says.
        end = time.time() + 10  # ten times what a sign-in takes
        issuer.claims = {"groups": ["members"], "exp": int(end) - 30}
        await begin_sign_in(browser)
        await browser.wait_for("!document.querySelector('dialog.key')")
        await asyncio.sleep(end - time.time())
        await refresh_until(browser, "chat-page", f"{error}('Your sign-in has expired')")
        issuer.claims = {"groups": ["members"], "email": f"{HOSTILE}@example.org"}
        await browser.run("document.querySelector('dialog.key [name=remember]').checked = true")
        await begin_sign_in(browser)
        await browser.wait_for("!document.querySelector('dialog.key')")
        browser.problems.clear()
        assert HOSTILE in await browser.run("document.querySelector('nav.pages').textContent")
        assert await browser.run("document.querySelector('textarea.draft').value") == "typed before"
        assert "Antiphon" in await say(browser, "What is Antiphon?")
        assert await browser.run("location.search + document.cookie") == ""
        assert await browser.run("[Object.keys(sessionStorage), localStorage.length]") == [
            ["antiphon.key"],
            0,
        ]
        await open_page(browser, url)
        await browser.wait_for("document.querySelector('.settings option')")
        await click(browser, "nav.pages button[title*=onerror]")
        assert HOSTILE in await read(browser, "dialog.key strong")
        await click(browser, "dialog.key .danger")  # which signs out
        await browser.wait_for("document.querySelector('nav.pages [title=\"Use a key\"]')")
        await browser.wait_for("document.querySelector('dialog.key[open]')")
    browser.problems.clear()


async def test_a_token_that_comes_late_does_not_replace_a_key(
    browser: Browser, guarded: Server, issuer: Issuer, key: str
) -> None:
    issuer.claims, issuer.refusal = {"groups": ["members"]}, None
    await open_page(browser, guarded.url)
    await browser.run(
        """(() => {
          const { fetch } = window;
          const held = new Promise((resume) => { window.release = resume; });
          window.fetch = async (address, options) => {
            const answer = await fetch(address, options);
            if (!String(address).endsWith("/token")) return answer;
            const found = await answer.json();
            window.isHeld = true;
            await held;
            return { ok: true, json: async () => found };
          };
        })()"""
    )
    await begin_sign_in(browser)
    await browser.wait_for("window.isHeld")
    await enter_key(browser, key)
    await browser.run("window.release()")
    await browser.run(SETTLE)
    await click(browser, "nav.pages button:last-child")
    assert "in this page's memory" in await read(browser, "dialog.key[open] p")


async def test_each_role_does_what_it_may(browser: Browser, guarded: Server, key: str) -> None:
    """An owner changes members, a member talks, and a viewer looks. Others get the server's words."""
    for role in ("owner", "member", "viewer"):
        with httpx2.Client(base_url=f"{guarded.url}/admin/v1/", headers={"x-api-key": key}) as client:
            user = client.post("users", json={"name": role}).json()["id"]
            client.put(f"projects/default/members/{user}", json={"role": role}).raise_for_status()
            token = client.post("keys", json={"kind": "access_token", "user": user}).json()["secret"]
        await open_page(browser, guarded.url, "access/projects/default", token)
        await type_into(browser, "access-page .card [name=role]", "owner")
        await browser.run("document.querySelector('access-page .card form').requestSubmit()")
        if role != "owner":
            assert "only an owner" in await read(browser, "access-page .error")
        await click(browser, "access-page a[href='#/access/audit']")
        await browser.wait_for("document.querySelector('access-page').innerText.includes('may not see them')")
        await browser.run("location.hash = '#/chat'")
        await browser.wait_for("document.querySelector('.settings option')")
        await type_into(browser, "textarea.draft", "What is Antiphon?")
        await browser.run("document.querySelector('.composer').requestSubmit()")
        if role == "viewer":
            assert "may not generate" in await read(browser, ".message.assistant .error")
            await browser.run("location.hash = '#/requests'")
            assert "a viewer sees the project's sums" in await read(browser, "requests-page .error")
        else:
            assert "Antiphon" in await read_answer(browser)
        await browser.open("about:blank")
        assert all("403" in problem for problem in browser.problems), browser.problems
        assert role != "owner" or not any("members" in problem for problem in browser.problems)
        browser.problems.clear()


async def test_a_price_is_added_and_ends(browser: Browser, guarded: Server, key: str) -> None:
    await open_page(browser, guarded.url, "access/prices", key)
    await click(browser, "access-page button.primary")
    for name, value in (("models", "cantor"), ("input", "0.15"), ("output", "0,6"), ("note", HOSTILE)):
        await type_into(browser, f"access-page [name={name}]", value)
    await browser.run("document.querySelector('access-page form').requestSubmit()")
    assert "decimal" in await read(browser, "access-page form .error")
    assert "400" in browser.problems.pop()
    await type_into(browser, "access-page [name=output]", "0.6")
    await browser.run("document.querySelector('access-page form').requestSubmit()")
    await browser.wait_for("document.querySelector('access-page tbody tr')?.innerText.includes('cantor')")
    row = await read(browser, "access-page tbody tr")  # the latest is the first; another test makes one, too
    assert "$0.15" in row and "$0.60" in row and HOSTILE in row
    await click(browser, "access-page tbody button")
    await type_into(browser, "access-page tbody [name=note]", "list price")
    await browser.run("document.querySelector('access-page tbody form').requestSubmit()")
    await browser.wait_for("document.querySelector('access-page tbody').innerText.includes('list price')")
    await click(browser, "access-page tbody button:nth-child(2)")
    await click(browser, "body > dialog .danger")
    await browser.wait_for("document.querySelector('access-page tr.ended')")


async def test_an_adapter_is_loaded_and_talks(browser: Browser, guarded: Server, key: str) -> None:
    await open_page(browser, guarded.url, "models", key)
    await click(browser, "models-page .row button")
    await type_into(browser, "models-page [name=name]", "buccaneer")
    await type_into(browser, "models-page [name=path]", "pirate.gguf")
    await browser.run("document.querySelector('models-page form').requestSubmit()")
    row = (
        "[...document.querySelectorAll('models-page tr')].find((row) => row.innerText.includes('buccaneer'))"
    )
    await browser.wait_for(row)
    assert "cantor" in await browser.run(f"{row}.innerText")
    await browser.run("location.hash = '#/chat'")
    await browser.wait_for("document.querySelector('.settings')?.textContent.includes('buccaneer')")
    await type_into(browser, ".settings select", "buccaneer")
    assert "arr" in (await say(browser, "What is Antiphon?")).lower()
    await browser.run("location.hash = '#/models'")
    await browser.wait_for(f"{row}?.querySelector('button')")
    await browser.run(f"{row}.querySelector('button').click()")
    await click(browser, "body > dialog .danger")
    await browser.wait_for(f"!{row}")


async def test_a_key_with_a_limit_is_made_and_refuses(browser: Browser, guarded: Server, key: str) -> None:
    """The key is shown once, its note is text, its limit acts, and the request's time is laid out."""
    await open_page(browser, guarded.url, "access", key)
    await click(browser, "access-page button.primary")
    await type_into(browser, "access-page [name=note]", HOSTILE)
    await type_into(browser, "access-page [name=requests]", "1")
    await browser.run("document.querySelector('access-page form').requestSubmit()")
    secret = await read(browser, ".secret-text")
    await click(browser, "dialog.secret .primary")
    await browser.wait_for("document.querySelector('access-page tbody').innerText.includes('onerror')")
    assert secret not in await browser.run("document.body.innerHTML")
    await open_page(browser, guarded.url, "chat", secret)
    await browser.wait_for("document.querySelector('.settings option')")
    await say(browser, "What is Antiphon?")
    await type_into(browser, "textarea.draft", "And again?")
    await browser.run("document.querySelector('.composer').requestSubmit()")
    assert "limit" in await read(browser, ".message.assistant .error")
    assert "429" in browser.problems.pop()
    request = await browser.run("document.querySelector('.message.assistant footer a').hash.split('/').pop()")
    await open_page(browser, guarded.url, f"requests/{request}", key)
    await browser.wait_for("document.querySelector('requests-page')")
    await refresh_until(browser, "requests-page", "document.querySelector('.waterfall')")
    rows = await browser.run(
        "[...document.querySelectorAll('.bar-label')].map((each) => each.textContent.trim())"
    )
    assert "until the first token" in rows and "tokens" in rows
    await browser.expect_problems("404")  # its project keeps no words
    await open_page(browser, guarded.url, "access/limits", key)
    assert "1" in await read(browser, "access-page tbody")
    await open_page(browser, guarded.url, "access/audit", key)
    assert "key.create" in await read(browser, "access-page tbody")


async def test_members_and_keys_are_changed_and_a_refusal_is_shown(
    browser: Browser, guarded: Server, key: str
) -> None:
    """By way of the palette and its keys. A key that may see nothing of it is told so."""

    def post(path: str, **body: Any) -> Any:
        return httpx2.post(f"{guarded.url}/admin/v1/{path}", headers={"x-api-key": key}, json=body).json()

    made = post("users", name=HOSTILE)
    gone = post("keys", kind="service", project="default", note="gone")
    other = post("keys", kind="service", project="default", note="other")
    await open_page(browser, guarded.url, "chat", key)
    await browser.wait_for("document.querySelector('.settings option')")
    press = "document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { bubbles: true, %s }))"
    await browser.run(press % "key: 'k', ctrlKey: true")
    await type_into(browser, "dialog.palette[open] input", "acc")
    await browser.wait_for("document.querySelectorAll('dialog.palette li').length === 1")
    await browser.run(press % "key: 'ArrowDown'")
    assert await browser.run("document.activeElement.innerText") == "Access"
    await browser.run("document.activeElement.click()")
    await browser.wait_for("document.querySelector('access-page tbody') && !document.querySelector('dialog')")
    await click(browser, "access-page a[href='#/access/projects']")
    await browser.wait_for("document.querySelector('access-page th')?.innerText === 'Project'")
    await click(browser, "access-page tbody button")
    await type_into(browser, "access-page .card [name=user]", made["id"])
    await browser.run("document.querySelector('access-page .card form').requestSubmit()")
    await browser.wait_for("document.querySelector('access-page .card tbody')?.innerText.includes('member')")
    assert HOSTILE in await read(browser, "access-page .card tbody")
    await click(browser, "access-page a[href='#/access/keys']")
    row = "[...document.querySelectorAll('access-page tr')].find((row) => row.cells[1].innerText === 'gone')"
    await browser.wait_for(row)
    assert post(f"keys/{gone['id']}/revoke")["revoked_at"]
    await browser.run(f"{row}.querySelector('button').click()")
    await click(browser, "body > dialog .danger")
    assert "the key has ended" in await read(browser, "access-page .error")
    assert "400" in browser.problems.pop()
    await open_page(browser, guarded.url, "access/projects/default", other["secret"])
    await browser.wait_for("document.querySelector('access-page .card')")
    assert "This key may not see them." in await read(browser, "access-page .card")
    await browser.expect_problems("403")


async def test_without_records_a_page_says_what_to_do(browser: Browser, server: Server) -> None:
    for page in ("requests", "usage", "access"):
        await open_page(browser, server.url, page)
        assert "ANTIPHON_KEYS=true" in await read(browser, f"{page}-page .error")
        await browser.expect_problems("404")


async def test_usage_is_charted(browser: Browser, guarded: Server, key: str) -> None:
    await open_page(browser, guarded.url, "chat", key)
    await browser.wait_for("document.querySelector('.settings option')")
    await say(browser, "What is Antiphon?")
    await browser.run("location.hash = '#/usage'")
    await browser.wait_for("document.querySelector('usage-page')")
    row = "document.querySelector('usage-page tbody')?.innerText.includes('cantor')"
    await refresh_until(browser, "usage-page", row)
    await browser.wait_for("document.querySelector('usage-page .chart canvas')")
    assert "cantor" in await read(browser, "usage-page .u-legend")
    await browser.call(
        "Emulation.setDeviceMetricsOverride", width=390, height=800, deviceScaleFactor=1, mobile=True
    )
    await browser.wait_for("document.querySelector('usage-page canvas').clientWidth < 390")
    links = "[...document.querySelectorAll('nav.pages :is(a, button)')]"
    assert await browser.run(f"{links}.every((each) => each.title || each.ariaLabel)")
    assert await browser.run("document.documentElement.scrollWidth") == 390
    await browser.call("Emulation.clearDeviceMetricsOverride")


async def test_a_document_is_added_and_found(
    browser: Browser, guarded: Server, key: str, tmp_path: Path
) -> None:
    file = tmp_path / "harbour.md"
    file.write_text("# Harbour rules\n\nEverybody has 28 days of leave in a year.\n")
    await open_page(browser, guarded.url, "knowledge", key)
    await click(browser, "knowledge-page button.primary")
    await type_into(browser, "knowledge-page [name=name]", "harbour")
    await browser.run("document.querySelector('knowledge-page form').requestSubmit()")
    await browser.wait_for("document.querySelector('knowledge-page tbody')?.innerText.includes('harbour')")
    await browser.run("location.hash = '#/knowledge/harbour'")
    await browser.wait_for("document.querySelector('knowledge-page .card input[type=file]')")
    await browser.choose_file("knowledge-page .card input[type=file]", file)
    await browser.wait_for("document.querySelector('knowledge-page .card .state.ready')")
    await type_into(browser, "knowledge-page [name=query]", "days of leave")
    await browser.run("document.querySelector('knowledge-page .card form').requestSubmit()")
    assert "28 days of leave" in await read(browser, "knowledge-page .results tbody")


# --- the reference ---


async def open_operation(browser: Browser, method: str, path: str) -> str:
    """Opens an operation, and returns the selector of its form."""
    found = await browser.run(
        "(() => { const all = [...document.querySelectorAll('.operation')];"
        f"const one = all.find((each) => each.innerText.startsWith({json.dumps(method)}) &&"
        f" each.querySelector('summary code').textContent === {json.dumps(path)});"
        "one.open = true; return all.indexOf(one); })()"
    )
    await browser.run(f"document.querySelectorAll('.operation')[{found}].id = 'operation'")
    await browser.wait_for("document.querySelector('#operation form')")
    return "#operation"


async def submit_operation(browser: Browser) -> str:
    await browser.run("document.querySelector('#operation form').requestSubmit()")
    await browser.wait_for("document.querySelector('#operation :is(pre.answer, p.error)')")
    await browser.wait_for("!document.querySelector('#operation button:disabled')")
    shown: str = await browser.run(
        "document.querySelector('#operation :is(pre.answer, p.error)').textContent"
    )
    await browser.run(
        "(() => { const one = document.querySelector('#operation'); one.open = false; one.id = ''; })()"
    )
    return shown


async def test_every_operation_is_listed_with_its_fields(
    browser: Browser, server: Server, guarded: Server, key: str
) -> None:
    """Without keys, and with keys, where the most operations are."""
    for url, sent in ((server.url, ""), (guarded.url, key)):
        await browser.open("about:blank")
        browser.requests.clear()
        await browser.open(f"{url}/docs")
        if sent:
            await enter_key(browser, sent)
        await browser.wait_for("document.querySelector('.operation')")
        listed = await browser.run(
            "[...document.querySelectorAll('.operation')].map((each) => "
            "each.querySelector('.method').textContent + each.querySelector('summary code').textContent)"
        )
        document = httpx2.get(f"{url}/openapi.json", headers={"x-api-key": sent} if sent else {}).json()
        assert sorted(listed) == sorted(
            method.upper() + path for path, item in document["paths"].items() for method in item
        )
    await browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    await browser.wait_for(f"document.querySelectorAll('.operation form').length === {len(listed)}")
    assert not await browser.run("document.body.innerText.includes('undefined')")


async def test_an_operation_is_tried(browser: Browser, guarded: Server, key: str, tmp_path: Path) -> None:
    """Parameters of path, query and header, a stream, and a file."""
    await open_page(browser, guarded.url, "reference", key)
    await browser.wait_for("document.querySelector('.operation')")
    await open_operation(browser, "GET", "/v1/models/{model}")
    await type_into(browser, "#operation [name='path:model']", "cantor")
    await type_into(browser, "#operation [name='header:x-request-id']", "of-the-page")
    shown = await submit_operation(browser)
    assert '"id": "cantor"' in shown and "x-request-id: of-the-page" in shown
    await open_operation(browser, "POST", "/v1/chat/completions")
    talk = {"model": "cantor", "messages": [{"role": "user", "content": "What is Antiphon?"}], "stream": True}
    await type_into(browser, "#operation [name=body]", json.dumps(talk))
    shown = await submit_operation(browser)
    assert "text/event-stream" in shown and shown.rstrip().endswith("[DONE]")
    await open_operation(browser, "POST", "/v1/knowledge/tables")
    await type_into(
        browser, "#operation [name=body]", json.dumps({"name": "handbook", "embedding_model": None})
    )
    assert "201" in await submit_operation(browser)
    file = tmp_path / "rules.md"
    file.write_text("# Harbour rules\n\nEverybody has 28 days of leave in a year.\n")
    await open_operation(browser, "POST", "/v1/knowledge/tables/{table}/documents")
    await type_into(browser, "#operation [name='path:table']", "handbook")
    await type_into(browser, "#operation [name$=':wait']", "true")
    await browser.choose_file("#operation input[type=file]", file)
    shown = await submit_operation(browser)
    assert '"name": "rules.md"' in shown and '"chunks": 1' in shown, shown
    await open_operation(browser, "DELETE", "/v1/knowledge/tables/{table}")
    await type_into(browser, "#operation [name='path:table']", "handbook")
    assert "200" in await submit_operation(browser)


# --- everywhere ---


async def test_texts_of_callers_are_text_on_every_page(browser: Browser, guarded: Server, key: str) -> None:
    """Names, notes, tags, documents and words that somebody stored, and what a link puts into an address."""
    with httpx2.Client(base_url=guarded.url, headers={"x-api-key": key}, timeout=60) as client:

        def send(method: str, path: str, **content: Any) -> Any:
            answer = client.request(method, path, **content)
            assert answer.is_success, (path, answer.text)
            return answer.json()

        project = send("POST", "/admin/v1/projects", json={"name": HOSTILE, "note": HOSTILE})["id"]
        user = send("POST", "/admin/v1/users", json={"name": HOSTILE})["id"]
        send("PUT", f"/admin/v1/projects/{project}/members/{user}", json={"role": "member"})
        send("PUT", f"/admin/v1/projects/{project}/recording", json={"days": 1})
        limit = {"measure": "requests", "amount": 9, "window": "minute"}
        new = {"kind": "service", "project": project, "note": HOSTILE, "limits": [limit]}
        secret = send("POST", "/admin/v1/keys", json=new)["secret"]
        price = {"models": "hostile", "currency": "USD", "input": "1", "output": "1", "note": HOSTILE}
        send("POST", "/admin/v1/prices", json=price)
        send("POST", "/v1/knowledge/tables", json={"name": "hostile", "embedding_model": None})
        file = {"file": (HOSTILE, HOSTILE_TEXT.encode(), "text/plain")}
        path = "/v1/knowledge/tables/hostile/documents"
        send("POST", path, files=file, data={"wait": "true"})
        talk = {
            "model": "cantor",
            "messages": [{"role": "user", "content": HOSTILE}],
            "max_tokens": 4,
            "user": HOSTILE,
            "metadata": {"tag": HOSTILE},
        }
        headers = {"x-api-key": secret, "x-request-id": "of-a-hostile-caller"}
        send("POST", "/v1/chat/completions", json=talk, headers=headers)
    await open_page(browser, guarded.url, "access", key)
    await browser.run("window.alert = (what) => { throw new Error(`alert ${what}`); }")
    made = "main :is(img, script, iframe, svg a, [onclick], [onerror], a[href^=javascript])"
    address = quote(HOSTILE, safe="")
    for page in (
        "access/keys",
        f"access/projects/{project}",
        "access/limits",
        "access/prices",
        "access/audit",
        "requests/of-a-hostile-caller",
        "usage",
        "knowledge/hostile",
        f"requests/{address}",
        f"models/{address}",
    ):
        name = page.partition("/")[0]
        await browser.run(f"location.hash = '#/{page}'")
        await browser.wait_for(f"document.querySelector('{name}-page :is(table, .error)')")
        if name == "usage":
            await type_into(browser, "usage-page label:nth-child(2) select", "project")
        if name == "knowledge":
            await type_into(browser, "knowledge-page [name=query]", "link image")
            await browser.run("document.querySelector('knowledge-page .card form').requestSubmit()")
            await browser.wait_for("document.querySelector('.results')")
        seen = f"document.querySelector('{name}-page').textContent.includes('<script>alert(2)</script>')"
        await refresh_until(browser, f"{name}-page", seen)
        await browser.run(SETTLE)
        assert await browser.run(f"document.querySelectorAll('{made}').length") == 0, page
    await browser.expect_problems("404")


async def test_no_page_has_a_serious_barrier(browser: Browser, guarded: Server, key: str) -> None:
    """axe-core looks at every page, as it is with a conversation and with records. Dark pages differ only in
    their colours."""

    async def look(scheme: str, options: dict[str, Any]) -> list[str]:
        media = [{"name": "prefers-color-scheme", "value": scheme}]
        await browser.call("Emulation.setEmulatedMedia", features=media)
        await browser.run(SETTLE)
        found: list[str] = await browser.run(
            f"axe.run({json.dumps({'resultTypes': ['violations'], **options})}).then(({{ violations }}) => "
            "violations.filter(({ impact }) => impact === 'serious' || impact === 'critical')"
            ".map(({ id, nodes }) => `${id}: ${nodes.map((node) => node.html.slice(0, 160)).slice(0, 3)}`))"
        )
        return found

    await open_page(browser, guarded.url, "chat", key)
    await browser.wait_for("document.querySelector('.settings option')")
    await click(browser, ".settings .check input")
    await say(browser, "Who are you?")
    await browser.run(AXE.read_text("utf-8") + "; true")
    for page in PAGES:
        await browser.run(f"location.hash = '#/{page}'")
        await browser.wait_for(f"document.querySelector('{page}-page')")
        shown = f"document.querySelector('{page}-page :is(h1, .settings option)')"
        await browser.wait_for(f"{shown} && !document.querySelector('main').innerText.includes('Loading …')")
        assert await look("light", {}) == [], page
        assert await look("dark", {"runOnly": ["color-contrast"]}) == [], page
    await browser.call("Emulation.setEmulatedMedia", features=[])


class HeldModel:
    """Answers chats by a stream whose end waits for the test."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.bodies: list[dict[str, Any]] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        if self.bodies[-1]["messages"][-1]["content"] == "fail":
            return web.json_response({"error": {"message": HOSTILE}}, status=500)
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for text in ("It began", " and ended."):
            choice = {"index": 0, "delta": {"content": text}}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
            await self.go.wait()
        await response.write(b"data: [DONE]\n\n")
        return response


@asynccontextmanager
async def proxying(
    upstream: str, prefix: str, port: int = 0, chat: HeldModel | None = None
) -> AsyncIterator[str]:
    """A proxy that serves a server below a prefix. `chat` answers in place of the server's models."""

    async def relay(request: web.Request) -> web.StreamResponse:
        if chat is not None and request.path.endswith("/chat/completions"):
            return await chat(request)
        address = upstream + request.raw_path.removeprefix(prefix)
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(
                request.method,
                address,
                headers=request.headers,
                data=await request.read(),
                allow_redirects=False,
            ) as answer,
        ):
            kept = {
                n: v
                for n, v in answer.headers.items()
                if n.lower() not in ("transfer-encoding", "connection")
            }
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for part in answer.content.iter_any():
                await response.write(part)
            return response

    app = web.Application()
    app.router.add_route("*", f"{prefix}/{{rest:.*}}", relay)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}{prefix}"
    finally:
        await runner.cleanup()


async def test_a_proxy_s_prefix_and_a_server_that_is_away(browser: Browser, server: Server) -> None:
    """The page says that it waits, and goes on when the server answers again."""
    async with proxying(server.url, "/llm") as url:
        await browser.open("about:blank")
        await browser.open(f"{url}/")
        await browser.wait_for("document.querySelector('chat-page') && location.pathname === '/llm/console/'")
        assert "Antiphon" in await say(browser, "What is Antiphon?")
    port = int(url.split(":")[2].split("/")[0])
    await type_into(browser, "textarea.draft", "Are you there?")
    await browser.run("document.querySelector('.composer').requestSubmit()")
    await browser.wait_for("document.querySelector('.banner')")
    assert "cannot be reached" in await read(browser, ".message.assistant .error")
    async with proxying(server.url, "/llm", port):
        await browser.wait_for("!document.querySelector('.banner')")
        await click(browser, ".message.assistant .error ~ footer [aria-label='Answer again']")
        await browser.wait_for("document.querySelector('.branches')?.innerText.includes('2/2')")
        assert await read_answer(browser)
    assert all("ERR_" in problem for problem in browser.problems), browser.problems
    browser.problems.clear()
