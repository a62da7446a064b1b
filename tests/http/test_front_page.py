"""The page at `/`: for browsers, for programs, and what it keeps to itself where there are keys."""

import pytest

from tests.support.http_server import KEY, serving

BROWSER = {"accept": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"}


@pytest.mark.parametrize("accept", ["*/*", "application/json", None])
async def test_a_program_gets_json(served, accept):
    answer = await served.ask("/", headers={"accept": accept} if accept else {})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json() == {
        "name": "Antiphon",
        "console": "/console/",
        "docs": "/docs",
        "openapi": "/openapi.json",
        "health": "/health",
        "models": [each["id"] for each in (await served.ask("/v1/models")).json()["data"]],
    }


@pytest.mark.parametrize("headers", [{}, {"authorization": f"Bearer {KEY}"}, {"x-api-key": "wrong"}])
async def test_with_a_key_no_model_is_named(headers):
    async with serving(key=KEY) as server:
        assert (await server.ask("/", headers=BROWSER | headers)).body == b""
        assert "models" not in (await server.ask("/", headers=headers)).json()


async def test_other_methods_are_refused_by_name(served):
    for method in ("POST", "PUT", "DELETE"):
        answer = await served.ask("/", {} if method == "POST" else None, method=method)
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
