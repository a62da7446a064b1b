"""Processes that are killed: what callers see, how soon service is back, and that nothing stays behind."""

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx2
import openai
import psutil
import pytest

from tests.support.commands import run_command
from tests.support.server import Server, serving, start
from tests.support.waiting import wait_until

BACK = 50.0
"""Seconds; service is back within five."""
LONG, SHORT = 3000, 20
"""Tokens of requests that run when a process is killed, and of those that wait."""


KEY = "canary-0123456789abcdef"
MODEL = """
[[models]]
name = "noise"
path = "{path}"
sequences = 2
context_length = 4096
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("deaths")


@pytest.fixture(scope="module")
def shared(noise: Path, home: Path) -> Iterator[Server]:
    env = {"ANTIPHON_API_KEY": KEY, "OPENAI_API_KEY": KEY, "SECRET_TOKEN": KEY, "ANTIPHON_HOME": str(home)}
    env["ANTIPHON_ENGINE_RESTART_PATIENCE"] = str(BACK)
    (home / "noise.gguf").symlink_to(noise)
    (home / "antiphon.toml").write_text(MODEL.format(path=home / "noise.gguf"))
    with serving(env=env, cwd=home) as running:
        yield running


@pytest.fixture
def victim(shared: Server) -> Server:
    """A server with a key, whole when a test begins. An engine that dies three times in a minute is given up:
    one test kills its host once, and another until it is given up. A reload starts a new one."""
    wait_until(lambda: is_ready(shared), BACK, "it is whole")
    return shared


async def asked(client: openai.AsyncOpenAI, stream: bool, max_tokens: int) -> str:
    """How one completion ended, as OpenAI's client tells it."""
    try:
        answer = await client.completions.create(
            model="noise",
            prompt="x",
            max_tokens=max_tokens,
            stream=stream,
            temperature=0,
            extra_body={"ignore_eos": True},
        )
        if stream:
            async for _ in answer:  # type: ignore[union-attr]
                pass
    except openai.APIStatusError as error:
        return f"{error.status_code} {error.response.headers.get('retry-after', 'no retry-after')}"
    except openai.APIError as error:
        return f"in stream: {error.code}"
    return "ok"


async def under_load(server: Server, strike: Callable[[], None]) -> Counter[str]:
    """Six requests, two of them in the batch; the blow falls when tokens are being made. The two are so long
    that they do not end before it."""
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0) as client:
        async with asyncio.TaskGroup() as group:
            asking = [group.create_task(asked(client, stream, LONG)) for stream in (True, False)]
            await asyncio.to_thread(wait_until, lambda: server.load().running == 2, BACK, "two run")
            asking += [group.create_task(asked(client, index % 2 == 0, SHORT)) for index in range(4)]

            def are_waiting() -> bool:
                load = server.load()
                return load.decoded_tokens > 4 and load.queued == 4

            await asyncio.to_thread(wait_until, are_waiting, BACK, "two run and four wait")
            await asyncio.to_thread(strike)
        return Counter(task.result() for task in asking)


def get(server: Server, path: str, headers: dict[str, str] | None = None) -> httpx2.Response:
    return httpx2.get(server.url + path, headers=headers, timeout=BACK)


def is_ready(server: Server) -> bool:
    """Whether it is; a process that was killed does not answer."""
    try:
        return get(server, "/health/ready").status_code == 200
    except httpx2.TransportError:
        return False


def test_a_killed_host_fails_its_batch_and_delays_the_queue(victim: Server) -> None:
    gateway = victim.children("assembly")[0].pid
    seen: list[httpx2.Response] = []

    def is_told() -> bool:
        seen[:] = [get(victim, "/health/ready")]
        return seen[0].status_code != 200

    def strike() -> None:
        """The supervisor stands still meanwhile: otherwise another host may be ready before anybody looks."""
        host, supervisor = victim.host(), victim.supervisor
        supervisor.suspend()
        try:
            host.kill()
            wait_until(is_told, BACK, "readiness says so")
            assert get(victim, "/health").status_code == 200
        finally:
            supervisor.resume()

    ends = asyncio.run(under_load(victim, strike))
    assert ends["ok"] == 4, ends
    lost = [end for end in ends.elements() if end != "ok"]
    assert len(lost) == 2 and all(
        end == "in stream: engine_died" or end.startswith("503 ") for end in lost
    ), ends
    assert not any("no retry-after" in end for end in lost)
    assert seen[0].status_code == 503 and "noise" in seen[0].text and int(seen[0].headers["retry-after"]) >= 1
    wait_until(lambda: is_ready(victim), BACK, "service is back")
    assert [child.pid for child in victim.children("assembly")] == [gateway], "the gateway was never down"
    assert 'antiphon_process_deaths_total{model="noise",process="engine"}' in read_deaths(victim)


def read_deaths(server: Server) -> dict[str, float]:
    """The kinds of processes that have died, and how often."""
    page = get(server, "/metrics", {"Authorization": f"Bearer {KEY}"}).text
    lines = [line.rsplit(" ", 1) for line in page.splitlines()]
    deaths = {line[0]: float(line[1]) for line in lines if line[0].startswith("antiphon_process_deaths")}
    assert 'antiphon_process_deaths_total{model="",process="knowledge"}' in deaths, "also what never died"
    return {kind: count for kind, count in deaths.items() if count}


def reload(home: Path) -> str:
    done = run_command("reload", cwd=home, env={"ANTIPHON_HOME": str(home)})
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_three_deaths_in_a_minute_are_the_last_until_a_reload(
    victim: Server, noise: Path, home: Path
) -> None:
    def is_given_up() -> bool:
        return "failed" in get(victim, "/health/ready").text

    def is_back_or_given_up(killed: psutil.Process) -> bool:
        """Readiness may be told before the death is noticed."""
        hosts = victim.children("engines.host")
        return is_given_up() or (bool(hosts) and killed not in hosts and is_ready(victim))

    deaths = 0
    while not is_given_up():
        host = victim.host()
        host.kill()
        psutil.wait_procs([host], timeout=BACK)
        deaths += 1
        wait_until(partial(is_back_or_given_up, host), BACK, "it is back, or given up")
    assert deaths >= 2, "another test may have killed it once before"
    asked = {"model": "noise", "prompt": "x"}
    headers = {"Authorization": f"Bearer {KEY}"}
    answer = httpx2.post(f"{victim.url}/v1/completions", json=asked, headers=headers, timeout=60)
    assert answer.status_code == 503 and "given up" in answer.json()["error"]["message"]
    (home / "noise.gguf").unlink()
    (home / "noise.gguf").write_bytes(b"GGUF, and then nothing")
    assert reload(home) == "could not start the engine of noise again"
    (home / "noise.gguf").unlink()
    (home / "noise.gguf").symlink_to(noise)
    assert reload(home) == "started the engine of noise again"
    wait_until(lambda: is_ready(victim), BACK, "service is back")


def test_a_killed_http_process_comes_back(victim: Server) -> None:
    (killed,) = victim.children("assembly")
    killed.kill()
    killed.wait(BACK)
    wait_until(lambda: is_ready(victim), BACK, "it answers again")
    died = 'antiphon_process_deaths_total{model="",process="http"}'
    wait_until(lambda: read_deaths(victim).get(died) == 1, BACK, "its successor tells it")


def test_a_key_in_the_environment_is_asked_for(victim: Server) -> None:
    assert get(victim, "/v1/models").status_code == 401
    for header in ({"Authorization": f"Bearer {KEY}"}, {"x-api-key": KEY}):
        assert get(victim, "/v1/models", header).status_code == 200
    assert KEY not in "\n".join(victim.lines)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_stays_behind(number: signal.Signals, tmp_path: Path) -> None:
    """tests/e2e/test_concurrency.py ends a server with SIGTERM, and tests/e2e/test_workers.py kills one."""
    server = start(env={"XDG_RUNTIME_DIR": str(tmp_path)})
    wait_until(lambda: server.url, BACK, "the server listens")
    tree = server.supervisor.children(recursive=True)
    assert len(tree) >= 2 and list(tmp_path.iterdir())
    status = server.stop(number)
    assert status == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    gone, alive = psutil.wait_procs(tree, timeout=BACK)
    assert not alive and len(gone) == len(tree)
    wait_until(lambda: not list(tmp_path.iterdir()), BACK, "the runtime directory is removed")
    host, port = server.url.removeprefix("http://").split(":")
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(f"http://{host}:{port}/health")


def test_the_engine_host_holds_no_key_and_no_process_names_it(victim: Server) -> None:
    host = victim.host()
    assert KEY not in Path(f"/proc/{host.pid}/environ").read_text()
    for process in [victim.supervisor, *victim.supervisor.children(recursive=True)]:
        assert KEY not in " ".join(process.cmdline())
    assert KEY.encode() not in memory_of(host.pid)


def memory_of(pid: int) -> bytes:
    """The writable memory of a process, as far as it can be read."""
    parts = []
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:
        for line in maps:
            span, rights, *rest = line.split()
            if not rights.startswith("rw") or (len(rest) == 4 and rest[3].startswith("[v")):
                continue
            low, high = (int(part, 16) for part in span.split("-"))
            try:
                memory.seek(low)
                parts.append(memory.read(min(high - low, 64 << 20)))
            except (OSError, ValueError):
                continue
    return os.linesep.encode().join(parts)
