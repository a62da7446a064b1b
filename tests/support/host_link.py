"""An engine and its stand-in on the two ends of a real socket, in one process."""

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
    """Both ends."""

    client: HostTokenEngine
    host: HostServer
    path: str


@contextmanager
def short_directory() -> Iterator[Path]:
    """A directory whose sockets' paths fit; pytest's own are too long."""
    with tempfile.TemporaryDirectory(prefix="ap-") as place:
        yield Path(place)


@asynccontextmanager
async def linked(engine: TokenEngine, max_unsent: int = MAX_UNSENT) -> AsyncIterator[Link]:
    """A connected pair."""
    with short_directory() as place:
        path = str(place / "0.sock")
        async with (
            serve_engine(engine, path, max_unsent) as host,
            open_host_engine(path, "scripted") as client,
        ):
            await client.load(SPEC)
            yield Link(client, host, path)
