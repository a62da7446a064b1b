"""The running server of this home, for `antiphon doctor`: what it uses is no problem of the machine."""

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from antiphon.cli.local_servers import list_running, parse_pid
from antiphon.cli.serve_options import find_home
from antiphon.settings.server import ServerSettings


@dataclass(frozen=True, slots=True)
class OwnServer:
    """A running server of this home."""

    pid: int
    url: str

    def measure_memory(self) -> int:
        """Returns the bytes that would be free if the server ended: memory that no file backs."""
        import psutil

        held = 0
        try:
            process = psutil.Process(self.pid)
            for each in (process, *process.children(recursive=True)):
                memory = each.memory_info()
                held += memory.rss - getattr(memory, "shared", 0)
        except psutil.Error:
            return held
        return held


def find_own_server(server: ServerSettings) -> OwnServer | None:
    """Returns the server of this home that listens on the port of the settings; None without one."""
    for path, running in list_running(find_home(os.environ, Path.home())).items():
        if urlsplit(running.url).port == server.port:
            return OwnServer(parse_pid(path), running.url)
    return None
