"""What a hostile caller and a hostile vendor cost: callers who leave before the usage, and counts that cannot
be true."""

import json
import socket
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.prices import format_decimal
from tests.support.billing_vendor import BillingVendor, serve_billing_vendor
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "{url}/v1"
private = true

[[models]]
name = "v/*"
provider = "v"

[[models]]
name = "team"
routes = [{{ provider = "v", model = "late" }}]
"""

MAX_TOKENS = 4_000
BILL = 1_000 * 1_000 + 2_000 * 10_000
"""Nano-units that an answer of the model `late` costs: one dollar for a million tokens, ten for those of the
output."""


class Place:
    """A server whose models are a vendor's, its operator, and a key with nothing but its own limits."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.home = home
        self.operator = server.client(headers=_bearer((home / "admin.key").read_text().strip()))
        made = self.operator.post("/admin/v1/keys", json={"kind": "service", "project": "default"}).json()
        self.key: str = made["id"]
        self.client = server.client(headers=_bearer(made["secret"]))

    def limit(self, measure: str, amount: int, window: str = "day") -> None:
        wanted = {"subject": "key", "target": self.key, "measure": measure, "window": window}
        made = self.operator.post("/admin/v1/limits", json=wanted | {"amount": amount})
        assert made.status_code == 201, made.text

    def rows(self, count: int) -> list[dict[str, Any]]:
        """All rows of the key, of which there are so many."""
        found: list[dict[str, Any]] = []

        def are_there() -> bool:
            asked = f"/admin/v1/usage/entries?key={self.key}&limit=100"
            found[:] = self.operator.get(asked).json()["data"]
            return len(found) >= count

        wait_until(are_there, what=f"{count} rows")
        assert len(found) == count
        return found

    def change_ledger(self, statement: str) -> None:
        with closing(sqlite3.connect(self.home / "antiphon.db", timeout=60)) as database, database:
            database.execute(statement)


def _bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def vendor() -> Iterator[BillingVendor]:
    with serve_billing_vendor() as vendor:
        yield vendor


@pytest.fixture(scope="module")
def served(vendor: BillingVendor, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Path]]:
    home = tmp_path_factory.mktemp("money") / "home"
    home.mkdir()
    file = home / "antiphon.toml"
    file.write_text(SETTINGS.format(url=vendor.url))
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
    with serving("--config", str(file), threads=None, env=env) as server:
        with server.client(headers=_bearer((home / "admin.key").read_text().strip())) as operator:
            price = {"models": "*", "currency": "USD", "input": "1", "output": "10"}
            made = operator.post("/admin/v1/prices", json=price)
            assert made.status_code == 201, made.text
        yield server, home


@pytest.fixture
def place(served: tuple[Server, Path]) -> Iterator[Place]:
    made = Place(*served)
    yield made
    made.operator.close()
    made.client.close()


def chat(model: str, **more: object) -> dict[str, Any]:
    message = {"role": "user", "content": "hi"}
    return {"model": f"v/{model}", "messages": [message], "max_tokens": MAX_TOKENS} | more


def leave_after_finish(place: Place) -> int:
    """Reads a whole answer, and leaves before its usage. Returns the status."""
    body = chat("late", stream=True, stream_options={"include_usage": True})
    with place.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        if answer.status_code == 200:
            assert any('"finish_reason":"stop"' in line.replace(" ", "") for line in answer.iter_lines())
        return answer.status_code


def test_forty_streams_left_before_their_usage_cost_what_the_vendor_bills(
    place: Place, vendor: BillingVendor
) -> None:
    budget = 10 * BILL
    place.limit("cost", budget)
    before = vendor.requests
    statuses = [leave_after_finish(place) for _ in range(40)]
    served = statuses.count(200)
    assert set(statuses) == {200, 429} and served == vendor.requests - before
    rows = place.rows(served)
    assert {(row["source"], row["cost"]) for row in rows} == {("reported", format_decimal(BILL))}
    assert served * BILL <= budget


@pytest.mark.parametrize(("model", "is_streamed"), [("one", True), ("silent", True), ("silent", False)])
def test_who_leaves_earlier_pays_for_what_the_vendor_may_have_made(
    model: str, is_streamed: bool, place: Place, vendor: BillingVendor
) -> None:
    """Before the route has shown its speed, that is the whole output. The connection is closed at once."""
    left, came = vendor.left, vendor.requests
    leave(place, "/v1/chat/completions", chat(model, stream=is_streamed), vendor, came)
    wait_until(lambda: vendor.left == left + 1, what="the vendor's connection is closed")
    (row,) = place.rows(1)
    assert (row["status"], row["source"]) == ("cancelled", "estimated")
    assert (row["prompt_tokens"], row["output_tokens"]) == (1, MAX_TOKENS)


def test_who_leaves_an_embedding_pays_its_prompt(place: Place, vendor: BillingVendor) -> None:
    leave(place, "/v1/embeddings", {"model": "v/silent", "input": "word" * 50}, vendor, vendor.requests)
    (row,) = place.rows(1)
    assert (row["status"], row["source"], row["prompt_tokens"]) == ("cancelled", "estimated", 50)


def leave(place: Place, path: str, body: dict[str, Any], vendor: BillingVendor, came: int) -> None:
    """Sends a request, and closes the connection when the vendor has got it."""
    host, _, port = place.server.url.removeprefix("http://").partition(":")
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        f"Authorization: {place.client.headers['authorization']}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=60) as connection:
        connection.sendall(head.encode() + content)
        if body.get("stream") and body["model"] == "v/one":
            while b"word" not in connection.recv(65536):
                pass
        wait_until(lambda: vendor.requests > came, what="the vendor has the request")


@pytest.mark.parametrize("is_streamed", [True, False])
def test_a_usage_that_cannot_be_true_is_bounded_and_logged(is_streamed: bool, place: Place) -> None:
    answer = place.client.post("/v1/chat/completions", json=chat("huge", stream=is_streamed))
    assert answer.status_code == 200
    (row,) = place.rows(1)
    assert (row["status"], row["source"], row["output_tokens"]) == ("ok", "estimated", MAX_TOKENS)
    assert 1 <= row["prompt_tokens"] <= 300, "at most a token for each byte of the body"
    line = place.server.records("vendor_usage_impossible")[-1]
    assert (line["provider"], line["completion_tokens"]) == ("v", 2**31)


def test_a_price_of_a_routed_models_own_name_is_refused_with_the_name_to_give(place: Place) -> None:
    price = {"models": "team", "currency": "USD", "input": "1", "output": "10"}
    refused = place.operator.post("/admin/v1/prices", json=price)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "models")
    assert "team has the prices of its routes" in refused.json()["error"]["message"]
    assert refused.json()["error"]["message"].endswith("name v/late")
    made = place.operator.post("/admin/v1/prices", json=price | {"models": "v/late"})
    assert made.status_code == 201, made.text


def test_costs_too_large_to_be_summed_leave_limits_readable(place: Place) -> None:
    for _ in range(3):
        assert place.client.post("/v1/chat/completions", json=chat("late")).status_code == 200
    place.rows(3)
    place.change_ledger(f"UPDATE ledger SET cost = {2**63 - 1} WHERE key = '{place.key}'")
    place.limit("cost", 10**9)
    answer = place.client.post("/v1/chat/completions", json=chat("late"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (429, "insufficient_quota")


def test_readiness_says_when_limits_cannot_be_read(place: Place) -> None:
    place.change_ledger("ALTER TABLE ledger RENAME TO moved")
    try:
        place.limit("requests", 5)
        answer = place.client.post("/v1/chat/completions", json=chat("late"))
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "limits_unavailable")
        ready = place.client.get("/health/ready")
        assert (ready.status_code, ready.json()["limits"]) == (503, "unavailable")
    finally:
        place.change_ledger("ALTER TABLE moved RENAME TO ledger")
    wait_until(lambda: place.client.get("/health/ready").status_code == 200, what="limits can be read again")
    assert place.client.post("/v1/chat/completions", json=chat("late")).status_code == 200
