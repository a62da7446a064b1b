"""The running server of this home directory, for `antiphon doctor`. Its memory and port count as
available."""

import os
from pathlib import Path
from urllib.parse import urlsplit

from antiphon.cli.local_servers import list_running_servers, parse_pid
from antiphon.cli.serve_options import find_home
from antiphon.domain.values import Struct
from antiphon.settings.server import ServerSettings


class OwnServer(Struct, frozen=True):
    """A running server that uses this home directory."""

    pid: int
    url: str

    def measure_memory(self) -> int:
        """Returns the bytes of memory that become free when the server ends: without files and shared
        memory."""
        import psutil

        total = 0
        try:
            process = psutil.Process(self.pid)
            for member in (process, *process.children(recursive=True)):
                memory = member.memory_info()
                total += memory.rss - getattr(memory, "shared", 0)
        except psutil.Error:
            return total
        return total


def find_own_server(server: ServerSettings) -> OwnServer | None:
    """Returns the server of this home directory on the configured port; None without one."""
    for path, running in list_running_servers(find_home(os.environ, Path.home())).items():
        if urlsplit(running.url).port == server.port:
            return OwnServer(parse_pid(path), running.url)
    return None
