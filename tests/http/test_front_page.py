"""The page at `/`: for browsers, for programs, and what it keeps to itself where there are keys."""

import re

import pytest

from tests.support.http_server import KEY, serving

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


async def test_a_browser_gets_a_page_without_foreign_parts(served):
    answer = await served.ask("/", headers=BROWSER)
    page = answer.body.decode()
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "<code>m</code>" in page and 'href="/docs"' in page
    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; style-src 'self';") and "unsafe" not in policy
    addresses = re.findall(r'(?:href|src)="([^"]*)"', page)
    assert addresses and all(re.match("/(?!/)", each) for each in addresses)
    assert not re.search(r"<script|<style|style=|\son\w+=", page)
    style = next(each for each in addresses if each.endswith(".css"))
    assert (await served.ask(style)).status == 200


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
async def test_a_program_gets_json(served, accept):
    answer = await served.ask("/", headers={"accept": accept} if accept else {})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {
        "name": "Antiphon",
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/health",
        "models": [each["id"] for each in (await served.ask("/v1/models")).json()["data"]],
    }


@pytest.mark.parametrize("headers", [{}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": "wrong"}])
async def test_with_a_key_no_model_is_named(headers):
    async with serving(key=KEY) as server:
        page = (await server.ask("/", headers=BROWSER | headers)).body.decode()
        assert "asks for a key" in page and "<code>m</code>" not in page
        assert "models" not in (await server.ask("/", headers=headers)).json()


async def test_other_methods_are_refused_by_name(served):
    for method in ("POST", "PUT", "DELETE"):
        answer = await served.ask("/", {} if method == "POST" else None, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
