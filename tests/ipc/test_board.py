"""A text that processes share: what one writes the others see at once, and changes do not cross."""

import asyncio
import subprocess
import sys
from pathlib import Path

from antiphon.ipc.board import Board

PATIENCE = 20.0
TAKE = "import antiphon.ipc.board as b; b.Board"


async def test_what_one_writes_the_others_see_also_those_that_come_later(tmp_path: Path) -> None:
    one, other = Board(tmp_path, "names"), Board(tmp_path, "names")
    assert (other.revision, other.read()) == (0, b"")
    async with one.changing():
        one.write(b"first")
        one.write(b"second")
    assert (other.revision, other.read()) == (2, b"second")
    assert Board(tmp_path, "names").read() == b"second"
    assert (tmp_path / "names.revision").stat().st_mode & 0o077 == 0


async def test_changes_of_two_processes_come_one_after_the_other(tmp_path: Path) -> None:
    one, other = Board(tmp_path, "names"), Board(tmp_path, "names")
    entered = asyncio.Event()

    async def add() -> None:
        entered.set()
        async with other.changing():
            other.write(other.read() + b" and the other's")

    async with asyncio.timeout(PATIENCE), asyncio.TaskGroup() as group, one.changing():
        group.create_task(add())
        await entered.wait()
        await asyncio.sleep(0)
        one.write(b"the one's")
    assert one.read() == b"the one's and the other's"


async def test_the_lock_of_a_process_that_ends_is_free(tmp_path: Path) -> None:
    board = Board(tmp_path, "names")
    code = f"from pathlib import Path; {TAKE}(Path({str(tmp_path)!r}), 'names')._taken() or 1 / 0"
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", code], check=True)
    async with asyncio.timeout(PATIENCE), board.changing():
        board.write(b"mine")
    assert board.read() == b"mine"
