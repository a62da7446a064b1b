"""Engine hosts as processes, and a process that talks to its parent."""

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from antiphon.engines.host.child import Child, start_child
from antiphon.engines.host.control import ChildState, HostConfig, Status
from antiphon.processes.ipc import from_line, to_line
from tests.support.host_engines import SPEC
from tests.support.host_link import short_directory

SPEAKER = """
import os, sys, time
from antiphon.engines.host.control import ChildState, Status, StatusPipe
from antiphon.processes.ipc import to_line
number = int(sys.stdin.readline())
pipe = StatusPipe(number)
both = to_line(Status(ChildState.ALIVE)) + to_line(Status(ChildState.READY))
for word in sys.argv[1]:
    pauses = {".": lambda: time.sleep(0.2), "_": lambda: time.sleep(60)}
    words = {"r": pipe.report_ready, "a": pipe.report_alive, "b": lambda: os.write(number, both)}
    (words | pauses)[word]()
"""


@asynccontextmanager
async def speaking(words: str) -> AsyncIterator[Child]:
    """A child that says it is ready (r) or alive (a), or first alive and then ready in one breath (b), and is
    silent for a fifth of a second (.) or a minute (_)."""
    command = [sys.executable, "-c", SPEAKER, words]
    child = await start_child(command, lambda number: b"%d\n" % number, os.environ)
    try:
        yield child
    finally:
        child.kill()
        await child.wait_for_end()


ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class Started:
    """A host process and the test's ends of its pipes."""

    process: subprocess.Popen[bytes]
    status: int
    socket: Path

    def says(self, state: ChildState) -> Status:
        """The next report, which must be this one."""
        line = b""
        while not line.endswith(b"\n"):
            byte = os.read(self.status, 1)
            assert byte, f"the host ended without saying {state}"
            line += byte
        status = from_line(line, Status)
        assert status.state is state
        return status

    def hang_up(self) -> None:
        """What the kernel does when the supervisor dies."""
        assert self.process.stdin is not None
        self.process.stdin.close()


@contextmanager
def started(factory: str, stderr: int = subprocess.DEVNULL, **more: Any) -> Iterator[Started]:
    """A host of the engine that tests.support.host_engines makes by this name."""
    reading, writing = os.pipe()
    with short_directory() as place:
        known: dict[str, Any] = {"load": SPEC, "socket": str(place / "0.sock"), "status_fd": writing}
        config = HostConfig("cantor", f"tests.support.host_engines:{factory}", **known | more)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "antiphon.engines.host"],
            stdin=subprocess.PIPE,
            stderr=stderr,
            pass_fds=[writing],
            env=os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
        )
        os.close(writing)
        assert process.stdin is not None
        process.stdin.write(to_line(config))
        process.stdin.flush()
        try:
            yield Started(process, reading, place / "0.sock")
        finally:
            os.close(reading)
            process.kill()
            process.communicate()


def gone(host: Started, patience: float = 20.0) -> int:
    return host.process.wait(patience)


AS_ROOT = os.geteuid() == 0
NEEDED = (ROOT / "src" / "antiphon", Path(sys.executable).resolve(), Path(os.__file__).resolve())
REACHABLE = all(folder.stat().st_mode & 0o005 == 0o005 for path in NEEDED for folder in path.parents)
"""Whether another user can read this checkout and the interpreter, which it must to run the host."""
