"""Stands where the HTTP process stands: keeps the same pipes, and answers each TCP connection with what it
knows.

What it knows is one JSON object: its process, its settings' key, the paths of the sockets, and the news so
far.
"""

import os
import signal
import socket
from pathlib import Path

import msgspec

from antiphon.engines.host.control import EngineNews, HttpConfig, Lifeline, StatusPipe
from antiphon.engines.host.frames import from_line
from antiphon.engines.host.runtime import leave
from antiphon.settings import decode


def main() -> None:
    lifeline = Lifeline()
    settings = decode(lifeline.line())
    config = from_line(lifeline.line(), HttpConfig)
    news: list[EngineNews] = []
    lifeline.watch(
        told=lambda line: news.append(from_line(line, EngineNews)), gone=lambda: _abandon(config.runtime)
    )
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    listener = socket.socket(fileno=config.listen_fd)
    StatusPipe(config.status_fd).ready()
    while True:
        connection, _ = listener.accept()
        known = {
            "pid": os.getpid(),
            "key": settings.server.api_key,
            "runtime": config.runtime,
            "sockets": config.sockets,
            "news": news,
        }
        connection.sendall(msgspec.json.encode(known))
        connection.close()


def _abandon(runtime: str) -> None:
    leave(Path(runtime))
    os._exit(3)


if __name__ == "__main__":
    main()
