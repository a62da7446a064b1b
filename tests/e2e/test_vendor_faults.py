"""Every fault of a vendor at every point of an exchange, through the real server with keys: what the client
saw, and what the ledger says. docs/vendor-faults.md has the same table."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.server import Server, serving
from tests.support.vendors.scripted_upstream import FAULTS, POINTS, ScriptedUpstream, serve_upstream
from tests.support.waiting import wait_until

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true
connect_timeout = 1
first_byte_timeout = 1.0
chunk_timeout = 0.5
timeout = 2.0

[providers.down]
kind = "openai"
base_url = "http://127.0.0.1:{closed}/v1"
private = true

[[models]]
name = "streamed/*"
provider = "v"

[[models]]
name = "whole/*"
provider = "v"

[[models]]
name = "streamed-down/*"
provider = "down"

[[models]]
name = "whole-down/*"
provider = "down"
"""

KEY = "of-these-tests-only-0123456789"

PAGE = Path(__file__).parents[2] / "docs" / "vendor-faults.md"

STATUSES = ("429", "429-after-7", "500", "503", "302")

BUFFERED_POINTS = ("before-headers", "after-headers", "mid-chunk", "after-done")

Case = tuple[str, str, bool]
"""The fault, its point, and whether the answer is streamed."""

CASES: list[Case] = [
    *((fault, point, True) for fault in FAULTS for point in POINTS),
    *((fault, point, False) for fault in FAULTS for point in BUFFERED_POINTS),
    *((status, "", streamed) for status in STATUSES for streamed in (True, False)),
    *(("missing-finish", "", streamed) for streamed in (True, False)),
    *(("refused", "", streamed) for streamed in (True, False)),
]

CLIENTS = 20


@dataclass
class Seen:
    """What the client of one request saw."""

    status: int
    words: int = 0
    error: str = ""
    """The error's code, in the body or in an event."""
    message: str = ""
    is_done: bool = False
    """Whether the answer looks complete: a whole body with 200, or a stream with `[DONE]`."""
    retry_after: str | None = None
    lines: tuple[str, ...] = ()

    def describe(self) -> str:
        """The cell of the table."""
        if self.is_done:
            return "complete"
        waits = "" if self.retry_after is None else f", Retry-After {self.retry_after}"
        if self.status != 200:
            return f"{self.status} `{self.error}`{waits}"
        return f"{self.words} word{'s' * (self.words > 1)}, then `{self.error}`"


@dataclass
class Table:
    """All that was measured."""

    seen: dict[Case, Seen]
    rows: dict[Case, dict[str, Any]]


@pytest.fixture(scope="module")
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@pytest.fixture(scope="module")
def table(upstream: ScriptedUpstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    home = tmp_path_factory.mktemp("faults")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        file = home / "antiphon.toml"
        file.write_text(SETTINGS.format(url=upstream.url, closed=bound.getsockname()[1]))
        env = {"VENDOR_KEY": KEY, "ANTIPHON_HOME": str(home), "ANTIPHON_KEYS": "true"}
        with serving("--config", str(file), threads=None, env=env) as server:
            yield measure(server, home)


def measure(server: Server, home: Path) -> Table:
    """Asks for every case, and reads the ledger."""
    admin = {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}
    with server.client(headers=admin) as client:
        made = client.post("/admin/v1/keys", json={"kind": "service", "project": "default"})
        key = made.json()["secret"]
        with ThreadPoolExecutor(CLIENTS) as threads:
            answers = threads.map(lambda case: ask(server, key, case), CASES)
            seen = dict(zip(CASES, answers, strict=True))
        rows: dict[str, dict[str, Any]] = {}

        def has_all() -> bool:
            page = client.get("/admin/v1/usage/entries", params={"limit": 1000}).json()
            rows.update({row["request_id"]: row for row in page["data"]})
            return len(rows) == len(CASES)

        wait_until(has_all, 20, "rows of all requests")
        return Table(seen, {case: rows[name_case(case)] for case in CASES})


def name_case(case: Case) -> str:
    fault, point, is_streamed = case
    return f"{fault}-at-{point}-{'streamed' if is_streamed else 'whole'}"


def ask(server: Server, key: str, case: Case) -> Seen:
    """Sends the request of a case and reads its answer."""
    fault, point, is_streamed = case
    model = ("streamed" if is_streamed else "whole") + (
        "-down/fake" if fault == "refused" else "/fake-" + fault
    )
    model += f"-at-{point}" if point else ""
    body = {"model": model, "messages": [{"role": "user", "content": "Count to five."}]}
    headers = {"authorization": f"Bearer {key}", "x-request-id": name_case(case)}
    with (
        server.client(headers=headers) as client,
        client.stream("POST", "/v1/chat/completions", json=body | {"stream": is_streamed}) as answer,
    ):
        lines = tuple(line for line in answer.iter_lines() if line)
        seen = Seen(answer.status_code, retry_after=answer.headers.get("retry-after"), lines=lines)
    if answer.headers["content-type"].startswith("text/event-stream"):
        read_events(seen)
    else:
        whole = json.loads("".join(lines))
        read_error(seen, whole)
        seen.is_done = "choices" in whole
    return seen


def read_events(seen: Seen) -> None:
    """Reads the events of a stream."""
    for line in seen.lines:
        data = line.removeprefix("data: ")
        if data == "[DONE]":
            seen.is_done = True
        elif not line.startswith(":"):
            event = json.loads(data)
            read_error(seen, event)
            seen.words += sum(bool(choice["delta"].get("content")) for choice in event.get("choices", ()))


def read_error(seen: Seen, event: dict[str, Any]) -> None:
    """Reads the error of an answer or an event, if it is one."""
    if "error" in event:
        seen.error, seen.message = event["error"]["code"], event["error"]["message"]


def describe_row(row: dict[str, Any]) -> str:
    """The cell of a ledger's row."""
    tokens = f"{row['prompt_tokens']} + {row['output_tokens']}"
    return f"`{row['status']}`, {row['attempts']}, {tokens} {row['source']}"


def write_table(table: Table) -> str:
    """The table of the page."""
    lines = [
        "| fault | point | whole answer: client | ledger | stream: client | ledger |",
        "|---|---|---|---|---|---|",
    ]
    for fault, point in dict.fromkeys(case[:2] for case in CASES):
        cells = [fault.replace("-", " "), point.replace("-", " ")]
        for is_streamed in (False, True):
            case = (fault, point, is_streamed)
            seen = table.seen.get(case)
            cells += ["", ""] if seen is None else [seen.describe(), describe_row(table.rows[case])]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def test_the_page_has_what_was_measured(table: Table):
    measured = write_table(table)
    assert measured in PAGE.read_text(), f"the table of {PAGE.name} is another:\n{measured}"


@pytest.mark.parametrize("case", CASES, ids=name_case)
def test_a_fault_never_looks_finished(table: Table, case: Case):
    fault, point, is_streamed = case
    seen, row = table.seen[case], table.rows[case]
    is_complete = point == "after-done" and (is_streamed or fault == "trickle")
    assert seen.is_done is is_complete
    assert row["status"] == ("ok" if is_complete else seen.error)
    assert row["attempts"] == 1
    if is_complete:
        assert (row["source"], row["prompt_tokens"], row["output_tokens"]) == ("reported", 11, 5)
    elif seen.status == 200:
        assert "error" in json.loads(seen.lines[-1].removeprefix("data: "))
        assert row["source"] == "estimated" and row["output_tokens"] >= seen.words > 0
    else:
        assert (row["prompt_tokens"], row["output_tokens"]) == (0, 0)


def test_no_answer_shows_an_address_or_a_key(table: Table, upstream: ScriptedUpstream):
    port = upstream.url.rpartition(":")[2].removesuffix("/v1")
    shown = "\n".join(line for seen in table.seen.values() for line in seen.lines)
    for secret in ("10.1.2.3", "127.0.0.1", port, KEY, "sk-secret", "stolen"):
        assert secret not in shown


def test_a_broken_exchange_leaves_no_connection(table: Table, upstream: ScriptedUpstream):
    wait_until(lambda: upstream.open <= CLIENTS, 5, "connections of broken exchanges are closed")


def test_what_came_before_a_fault_is_shown(table: Table):
    words = {point: table.seen["close", point, True].words for point in POINTS}
    assert words == {
        "before-headers": 0,
        "after-headers": 0,
        "mid-chunk": 1,
        "between-chunks": 2,
        "after-finish": 5,
        "after-done": 5,
    }
