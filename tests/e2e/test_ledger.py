"""The ledger of a server that is broken under load: every answer that came whole has exactly one row."""

import random
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest

from antiphon.engines.host.child import WINDOW
from tests.e2e.ledgered import Asked, kill_gateway
from tests.support.server import Server, serving
from tests.support.stores import open_new_store
from tests.support.waiting import PATIENCE, wait_until


@pytest.fixture
def home(tmp_path: Path) -> Asked:
    """A home with a SQLite file, and nobody who asked yet."""
    file = tmp_path / "home" / "antiphon.db"
    file.parent.mkdir(mode=0o700)
    open_new_store(file).close()
    return Asked(file.parent, f"sqlite:///{file}")


def kill_coordinator(server: Server) -> None:
    """The process that drains what several write; it is started again."""
    (killed,) = server.children("antiphon.processes.coordinator")
    killed.kill()
    killed.wait(PATIENCE)


def kill_supervisor(server: Server) -> None:
    """What keeps all others alive: they end with it."""
    family = server.supervisor.children(recursive=True)
    server.supervisor.kill()
    server.process.wait(PATIENCE)
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []


def kill_all(server: Server) -> None:
    """As when the machine's memory is gone."""
    for process in (server.supervisor, *server.supervisor.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # it has ended by itself, as its supervisor has
            process.kill()
    server.process.wait(PATIENCE)


VICTIMS: tuple[Callable[[Server], None], ...] = (kill_gateway, kill_supervisor, kill_all)
SEVERAL = ("--workers", "2")


def kill_under_load(asked: Asked, victims: tuple[Callable[[Server], None], ...], *arguments: str) -> None:
    """Starts the server again when a kill has ended it; after the last, one more start that drains, and ends
    in order after new answers."""
    left = deque(victims)
    while left:
        with serving(*arguments, env=asked.env) as server:
            if not asked.key:
                asked.make_key(server)
            while left and server.process.poll() is None:
                kill_one_under_load(asked, server, left.popleft())
    with serving(*arguments, env=asked.env) as server:
        asked.check()
        answer_beside_a_lock(asked, server)
        end_in_order(asked, server)
    asked.check()
    asked.check_file()
    assert list((asked.home / "spool").glob("*.seg")) == []


def answer_beside_a_lock(asked: Asked, server: Server) -> None:
    """Another program holds the database's file for a while: answers go on, and their rows come later."""
    refused, before = asked.refused.copy(), len(asked.whole)
    with closing(
        sqlite3.connect(asked.store.removeprefix("sqlite:///"), PATIENCE, isolation_level=None)
    ) as other:
        other.execute("BEGIN EXCLUSIVE")
        with asked.load(server):
            wait_until(lambda: len(asked.whole) >= before + 8, what="answers beside a locked database")
    assert asked.refused == refused
    asked.check()


def end_in_order(asked: Asked, server: Server) -> None:
    before = len(asked.whole)
    with asked.load(server):
        wait_until(lambda: len(asked.whole) >= before + 20, what="answers")
    assert asked.wait_for_rows() < 10, "rows come soon; stated: one second"
    assert server.stop() == 0


def kill_one_under_load(asked: Asked, server: Server, victim: Callable[[Server], None]) -> None:
    before = len(asked.whole)
    with asked.load(server):
        wait_until(lambda: len(asked.whole) >= before + 8, what="answers")
        time.sleep(random.random())
        with asked.stream_held(server):
            victim(server)
        if server.process.poll() is None:
            again = len(asked.whole)
            within = WINDOW + PATIENCE  # a process that was killed three times rests

            def answers() -> bool:
                """Or the server has ended, as it does when its only HTTP process was killed three times."""
                return len(asked.whole) >= again + 8 or server.process.poll() is not None

            wait_until(answers, within, "answers of its successor")
    if server.process.poll() is None:
        asked.check()


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_kills_under_load_lose_no_row_and_double_none(home: Asked) -> None:
    """In `make test`, tests/e2e/test_ledger_faults.py kills the only HTTP process."""
    kill_under_load(home, (kill_gateway, kill_supervisor))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_kills_of_several_processes_lose_and_double_no_row(home: Asked) -> None:
    """Afterwards rows come soon, and an orderly end empties the spool."""
    kill_under_load(home, (kill_gateway, kill_coordinator, kill_supervisor), *SEVERAL)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_kills_under_load_lose_no_row_and_double_none(home: Asked) -> None:
    home.pause_s = 0.0
    kill_under_load(home, tuple(random.choices(VICTIMS, k=20)))


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_twenty_kills_of_processes_lose_and_double_no_row(home: Asked) -> None:
    home.pause_s = 0.0
    kill_under_load(home, tuple(random.choices((*VICTIMS, kill_coordinator), k=20)), *SEVERAL)
