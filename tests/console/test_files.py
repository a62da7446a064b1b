"""The console's files: what they are made of, what they may load, and how they are served."""

import hashlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from antiphon.domain.values import replace
from antiphon.settings.tenancy import OidcSettings
from tests.support.http_server import KEY, Served, serving, serving_edge

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
CONSOLE = ROOT / "src" / "antiphon" / "console"
NODE = ROOT / ".venvs" / "node" / "bin" / "node"
GZIPPED_FIRST_PAGE = 160_000
"""The most bytes that the first page loads."""


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    async with serving() as running:
        yield running


def run(*command: str | Path) -> None:
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_pure_modules_do_what_they_say():
    run(NODE, "--test", HERE / "modules.test.mjs")


def test_the_types_hold():
    run(NODE, HERE / "node_modules" / ".bin" / "tsc", "-p", HERE)


def test_the_libraries_are_what_their_packages_make():
    run(sys.executable, ROOT / "scripts" / "vendor_console.py", "--check")


def test_the_libraries_have_their_digests():
    lines = (CONSOLE / "vendor" / "SHA256SUMS").read_text().splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    files = {path.name for path in (CONSOLE / "vendor").iterdir()} - {"SHA256SUMS"}
    assert set(sums) == files
    for name, digest in sums.items():
        assert hashlib.sha256((CONSOLE / "vendor" / name).read_bytes()).hexdigest() == digest, name


def test_our_files_name_no_foreign_address_and_make_no_markup():
    for path in (*CONSOLE.glob("app/**/*.js"), CONSOLE / "style.css", CONSOLE / "index.html"):
        text = path.read_text()
        assert not re.search(r"https?://(?!h/)[a-z0-9-]+\.", text), path
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|document\.write|unsafeHTML", text
        ), path
    page = (CONSOLE / "index.html").read_text()
    assert not re.search(r"<script>|<style|\son\w+=|style=", page)


async def test_a_page_may_load_nothing_from_elsewhere(served):
    answer = await served.ask("/console/")
    policy = answer.headers["content-security-policy"]
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
    assert "require-trusted-types-for 'script'" in policy and "frame-ancestors 'none'" in policy


@pytest.mark.parametrize(
    ("issuer", "origin"),
    [
        ("https://login.example.org/realms/main", "https://login.example.org"),
        ("https://Login.example.org:8443/", "https://login.example.org:8443"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    ],
)
async def test_a_page_that_signs_in_may_also_ask_the_issuer(served, issuer, origin):
    """And nothing else. Nobody else's page may reach it, and it holds no secret."""
    without = (await served.ask("/console/")).headers["content-security-policy"]
    assert (await served.ask("/console/sign-in.json")).json() is None
    oidc = OidcSettings(issuer=issuer, audience="antiphon", console_client_id="antiphon-console")
    async with serving_edge(replace(served.edge, oidc=oidc)) as (port, _):
        server = Served(port, served.engine, served.edge, served.connections)
        policy = (await server.ask("/console/")).headers["content-security-policy"]
        assert policy == without.replace("connect-src 'self'", f"connect-src 'self' {origin}")
        answer = await server.ask("/console/sign-in.json")
        assert answer.json() == {
            "issuer": issuer,
            "client_id": "antiphon-console",
            "scope": "openid email profile",
        }
        assert answer.headers["cache-control"] == "no-cache"
        assert "access-control-allow-origin" not in answer.headers
    keys_alone = replace(served.edge, oidc=OidcSettings(issuer=issuer, audience="antiphon"))
    async with serving_edge(keys_alone) as (port, _):
        server = Served(port, served.engine, served.edge, served.connections)
        assert (await server.ask("/console/")).headers["content-security-policy"] == without
        assert (await server.ask("/console/sign-in.json")).json() is None


async def test_a_file_that_has_not_changed_is_not_sent_again(served):
    first = await served.ask("/console/app/main.js")
    again = await served.ask("/console/app/main.js", headers={"if-none-match": first.headers["etag"]})
    assert (again.status, again.body) == (304, b"")
    assert (await served.ask("/console/app/main.js", headers={"if-none-match": '"other"'})).status == 200


@pytest.mark.parametrize(
    "path", ["nothing.js", "pages.py", "__init__.py", "app", "app/", "vendor/SHA256SUMS"]
)
async def test_only_the_console_s_own_files_are_served(served, path):
    answer = await served.ask(f"/console/{path}")
    assert answer.status == 404 and "/console/" in answer.json()["error"]["message"]


async def test_the_first_page_is_small_and_loads_all_at_once(served):
    """With all that it imports, as a browser gets it. A module that the page does not name would be loaded
    after the one that imports it."""
    loaded, waiting, size = set(), ["", "style.css", "icon.svg", "app/main.js", "app/pages/chat.js"], 0
    while waiting:
        name = waiting.pop()
        if name in loaded:
            continue
        loaded.add(name)
        answer = await served.ask(f"/console/{name}", headers={"accept-encoding": "gzip"})
        assert answer.headers["content-encoding"] == "gzip"
        size += len(answer.body)
        text = (CONSOLE / (name or "index.html")).read_text()
        folder = (CONSOLE / name).parent
        imported = re.findall(r'(?:from|^import) "(\.[^"]+)"', text, re.MULTILINE)
        waiting += [(folder / path).resolve().relative_to(CONSOLE.resolve()).as_posix() for path in imported]
    assert "vendor/lit.js" in loaded and "vendor/highlight.js" not in loaded
    assert size < GZIPPED_FIRST_PAGE
    page = (CONSOLE / "index.html").read_text()
    named = re.findall(
        r'<link rel="modulepreload" href="([^"]+)">|<script type="module" src="([^"]+)">', page
    )
    assert {one or other for one, other in named} == {name for name in loaded if name.endswith(".js")}


async def test_a_browser_is_led_to_the_console_and_a_program_is_not(served):
    browser = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}
    for path, location in (("/", "console/"), ("/console", "console/"), ("/docs", "console/#/reference")):
        answer = await served.ask(path, headers=browser)
        assert (answer.status, answer.headers["location"]) == (307, location), path
    assert (await served.ask("/")).json()["console"] == "/console/"


async def test_the_files_hold_no_data():
    async with serving(key=KEY) as server:
        for path in ("/", "/docs", "/console/", "/console/app/main.js"):
            body = (await server.ask(path, headers={"accept": "text/html"})).body
            assert b"canary" not in body and b'"m"' not in body
