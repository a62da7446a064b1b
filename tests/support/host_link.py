"""An engine host and its client, connected by a real socket in one process."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from antiphon.engines.base import TokenEngine
from antiphon.engines.host.client import HostTokenEngine, open_host_engine
from antiphon.engines.host.server import MAX_UNSENT, HostServer, serve_engine
from tests.support.host_engines import SPEC


@dataclass(frozen=True, slots=True)
class Link:
    client: HostTokenEngine
    host: HostServer
    path: str


@contextmanager
def short_directory() -> Iterator[Path]:
    """Creates a directory with a short path; socket paths in pytest's directories are too long."""
    with tempfile.TemporaryDirectory(prefix="ap-") as directory:
        yield Path(directory)


@asynccontextmanager
async def open_link(engine: TokenEngine, max_unsent: int = MAX_UNSENT) -> AsyncIterator[Link]:
    """Connects a host of the engine and a client."""
    with short_directory() as directory:
        path = str(directory / "0.sock")
        async with (
            serve_engine(engine, path, max_unsent) as host,
            open_host_engine(path, "scripted") as client,
        ):
            await client.load(SPEC)
            yield Link(client, host, path)
