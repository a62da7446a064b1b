"""`antiphon rolling-restart`: it finds the server of its home, tells it, and waits for what becomes of it."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from antiphon.cli.local_servers import StateFile, list_running_servers, publish_state
from tests.support.commands import run_command

SERVERS = """
import json, os, pathlib, signal, sys
from antiphon.cli.local_servers import publish_state

def serve(home, then):
    with publish_state(pathlib.Path(home)) as notice:
        notice.record_ready("http://127.0.0.1:1", 2)
        print(os.getpid(), flush=True)
        signal.sigwait([signal.SIGUSR2])
        if then != "end":
            notice.record_restart(None if then == "replaced" else then)
            signal.pause()

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR2])
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the servers
for line in iter(sys.stdin.readline, ""):
    if os.fork() == 0:
        serve(*json.loads(line))
        break
"""
"""Makes a stand-in for a server of each line, as a process of its own. It is told once."""

Run = Callable[..., "subprocess.CompletedProcess[str]"]
Serve = Callable[[Path, str], AbstractContextManager[psutil.Process]]


@pytest.fixture
def restart(tmp_path: Path) -> Run:
    return partial(run_command, "rolling-restart", cwd=tmp_path, env={"ANTIPHON_HOME": str(tmp_path)})


@pytest.fixture(scope="module")
def server() -> Iterator[Serve]:
    """Has a server of a home while a context lasts, and says what it does when it is told."""
    with subprocess.Popen(
        [sys.executable, "-c", SERVERS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    ) as parent:
        commands, pids = parent.stdin, parent.stdout
        assert commands is not None and pids is not None

        @contextmanager
        def serve(home: Path, then: str) -> Iterator[psutil.Process]:
            print(json.dumps([str(home), then]), file=commands, flush=True)
            process = psutil.Process(int(pids.readline()))
            try:
                yield process
            finally:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
                    process.wait()

        yield serve


def test_it_ends_when_the_new_processes_serve(restart: Run, server: Serve, tmp_path: Path) -> None:
    with server(tmp_path, "replaced"):
        ended = restart()
    assert (ended.returncode, ended.stdout) == (0, "")
    assert ended.stderr == "antiphon: replacing 2 HTTP processes of http://127.0.0.1:1\n"


def test_where_they_do_not_it_says_why_and_fails(restart: Run, server: Serve, tmp_path: Path) -> None:
    with server(tmp_path, "the HTTP process 1: not ready within 60 s"):
        ended = restart()
    assert ended.returncode == 1
    assert "the old processes continue: the HTTP process 1: not ready within 60 s" in ended.stderr


def test_a_server_that_ends_instead_is_told(restart: Run, server: Serve, tmp_path: Path) -> None:
    with server(tmp_path, "end"):
        ended = restart()
    assert ended.returncode == 1 and "has ended" in ended.stderr


def test_where_none_runs_that_is_said_with_the_home(restart: Run, server: Serve, tmp_path: Path) -> None:
    with server(tmp_path, "end") as process:
        process.kill()
        process.wait()
    assert len(list(tmp_path.glob("server-*"))) == 1, "it was killed, and left its file"
    ended = restart()
    assert ended.returncode == 1 and f"this user runs no server of {tmp_path}" in ended.stderr


def test_of_several_one_has_to_be_chosen(restart: Run, server: Serve, tmp_path: Path) -> None:
    with server(tmp_path, "replaced") as one, server(tmp_path, "replaced") as other:
        ended = restart()
        assert ended.returncode == 1 and "--pid" in ended.stderr
        assert str(one.pid) in ended.stderr and str(other.pid) in ended.stderr
        assert restart("--pid", "1").returncode == 1
        assert restart("--pid", str(other.pid)).returncode == 0
        assert one.is_running()


def test_a_file_is_there_while_its_server_serves_and_no_longer(tmp_path: Path) -> None:
    home = tmp_path / "home"
    with publish_state(home) as notice:
        assert list_running_servers(home) == {}
        notice.record_ready("http://a", 1)
        notice.record_restart("x" * 5_000)
        (found,) = list_running_servers(home).values()
        assert (found.url, found.rounds, found.problem) == ("http://a", 1, "x" * 500)
        (path,) = home.iterdir()
        assert path.stat().st_mode & 0o777 == 0o600
    assert (list_running_servers(home), list(home.iterdir())) == ({}, [])


def test_what_killed_servers_left_is_removed_by_the_next(server: Serve, tmp_path: Path) -> None:
    with server(tmp_path, "replaced"), server(tmp_path, "end") as process:
        process.kill()
        process.wait()
        assert len(list(tmp_path.glob("server-*"))) == 2
        with publish_state(tmp_path):
            assert len(list(tmp_path.glob("server-*"))) == 2, "that of the one that lives, and its own"


def test_a_home_that_cannot_be_written_holds_no_server_up(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with publish_state(tmp_path / "file" / "home") as notice:
        notice.record_ready("http://a", 1)
        assert isinstance(notice, StateFile)


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """A process that has nothing to do with a server, and that a signal would end."""
    with subprocess.Popen(["sleep", "60"]) as process:
        try:
            yield process
        finally:
            process.kill()


@contextmanager
def named(home: Path, pid: int) -> Iterator[Path]:
    """The file of a server that runs, under the number of another process, as one of another container has
    it."""
    with publish_state(home) as notice:
        notice.record_ready("http://127.0.0.1:1", 1)
        (path,) = home.glob("server-*.json")
        yield path.rename(path.with_name(f"server-{pid}-0.json"))


def test_a_process_that_does_not_hold_the_file_is_not_told(
    restart: Run, tmp_path: Path, other: "subprocess.Popen[bytes]"
) -> None:
    with named(tmp_path, other.pid) as path:
        assert path.exists()
        for words in ([], ["--pid", str(other.pid)]):
            ended = restart(*words)
            assert ended.returncode == 1 and "in another container" in ended.stderr
    assert other.poll() is None


def test_a_number_that_no_process_has_here_is_told(restart: Run, tmp_path: Path, other) -> None:
    other.kill()
    other.wait()
    with named(tmp_path, other.pid):
        ended = restart()
        assert ended.returncode == 1 and "in another container" in ended.stderr


def test_of_two_servers_the_one_that_runs_here_is_told(
    restart: Run, server: Serve, tmp_path: Path, other: "subprocess.Popen[bytes]"
) -> None:
    with server(tmp_path, "replaced"), named(tmp_path / "other", other.pid) as path:
        path.rename(tmp_path / path.name)
        assert restart().returncode == 0
    assert other.poll() is None
