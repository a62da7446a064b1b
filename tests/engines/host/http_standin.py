"""Stands where the HTTP process stands: keeps the same pipes, and answers each TCP connection with what it
knows.

What it knows is one JSON object: its process, its settings' key, the paths of the sockets, and the news so
far.
"""

import os
import select
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec

from antiphon.engines.host.control import EngineStateNotice, HttpConfig, Lifeline, StatusPipe
from antiphon.engines.host.runtime import remove_unused_directory
from antiphon.engines.host.supervisor_messages import ReloadStep, SupervisorMessage
from antiphon.processes.ipc import from_line
from antiphon.settings.schema import decode_settings

NONSENSE = "STANDIN_NONSENSE"
"""Environment variable: set, the first report cannot be read."""

KNOWLEDGE = "STANDIN_KNOWLEDGE"
"""Environment variable: set, the process asks for the knowledge process, again and again."""

RELOAD = "STANDIN_RELOAD"
"""Environment variable: what the process does when it must prepare a reload: `die`, `hang`, or `agree`."""

NOTE = "STANDIN_NOTE"
"""Environment variable: the file that the note goes to."""


def main() -> None:
    lifeline = Lifeline()
    settings = decode_settings(lifeline.read_line())
    config = from_line(lifeline.read_line(), HttpConfig)
    news: list[EngineStateNotice] = []

    def learn(line: bytes) -> None:
        message = from_line(line, SupervisorMessage)
        if message.engine is not None:
            news.append(message.engine)
        if message.order is not None:
            is_preparing = message.order.step is ReloadStep.PREPARE
            if is_preparing and os.environ[RELOAD] == "die":
                os._exit(5)
            if not is_preparing or os.environ[RELOAD] == "agree":
                status.answer_step(message.order.number)

    status = StatusPipe(config.status_fd)
    lifeline.watch(on_line=learn, on_end=lambda: _abandon(config.runtime))
    listener = socket.socket(fileno=config.listen_fd)
    if NONSENSE in os.environ:
        os.write(config.status_fd, b"hello\n")
    signal.signal(signal.SIGTERM, lambda *_: _drain(listener, config))
    status.report_ready()
    if KNOWLEDGE in os.environ:
        threading.Thread(target=_ask_often, args=(status,), daemon=True).start()
    listener.setblocking(False)  # as an event loop does; all processes share this flag
    while True:
        select.select([listener], [], [])
        try:
            connection, _ = listener.accept()
        except BlockingIOError:  # another process has accepted it
            continue
        known = {
            "pid": os.getpid(),
            "key": settings.server.api_key,
            "runtime": config.runtime,
            "sockets": config.sockets,
            "news": news,
        }
        connection.sendall(msgspec.json.encode(known))
        connection.close()


def _ask_often(status: StatusPipe) -> None:
    """As a client does that waits for the process."""
    while True:
        status.ask_knowledge()
        time.sleep(0.2)


def _drain(listener: socket.socket, config: HttpConfig) -> None:
    """Takes its time, and then leaves a note of what it could still reach, if somebody wants one."""
    address = listener.getsockname()
    listener.close()
    time.sleep(0.3)
    if (note := os.environ.get(NOTE)) is not None:
        found = {"server": _reachable(socket.AF_INET, address)}
        found |= {name: _reachable(socket.AF_UNIX, path) for name, path in config.sockets.items()}
        Path(note).write_bytes(msgspec.json.encode(found))
    os._exit(0)


def _reachable(family: int, address: object) -> bool:
    with socket.socket(family) as probe:
        return probe.connect_ex(address) == 0  # type: ignore[arg-type] # of either family


def _abandon(runtime: str) -> None:
    remove_unused_directory(Path(runtime))
    os._exit(3)


if __name__ == "__main__":
    main()
