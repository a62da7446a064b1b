"""Several HTTP processes as one server: what one knows all know, and each may go at any time."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from antiphon.processes.coordinator.client import REPORT_S
from benchmarks.limits import LimitedServer
from benchmarks.make_adapter import write_adapter
from tests.e2e.limit_checks import require_no_overspending, require_soon_changed
from tests.e2e.running_checks import RESERVED, require_ended_with_its_key, require_held_to_the_limit
from tests.e2e.workers import PATIENCE, Line, line_to, lines, workers
from tests.support.model_files import CANTOR
from tests.support.server import Server, read_event, serving
from tests.support.waiting import wait_until

KEYS, LIMITS = "/admin/v1/keys", "/admin/v1/limits"
TIMES = 20
PAUSE_S = 0.12
"""Of each client between two requests, so that the processes which begin get their turn too."""
LONG = {"model": "cantor", "prompt": "Once upon a time", "max_tokens": 1800, "stream": True}
ENDLESS = LONG | {"ignore_eos": True, "n": 12}
"""It takes many seconds, and leaves a few of the engine's sixteen places to others."""
LATE = 5
"""How often a process may learn of a change late, since it stands still. The server logs it then."""

pytestmark = pytest.mark.timeout(480)
"""Each starts a server of several processes: seconds, and minutes where the machine is busy with others."""


class Operator:
    """A server with keys, and its operator's key."""

    def __init__(self, server: Server, home: Path) -> None:
        self.server = server
        self.home = home
        self.admin = (home / "admin.key").read_text().strip()
        self.client = server.client(headers={"authorization": f"Bearer {self.admin}"})

    def key(self) -> tuple[str, str]:
        """A new service key: its id and its secret."""
        made = self.client.post(KEYS, json={"kind": "service", "project": "default"}).json()
        return made["id"], made["secret"]

    def limit(self, key: str, measure: str, amount: int, window: str | None = "minute") -> str:
        """A new limit of a key: its id."""
        asked = {"subject": "key", "target": key, "measure": measure, "amount": amount, "window": window}
        made = self.client.post(LIMITS, json=asked)
        assert made.status_code == 201, made.text
        id_: str = made.json()["id"]
        return id_

    def rotate(self, key: str) -> tuple[str, str]:
        """The successor of a key, beside which the key stays valid: its id and its secret."""
        made = self.client.post(f"{KEYS}/{key}/rotate", json={"overlap": 3_600}).json()
        assert [each["target"] for each in made["limits"]] == [made["id"]]
        return made["id"], made["secret"]

    def use_up_rotated(self) -> tuple[str, list[str]]:
        """The id of a key that was rotated twice, and the secrets of all three. The first has five requests a
        day. Two come before the first rotation, and one of each key after the last, which use them up."""
        id_, first = self.key()
        self.limit(id_, "requests", 5, "day")
        assert [ask(self.server, first) for _ in range(2)] == [200, 200]
        id_, second = self.rotate(id_)
        id_, third = self.rotate(id_)
        secrets = [first, second, third]
        assert [ask(self.server, each) for each in secrets] == [200] * 3
        return id_, secrets

    def say_one_by_one(self, made: list[Line], secret: str, concurrent: str, free: int) -> set[int]:
        """The statuses of a request of each process, each asked when so many places of a limit of requests at
        once are free: an answer can come before its place is given back."""
        statuses = set()
        for line in made:
            is_free = lambda: self.client.get(f"{LIMITS}/{concurrent}").json().get("remaining") == free  # noqa: E731
            wait_until(is_free, PATIENCE, "the places are free")
            statuses.add(line.say(key=secret)[0])
        return statuses

    def knows(self, made: list[Line], secret: str) -> None:
        """Waits until every process knows a key."""
        for line in made:
            wait_until(lambda: line.ask("GET", "/v1/models", key=secret)[0] == 200, PATIENCE, "the key")  # noqa: B023

    def wait_for_limits(self, made: list[Line]) -> None:
        """Waits until every process knows the limits that were set so far, of which it takes nothing: changes
        arrive in their order, so a process that holds another key to a later limit knows all before it."""
        id_, secret = self.key()
        self.limit(id_, "requests", 1)
        self.knows(made, secret)
        for line in made:
            wait_until(lambda: line.say(key=secret, max_tokens=1)[0] == 429, PATIENCE, "the limit")  # noqa: B023


@contextmanager
def serve_keys(home: Path, *arguments: str, **more: str) -> Iterator[Operator]:
    """A server with keys whose home this is."""
    with serving(*arguments, env={"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(home)} | more) as server:
        operator = Operator(server, home)
        yield operator
        operator.client.close()


@pytest.fixture(scope="module", params=["2", pytest.param("4", marks=pytest.mark.soak)])
def several(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Operator]:
    """Several HTTP processes with keys, which lend adapters. Tests unload what they load, and wait for what
    they killed to be back."""
    shelf, home = tmp_path_factory.mktemp("shelf"), tmp_path_factory.mktemp("several") / "home"
    write_adapter(shelf / "second.gguf", CANTOR, rank=4, seed=2, weight=1.0)
    more = {"ANTIPHON_LORA_DIRECTORIES": str(shelf), "ANTIPHON_ENGINE_RESTART_PATIENCE": "40"}
    more |= {"ANTIPHON_LIMITS_RESERVE_TOKENS": RESERVED}
    with serve_keys(home, "--workers", request.param, **more) as operator:
        yield operator


@dataclass
class Restarted:
    """A server of one HTTP process that was stopped, and started again on its home."""

    operator: Operator
    secret: str
    """A key with ten requests a day, of which four were made before the stop."""
    rotated: tuple[str, list[str]]
    """The last of a key and its successors, whose budget of a day was used up before the stop, and all."""
    kept_mode: int
    """Of the file with the counts, while no server ran."""
    is_kept: bool
    """Whether the file was still there after the start."""


@pytest.fixture(scope="module")
def restarted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Restarted]:
    home = tmp_path_factory.mktemp("one") / "home"
    kept = home / "spool" / "limits.json"
    with serve_keys(home, ANTIPHON_DRAIN_TIMEOUT="0.2") as operator:
        id_, secret = operator.key()
        operator.limit(id_, "requests", 10, "day")
        assert {ask(operator.server, secret) for _ in range(4)} == {200}
        rotated = operator.use_up_rotated()
        with lines(operator.server) as made:
            stop_beside_streams(operator.server, made, operator.admin)
    mode = kept.stat().st_mode & 0o777
    with serve_keys(home) as operator:
        yield Restarted(operator, secret, rotated, mode, kept.exists())


@pytest.fixture
def one(restarted: Restarted) -> Operator:
    """One HTTP process with keys; tests replace it."""
    return restarted.operator


def test_a_change_of_a_key_holds_in_every_process_at_once(several: Operator) -> None:
    """Without this each of them fails for about half of the keys: the other process learnt it 0.2 s later."""
    took: list[float] = []
    asked = {"kind": "service", "project": "default"}
    with lines(several.server) as made:
        for number in range(TIMES):
            first, second = made[number % len(made)], made[(number + 1) % len(made)]

            def change(first: Line = first, second: Line = second) -> list[int]:
                begun = time.monotonic()
                status, key = first.ask("POST", KEYS, asked, key=several.admin)
                took.append(time.monotonic() - begun)
                known = second.ask("GET", "/v1/models", key=key["secret"])[0]
                ended = first.ask("DELETE", f"{KEYS}/{key['id']}", key=several.admin)[0]
                return [status, known, ended, second.ask("GET", "/v1/models", key=key["secret"])[0]]

            late = count_late(several.server)
            while (found := change()) not in ([201, 200, 200, 401], [201, 200, 204, 401]):
                wait_until(
                    lambda: count_late(several.server) > late,  # noqa: B023
                    what=f"{number}: {found}, or a process that stood still",
                )
                late = count_late(several.server)
        assert len(took) <= TIMES + LATE
        sys.stdout.write(f"a key is made in {1000 * sorted(took)[TIMES // 2]:.1f} ms (median)\n")


def test_processes_share_a_limit_and_a_revocation_exactly(several: Operator) -> None:
    id_, secret = several.key()
    several.limit(id_, "requests", 30)
    with lines(several.server) as made:
        several.knows(made, secret)
        several.wait_for_limits(made)
        with ThreadPoolExecutor(8) as pool:
            begun = time.monotonic()
            asked = [pool.submit(ask, several.server, secret) for _ in range(60)]
            statuses = Counter(each.result() for each in asked)
            took = time.monotonic() - begun
        assert took < 60, "within the window"
        assert statuses == {200: 30, 429: 30}
        revoked = time.monotonic()
        assert several.client.delete(f"{KEYS}/{id_}").status_code in (200, 204)
        waited = [
            wait_until(
                lambda: line.ask("GET", "/v1/models", key=secret)[0] == 401,  # noqa: B023
                10,
                "the revocation",
            )
            for line in made
        ]
        total = time.monotonic() - revoked
    sys.stdout.write(f"revoked in all after {1000 * total:.0f} ms ({[f'{w:.3f}' for w in waited]})\n")


def ask(server: Server, secret: str) -> int:
    """One request over a connection of its own: any process takes it."""
    body = {"model": "cantor", "prompt": "Hi", "max_tokens": 1}
    return httpx2.post(
        f"{server.url}/v1/completions",
        json=body,
        headers={"authorization": f"Bearer {secret}"},
        timeout=PATIENCE,
    ).status_code


def test_a_killed_process_ends_its_claims_while_the_others_serve(several: Operator) -> None:
    id_, secret = several.key()
    several.limit(id_, "concurrent", 1, None)
    with lines(several.server) as made:
        several.knows(made, secret)
        first, second = made[:2]
        wait_until(lambda: several.client.get(LIMITS).json()["data"], PATIENCE, "the limit")
        several.wait_for_limits(made)
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        first.connection.request("POST", "/v1/completions", json.dumps(ENDLESS), headers)
        stream = first.connection.getresponse()
        assert stream.status == 200 and read_event(stream)
        assert second.say(key=secret)[0] == 429, "one at once, whichever process it runs in"
        deaths = count_deaths(several.server)
        first.process.kill()
        took = wait_until(lambda: second.say(key=secret)[0] == 200, 10, "its place is free")
        assert {line.say(key=several.admin)[0] for line in made[1:]} == {200}
        wait_until(
            lambda: len(ready_workers(several.server, deaths)) == len(made), PATIENCE, "it is started again"
        )
    sys.stdout.write(f"the claim of a killed process was ended after {1000 * took:.0f} ms\n")


def test_a_killed_coordinator_comes_back_and_counts_on(several: Operator) -> None:
    before = len(several.server.records("process_ended"))
    id_, secret = several.key()
    several.limit(id_, "requests", 2 + 2 * len(workers(several.server)))
    concurrent = several.limit(id_, "concurrent", 2, None)
    with lines(several.server) as made:
        several.knows(made, secret)
        several.wait_for_limits(made)
        assert several.say_one_by_one(made, secret, concurrent, free=2) == {200}
        headers = {"authorization": f"Bearer {secret}", "content-type": "application/json"}
        running = line_to(several.server, made[0].process)
        running.connection.request("POST", "/v1/completions", json.dumps(ENDLESS), headers)
        stream = running.connection.getresponse()
        assert read_event(stream)
        (coordinator,) = several.server.children("antiphon.processes.coordinator")
        coordinator.kill()
        begun = time.monotonic()
        seen = Counter[int]()
        while (status := made[1].say(key=secret)[0]) != 200:
            seen[status] += 1
            assert status == 503 and time.monotonic() - begun < 20
        took = time.monotonic() - begun
        assert stream.read(1), "what ran goes on"
        assert several.say_one_by_one(made, secret, concurrent, free=1) == {200}
        assert made[0].say(key=secret)[0] == 429, "one of each, the one that runs, one, one of each"
        running.connection.close()
    ended = several.server.records("process_ended")[before:]
    assert {line["process"] for line in ended} == {"the coordinator"}
    sys.stdout.write(
        f"a request after the coordinator's death was served after {took:.2f} s; refused: {dict(seen)}\n"
    )


def test_a_coordinator_that_stands_still_is_told_by_readiness(several: Operator) -> None:
    (coordinator,) = several.server.children("antiphon.processes.coordinator")
    wait_until(lambda: several.client.get("/health/ready").status_code == 200, PATIENCE, "it is ready")
    coordinator.suspend()
    try:
        reply = several.client.get("/health/ready")
        assert reply.status_code == 503
        assert reply.json()["coordinator"] == "unavailable"
        assert reply.headers["retry-after"]
    finally:
        coordinator.resume()
    wait_until(lambda: several.client.get("/health/ready").status_code == 200, PATIENCE, "it is ready again")


def test_limits_go_on_counting_over_a_stop_and_a_start(restarted: Restarted) -> None:
    assert restarted.kept_mode == 0o600
    assert not restarted.is_kept, "it is used once"
    assert Counter(ask(restarted.operator.server, restarted.secret) for _ in range(8)) == {200: 6, 429: 2}


def test_fifty_at_once_overspend_a_budget_by_nothing(several: Operator) -> None:
    require_no_overspending(LimitedServer(several.server, several.home))


def test_a_limit_changes_in_every_process_within_a_second(several: Operator) -> None:
    require_soon_changed(LimitedServer(several.server, several.home))


def test_a_stream_is_held_to_a_limit_as_it_is_by_then(several: Operator) -> None:
    require_held_to_the_limit(LimitedServer(several.server, several.home))


def test_ending_a_key_ends_its_streams_and_counts_their_tokens(several: Operator) -> None:
    require_ended_with_its_key(LimitedServer(several.server, several.home))


def test_a_key_and_its_successors_use_up_one_budget(several: Operator) -> None:
    _, secrets = several.use_up_rotated()
    assert [ask(several.server, each) for each in secrets] == [429] * 3


def test_a_rotated_keys_budget_outlasts_a_restart(restarted: Restarted) -> None:
    client, server, (last, secrets) = restarted.operator.client, restarted.operator.server, restarted.rotated
    assert [ask(server, each) for each in secrets] == [429] * 3
    (limit,) = client.get(LIMITS, params={"target": last}).json()["data"]
    assert client.patch(f"{LIMITS}/{limit['id']}", json={"amount": 6}).status_code == 200
    assert [ask(server, each) for each in secrets] == [200, 429, 429]


def test_an_adapter_of_one_process_is_in_all_now_and_later(several: Operator) -> None:
    loading, unloading = {"lora_name": "second", "lora_path": "second.gguf"}, {"lora_name": "second"}
    server = several.server
    with lines(server, several.admin) as made:
        first, second = made[:2]
        assert second.say("second")[0] == 404
        late = count_late(server)
        assert first.ask("POST", "/v1/load_lora_adapter", loading)[0] == 200
        said = say_after_change(server, second, 200, late)  # the next request to another process finds it
        own = second.say("cantor")[1]["choices"][0]["text"]
        assert said["choices"][0]["text"] != own
        deaths = count_deaths(server)
        first.process.kill()
        first.process.wait(PATIENCE)
        wait_until(lambda: len(ready_workers(server, deaths)) == len(made), PATIENCE, "another process")
        later = line_to(server, workers(server)[-1], several.admin)
        again = later.say("second")[1]["choices"][0]["text"]
        assert again == said["choices"][0]["text"]
        host = server.host()
        host.kill()
        host.wait(PATIENCE)
        assert second.say("second")[1]["choices"][0]["text"] == again, "the engine has it again"
        late = count_late(server)
        assert later.ask("POST", "/v1/unload_lora_adapter", unloading)[0] == 200
        say_after_change(server, second, 404, late)
        assert second.ask("POST", "/v1/load_lora_adapter", loading)[0] == 200
        assert second.ask("POST", "/v1/unload_lora_adapter", unloading)[0] == 200
        later.connection.close()


def count_late(server: Server) -> int:
    """How often a process learnt of a change late, since it stood still."""
    return len(server.records("processes_late"))


def say_after_change(server: Server, line: Line, expected: int, late: int) -> Any:
    """What a process says for the adapter after another has changed it. It knows the change at once, unless
    it stood still: then the server has logged that, and it knows it soon."""
    status, said = line.say("second")
    if status != expected:
        wait_until(lambda: count_late(server) > late, PATIENCE, f"{status}, or a process that stood still")
        wait_until(lambda: line.say("second")[0] == expected, PATIENCE, "it knows the change")
        said = line.say("second")[1]
    return said


def count_deaths(server: Server) -> int:
    """How many HTTP processes have died so far."""
    return sum("HTTP" in str(line["process"]) for line in server.records("process_ended"))


def ready_workers(server: Server, deaths: int) -> list[psutil.Process]:
    """The HTTP processes, once more than `deaths` have died and each is followed by one that is ready."""
    died = count_deaths(server)
    back = [line for line in server.records("process_back") if "HTTP" in str(line["process"])]
    return workers(server) if died > deaths and len(back) == died else []


def test_metrics_of_any_process_count_for_all_and_never_fall(several: Operator) -> None:
    server = several.server
    with lines(server, several.admin) as made:
        first, second = made[:2]
        before = count_settled(first, second)
        for line in (first, first, second):
            assert line.say()[0] == 200
        wait_until(
            lambda: generations(first) == generations(second) == before + 3,
            PATIENCE,
            "all are counted in both",
        )
        wait_until(lambda: number(first, "antiphon_http_processes") == len(made), PATIENCE, "each is counted")
        deaths = count_deaths(server)
        second.process.kill()
        wait_until(lambda: len(ready_workers(server, deaths)) == len(made), PATIENCE, "another process")
        assert generations(first) == before + 3, "those of the dead count on"
        later = line_to(server, workers(server)[-1], several.admin)
        assert generations(later) == before + 3
        assert number(later, "antiphon_http_processes") == len(made)
        running = 'antiphon_generations_running{model="cantor"}'
        wait_until(lambda: number(later, running) == 0, PATIENCE, "those of earlier tests have ended")
        later.connection.close()


def count_settled(first: Line, second: Line) -> int:
    """Returns the number of generations once both processes know of all that ended before: they agree on one
    number for five of the periods in which processes report."""
    readings = deque[tuple[int, int]](maxlen=5)

    def is_settled() -> bool:
        readings.append((generations(first), generations(second)))
        time.sleep(REPORT_S)
        return len(readings) == 5 and len({count for pair in readings for count in pair}) == 1

    wait_until(is_settled, PATIENCE, "both know of all before")
    return readings[0][0]


def generations(line: Line) -> int:
    return number(line, 'antiphon_generations_total{model="cantor",status="ok"}')


def number(line: Line, series: str) -> int:
    page = line.ask("GET", "/metrics")[1]
    found = re.search(rf"^{re.escape(series)} (\S+)$", page, re.MULTILINE)
    return int(float(found[1])) if found else 0


def test_a_rolling_restart_fails_no_connection_and_no_request(several: Operator) -> None:
    replace_under_load(several)


@pytest.mark.soak
def test_a_rolling_restart_of_an_only_process_fails_none(one: Operator) -> None:
    """`make test` replaces it beneath streams, without this load."""
    replace_under_load(one)


def replace_under_load(operator: Operator) -> None:
    server, headers = operator.server, {"authorization": f"Bearer {operator.admin}"}
    env = os.environ | {"ANTIPHON_HOME": str(operator.home)}
    restart = [sys.executable, "-m", "antiphon", "rolling-restart"]
    before = {process.pid for process in workers(server)}
    logged = {event: len(server.records(event)) for event in ("workers_replaced", "process_ended")}
    over, outcomes, problems = threading.Event(), Counter[int](), list[str]()

    def asked(client: httpx2.Client) -> None:
        reply = client.post("/v1/completions", json={"model": "cantor", "prompt": "Hi", "max_tokens": 1})
        outcomes[reply.status_code] += 1

    def hammer(is_kept: bool) -> None:
        with server.client(headers=headers) as kept:
            while not over.wait(PAUSE_S):
                try:
                    if is_kept:
                        asked(kept)
                    else:
                        with server.client(headers=headers) as fresh:
                            asked(fresh)
                except httpx2.HTTPError as problem:
                    problems.append(repr(problem))

    with ThreadPoolExecutor(5) as pool, server.client(headers=headers) as long:
        with long.stream("POST", "/v1/completions", json=LONG | {"max_tokens": 900}) as stream:
            parts = stream.iter_lines()
            read_event(parts)
            hammering = [pool.submit(hammer, is_kept) for is_kept in (False, False, False, True)]
            wait_until(lambda: sum(outcomes.values()) >= 10, PATIENCE, "requests")
            told = subprocess.run(restart, env=env, capture_output=True, text=True, check=False)
            assert (told.returncode, told.stdout) == (0, ""), told.stderr
            require_replaced(server, logged["workers_replaced"], datetime.now(UTC))
            so_far = sum(outcomes.values())
            wait_until(lambda: sum(outcomes.values()) >= so_far + 10, PATIENCE, "requests to the new ones")
            rest = list(parts)
        over.set()
        for each in hammering:
            each.result()
    wait_until(lambda: len(workers(server)) == len(before), PATIENCE, "the old ones are gone")
    assert problems == []
    assert set(outcomes) == {200}
    assert "data: [DONE]" in rest, "a stream that ran was not cut"
    assert before.isdisjoint(process.pid for process in workers(server))
    assert len(server.records("process_ended")) == logged["process_ended"]


def require_replaced(server: Server, before: int, told_at: datetime) -> None:
    """The command that ended at this time has waited for all."""
    wait_until(lambda: len(server.records("workers_replaced")) > before, PATIENCE, "they are replaced")
    assert datetime.fromisoformat(str(server.records("workers_replaced")[-1]["time"])) <= told_at


def replace_the_only_process(server: Server) -> None:
    before = len(server.records("workers_replaced"))
    server.process.send_signal(signal.SIGUSR2)
    wait_until(lambda: len(server.records("workers_replaced")) > before, 60, "it is replaced")


def test_a_replaced_only_process_keeps_limits_and_budgets(one: Operator) -> None:
    """What the old one still answers, what the new one answers meanwhile, and what comes after both."""
    server = one.server
    id_, secret = one.key()
    one.limit(id_, "tokens", 10**6, "day")
    key = {"authorization": f"Bearer {secret}"}
    limited_id, limited = one.key()
    one.limit(limited_id, "requests", 10)
    assert {ask(server, limited) for _ in range(4)} == {200}
    limited_key = {"authorization": f"Bearer {limited}"}
    (old,) = workers(server)
    with (
        one.client.stream("POST", "/v1/completions", json=LONG, headers=limited_key) as counted,
        one.client.stream("POST", "/v1/completions", json=LONG, headers=key) as stream,
    ):
        parts = stream.iter_lines()
        read_event(parts)
        counted_parts = counted.iter_lines()
        read_event(counted_parts)
        replace_the_only_process(server)
        statuses = Counter(ask(server, limited) for _ in range(8))
        assert statuses == {200: 5, 429: 3}, "what still runs in the old one counts"
        assert {ask(server, secret) for _ in range(3)} == {200}
        (new,) = [each for each in workers(server) if each.pid != old.pid]
        with one.client.stream("POST", "/v1/completions", json=LONG, headers=key) as other:
            more = other.iter_lines()
            read_event(more)
            assert "data: [DONE]" in list(parts) and "data: [DONE]" in list(counted_parts)
            wait_until(lambda: not old.is_running(), PATIENCE, "the old one has ended")
            assert ask(server, secret) == 200
            assert "data: [DONE]" in list(more)
    assert {ask(server, secret) for _ in range(2)} == {200}
    assert [each.pid for each in workers(server)] == [new.pid]

    def used() -> int:
        (report,) = one.client.get("/admin/v1/usage", params={"by": "key", "key": id_}).json()["data"]
        return int(report["prompt_tokens"]) + int(report["output_tokens"]) if report["requests"] == 8 else 0

    wait_until(used, PATIENCE, "the rows")
    (budget, *_) = one.client.get(LIMITS, params={"target": id_}).json()["data"]
    standing = one.client.get(f"{LIMITS}/{budget['id']}").json()
    assert 10**6 - standing["remaining"] == used() > 8


@pytest.mark.soak
@pytest.mark.parametrize("workers", ["1", "2"])
def test_at_shutdown_every_process_ends_streams_with_an_error(tmp_path: Path, workers: str) -> None:
    """`make test` stops one process so, before it starts the server again."""
    (tmp_path / "antiphon.toml").write_text(f"[server]\nworkers = {workers}\ndrain_timeout = 0.2\n")
    with serving(cwd=tmp_path) as server, lines(server) as made:
        assert len(made) == int(workers)
        stop_beside_streams(server, made)


def stop_beside_streams(server: Server, made: list[Line], key: str | None = None) -> None:
    """Stops the server, whose drain timeout is 0.2 seconds, while each process streams."""
    started: list[object] = []

    def stream(line: Line) -> str:
        headers = {"content-type": "application/json"} | ({"authorization": f"Bearer {key}"} if key else {})
        line.connection.request("POST", "/v1/completions", json.dumps(ENDLESS), headers)
        reply = line.connection.getresponse()
        started.append(reply.read(1))
        return reply.read().decode()

    with ThreadPoolExecutor(len(made)) as pool:
        streams = [pool.submit(stream, line) for line in made]
        wait_until(lambda: len(started) == len(made), PATIENCE, "all stream")
        begun = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - begun < 0.2 + 15.0
        for each in streams:
            assert "shutting down" in each.result() and "[DONE]" not in each.result()


@pytest.mark.soak
def test_a_second_signal_ends_all_of_them_at_once() -> None:
    with serving("--workers", "2", env={"ANTIPHON_DRAIN_TIMEOUT": "60"}) as server:
        family = server.supervisor.children()
        with (
            server.client() as client,
            client.stream("POST", "/v1/completions", json=ENDLESS) as stream,
        ):
            read_event(stream.iter_lines())
            server.process.send_signal(signal.SIGTERM)
            wait_until(lambda: server.records("asked_to_stop"), PATIENCE, "it heard")
            begun = time.monotonic()
            server.process.send_signal(signal.SIGTERM)
            assert server.process.wait(PATIENCE) == 0
        assert time.monotonic() - begun < 10
        assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []


@pytest.mark.soak
def test_any_end_of_the_supervisor_ends_all_and_leaves_no_file(tmp_path: Path) -> None:
    runtime = tmp_path / "run"
    runtime.mkdir()
    env = {"ANTIPHON_KEYS": "true", "ANTIPHON_HOME": str(tmp_path / "home"), "XDG_RUNTIME_DIR": str(runtime)}
    with serving("--workers", "2", env=env) as server:
        family = server.supervisor.children(recursive=True)
        assert len(family) >= 4
        server.supervisor.kill()
        assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
        wait_until(lambda: not list(runtime.iterdir()), PATIENCE, "the runtime directory is gone")
        with pytest.raises(httpx2.ConnectError):
            httpx2.get(f"{server.url}/health")
