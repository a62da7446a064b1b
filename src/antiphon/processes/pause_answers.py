"""Answers every request with a 503 while no HTTP process runs, because all have died too often.

Without an answer, connections would wait in the queue of the socket until their clients give up. It reads no
request further than its head.
"""

import asyncio
import logging
import math
import socket
import time
from contextlib import suppress

from antiphon.telemetry.logs import record

MAX_CONNECTIONS = 256
"""The most connections at once. Others are closed without an answer."""

HEAD_S = 5.0
"""Seconds in which the head of a request must arrive."""

END_S = 1.0
"""Seconds in which the client must close after its answer. To close first, with unread bytes, would discard
the answer."""


async def answer_pause(listener: socket.socket, seconds: float, stop: asyncio.Event) -> None:
    """Answers the connections of a listening socket for some seconds, or until `stop` is set. If it cannot,
    it logs why, and the connections wait for a process.

    The socket stays in non-blocking mode: the HTTP processes share this flag, and their event loops need it.
    """
    end = time.monotonic() + seconds
    connections: set[asyncio.StreamWriter] = set()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(connections) < MAX_CONNECTIONS:
            connections.add(writer)
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                async with asyncio.timeout(HEAD_S):
                    await reader.readuntil(b"\r\n\r\n")
                writer.write(build_answer(end - time.monotonic()))
                writer.write_eof()
                async with asyncio.timeout(END_S):
                    while await reader.read(65536):
                        pass
            connections.discard(writer)
        writer.close()

    try:
        server = await asyncio.start_server(answer, sock=listener.dup())
    except OSError as problem:  # no file descriptor is left, or the server ends and has closed the socket
        record("pause_unanswered", logging.WARNING, error=str(problem))
        return
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await stop.wait()
    finally:
        server.close()


def build_answer(seconds: float) -> bytes:
    """Builds the answer. `seconds`: the time until an HTTP process starts."""
    wait = max(1, math.ceil(seconds))
    text = f"The server starts again in {wait} s, because its HTTP process has died too often.\n".encode()
    head = (
        "HTTP/1.1 503 Service Unavailable",
        "content-type: text/plain; charset=utf-8",
        f"content-length: {len(text)}",
        f"retry-after: {wait}",
        "connection: close",
    )
    return "\r\n".join((*head, "", "")).encode() + text
