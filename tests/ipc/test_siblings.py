"""The processes of a server wait for each other's knowledge, and for nobody who is gone."""

import asyncio
import logging
import subprocess
import sys
import threading
import time

import pytest

from antiphon.ipc import siblings as module
from antiphon.ipc.siblings import Siblings

LONG_S = 30.0
JOINING = """
import sys
from pathlib import Path
from antiphon.ipc.siblings import Siblings
siblings = Siblings(Path(sys.argv[1]))
print("joined", flush=True)
sys.stdin.read()
"""


def joined_and_gone(directory, killed):
    """Another process, which does not say that it leaves."""
    command = [sys.executable, "-c", JOINING, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "joined\n"
        if killed:
            other.kill()


@pytest.fixture
def joined(tmp_path):
    """Makes processes of one server; here all in one."""
    made = []

    def join():
        made.append(Siblings(tmp_path))
        return made[-1]

    yield join
    for each in made:
        each.close()


@pytest.fixture
def patient(monkeypatch):
    """Waits so long that no test passes by its end."""
    monkeypatch.setattr(module, "MOST_S", LONG_S)


async def test_a_revision_is_reached_when_every_other_knows_it(joined, patient):
    one, two, three = joined(), joined(), joined()
    one.knows(7)
    two.knows(9)
    three.knows(6)
    async with asyncio.TaskGroup() as group:
        reaching = group.create_task(one.reached(7))
        await asyncio.sleep(20 * module.PAUSE_S)
        assert not reaching.done()
        three.knows(7)
    await one.reached(7)


async def test_who_waits_is_woken_by_what_others_change(joined, patient):
    one, two = joined(), joined()
    woken = threading.Event()

    def hear() -> None:
        two.wait(LONG_S)
        two.knows(5)
        woken.set()

    thread = threading.Thread(target=hear)
    thread.start()
    await one.reached(5)
    thread.join(LONG_S)
    assert woken.is_set()
    began = time.monotonic()
    two.wait(0.05)  # the word is read once
    assert time.monotonic() - began >= 0.05


async def test_two_that_change_something_at_once_hear_each_other(joined, patient):
    one, two = joined(), joined()
    one.knows(1)
    two.knows(2)

    async def hears():
        await asyncio.to_thread(one.wait, LONG_S)
        one.knows(2)

    async with asyncio.timeout(LONG_S / 2):
        await asyncio.gather(one.reached(1), two.reached(2), hears())


@pytest.mark.parametrize("killed", [True, False])
async def test_nobody_waits_for_a_process_that_is_gone(joined, patient, tmp_path, killed):
    one = joined()
    await asyncio.to_thread(joined_and_gone, tmp_path, killed)
    left = joined()
    left.close()
    async with asyncio.timeout(LONG_S / 2):
        await one.reached(3)
    assert len(list(tmp_path.iterdir())) == 2, "what the dead left is removed"


async def test_one_that_hangs_is_waited_for_no_longer_than_a_moment_and_is_said(joined, monkeypatch, caplog):
    monkeypatch.setattr(module, "MOST_S", 0.05)
    one, _ = joined(), joined()
    with caplog.at_level(logging.WARNING, "antiphon"):
        await one.reached(3)
    assert [each.getMessage() for each in caplog.records] == ["siblings_late"]


async def test_without_room_for_its_files_a_process_serves_all_the_same(tmp_path, joined, caplog):
    with caplog.at_level(logging.WARNING, "antiphon"):
        lost = Siblings(tmp_path / "nowhere")
    assert [each.getMessage() for each in caplog.records] == ["siblings_unknown"]
    lost.knows(3)
    lost.wait(0.001)
    await lost.reached(3)
    lost.close()
