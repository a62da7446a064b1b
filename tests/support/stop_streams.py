"""Streams of a held vendor through a server that stops: whether each arrived whole."""

import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx2

from tests.support.held_vendor import HeldVendor
from tests.support.server import Server
from tests.support.waiting import PATIENCE, wait_until

SETTINGS = """
[providers.v]
kind = "openai"
base_url = "{url}/v1"
private = true

[[models]]
name = "held"
provider = "v"
"""

CHAT = {"model": "held", "stream": True, "messages": [{"role": "user", "content": "Hi"}]}
END = "data: [DONE]"


@contextmanager
def open_streams(client: httpx2.Client, count: int) -> Iterator[Sequence[list[str]]]:
    """Streams of which each has its first event. The lists grow as lines arrive, until all have ended."""
    received: list[list[str]] = [[] for _ in range(count)]

    def read(lines: list[str]) -> None:
        try:
            with client.stream("POST", "/v1/chat/completions", json=CHAT) as stream:
                lines.extend(stream.iter_lines())  # one after the other
        except httpx2.HTTPError as problem:
            lines.append(f"cut: {problem!r}")

    with client, ThreadPoolExecutor(count) as pool:
        for lines in received:
            pool.submit(read, lines)
        wait_until(lambda: all(received), PATIENCE, "each has begun")
        yield received


def count_words(lines: Sequence[str]) -> int:
    return sum('"word "' in line for line in lines)


def list_cut(streams: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """The streams that did not end whole."""
    return [lines[-3:] for lines in streams if END not in lines]


def read_readiness(server: Server) -> tuple[int, str]:
    """Status and word of /health/ready on a new connection."""
    with server.client() as client:
        reply = client.get("/health/ready")
        return reply.status_code, reply.json()["status"]


def is_refusing(server: Server) -> bool:
    """Whether no process listens any more."""
    host, port = server.url.removeprefix("http://").split(":")
    try:
        socket.create_connection((host, int(port)), timeout=PATIENCE).close()
    except ConnectionRefusedError:
        return True
    except ConnectionResetError:
        pass  # it waited when the port was closed
    return False


def write_settings(vendor: HeldVendor, more: str = "") -> str:
    return more + SETTINGS.format(url=vendor.url)
