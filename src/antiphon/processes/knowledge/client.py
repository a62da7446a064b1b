"""The index of knowledge tables for an HTTP process. Each call goes to the knowledge process.

The first call asks the supervisor to start the process. If the process ends during a call, the call fails
with a temporary error, and the next call waits for the new process.
"""

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace

from antiphon.errors import InvalidValue, KnowledgeUnavailable
from antiphon.processes.ipc import Channel, FrameError, FrameReader, Hello, Incompatible
from antiphon.processes.knowledge.config import read_pause
from antiphon.processes.knowledge.frames import (
    FROM_KNOWLEDGE,
    CancelIndexCall,
    Encoded,
    FromKnowledge,
    IndexCall,
    IndexFailure,
    IndexResult,
    load_methods,
)
from antiphon.retrieval.base import KnowledgeIndex
from antiphon.telemetry.logs import record

PATIENCE_S = 20.0
"""Seconds that a call waits for the knowledge process to start. The start takes one or two seconds."""

PAUSE_S = 0.02
"""Seconds between attempts to connect. An attempt on a local socket takes microseconds."""

ATTEMPTS_PER_START_REQUEST = 50
"""After so many attempts to connect, which take a second, the supervisor is asked again to start the
process."""

GREETING_S = 5.0
"""Seconds for the greeting of the knowledge process."""

RETRY_S = 1.0
"""The retry delay for callers in seconds."""

Outcome = IndexResult | IndexFailure


def build_proxy(call: Callable[..., Awaitable[object]]) -> KnowledgeIndex:
    """Builds an index from its interface alone. `call` gets the name of a method and its arguments."""
    proxy = SimpleNamespace(**{method: partial(call, method) for method in load_methods()})
    if not isinstance(proxy, KnowledgeIndex):
        raise TypeError("the proxy lacks a method of KnowledgeIndex")
    return proxy


class KnowledgeClient:
    """The connection of one HTTP process to the knowledge process."""

    def __init__(self, path: str, ask_start: Callable[[], None], patience: float = PATIENCE_S) -> None:
        """`path`: the socket of the knowledge process. `ask_start` asks the supervisor to start the process;
        it does nothing if the process runs. `patience`: seconds that a call waits for the process to
        start."""
        self._path = path
        self._ask_start = ask_start
        self._patience = patience
        self._call_numbers = itertools.count(1)
        self._calls: dict[int, asyncio.Future[Outcome]] = {}
        self._channel: Channel[FromKnowledge] | None = None
        self._connect_lock = asyncio.Lock()
        self.index = build_proxy(self._call)
        """The index in the knowledge process."""

    async def aclose(self) -> None:
        """Ends the connection. Running calls fail."""
        if self._channel is not None:
            self._channel.cut("this side closed")

    # --- calls ----------------------------------------------------------------------------------------------

    async def _call(self, method: str, *arguments: object, **named: object) -> object:
        """Sends a call of a method of `KnowledgeIndex` and returns its result. Raises the error of the call,
        or KnowledgeUnavailable."""
        codec = load_methods()[method]
        try:
            encoded = codec.encode_arguments(*arguments, **named)
            outcome = await self._send_call(method, encoded)
        except FrameError as problem:
            raise InvalidValue(f"this call cannot be sent: {problem}") from None
        if isinstance(outcome, IndexFailure):
            raise outcome.error.to_exception()
        return codec.result_decoder.decode(outcome.value)

    async def _send_call(self, method: str, arguments: Encoded) -> Outcome:
        """Sends a call and returns its outcome. If this is cancelled, cancels the call."""
        channel = await self._connect()
        call_number = next(self._call_numbers)
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._calls[call_number] = outcome
        try:
            channel.put(IndexCall(call_number, method, arguments))
            return await outcome
        except asyncio.CancelledError:
            channel.put(CancelIndexCall(call_number))
            raise
        finally:
            self._calls.pop(call_number, None)

    def _receive(self, message: FromKnowledge) -> None:
        """Passes the outcome of a call to its waiter. Raises FrameError for a second Hello."""
        if isinstance(message, Hello):
            raise FrameError("the knowledge process sent Hello twice")
        if (outcome := self._calls.get(message.call)) is not None and not outcome.done():
            outcome.set_result(message)

    # --- the connection -------------------------------------------------------------------------------------

    async def _connect(self) -> Channel[FromKnowledge]:
        """Returns the connection. If there is none, asks for the start of the process and waits. Each call
        waits at most its own `patience` seconds. Raises KnowledgeUnavailable."""
        try:
            async with asyncio.timeout(self._patience), self._connect_lock:
                if self._channel is None:
                    self._channel = await self._wait_for_channel()
                return self._channel
        except TimeoutError:
            raise KnowledgeUnavailable(
                "the knowledge process does not start; the server's log has the reason", retry_after=RETRY_S
            ) from None
        except Incompatible as problem:
            raise KnowledgeUnavailable(f"the knowledge process has another release: {problem}") from None

    async def _wait_for_channel(self) -> Channel[FromKnowledge]:
        """Tries to connect until the process is ready. Asks for its start periodically, because the
        supervisor does not restart a process that dies before it is ready. Raises KnowledgeUnavailable
        immediately if the supervisor pauses before a restart."""
        attempts = 0
        while True:
            try:
                return await self._open_channel()
            except (OSError, TimeoutError):
                if pause := read_pause(self._path):
                    raise KnowledgeUnavailable(
                        "the knowledge process ended several times or did not start; it starts again after a "
                        "pause; the server's log has the reason",
                        retry_after=pause,
                    ) from None
                if attempts % ATTEMPTS_PER_START_REQUEST == 0:
                    self._ask_start()
            attempts += 1
            await asyncio.sleep(PAUSE_S)

    async def _open_channel(self) -> Channel[FromKnowledge]:
        """Connects to the process. Raises OSError, TimeoutError or Incompatible."""
        lost = asyncio.Event()

        def lose(reason: str) -> None:
            lost.set()
            if self._channel is channel:
                self._fail_calls(reason)

        channel: Channel[FromKnowledge] = Channel(FrameReader(FROM_KNOWLEDGE), self._receive, lose)
        await asyncio.get_running_loop().create_unix_connection(lambda: channel, self._path)
        try:
            async with asyncio.timeout(GREETING_S):
                await channel.greeted
            if lost.is_set():  # right after the greeting
                raise ConnectionError("the knowledge process ended")
        except BaseException:
            channel.cut("no greeting")
            raise
        return channel

    def _fail_calls(self, reason: str) -> None:
        """Fails all calls of a lost connection."""
        self._channel = None
        record("knowledge_lost", logging.DEBUG, reason=reason, calls=len(self._calls))
        for outcome in self._calls.values():
            if not outcome.done():
                outcome.set_exception(
                    KnowledgeUnavailable(
                        "the knowledge process ended during this call; the call can have taken effect: "
                        "try it again",
                        retry_after=RETRY_S,
                    )
                )


@asynccontextmanager
async def connect_knowledge(path: str, ask_start: Callable[[], None]) -> AsyncIterator[KnowledgeIndex]:
    """Yields the index of this HTTP process, and closes its connection at the end."""
    client = KnowledgeClient(path, ask_start)
    try:
        yield client.index
    finally:
        await client.aclose()
