"""Measures whether limits hold over several HTTP processes, and how much of a limit busy callers can use.

python benchmarks/limits.py [--workers 4] [--clients 8] [--seconds 130] [--redis] [--requests 600] [--tokens
20000]

It runs a real server with its demo model and keys. With --redis, the limits are counted in Debian's Redis,
otherwise by the coordinator. Every client process uses two keys at once: one has a limit of requests a
minute, the other of tokens a minute. A refused caller waits until shortly before the end of Retry-After, and
then retries again and again.

The usage is measured twice: from the ledger's entries, and from the clients' records. A request is counted at
some moment between its sending and its answer; the ledger has the time at which it began, a little earlier.
For each limit the script prints the largest usage in any 60 seconds by either measure. It also prints how
full the window was at each refusal, at least and on average. Finally it sends 50 requests at once against a
budget for 10.
"""

import argparse
import http.client
import json
import multiprocessing
import os
import platform
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.limits.windows import BUCKET
from tests.support.redis_server import running
from tests.support.server import Server, serving
from tests.support.waiting import wait_until

MINUTE = 60.0
PROMPT = "One, two, " * 12
OUTPUT_TOKENS = 4
"""The number of tokens in each answer."""
BUCKET_S = BUCKET / 1e9
"""The seconds by which an amount may count longer than a minute."""
RETRY_SECONDS = 0.05
"""Seconds between two attempts of a caller near the end of Retry-After."""
MIN_FULLNESS = 0.99
"""The smallest share of a limit that must be used when a request is refused."""
MAX_RESERVE_DELAY = 0.5
"""The most seconds between a request's beginning and its reservation on a loaded server."""
KEY_DELAY = 1.0
"""Seconds until every process knows a new key and its limit."""
BURST_REQUESTS, BURST_BUDGET = 50, 10


@dataclass
class CallerRecord:
    """The requests of one caller. Times are of the monotonic clock."""

    passed: list[tuple[float, float, int]] = field(default_factory=list)
    """The time of sending, the time of the answer, and the tokens of each request."""
    refused: list[tuple[float, float]] = field(default_factory=list)
    """The time of sending and the time of the answer of each refused request."""
    failed: list[str] = field(default_factory=list)

    def add(self, other: "CallerRecord") -> None:
        self.passed += other.passed
        self.refused += other.refused
        self.failed += other.failed


@dataclass(frozen=True)
class Verdict:
    """The measured usage of one limit."""

    name: str
    limit: int
    passed: int
    refused: int
    ledger_maximum: int
    """The largest usage in any 60 seconds, by the begin times in the ledger."""
    shorter_window_maximum: int
    """The same for windows that are shorter by MAX_RESERVE_DELAY."""
    client_maximum: int
    """The usage that certainly fell into some 60 seconds, by the clients' records."""
    min_fullness: float
    mean_fullness: float
    """The used share of the limit when requests were refused: at least, and on average."""
    failed: list[str]

    def require(self) -> None:
        """Raises AssertionError if a window had too much usage, or too little for a refusal."""
        assert not self.failed, self.failed[:5]
        assert max(self.shorter_window_maximum, self.client_maximum) <= self.limit, self
        assert self.refused and self.min_fullness >= MIN_FULLNESS, self

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.passed} passed, {self.refused} refused; the largest usage in any 60 s: "
            f"{self.client_maximum} for certain, {self.ledger_maximum} by begin times; at refusals the "
            "window "
            f"was at least {100 * self.min_fullness:.2f} % full, {100 * self.mean_fullness:.2f} % on average"
        )


# --- the callers ------------------------------------------------------------------------------------------


def build_body() -> str:
    """Builds a request whose answer always has `max_tokens` tokens."""
    request = {"model": "cantor", "prompt": PROMPT, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True}
    return json.dumps(request)


def run_client(url: str, keys: Sequence[str], seconds: float, start: Barrier, pipe: Connection) -> None:
    """Runs one client process: a caller for each key, for `seconds` after all processes are ready."""
    start.wait()
    deadline = time.monotonic() + seconds
    records = [CallerRecord() for _ in keys]
    callers = [
        threading.Thread(target=send_requests, args=(url, key, deadline, records[number]))
        for number, key in enumerate(keys)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    pipe.send([(record.passed, record.refused, record.failed) for record in records])
    pipe.close()


def send_requests(url: str, key: str, deadline: float, record: CallerRecord) -> None:
    """Sends requests until the deadline. After a refusal it waits for Retry-After."""
    address, headers = urlsplit(url), {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    text = build_body()
    while (sent := time.monotonic()) < deadline:
        try:
            connection.request("POST", "/v1/completions", text, headers)
            response = connection.getresponse()
            content = response.read()
        except OSError as error:
            record.failed.append(type(error).__name__)
            connection.close()
            continue
        now = time.monotonic()
        if response.status == 200:
            record.passed.append((sent, now, json.loads(content)["usage"]["total_tokens"]))
        elif response.status == 429:
            record.refused.append((sent, now))
            wait = max(RETRY_SECONDS, float(response.headers["retry-after"]) - 1)
            time.sleep(max(0.0, min(wait, deadline - now)))
        else:
            record.failed.append(f"{response.status} {content[:200].decode(errors='replace')}")
            time.sleep(RETRY_SECONDS)


def run_clients(url: str, keys: Sequence[str], clients: int, seconds: float) -> list[CallerRecord]:
    """Runs all clients. Returns the requests of each key."""
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(clients)
    pipes = [context.Pipe(duplex=False) for _ in range(clients)]
    processes = [
        context.Process(target=run_client, args=(url, keys, seconds, start, sender)) for _, sender in pipes
    ]
    for process in processes:
        process.start()
    totals = [CallerRecord() for _ in keys]
    for receiver, _ in pipes:
        for total, fields in zip(totals, receiver.recv(), strict=True):
            total.add(CallerRecord(*fields))
    for process in processes:
        process.join()
    return totals


# --- the evaluation ---------------------------------------------------------------------------------------


def find_certain_maximum(passed: Sequence[tuple[float, float, int]]) -> int:
    """Returns the largest usage that certainly fell into some 60 seconds: of requests that were sent after
    the window's start and answered before its end."""
    maximum = 0
    for begin, _, _ in passed:
        end = begin + MINUTE
        maximum = max(
            maximum, sum(size for sent, answered, size in passed if sent >= begin and answered < end)
        )
    return maximum


def count_possible_usage(passed: Sequence[tuple[float, float, int]], sent: float, answered: float) -> int:
    """Returns the largest usage that the window may have had at a refusal: of requests that were answered
    after the window's start and sent before its end."""
    begin = sent - MINUTE - BUCKET_S
    return sum(
        size
        for other_sent, other_answered, size in passed
        if other_answered > begin and other_sent < answered
    )


def sum_between(moments: Sequence[float], sums: Sequence[int], start: float, end: float) -> int:
    """Sums the amounts from `start` on and before `end`. `sums`: the sum of all amounts before each
    moment."""
    return sums[bisect_left(moments, end)] - sums[bisect_left(moments, start)]


def build_verdict(name: str, limit: int, rows: Sequence[tuple[float, int]], record: CallerRecord) -> Verdict:
    """`list_rows`: moments and sizes by the ledger, in Unix seconds."""
    moments = [index for index, _ in rows]
    sums = [0, *accumulate(size for _, size in rows)]
    max_in_minute, max_in_shorter_window = (
        max((sum_between(moments, sums, index, index + window) for index in moments), default=0)
        for window in (MINUTE, MINUTE - MAX_RESERVE_DELAY)
    )
    shares = [count_possible_usage(record.passed, *refusal) / limit for refusal in record.refused]
    return Verdict(
        name=name,
        limit=limit,
        passed=sums[-1],
        refused=len(record.refused),
        ledger_maximum=max_in_minute,
        shorter_window_maximum=max_in_shorter_window,
        client_maximum=find_certain_maximum(record.passed),
        min_fullness=min(shares, default=0.0),
        mean_fullness=sum(shares) / len(shares) if shares else 0.0,
        failed=record.failed,
    )


# --- the server -------------------------------------------------------------------------------------------


@dataclass
class LimitedServer:
    """A running server with keys, and its home directory with the operator's key."""

    server: Server
    home: Path

    def call_admin(self, method: str, path: str, **fields: object) -> dict[str, object]:
        """Calls the admin API and returns its answer."""
        key = (self.home / "admin.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        with self.server.client() as client:
            response = client.request(
                method, f"/admin/v1/{path}", json=fields or None, headers=headers, timeout=60
            )
        assert response.status_code < 300, response.text
        content: dict[str, object] = response.json() if response.content else {}
        return content

    def create_key(self, measure: str, amount: int, window: str) -> tuple[str, str]:
        """Creates a key with a limit. Returns its id and its secret."""
        key = self.call_admin("POST", "keys", kind="service", project="default")
        limit = {"subject": "key", "target": key["id"], "measure": measure, "window": window}
        self.call_admin("POST", "limits", amount=amount, **limit)
        time.sleep(KEY_DELAY)
        return str(key["id"]), str(key["secret"])

    def list_rows(self, key: str, expected_count: int) -> list[tuple[float, int, int]]:
        """Waits for the expected number of ledger entries of a key. Returns begin time, tokens and 1 of
        each."""
        entries: list[dict[str, object]] = []

        def is_complete() -> bool:
            entries[:] = self._list_entries(key)
            return len(entries) >= expected_count

        wait_until(is_complete, 30, f"{expected_count} rows")
        rows = [
            (
                require_int(row["at_ms"]) / 1_000,
                require_int(row["prompt_tokens"]) + require_int(row["output_tokens"]),
                1,
            )
            for row in entries
        ]
        return sorted(rows)

    def _list_entries(self, key: str) -> list[dict[str, object]]:
        entries: list[dict[str, object]] = []
        after = ""
        while True:
            page = self.call_admin("GET", f"usage/entries?limit=1000&since=0&key={key}{after}")
            data = page["data"]
            assert isinstance(data, list)
            entries += data
            if not page["next"]:
                return entries
            after = f"&after={page['next']}"


def require_int(value: object) -> int:
    assert isinstance(value, int)
    return value


@contextmanager
def run_limited_server(workers: int, redis: bool, threads: int | None = None) -> Iterator[LimitedServer]:
    """Runs a server in a new directory, with or without Redis."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-limits-")))
        env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
        if redis:
            env["ANTIPHON_LIMITS_URL"] = stack.enter_context(contextmanager(running)()).url
        server = stack.enter_context(serving("--workers", str(workers), threads=threads, env=env, cwd=home))
        yield LimitedServer(server, home)


def measure_limits(
    server: LimitedServer, clients: int, seconds: float, requests: int, tokens: int
) -> list[Verdict]:
    """Measures both limits under callers that send requests without pause."""
    limits = (("requests", requests), ("tokens", tokens))
    keys = [server.create_key(measure, amount, "minute") for measure, amount in limits]
    records = run_clients(server.server.url, [secret for _, secret in keys], clients, seconds)
    verdicts = []
    for (measure, amount), (id_, _), record in zip(limits, keys, records, strict=True):
        rows = server.list_rows(id_, len(record.passed))
        sizes = [
            (index, request_count if measure == "requests" else size) for index, size, request_count in rows
        ]
        counted_record = CallerRecord(
            [(sent, end, 1 if measure == "requests" else size) for sent, end, size in record.passed],
            record.refused,
            record.failed,
        )
        verdicts.append(build_verdict(f"{amount} {measure}/min", amount, sizes, counted_record))
    return verdicts


def measure_burst(place: LimitedServer) -> tuple[int, int, int]:
    """Sends 50 requests at once against a budget for 10. Returns the passed requests, their tokens, the
    budget."""
    _, unlimited_key = place.create_key("requests", 10**6, "day")
    tokens_per_request = send_one_request(place.server.url, unlimited_key)
    assert tokens_per_request is not None
    _, limited_key = place.create_key("tokens", BURST_BUDGET * tokens_per_request, "day")
    results: list[int | None] = []
    callers = [
        threading.Thread(target=lambda: results.append(send_one_request(place.server.url, limited_key)))
        for _ in range(BURST_REQUESTS)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(results) == BURST_REQUESTS
    token_counts = [result for result in results if result is not None]
    return len(token_counts), sum(token_counts), BURST_BUDGET * tokens_per_request


def send_one_request(url: str, key: str) -> int | None:
    """Sends one request. Returns its tokens, or None if the budget refuses it."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request("POST", "/v1/completions", build_body(), headers)
    response = connection.getresponse()
    content = json.loads(response.read())
    connection.close()
    if response.status == 429:
        assert content["error"]["code"] == "insufficient_quota", content
        return None
    assert response.status == 200, content
    return int(content["usage"]["total_tokens"])


def main() -> None:
    """Prints the verdicts. Ends with an error if a window had too much usage, or too little at a refusal."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=130.0)
    parser.add_argument("--requests", type=int, default=600)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--redis", action="store_true")
    said = parser.parse_args()
    conditions = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    print(f"{conditions}; load {os.getloadavg()[0]:.1f}")
    counter = "Redis" if said.redis else "the coordinator" if said.workers > 1 else "the only HTTP process"
    print(
        f"{said.workers} workers, {said.clients} client processes, {said.seconds:.0f} s, counted by {counter}"
    )
    with run_limited_server(said.workers, said.redis) as place:
        verdicts = measure_limits(place, said.clients, said.seconds, said.requests, said.tokens)
        for verdict in verdicts:
            print(verdict)
        passed, used, budget = measure_burst(place)
        print(
            f"{BURST_REQUESTS} at once against a budget with room for {BURST_BUDGET}: {passed} passed, "
            f"{used} of {budget} "
            "tokens used"
        )
    for verdict in verdicts:
        verdict.require()
    assert used <= budget


if __name__ == "__main__":
    main()
