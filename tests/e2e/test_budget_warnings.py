"""Warnings of budgets on a real server of two HTTP processes: once each, signed, also over a crash."""

import signal
from collections import Counter
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from tests.support.server import Server, serving
from tests.support.waiting import wait_until
from tests.support.webhook_receiver import WebhookReceiver, receiving

SECRET = "a-secret-of-these-tests-only"
APART = httpx2.Limits(max_keepalive_connections=0)
"""Each request on a connection of its own: some process takes it."""
BUDGET = 20
"""Requests a month."""
SOON = 30.0

pytestmark = pytest.mark.timeout(480)


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def generate(server: Server, key: str, times: int) -> Counter[int]:
    """How often which status was the answer."""
    body = {"model": "cantor", "prompt": "Hi", "max_tokens": 1}
    with server.client(headers=bearer(key), limits=APART) as client:
        return Counter(client.post("/v1/completions", json=body).status_code for _ in range(times))


def given(receiver: WebhookReceiver) -> list[tuple[float, str, str]]:
    return [
        (message["data"]["share"], message["data"]["used"], message["data"]["amount"])
        for message in receiver.messages()
    ]


def test_each_share_warns_once_over_processes_and_a_crash(tmp_path: Path) -> None:
    with receiving() as receiver:
        env = {
            "ANTIPHON_KEYS": "true",
            "ANTIPHON_HOME": str(tmp_path),
            "ANTIPHON_LIMITS_WARN_AT": "0.5,0.8,1",
            "ANTIPHON_LIMITS_WEBHOOK": receiver.url,
            "ANTIPHON_LIMITS_WEBHOOK_SECRET": SECRET,
            "ANTIPHON_LIMITS_WEBHOOK_PRIVATE": "true",
        }
        with serving("--workers", "2", env=env, cwd=tmp_path) as server:
            key = add_budget(server, tmp_path)
            assert generate(server, key, 12) == {200: 12}
            wait_until(lambda: given(receiver) == [(0.5, "10", "20")], SOON, "the first warning")
            children = server.supervisor.children(recursive=True)
            server.process.send_signal(signal.SIGKILL)
            server.process.wait(SOON)
            assert psutil.wait_procs(children, SOON)[1] == []
        with serving("--workers", "2", env=env, cwd=tmp_path) as server:
            assert generate(server, key, 10) == {200: 8, 429: 2}
            wait_until(lambda: len(given(receiver)) >= 3, SOON, "the other warnings")
            require_reported(server, tmp_path)
        *earlier, (share, used, amount) = given(receiver)
        assert earlier == [(0.5, "10", "20"), (0.8, "16", "20")]
        assert (share, amount) == (1.0, "20")
        assert used in ("19", "20"), "the refusal may come before the last request is settled"
        require_message(receiver, key)


def add_budget(server: Server, home: Path) -> str:
    operator = bearer((home / "admin.key").read_text().strip())
    with server.client(headers=operator) as client:
        project = client.post("/admin/v1/projects", json={"name": "Thrifty"}).json()["id"]
        made = client.post("/admin/v1/keys", json={"kind": "service", "project": project}).json()
        budget: dict[str, Any] = {"subject": "project", "target": project, "measure": "requests"}
        budget |= {"amount": BUDGET, "window": "month", "note": "ask Ada"}
        assert client.post("/admin/v1/limits", json=budget).status_code == 201
    key: str = made["secret"]
    return key


def require_reported(server: Server, home: Path) -> None:
    """The log and the numbers of this server have what it warned of."""
    wait_until(lambda: len(server.records("budget_warning")) >= 2, SOON, "the log has both")
    shares = [each["share"] for each in server.records("budget_warning")]
    assert shares == [0.8, 1.0]
    operator = bearer((home / "admin.key").read_text().strip())
    delivered = 'antiphon_webhooks_total{outcome="delivered"} 2.0'
    with server.client(headers=operator) as client:
        # The receiver has a message before the server has its answer.
        wait_until(lambda: delivered in client.get("/metrics").text, SOON, "both are counted")
        page = client.get("/metrics").text
    for share in ("0.8", "1.0"):
        labels = f'measure="requests",share="{share}",subject="project",window="month"'
        lines = [line for line in page.splitlines() if line.startswith("antiphon_budget_warnings_total{")]
        assert any(set(labels.split(",")) == set(line[31:-5].split(",")) for line in lines), lines
    assert SECRET not in "\n".join(server.lines) and "/hook" not in "\n".join(server.lines)


def require_message(receiver: WebhookReceiver, key: str) -> None:
    headers, body = receiver.arrived[1]
    message = receiver.messages()[1]
    assert (message["type"], message["data"]["note"]) == ("budget.warning", "ask Ada")
    assert "80 % of its budget: 16 of 20 requests per month" in message["text"]
    assert message["data"]["window_begins"].endswith("-01T00:00:00Z")
    assert headers["webhook-id"].startswith(message["data"]["limit"])
    assert key.encode() not in body
