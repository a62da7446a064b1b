"""The supervisor with real processes: what dies comes back, what cannot start says why, and nothing is left
behind."""

import asyncio
import contextlib
import http.client
import importlib.util
import json
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from antiphon.engines.base import EngineState, SequenceStarted
from antiphon.engines.host.child import DeathCounter
from antiphon.engines.host.client import HostTokenEngine, open_host_engine
from antiphon.errors import AddressUnavailable, AntiphonError, EngineDied, EngineLost
from antiphon.processes.engine_hosts import build_load_spec, filter_host_environment
from antiphon.processes.pause_answers import answer_pause
from antiphon.processes.supervisor import Programs, bind, filter_http_environment, format_url, open_port
from antiphon.settings.cluster import CLUSTER_ONLY
from antiphon.settings.loading import build_model
from antiphon.settings.models import LoraSettings, ModelSettings
from antiphon.settings.schema import EngineSettings, Settings
from antiphon.settings.tenancy import KeysSettings
from benchmarks.make_adapter import write_adapter
from tests.support.host_engines import SPEC, build_request
from tests.support.host_link import short_directory
from tests.support.model_files import CANTOR
from tests.support.processes import alive, descendants, environment
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
HOST = "antiphon.engines.host"
HTTP = "tests.engines.host.http_standin"
KNOWLEDGE = "antiphon.processes.knowledge"
CANARY = "canary-key-0123456789"
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Server:
    """A running server of scripted engines."""

    process: subprocess.Popen[bytes]
    url: str
    temporary: Path

    def knows(self) -> dict[str, Any]:
        """What the HTTP process knows now."""
        address = (self.url.rpartition(":")[0].removeprefix("http://"), int(self.url.rpartition(":")[2]))
        with socket.create_connection(address, timeout=PATIENCE) as connection:
            data = b""
            while chunk := connection.recv(65536):
                data += chunk
        known: dict[str, Any] = json.loads(data)
        return known

    def ask(self) -> tuple[int, int] | None:
        """The status of a request, and after how many seconds the server says to try again. None if the HTTP
        process answered, which speaks no HTTP here."""
        with closing(http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=PATIENCE)) as line:
            try:
                line.request("POST", "/v1/chat/completions", b"{}")
                reply = line.getresponse()
                reply.read()
            except (http.client.HTTPException, ConnectionError):
                return None
            return reply.status, int(reply.getheader("retry-after") or 0)

    def states(self, model: str = "cantor") -> list[str]:
        """What the HTTP process was told of one engine, in order."""
        with contextlib.suppress(ConnectionError, TimeoutError, json.JSONDecodeError):
            return [news["state"] for news in self.knows()["news"] if news["engine"] == model]
        return []

    def host(self) -> int:
        """The engine host's process, once there is one."""
        wait_until(lambda: descendants(self.process.pid, HOST) != [], what="an engine host")
        return descendants(self.process.pid, HOST)[0]

    def kill_host(self) -> int:
        """Kills the engine host; its process."""
        pid = self.host()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), what="the death of the host")
        return pid

    def kill_http(self) -> int:
        """Kills the HTTP process; which one that was."""
        pid: int = self.knows()["pid"]
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not alive(pid), what="the death of the HTTP process")
        return pid

    def family(self) -> list[int]:
        return descendants(self.process.pid)

    def left_behind(self) -> list[str]:
        return sorted(str(path.relative_to(self.temporary)) for path in self.temporary.rglob("*"))


def launched(temporary: Path, **asked: object) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.engines.host.serve_scripted", json.dumps(asked)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env=os.environ
        | {
            "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
            "XDG_RUNTIME_DIR": str(temporary),
            "ANTIPHON_API_KEY": CANARY,
        },
    )


@contextmanager
def serving(**asked: object) -> Iterator[Server]:
    """A server of which every process is up. Whatever the test did, nothing of it remains."""
    with short_directory() as temporary:
        process = launched(temporary, **asked)
        family: list[int] = []
        try:
            assert process.stdout is not None
            said = json.loads(process.stdout.readline())
            server = Server(process, said["url"], temporary)
            family = server.family()
            yield server
            family = server.family() or family
        finally:
            for pid in (process.pid, *family):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            process.communicate()


def refused(**asked: object) -> tuple[int, str, list[str]]:
    """Exit status, last line of standard error and what was left behind, of a server that does not come
    up."""
    with short_directory() as temporary:
        process = launched(temporary, **asked)
        _, errors = process.communicate(timeout=PATIENCE)
        left = [str(path) for path in temporary.rglob("*")]
        lines = [line for line in errors.decode().splitlines() if not line.startswith('{"time')]
        assert "Traceback" not in errors.decode()
        assert len(lines) == 1, errors.decode()
        return process.returncode, lines[0], left


# --- knowledge ---------------------------------------------------------------------------------------------


def test_the_knowledge_process_starts_when_it_is_needed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("STANDIN_KNOWLEDGE", "1")
    with serving(knowledge=str(tmp_path)) as server:
        wait_until(lambda: len(descendants(server.process.pid, KNOWLEDGE)) == 1, what="the process")
        (first,) = descendants(server.process.pid, KNOWLEDGE)
        os.kill(first, signal.SIGKILL)
        wait_until(
            lambda: descendants(server.process.pid, KNOWLEDGE) not in ([], [first]), what="the next process"
        )
        (second,) = descendants(server.process.pid, KNOWLEDGE)
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        assert not alive(second)
        assert server.left_behind() == []


# --- start --------------------------------------------------------------------------------------------------


@contextmanager
def core_dumps() -> Iterator[None]:
    """As a user has it who wants them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, (soft, hard))


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server for tests that kill nothing."""
    models = ["cantor", "a model with spaces/and a slash"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STANDIN_RELOAD", "agree")
        folder = str(tmp_path_factory.mktemp("knowledge"))
        with core_dumps(), serving(models=models, knowledge=folder, api_key=CANARY) as server:
            yield server


def test_it_says_where_it_listens_when_everything_is_up(shared_server: Server) -> None:
    server = shared_server
    assert descendants(server.process.pid, KNOWLEDGE) == [], "nobody needs it yet"
    assert server.url.startswith("http://127.0.0.1:")
    assert len(descendants(server.process.pid, HOST)) == 2
    assert len(descendants(server.process.pid, HTTP)) == 1
    wait_until(
        lambda: server.states("a model with spaces/and a slash") == ["ready"], what="news of the engine"
    )


def test_a_taken_port_is_one_line_and_a_failure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, line, left = refused(port=port)
    assert status == 1
    advice = "stop the program that listens there, or choose another port with --port"
    assert line == f"antiphon: port {port} of 127.0.0.1 is taken; {advice}"
    assert left == []


def test_an_engine_that_cannot_load_ends_the_server() -> None:
    status, line, left = refused(engine="Unloadable", models=["a", "b"])
    assert status == 1
    assert line == "antiphon: no engine library was found; install one"
    assert left == []


def test_an_engine_that_dies_while_it_loads_ends_the_server() -> None:
    status, line, left = refused(engine="Dying")
    assert status == 1
    assert line == "antiphon: the engine of cantor ended with signal SIGSEGV before it was ready"
    assert left == []


def test_an_adapter_that_the_engine_refuses_ends_the_server(tmp_path: Path) -> None:
    write_adapter(tmp_path / "abad.gguf", CANTOR, rank=1)
    asked = {"adapters": {"pirate": str(tmp_path / "abad.gguf")}, "http": "antiphon.assembly"}
    status, line, left = refused(engine="create_selective_engine", **asked)
    assert status == 1
    assert line == (
        "antiphon: the adapter pirate cannot be served: the library refuses the adapter; name another file "
        "with --lora, or leave it out"
    )
    assert left == []


def test_an_interpreter_that_is_not_there_is_named() -> None:
    status, line, _ = refused(interpreter="/nowhere/python")
    assert status == 1
    assert "/nowhere/python" in line


def test_an_http_process_that_cannot_start_ends_the_server() -> None:
    status, line, _ = refused(http="tests.support.host_link")
    assert status == 1
    assert line == "antiphon: the HTTP process ended with status 0 before it was ready"


def test_a_child_of_another_release_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_NONSENSE", "1")
    status, line, left = refused()
    assert status == 1
    assert line.startswith("antiphon: the HTTP process has another release of Antiphon than the supervisor")
    assert left == []


# --- deaths -------------------------------------------------------------------------------------------------


async def test_a_killed_host_loses_only_its_batch_and_returns_soon() -> None:
    with serving() as server:
        path = (await asyncio.to_thread(server.knows))["sockets"]["cantor"]
        async with open_host_engine(path, "cantor") as client, asyncio.timeout(2 * PATIENCE):
            info = await client.load(SPEC)
            streams = [client.generate(build_request()) for _ in range(info.sequences + 8)]
            async with asyncio.TaskGroup() as group:
                ends = [group.create_task(end_of(client, events)) for events in streams]
                while (load := (await client.info()).load).running < info.sequences or load.queued < 8:
                    await asyncio.sleep(0.01)
                killed = time.monotonic()
                await asyncio.to_thread(server.kill_host)
                found = [await end for end in ends]
            assert found.count((EngineDied, EngineState.RESTARTING)) == info.sequences
            assert found.count((EngineLost, EngineState.RESTARTING)) == 8
            await client.load(SPEC)
            assert isinstance(await anext(client.generate(build_request())), SequenceStarted)
            assert time.monotonic() - killed < PATIENCE
            told = lambda: server.states() == ["ready", "restarting", "ready"]  # noqa: E731
            await asyncio.to_thread(wait_until, told, what="the news of the death and the return")
            assert len(descendants(server.process.pid, HOST)) == 1


async def end_of(client: HostTokenEngine, events) -> tuple[type[AntiphonError], EngineState] | None:
    """The error that ended a stream, and the engine's state at that moment."""
    try:
        async for _ in events:
            pass
    except AntiphonError as error:
        return type(error), client.state()
    return None


def test_three_deaths_in_a_minute_give_an_engine_up() -> None:
    with serving() as server:
        for _ in range(2):
            dead = server.kill_host()
            wait_until(lambda: server.host() != dead, what="another host")  # noqa: B023
        server.kill_host()
        wait_until(lambda: server.states()[-1:] == ["failed"], what="the news that the engine was given up")
        time.sleep(0.3)
        assert descendants(server.process.pid, HOST) == []
        last = server.knows()["news"][-1]
        assert last["detail"] == "the engine of cantor died 3 times within 60 s and was given up"
        assert server.process.poll() is None
        said = server.process.stderr
        assert said is not None
        wait_until(lambda: b"process_given_up" in said.readline(), what="the record of it")


def test_a_dying_http_process_always_returns() -> None:
    """Each knows the engine's state. After the third death in a minute, the only one pauses, and requests
    get an answer meanwhile. A replacement that serves ends the pause."""
    with serving() as server:
        wait_until(lambda: server.states() == ["ready"], what="news")
        dead = server.kill_http()
        assert server.knows()["pid"] != dead
        wait_until(lambda: server.states() == ["ready"], what="the news of another")
        for _ in range(2):
            server.kill_http()
        said = server.process.stderr
        assert said is not None
        wait_until(lambda: b"process_rests" in said.readline(), what="the pause")
        while (found := server.ask()) is None:
            server.kill_http()  # the test took longer than the pause; the next one is twice as long
        assert found[0] == 503 and 1 <= found[1] <= 60
        wait_until(lambda: server.states() == ["ready"], what="another one after the pause")
        server.kill_http()
        while server.ask() is None:
            server.kill_http()
        os.kill(server.process.pid, signal.SIGUSR2)
        wait_until(lambda: b"workers_replaced" in said.readline(), what="the replacement")
        assert [server.ask() for _ in range(40)] == [None] * 40
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        assert server.left_behind() == []


async def test_a_pause_leaves_the_shared_socket_in_the_mode_of_the_processes() -> None:
    """A blocking socket would stop the event loop of a process that loses a connection to another one."""
    end = asyncio.Event()
    with bind("127.0.0.1", 0) as listener, listener.dup() as shared:
        open_port(listener)
        async with asyncio.TaskGroup() as group:
            group.create_task(answer_pause(listener, PATIENCE, end))
            reader, writer = await asyncio.open_connection(*listener.getsockname())
            writer.write(b"GET / HTTP/1.1\r\n\r\n")
            assert b" 503 " in await reader.readline()
            writer.close()
            shared.setblocking(False)
            end.set()
        assert not os.get_blocking(shared.fileno())


async def test_a_pause_that_cannot_be_answered_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with bind("127.0.0.1", 0) as listener:
        pass
    await answer_pause(listener, PATIENCE, asyncio.Event())
    assert "pause_unanswered" in caplog.text


def test_pauses_double_up_to_a_minute_and_end_after_a_minute_of_life() -> None:
    deaths, now, pauses = DeathCounter(), 0.0, []
    for life in (1, 1, 1, 1, 1, 1, 1, 1, 50, 61, 1):
        now += life
        pauses.append(deaths.add_death(now))
        now += pauses[-1]
    assert pauses == [0, 0, 5, 10, 20, 40, 60, 60, 60, 0, 0]


def test_a_dying_http_process_rests_while_the_others_serve() -> None:
    with serving(workers=2) as server:
        other, victim = descendants(server.process.pid, HTTP)
        for _ in range(2):
            os.kill(victim, signal.SIGKILL)
            wait_until(
                lambda: len(set(descendants(server.process.pid, HTTP)) - {victim}) == 2,  # noqa: B023
                what="another one",
            )
            (victim,) = set(descendants(server.process.pid, HTTP)) - {other}
        os.kill(victim, signal.SIGKILL)
        said = server.process.stderr
        assert said is not None
        wait_until(lambda: b"process_rests" in said.readline(), what="the rest after the third")
        assert descendants(server.process.pid, HTTP) == [other]
        assert server.knows()["pid"] == other


# --- reloads ------------------------------------------------------------------------------------------------


def reload(server: Server) -> dict[str, Any]:
    """Asks for a reload; the record of its end."""
    os.kill(server.process.pid, signal.SIGUSR1)
    said = server.process.stderr
    assert said is not None
    for line in said:
        if line.startswith(b"{") and (found := json.loads(line))["event"] in ("reloaded", "reload_refused"):
            return dict(found)
    raise AssertionError("the server ended")


def test_a_process_that_agrees_is_reloaded(shared_server: Server) -> None:
    assert reload(shared_server)["changes"] == "added alias alias-0"
    assert reload(shared_server)["changes"] == "added alias alias-1"


@pytest.mark.parametrize(
    ("deed", "said"),
    [
        ("die", "the HTTP process ended during the reload"),
        pytest.param("hang", "the HTTP process did not reply within 30 s", marks=pytest.mark.soak),
    ],
)
def test_a_process_that_does_not_prepare_refuses_the_reload(
    monkeypatch: pytest.MonkeyPatch, deed: str, said: str
) -> None:
    """It serves again, with the settings of before."""
    monkeypatch.setenv("STANDIN_RELOAD", deed)
    with serving() as server:
        assert reload(server)["error"] == said
        wait_until(lambda: server.states() == ["ready"], what="the process")
        assert reload(server)["error"] == said
        assert server.process.poll() is None


def test_a_defect_refuses_the_reload_and_one_that_hangs_does_not_keep_the_server_from_ending() -> None:
    with serving(reload=["defect", "defect", "hang"]) as server:
        for _ in range(2):
            refusal = reload(server)
            assert refusal["error"] == "RuntimeError stopped the reload; the log says where"
            assert "serve_scripted" in refusal["problem"] and "secret" not in str(refusal)
        assert server.knows()["pid"] in server.family()
        os.kill(server.process.pid, signal.SIGUSR1)
        said = server.process.stderr
        assert said is not None
        wait_until(lambda: b"reading the settings" in said.readline(), what="the reload")
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        assert server.left_behind() == []


# --- ends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [
        *(pytest.param(each, marks=pytest.mark.soak) for each in (signal.SIGTERM, signal.SIGINT)),
        signal.SIGHUP,  # the same handler; other tests here end servers by the other two
        signal.SIGKILL,
    ],
)
def test_however_it_ends_no_process_and_no_file_is_left(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the engine hosts wait for the HTTP processes that finish their requests."""
    monkeypatch.setenv("STANDIN_NOTE", str(tmp_path / "note"))
    with serving(models=["a", "b"]) as server:
        family = server.family()
        assert len(family) == 3
        assert len([name for name in server.left_behind() if name.endswith(".sock")]) == 2
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE) == (-9 if number is signal.SIGKILL else 0)
        wait_until(lambda: not any(map(alive, family)), what="the end of every process")
        wait_until(lambda: server.left_behind() == [], what="the end of every file")
    if number is not signal.SIGKILL:
        assert json.loads((tmp_path / "note").read_text()) == {"server": False, "a": True, "b": True}


@pytest.mark.slow
def test_it_ends_in_time_although_a_host_does_not_answer() -> None:
    with serving() as server:
        pid = server.host()
        os.kill(pid, signal.SIGSTOP)
        server.process.terminate()
        assert server.process.wait(PATIENCE) == 0
        assert not alive(pid)
        assert server.left_behind() == []


def test_a_second_interrupt_does_not_wait() -> None:
    """In one of several rounds: a machine that stands still takes as long as who waits."""
    for _ in range(ROUNDS):
        if (took := interrupt_twice()) < 4:
            break
    assert took < 4, "the supervisor waits five seconds for a host"


def interrupt_twice() -> float:
    """Seconds from the second interrupt to the end of a server whose host does not answer."""
    with serving() as server:
        pid = server.host()
        os.kill(pid, signal.SIGSTOP)
        server.process.send_signal(signal.SIGINT)
        wait_until(lambda: descendants(server.process.pid, HTTP) == [], what="the end of the HTTP process")
        begun = time.monotonic()
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(PATIENCE) == 0
        took = time.monotonic() - begun
        assert not alive(pid)
    return took


def test_a_signal_while_engines_load_ends_it_too() -> None:
    with short_directory() as temporary:
        process = launched(temporary, engine="Loading")
        wait_until(lambda: descendants(process.pid, HOST) != [], what="an engine host")
        family = descendants(process.pid)
        process.terminate()
        process.communicate(timeout=PATIENCE)
        wait_until(lambda: not any(map(alive, family)), what="the end of every process")
        assert list(temporary.rglob("*")) == []


# --- secrets ------------------------------------------------------------------------------------------------


def test_hosts_get_no_credential_and_no_process_reveals_one(shared_server: Server) -> None:
    server = shared_server
    assert server.knows()["key"] == CANARY
    given = environment(server.host())
    assert not any(CANARY in value for value in given.values())
    assert "ANTIPHON_API_KEY" not in given
    assert given["OMP_WAIT_POLICY"] == "passive"
    assert given["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert "ANTIPHON_API_KEY" not in environment(server.knows()["pid"])
    for pid in server.family():
        assert CANARY not in Path(f"/proc/{pid}/cmdline").read_text()
        assert "Max core file size        0 " in Path(f"/proc/{pid}/limits").read_text()


def test_the_environment_of_a_host_is_a_list_of_what_may_pass() -> None:
    offered = {
        "PATH": "/bin",
        "LC_ALL": "C",
        "GGML_X": "1",
        "OMP_NUM_THREADS": "2",
        "ANTIPHON_API_KEY": "a",
        "ANTIPHON_PEPPER": "p",
        "ANTIPHON_STORE": "postgresql://a:b@c/d",
        "OPENAI_API_KEY": "b",
        "AWS_SECRET_ACCESS_KEY": "c",
        "LD_PRELOAD": "d",
        "DATABASE_URL": "e",
    }
    assert filter_host_environment(offered, "active") == {
        "PATH": "/bin",
        "LC_ALL": "C",
        "GGML_X": "1",
        "OMP_NUM_THREADS": "2",
        "OMP_WAIT_POLICY": "active",
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    }
    said = {"OMP_WAIT_POLICY": "active", "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    assert filter_host_environment(said, "passive") == said
    assert filter_http_environment(offered) == {
        k: v for k, v in offered.items() if not k.startswith("ANTIPHON_")
    }


# --- the address --------------------------------------------------------------------------------------------


def test_a_free_port_is_taken_when_none_is_named_and_shown() -> None:
    with bind("127.0.0.1", 0) as listener:
        assert listener.getsockname()[1] != 0
        assert format_url(listener) == f"http://127.0.0.1:{listener.getsockname()[1]}"


def test_an_ipv6_address_is_shown_in_brackets() -> None:
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").exists():
        with pytest.raises(AddressUnavailable):
            bind("::1", 0)
        return
    with bind("[::1]", 0) as listener:
        assert format_url(listener).startswith("http://[::1]:")


@pytest.mark.parametrize(
    ("host", "sentence"),
    [
        ("192.0.2.1", "not an address of this machine"),
        ("no such host", "is not an address"),
        ("a" * 300, "is not an"),
    ],
)
def test_an_address_that_cannot_be_had_is_a_sentence(host: str, sentence: str) -> None:
    with pytest.raises(AddressUnavailable, match=sentence):
        bind(host, 0)


def test_the_programs_of_the_product_are_there() -> None:
    module, _, attribute = Programs().engine.partition(":")
    assert callable(getattr(importlib.import_module(module), attribute))
    assert importlib.util.find_spec(Programs().http) is not None


def test_every_setting_of_a_model_reaches_its_engine():
    said = {"path": "m.gguf", "sequences": 3, "context_length": 100, "threads": 2, "exact": True} | {
        "kv_type": "f32",
        "gpu_layers": 12,
        "devices": ("CUDA1", "CUDA0"),
        "tensor_split": (3.0, 1.0),
        "layout": "streams",
        "cells": 500,
        "queue": 7,
        "queue_per_actor": 5,
        "step_latency": 0.5,
        "keep_prefixes": False,
        "drafts": "auto",
        "dtype": "float32",
        "memory_share": 0.5,
        "tensor_parallel": 2,
        "hosts": 2,
        "mmproj": "p.gguf",
        "image_max_tokens": 99,
        "image_min_tokens": 9,
    }
    settings = Settings(engine=EngineSettings(library="lib.so"), lora=LoraSettings(memory_bytes=9))
    spec = build_load_spec(build_model({"name": "m", "weights": "memory", **said}), settings)
    assert {name: getattr(spec, name) for name in said if name != "path"} == {
        name: value for name, value in said.items() if name != "path"
    } | {"devices": ("CUDA1",)}, "the devices are those of the first host"
    assert (spec.model, spec.library) == ("m.gguf", "lib.so")
    assert (spec.adapter_memory, spec.weights_in_memory) == (9, True)
    automatic = build_load_spec(build_model({"name": "m", "path": "m.gguf"}), settings)
    assert automatic.gpu_layers is None, "as many as fit"
    above = {
        "name",
        "tool_calls",
        "reasoning",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "weights",
        "load",
        "keep_alive",
        "engine",
        "interpreter",
        "cluster",
        "charge_rejected_predictions",
        "bind_threads",  # only where no other engine runs, so not by the settings alone
        *CLUSTER_ONLY,
    }  # of the model in front of the engine, and of how often it runs
    assert {*said} | above == {*ModelSettings.__struct_fields__}


def test_callers_without_keys_can_fill_the_queue() -> None:
    """They are one caller to the queue, so its share would be the limit of all."""
    model = build_model({"name": "m", "path": "m.gguf", "queue": 700})
    assert build_load_spec(model, Settings()).queue_per_actor == 700
    assert build_load_spec(model, Settings(keys=KeysSettings(enabled=True))).queue_per_actor == 256
