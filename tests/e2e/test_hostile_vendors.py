"""Vendors that do their worst, through the real server with keys: no fault looks like a whole answer, no
secret is shown, and other callers are answered meanwhile."""

import json
import secrets
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from tests.support.server import Server, serving
from tests.support.vendors.hostile_vendor import (
    BEHAVIOURS,
    HostileVendor,
    list_key_forms,
    serve_hostile_vendor,
)
from tests.support.waiting import wait_until

SETTINGS = """
[providers.patient]
kind = "openai"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true

[providers.hurried]
kind = "openai"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true
first_byte_timeout = 2.0
timeout = 4.0

[[models]]
name = "patient/*"
provider = "patient"

[[models]]
name = "hurried/*"
provider = "hurried"
"""

KEY = f"hostile.{secrets.token_urlsafe(24)}"
"""Of no usual form, so that nothing but its own value gives it away."""

HEALTH_S = 1.0
"""The most seconds in which `/health` answers beside a hostile answer: ten times what it is allowed."""

CPU_S = 30.0
"""The most CPU seconds that one hostile answer costs the server."""

EACH_TIME = (
    "fewer-nodes",
    "tiny-chunks",
    "many-calls",
    "gzip",
    "gzip-bomb",
    "1xx",
    "no-finish",
    "after-finish",
    "two-lengths",
    "key-echo",
    "calls-with-one-index",
    "vector-infinite",
)
"""The behaviours in `make test`. The soak has all of them."""


class Case(NamedTuple):
    """A behaviour, and whether a stream is asked for."""

    name: str
    is_streamed: bool

    def __str__(self) -> str:
        return f"{self.name}-{'streamed' if self.is_streamed else 'whole'}"

    @property
    def expected(self) -> str:
        """The error's code, or nothing for a whole answer."""
        behaviour = BEHAVIOURS[self.name]
        return behaviour.streamed if self.is_streamed else behaviour.whole


def list_cases() -> Iterator[object]:
    for name, behaviour in BEHAVIOURS.items():
        for is_streamed in (False,) if behaviour.makes_vectors else (False, True):
            case = Case(name, is_streamed)
            marks = () if name in EACH_TIME else (pytest.mark.soak,)
            yield pytest.param(case, marks=marks, id=str(case))


@dataclass
class Gateway:
    """The server, its vendor, and the credentials of a caller and of the operator."""

    server: Server
    vendor: HostileVendor
    key: str
    admin: dict[str, str]
    seen: list[str] = field(default_factory=list)
    """All that callers got."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    home: Path = tmp_path_factory.mktemp("hostile")
    file = home / "antiphon.toml"
    env = {"VENDOR_KEY": KEY, "ANTIPHON_HOME": str(home), "ANTIPHON_KEYS": "true"}
    with serve_hostile_vendor() as vendor:
        file.write_text(SETTINGS.format(url=vendor.url))
        with serving("--config", str(file), threads=None, env=env) as server, server.client() as client:
            admin = {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}
            wanted = {"kind": "service", "project": "default"}
            key = client.post("/admin/v1/keys", json=wanted, headers=admin).json()["secret"]
            yield Gateway(server, vendor, key, admin)


@dataclass
class Seen:
    """What the caller of one request saw."""

    status: int
    body: str
    is_done: bool
    code: str


def ask(gateway: Gateway, case: Case, request_id: str) -> Seen:
    """Sends a case's request, and reads its answer."""
    behaviour = BEHAVIOURS[case.name]
    model = f"{'hurried' if behaviour.is_endless else 'patient'}/{case.name}"
    headers = {"authorization": f"Bearer {gateway.key}", "x-request-id": request_id}
    path = "/v1/embeddings" if behaviour.makes_vectors else "/v1/chat/completions"
    asked = (
        {"model": model, "input": ["a", "b"]}
        if behaviour.makes_vectors
        else {
            "model": model,
            "messages": [{"role": "user", "content": "Count."}],
            "max_tokens": 50,
            "stream": case.is_streamed,
        }
    )
    with gateway.server.client() as client:
        answer = client.post(path, json=asked, headers=headers, timeout=200)
    body = answer.text
    if not answer.headers["content-type"].startswith("text/event-stream"):
        whole = json.loads(body)
        return Seen(answer.status_code, body, "error" not in whole, whole.get("error", {}).get("code", ""))
    events = [line.removeprefix("data: ") for line in body.split("\n") if line.startswith("data: ")]
    is_done = events[-1] == "[DONE]"
    errors = [
        value["error"]["code"]
        for each in events
        if each != "[DONE]" and "error" in (value := json.loads(each))
    ]
    return Seen(answer.status_code, body, is_done, errors[0] if errors else "")


def find_rows(gateway: Gateway, request_id: str) -> list[dict[str, object]]:
    """The ledger's rows of a request."""
    with gateway.server.client() as client:
        page = client.get("/admin/v1/usage/entries", params={"limit": 1000}, headers=gateway.admin).json()
    return [row for row in page["data"] if row["request_id"] == request_id]


@pytest.mark.parametrize("case", list(list_cases()))
def test_a_hostile_vendor_harms_nobody_else(gateway: Gateway, case: Case):
    (process,) = gateway.server.children("assembly")
    gateway.vendor.began.clear()
    request_id = f"{case}-{time.monotonic_ns()}"
    cpu_before = sum(process.cpu_times()[:2])
    with ThreadPoolExecutor(1) as thread, gateway.server.client() as client:
        pending = thread.submit(ask, gateway, case, request_id)
        gateway.vendor.began.wait(50 * (not BEHAVIOURS[case.name].is_endless) + 1)
        while True:
            is_last = pending.done()
            assert client.get("/health", timeout=HEALTH_S).status_code == 200
            if is_last:
                break
            time.sleep(0.02)
        seen = pending.result()
    assert sum(process.cpu_times()[:2]) - cpu_before < CPU_S

    assert (seen.code, seen.is_done) == (case.expected, not case.expected)
    assert seen.status == 200 if not case.expected else seen.status >= 400 or case.is_streamed
    assert "STOLEN" not in seen.body and "MORE" not in seen.body and "internal_error" not in seen.body
    wait_until(lambda: find_rows(gateway, request_id), what=f"the ledger's row of {request_id}")
    (row,) = find_rows(gateway, request_id)
    assert row["status"] == (case.expected or "ok") and row["attempts"] == 1
    shown = seen.body + "\n".join(line for line in gateway.server.lines if request_id in line)
    for form in list_key_forms(KEY):
        assert form not in shown
    assert gateway.server.children("assembly") == [process] and process.is_running()
    assert process.status() != psutil.STATUS_ZOMBIE
