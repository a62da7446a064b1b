"""The server's pages in a real browser, with and without keys. An error in the console fails each test."""

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx2
import pytest

from tests.support.browser import Browser, open_browser
from tests.support.server import Server, serving

FILL_IN = """(async (method, path, body, values) => {
  const details = [...document.querySelectorAll(".operation")].find((each) =>
    each.querySelector(".method").textContent === method && each.querySelector(".path").textContent === path);
  details.open = true;
  while (!details.querySelector("form")) await new Promise((done) => setTimeout(done, 20));
  const form = details.querySelector("form");
  if (body) form.elements.body.value = JSON.stringify(body);
  for (const [name, value] of Object.entries(values)) {
    const input = form.elements[name];
    if (!input.multiple) input.value = value;
    else for (const option of input.options) option.selected = value.includes(option.value);
  }
  form.id = "operation";
  return true;
})"""
"""Opens an operation and fills its form in."""


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.problems.clear()
    chromium.requests.clear()
    yield chromium
    assert chromium.problems == []


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def guarded(home: Path) -> Iterator[Server]:
    """A server with keys, and with knowledge tables that need no database."""
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home), "ANTIPHON_KNOWLEDGE_STORAGE": "files"}
    with serving(env=env) as running:
        yield running


def read_key(home: Path) -> str:
    return (home / "admin.key").read_text().strip()


async def enter_key(browser: Browser, key: str) -> None:
    await browser.run(f"document.getElementById('key').value = {json.dumps(key)}")
    await browser.run("document.getElementById('key-form').requestSubmit()")
    await browser.wait_for("document.getElementById('status').textContent")


async def fill_in(
    browser: Browser, method: str, path: str, body: object = None, **values: str | list[str]
) -> None:
    await browser.run(
        f"{FILL_IN}({json.dumps(method)}, {json.dumps(path)}, {json.dumps(body)}, {json.dumps(values)})"
    )


async def submit(browser: Browser) -> str:
    """Sends the form that was filled in, and returns what the page then shows."""
    await browser.run("document.getElementById('operation').requestSubmit()")
    await browser.wait_for("document.querySelector('#operation button:disabled') === null")
    shown: str = await browser.run("document.querySelector('#operation pre').textContent")
    await browser.run("document.getElementById('operation').removeAttribute('id')")
    return shown


@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with keys"])
async def test_every_operation_is_listed_with_its_form(
    browser: Browser, server: Server, guarded: Server, home: Path, keys: bool
) -> None:
    """Also its schemas; nothing in them is undefined."""
    url, key = (guarded.url, read_key(home)) if keys else (server.url, "")
    await browser.open(f"{url}/docs")
    if keys:
        assert not any("openapi" in request["url"] for request in browser.requests)  # it would be a 401
        await enter_key(browser, key)
    await browser.wait_for("document.querySelector('.operation')")
    await browser.run("document.querySelectorAll('details').forEach((each) => { each.open = true; })")
    listed = await browser.run(
        "[...document.querySelectorAll('.operation')].map((each) => "
        "each.querySelector('.method').textContent + each.querySelector('.path').textContent)"
    )
    document = httpx2.get(f"{url}/openapi.json", headers={"x-api-key": key}).json()
    expected = [method.upper() + path for path, item in document["paths"].items() for method in item]
    schemas = document["components"]["schemas"]
    assert sorted(listed) == sorted(expected)
    await browser.wait_for(f"document.querySelectorAll('.operation form').length === {len(expected)}")
    await browser.wait_for(f"document.querySelectorAll('main > details[id]').length === {len(schemas)}")
    assert any(name.startswith("POST/admin/v1/keys") for name in listed) is keys
    assert not await browser.run("document.body.innerText.includes('undefined')")


async def test_the_key_is_entered_once_and_kept_nowhere(
    browser: Browser, guarded: Server, home: Path
) -> None:
    await browser.open(f"{guarded.url}/docs")
    await enter_key(browser, "wrong")
    assert "key" in await browser.run("document.getElementById('status').textContent")
    assert len(browser.problems) == 1 and "401" in browser.problems.pop()
    await enter_key(browser, read_key(home))
    await browser.wait_for("document.querySelector('.operation')")
    await fill_in(browser, "GET", "/v1/models")
    assert "200 OK" in await submit(browser)
    assert browser.requests[-1]["headers"]["Authorization"] == f"Bearer {read_key(home)}"
    assert await browser.run("localStorage.length + sessionStorage.length + document.cookie.length") == 0
    await browser.open(f"{guarded.url}/docs")
    assert await browser.run("document.getElementById('key').value") == ""


async def test_parameters_of_path_query_and_header_are_sent(browser: Browser, server: Server) -> None:
    await browser.open(f"{server.url}/docs")
    await browser.wait_for("document.querySelector('.operation')")
    await fill_in(browser, "GET", "/v1/models/{model}", model="cantor", **{"x-request-id": "of-the-page"})
    shown = await submit(browser)
    assert '"id": "cantor"' in shown and "x-request-id: of-the-page" in shown
    await fill_in(
        browser, "GET", "/fireworks/inference/v1/models/{model}", model="accounts/fireworks/models/a b"
    )
    assert "404" in await submit(browser)
    assert browser.problems.pop().startswith("Failed to load resource")
    assert browser.requests[-1]["url"].endswith("/v1/models/accounts/fireworks/models/a%20b")
    await fill_in(browser, "GET", "/jamai/api/v1/models", capabilities=["chat", "tool"], model="a&b=c")
    await submit(browser)
    assert browser.requests[-1]["url"].endswith("/models?model=a%26b%3Dc&capabilities=chat&capabilities=tool")


async def test_a_stream_is_shown_to_its_end(browser: Browser, server: Server) -> None:
    await browser.open(f"{server.url}/docs")
    await browser.wait_for("document.querySelector('.operation')")
    question = [{"role": "user", "content": "What is Antiphon?"}]
    await fill_in(
        browser, "POST", "/v1/chat/completions", {"model": "cantor", "messages": question, "stream": True}
    )
    shown = await submit(browser)
    assert "content-type: text/event-stream" in shown and shown.endswith("data: [DONE]\n\n")


async def test_files_are_sent(browser: Browser, guarded: Server, home: Path, tmp_path: Path) -> None:
    file = tmp_path / "rules.md"
    file.write_text("# Harbour rules\n\nEverybody has 28 days of leave in a year.\n")
    await browser.open(f"{guarded.url}/docs")
    await enter_key(browser, read_key(home))
    await browser.wait_for("document.querySelector('.operation')")
    await fill_in(browser, "POST", "/v1/knowledge/tables", {"name": "handbook", "embedding_model": None})
    assert "201 Created" in await submit(browser)
    await fill_in(browser, "POST", "/v1/knowledge/tables/{table}/documents", table="handbook", wait="true")
    await browser.choose_file("#operation input[type=file]", file)
    shown = await submit(browser)
    assert "200 OK" in shown and '"name": "rules.md"' in shown and '"chunks": 1' in shown, shown
    await fill_in(browser, "DELETE", "/v1/knowledge/tables/{table}", table="handbook")
    assert "200 OK" in await submit(browser)


@pytest.mark.parametrize("keys", [False, True], ids=["without keys", "with keys"])
async def test_the_front_page_is_shown(browser: Browser, server: Server, guarded: Server, keys: bool) -> None:
    await browser.open(guarded.url if keys else server.url)
    shown = await browser.run("document.body.innerText")
    assert ("cantor" in shown) is not keys
    await browser.run("document.querySelector('a[href=\"/docs\"]').click()")
    await browser.wait_for("location.pathname === '/docs' && document.readyState === 'complete'")
