"""Whether limits hold over several HTTP processes, and how much of them callers get who never stop asking.

    python benchmarks/limits.py [--workers 4] [--clients 8] [--seconds 130] [--redis]
                                [--requests 600] [--tokens 20000]

A real server with its demo model and keys; with --redis its limits are counted in Debian's Redis, started in
a directory of its own, else by the coordinator. Every client process asks with two keys at once: one has a
limit of requests a minute, the other of tokens a minute. A refused caller comes back shortly before Retry-
After ends and then asks again and again.

What passed is taken from the ledger's rows, and from what the clients saw: a request counts at some moment
between being sent and being answered, while the ledger says when it began, a little before. Printed are, of
each limit, the most that any 60 seconds hold by either, and how full the window was, at least and on average,
when somebody was refused. Then 50 requests come at once against a budget with room for 10.
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
OUTPUT = 4
"""Tokens of an answer, all of which are made."""
BUCKET_S = BUCKET / 1e9
"""Seconds that an amount may count longer than a minute."""
AGAIN = 0.05
"""Seconds between two tries of a caller who may soon be let in."""
SATURATED = 0.99
"""What a window holds at least, in shares of its limit, when somebody is refused."""
BEGINNING = 0.5
"""Seconds that a loaded server may take from a request's beginning to its reservation."""
KNOWN = 1.0
"""Seconds until every process knows a new key and its limit."""
AT_ONCE, ROOM = 50, 10


@dataclass
class Seen:
    """What one caller saw. Times are of the monotonic clock."""

    passed: list[tuple[float, float, int]] = field(default_factory=list)
    """Sent, answered, tokens."""
    refused: list[tuple[float, float]] = field(default_factory=list)
    """Sent, answered."""
    failed: list[str] = field(default_factory=list)

    def add(self, other: "Seen") -> None:
        self.passed += other.passed
        self.refused += other.refused
        self.failed += other.failed


@dataclass(frozen=True)
class Verdict:
    """How a limit was kept, in shares of it."""

    name: str
    limit: int
    passed: int
    refused: int
    most_ledger: int
    """In any 60 seconds, by when requests began."""
    most_apart: int
    """In any that are shorter by what may lie between a request's beginning and its being counted."""
    most_clients: int
    """In any 60 seconds, by what clients are certain of."""
    least: float
    mean: float
    """How full the window was when somebody was refused, in shares of the limit."""
    failed: list[str]

    def require(self) -> None:
        """Raises AssertionError where a window held too much, or too little for a refusal."""
        assert not self.failed, self.failed[:5]
        assert max(self.most_apart, self.most_clients) <= self.limit, self
        assert self.refused and self.least >= SATURATED, self

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.passed} passed, {self.refused} refused; the most in any 60 s: "
            f"{self.most_clients} for certain, {self.most_ledger} by when they began; who was refused met "
            f"a window that was {100 * self.least:.2f} % full at least, {100 * self.mean:.2f} % on average"
        )


# --- the callers ------------------------------------------------------------------------------------------


def body() -> str:
    """A request whose answer is as long as is asked for."""
    said = {"model": "cantor", "prompt": PROMPT, "max_tokens": OUTPUT, "ignore_eos": True}
    return json.dumps(said)


def call(url: str, keys: Sequence[str], seconds: float, start: Barrier, pipe: Connection) -> None:
    """One client process: a caller for each key, for so long from when all are there."""
    start.wait()
    until = time.monotonic() + seconds
    seen = [Seen() for _ in keys]
    callers = [
        threading.Thread(target=ask, args=(url, key, until, seen[number])) for number, key in enumerate(keys)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    pipe.send([(each.passed, each.refused, each.failed) for each in seen])
    pipe.close()


def ask(url: str, key: str, until: float, seen: Seen) -> None:
    """Asks without end; where refused, again when it may be let in."""
    place, headers = urlsplit(url), {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    text = body()
    while (sent := time.monotonic()) < until:
        try:
            connection.request("POST", "/v1/completions", text, headers)
            answer = connection.getresponse()
            said = answer.read()
        except OSError as error:
            seen.failed.append(type(error).__name__)
            connection.close()
            continue
        now = time.monotonic()
        if answer.status == 200:
            seen.passed.append((sent, now, json.loads(said)["usage"]["total_tokens"]))
        elif answer.status == 429:
            seen.refused.append((sent, now))
            wait = max(AGAIN, float(answer.headers["retry-after"]) - 1)
            time.sleep(max(0.0, min(wait, until - now)))
        else:
            seen.failed.append(f"{answer.status} {said[:200].decode(errors='replace')}")
            time.sleep(AGAIN)


def called(url: str, keys: Sequence[str], clients: int, seconds: float) -> list[Seen]:
    """What all clients saw, by key."""
    spawning = multiprocessing.get_context("spawn")
    start = spawning.Barrier(clients)
    pipes = [spawning.Pipe(duplex=False) for _ in range(clients)]
    processes = [
        spawning.Process(target=call, args=(url, keys, seconds, start, sender)) for _, sender in pipes
    ]
    for process in processes:
        process.start()
    together = [Seen() for _ in keys]
    for reader, _ in pipes:
        for whole, part in zip(together, reader.recv(), strict=True):
            whole.add(Seen(*part))
    for process in processes:
        process.join()
    return together


# --- what is made of it -----------------------------------------------------------------------------------


def most_certain(passed: Sequence[tuple[float, float, int]]) -> int:
    """The most that some 60 seconds hold for certain: what was sent after they began, and answered before
    they ended."""
    most = 0
    for begin, _, _ in passed:
        end = begin + MINUTE
        most = max(most, sum(size for sent, answered, size in passed if sent >= begin and answered < end))
    return most


def fullest(passed: Sequence[tuple[float, float, int]], sent: float, answered: float) -> int:
    """The most that the window may have held when somebody was refused: what was answered after it began, and
    sent before it ended."""
    begin = sent - MINUTE - BUCKET_S
    return sum(size for came, went, size in passed if went > begin and came < answered)


def held(moments: Sequence[float], sums: Sequence[int], begin: float, end: float) -> int:
    """What lies from one moment on and before another; `sums`: of all before each moment."""
    return sums[bisect_left(moments, end)] - sums[bisect_left(moments, begin)]


def judged(name: str, limit: int, rows: Sequence[tuple[float, int]], seen: Seen) -> Verdict:
    """`rows`: moments and sizes by the ledger, in Unix seconds."""
    moments = [at for at, _ in rows]
    sums = [0, *accumulate(size for _, size in rows)]
    most, apart = (
        max((held(moments, sums, at, at + window) for at in moments), default=0)
        for window in (MINUTE, MINUTE - BEGINNING)
    )
    shares = [fullest(seen.passed, *refused) / limit for refused in seen.refused]
    return Verdict(
        name=name,
        limit=limit,
        passed=sums[-1],
        refused=len(seen.refused),
        most_ledger=most,
        most_apart=apart,
        most_clients=most_certain(seen.passed),
        least=min(shares, default=0.0),
        mean=sum(shares) / len(shares) if shares else 0.0,
        failed=seen.failed,
    )


# --- the server -------------------------------------------------------------------------------------------


@dataclass
class Limited:
    """A server with keys, and the operator's."""

    server: Server
    home: Path

    def admin(self, method: str, path: str, **said: object) -> dict[str, object]:
        """What the admin API answers."""
        key = (self.home / "admin.key").read_text().strip()
        headers = {"authorization": f"Bearer {key}"}
        with self.server.client() as client:
            answer = client.request(
                method, f"/admin/v1/{path}", json=said or None, headers=headers, timeout=60
            )
        assert answer.status_code < 300, answer.text
        found: dict[str, object] = answer.json() if answer.content else {}
        return found

    def key(self, measure: str, amount: int, window: str) -> tuple[str, str]:
        """A new key with a limit: its id, and itself."""
        made = self.admin("POST", "keys", kind="service", project="default")
        limit = {"subject": "key", "target": made["id"], "measure": measure, "window": window}
        self.admin("POST", "limits", amount=amount, **limit)
        time.sleep(KNOWN)
        return str(made["id"]), str(made["secret"])

    def rows(self, key: str, wanted: int) -> list[tuple[float, int, int]]:
        """Moments, tokens and requests of a key's entries in the ledger, as soon as so many are there."""
        found: list[dict[str, object]] = []

        def complete() -> bool:
            found[:] = self._entries(key)
            return len(found) >= wanted

        wait_until(complete, 30, f"{wanted} rows")
        rows = [
            (_number(row["at_ms"]) / 1_000, _number(row["prompt_tokens"]) + _number(row["output_tokens"]), 1)
            for row in found
        ]
        return sorted(rows)

    def _entries(self, key: str) -> list[dict[str, object]]:
        found: list[dict[str, object]] = []
        after = ""
        while True:
            page = self.admin("GET", f"usage/entries?limit=1000&since=0&key={key}{after}")
            data = page["data"]
            assert isinstance(data, list)
            found += data
            if not page["next"]:
                return found
            after = f"&after={page['next']}"


def _number(value: object) -> int:
    assert isinstance(value, int)
    return value


@contextmanager
def limited(workers: int, redis: bool, threads: int | None = None) -> Iterator[Limited]:
    """A running server in a directory of its own, with Redis or without."""
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="antiphon-limits-")))
        env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)}
        if redis:
            env["ANTIPHON_LIMITS_URL"] = stack.enter_context(contextmanager(running)()).url
        server = stack.enter_context(serving("--workers", str(workers), threads=threads, env=env, cwd=home))
        yield Limited(server, home)


def kept(place: Limited, clients: int, seconds: float, requests: int, tokens: int) -> list[Verdict]:
    """How both limits are kept under callers who never stop."""
    limits = (("requests", requests), ("tokens", tokens))
    keys = [place.key(measure, amount, "minute") for measure, amount in limits]
    seen = called(place.server.url, [secret for _, secret in keys], clients, seconds)
    verdicts = []
    for (measure, amount), (id_, _), each in zip(limits, keys, seen, strict=True):
        rows = place.rows(id_, len(each.passed))
        sizes = [(at, one if measure == "requests" else size) for at, size, one in rows]
        counted = Seen(
            [(sent, end, 1 if measure == "requests" else size) for sent, end, size in each.passed],
            each.refused,
            each.failed,
        )
        verdicts.append(judged(f"{amount} {measure}/min", amount, sizes, counted))
    return verdicts


def overspent(place: Limited) -> tuple[int, int, int]:
    """Fifty at once against a budget with room for ten: how many passed, what they took, and the budget."""
    _, free = place.key("requests", 10**6, "day")
    size = once(place.server.url, free)
    assert size is not None
    _, secret = place.key("tokens", ROOM * size, "day")
    taken: list[int | None] = []
    callers = [
        threading.Thread(target=lambda: taken.append(once(place.server.url, secret))) for _ in range(AT_ONCE)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(taken) == AT_ONCE
    passed = [each for each in taken if each is not None]
    return len(passed), sum(passed), ROOM * size


def once(url: str, key: str) -> int | None:
    """Tokens of one request; None, where the budget refuses it."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=60)
    headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
    connection.request("POST", "/v1/completions", body(), headers)
    answer = connection.getresponse()
    said = json.loads(answer.read())
    connection.close()
    if answer.status == 429:
        assert said["error"]["code"] == "insufficient_quota", said
        return None
    assert answer.status == 200, said
    return int(said["usage"]["total_tokens"])


def main() -> None:
    """Prints the verdicts; ends with an error where a window holds too much, or too little."""
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
    with limited(said.workers, said.redis) as place:
        verdicts = kept(place, said.clients, said.seconds, said.requests, said.tokens)
        for verdict in verdicts:
            print(verdict)
        passed, used, budget = overspent(place)
        print(
            f"{AT_ONCE} at once against a budget with room for {ROOM}: {passed} passed, {used} of {budget} "
            "tokens used"
        )
    for verdict in verdicts:
        verdict.require()
    assert used <= budget


if __name__ == "__main__":
    main()
