"""Every fault of a vendor at every point of an exchange, in three wire formats, through the real server with
keys: what the client saw, and what the ledger says. docs/vendor-faults.md has the same tables."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from tests.support.server import Server, serving
from tests.support.vendors.answer_shapes import (
    CLAUDE,
    GEMINI,
    OPENAI,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    SHAPES,
    WORDS,
    count_words,
)
from tests.support.vendors.scripted_upstream import FAULTS, ScriptedUpstream, name_fault, serve_upstream
from tests.support.waiting import wait_until

PROVIDER = """
[providers.{kind}-patient]
kind = "{kind}"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true

[providers.{kind}-hurried]
kind = "{kind}"
base_url = "{url}"
key = "env:VENDOR_KEY"
private = true
first_byte_timeout = 10.0
chunk_timeout = 7.0
timeout = 16.0

[[models]]
name = "{kind}-patient/*"
provider = "{kind}-patient"

[[models]]
name = "{kind}-hurried/*"
provider = "{kind}-hurried"
"""
"""One provider for the faults that only a time limit ends, and one for the others, whose time is long. A busy
machine may stand still for seconds."""

CLOSED = """
[providers.closed]
kind = "openai"
base_url = "http://127.0.0.1:{port}/v1"
private = true

[[models]]
name = "closed/*"
provider = "closed"
"""

KEY = "of-these-tests-only-0123456789"

PAGE = Path(__file__).parents[2] / "docs" / "vendor-faults.md"

STATUSES = ("429", "429-after-7", "500", "503", "302")

BUFFERED_POINTS = ("before-headers", "after-headers", "mid-chunk", "after-done")


class Case(NamedTuple):
    """One exchange."""

    shape: str
    fault: str
    point: str
    is_streamed: bool

    @property
    def name(self) -> str:
        fault = f"{self.fault}-at-{self.point}" if self.point else self.fault
        return f"{self.shape}-{fault}-{'streamed' if self.is_streamed else 'whole'}"

    @property
    def model(self) -> str:
        """The vendor's model, which says how to fail."""
        if self.fault == "refused":
            return "fake"
        return f"fake-{self.fault}" + (f"-at-{self.point}" if self.point else "")

    @property
    def words(self) -> int:
        """The words that come before the fault."""
        if self.is_streamed and self.fault == "missing-finish":
            return len(WORDS)
        return count_words(SHAPES[self.shape], self.point) if self.is_streamed and self.point else 0

    @property
    def is_complete(self) -> bool:
        """Whether the client gets the complete answer. Where a format has a mark of the end, what comes after
        it changes nothing. Elsewhere the body's end must come, however slowly."""
        if self.is_streamed and self.point == "after-finish":
            is_slow_end = self.fault == "trickle" and self.shape == GEMINI.name
            return is_slow_end or (self.fault == "ended" and self.shape != CLAUDE.name)
        return self.point == "after-done" and (self.is_streamed or self.fault in ("ended", "trickle"))

    @property
    def usage(self) -> tuple[str, int, int]:
        """The ledger's usage of a complete answer."""
        is_lost = self.shape == OPENAI.name and self.point == "after-finish"
        return ("estimated", 4, 6) if is_lost else ("reported", PROMPT_TOKENS, OUTPUT_TOKENS)

    @property
    def is_endless(self) -> bool:
        """Whether only a time limit ends the exchange. Garbage within a whole answer breaks its chunk, whose
        end the server then waits for."""
        if self.fault == "garbage":
            return self.point == "mid-chunk" and not self.is_streamed
        return self.fault in ("stall", "trickle") and not self.is_complete

    @property
    def provider(self) -> str:
        if self.fault == "refused":
            return "closed"
        # A vendor that names a time is left alone: the two requests that get this answer must not meet.
        is_alone = self.fault == "429-after-7" and not self.is_streamed
        return f"{self.shape}-{'hurried' if self.is_endless or is_alone else 'patient'}"


def list_cases(shape: str) -> Iterator[Case]:
    """All exchanges in one wire format."""
    for fault in FAULTS:
        yield from (Case(shape, fault, point, True) for point in SHAPES[shape].places)
        yield from (Case(shape, fault, point, False) for point in BUFFERED_POINTS)
    for fault in (*STATUSES, "missing-finish", *(("refused",) if shape == OPENAI.name else ())):
        yield from (Case(shape, fault, "", is_streamed) for is_streamed in (True, False))


CASES = [case for shape in SHAPES for case in list_cases(shape)]

ROWS = tuple(dict.fromkeys((case.fault, case.point) for case in list_cases(OPENAI.name)))

CLIENTS = 64


@dataclass
class Seen:
    """What the client of one request saw."""

    status: int = 0
    words: int = 0
    error: str = ""
    """The error's code, in the body or in an event."""
    message: str = ""
    is_done: bool = False
    """Whether the answer looks complete: a whole body with 200, or a stream with `[DONE]`."""
    retry_after: str | None = None
    lines: list[str] = field(default_factory=list)

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

    def describe(self, case: Case) -> list[str]:
        """The cells of a case: the client's and the ledger's."""
        if case not in self.seen:
            return ["", ""]
        return [self.seen[case].describe(), describe_row(self.rows[case])]


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
        providers = [PROVIDER.format(kind=shape, url=upstream.url) for shape in SHAPES]
        file.write_text("".join((*providers, CLOSED.format(port=bound.getsockname()[1]))))
        env = {"VENDOR_KEY": KEY, "ANTIPHON_HOME": str(home), "ANTIPHON_KEYS": "true"}
        env["ANTIPHON_KEEP_ALIVE_INTERVAL"] = "120"  # a busy machine takes seconds for an event of 17 MiB
        with serving("--config", str(file), threads=None, env=env) as server:
            yield measure(server, home, upstream)


def measure(server: Server, home: Path, upstream: ScriptedUpstream) -> Table:
    """Asks for every case, and reads the ledger."""
    words = {name_fault(case.shape, case.model, case.is_streamed): case.words for case in CASES}
    seen = {case: Seen() for case in CASES}
    shown = {name_fault(case.shape, case.model, case.is_streamed): seen[case] for case in CASES}
    upstream.has_shown = lambda fault: shown[fault].words >= words[fault]
    admin = {"authorization": f"Bearer {(home / 'admin.key').read_text().strip()}"}
    with server.client() as client, ThreadPoolExecutor(CLIENTS) as threads:
        asked = {"kind": "service", "project": "default"}
        key = client.post("/admin/v1/keys", json=asked, headers=admin).json()["secret"]
        slow_first = sorted(CASES, key=lambda case: not case.is_endless)
        list(threads.map(lambda case: ask(client, key, case, seen[case]), slow_first))
        rows: dict[str, dict[str, Any]] = {}

        def has_all() -> bool:
            page = client.get("/admin/v1/usage/entries", params={"limit": 1000}, headers=admin).json()
            rows.update({row["request_id"]: row for row in page["data"]})
            return len(rows) == len(CASES)

        wait_until(has_all, what="rows of all requests")
        return Table(seen, {case: rows[case.name] for case in CASES})


def ask(client: httpx2.Client, key: str, case: Case, seen: Seen) -> None:
    """Sends the request of a case and reads its answer."""
    body = {
        "model": f"{case.provider}/{case.model}",
        "messages": [{"role": "user", "content": "Count to five."}],
        "max_tokens": 100,
        "stream": case.is_streamed,
    }
    headers = {"authorization": f"Bearer {key}", "x-request-id": case.name}
    with client.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        is_stream = answer.headers["content-type"].startswith("text/event-stream")
        seen.status, seen.retry_after = answer.status_code, answer.headers.get("retry-after")
        for line in filter(None, answer.iter_lines()):
            seen.lines.append(line)
            if is_stream:
                read_line(seen, line)
    if not is_stream:
        whole = json.loads("".join(seen.lines))
        read_error(seen, whole)
        seen.is_done = "choices" in whole


def read_line(seen: Seen, line: str) -> None:
    """Reads an event of a stream."""
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
    """The table of the page, which is OpenAI's."""
    lines = [
        "| fault | point | whole answer: client | ledger | stream: client | ledger |",
        "|---|---|---|---|---|---|",
    ]
    for fault, point in ROWS:
        cells = [fault.replace("-", " "), point.replace("-", " ")]
        for is_streamed in (False, True):
            cells += table.describe(Case(OPENAI.name, fault, point, is_streamed))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write_differences(table: Table) -> str:
    """The page's table of the other formats: what is not as in OpenAI's."""
    lines = ["| kind | fault | point | answer | client | ledger |", "|---|---|---|---|---|---|"]
    for case in CASES:
        found = table.describe(case)
        if found != table.describe(case._replace(shape=OPENAI.name)):
            words = (case.shape, case.fault, case.point, "stream" if case.is_streamed else "whole")
            cells = [word.replace("-", " ") for word in words]
            lines.append("| " + " | ".join(cells + found) + " |")
    return "\n".join(lines)


def test_the_page_has_what_was_measured(table: Table):
    page = PAGE.read_text()
    for measured in (write_table(table), write_differences(table)):
        assert measured + "\n" in page, f"the table of {PAGE.name} is another:\n{measured}"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_fault_never_looks_finished(table: Table, case: Case):
    seen, row = table.seen[case], table.rows[case]
    assert seen.is_done is case.is_complete
    assert row["status"] == ("ok" if case.is_complete else seen.error)
    assert row["attempts"] == 1
    if case.is_complete:
        assert (row["source"], row["prompt_tokens"], row["output_tokens"]) == case.usage
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
    wait_until(lambda: upstream.open <= CLIENTS, what="connections of broken exchanges are closed")


@pytest.mark.parametrize("shape", SHAPES)
def test_what_came_before_a_fault_is_shown(table: Table, shape: str):
    words = {point: table.seen[Case(shape, "close", point, True)].words for point in SHAPES[shape].places}
    assert words == {point: count_words(SHAPES[shape], point) for point in SHAPES[shape].places}
