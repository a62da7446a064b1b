"""Messages between the event loop and the decode thread: commands in, events out.

A command may abort the running decode. Events are put into mailboxes on the event loop, and each mailbox has
one reader. The events of a sequence with a sink go to the sink instead, and only the end to the mailbox.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Generic, Protocol, TypeVar

from antiphon.domain.values import Struct
from antiphon.engines.base import EventSink, TokenEvent
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.errors import AntiphonError, EngineUnavailable

Result = TypeVar("Result")
Command = Callable[[], None]


class AbortableContext(Protocol):
    """A context whose running decode can be aborted; `NativeContext` documents both methods."""

    def abort(self) -> None: ...
    def resume(self) -> None: ...


class CommandInbox:
    """Commands for the decode thread, in order. Any thread may put one; the decode thread takes them."""

    def __init__(self, context: AbortableContext) -> None:
        self._context = context
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._lock = Lock()
        """Guards the next two attributes."""
        self._abortable: frozenset[object] = frozenset()
        """The sequences or requests whose end aborts the running decode."""
        self._is_closed = False

    def put(self, command: Command) -> None:
        """Adds a command. Raises EngineUnavailable when the thread has ended."""
        with self._lock:
            if self._is_closed:
                raise EngineUnavailable("the engine has stopped; try again soon")
            self._commands.put(command)

    def put_and_abort(self, command: Command, request: object | None = None) -> None:
        """Adds a command. Aborts the running decode if the end of `request` may abort it. Without `request`,
        aborts the decode if the end of any sequence may abort it."""
        with self._lock:
            if request in self._abortable or (request is None and self._abortable):
                self._context.abort()
            self._commands.put(command)

    def run_on_thread(self, work: Callable[[], Result]) -> Future[Result]:
        """Runs a function on the decode thread between two steps, and returns the future of its result.
        Raises EngineUnavailable when the thread has ended."""
        future: Future[Result] = Future()

        def command() -> None:
            try:
                future.set_result(work())
            except AntiphonError as error:
                future.set_exception(error)

        self.put(command)
        return future

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    # --- the decode thread

    @property
    def is_empty(self) -> bool:
        return self._commands.empty()

    def wait(self) -> Command:
        """Waits for the next command."""
        return self._commands.get()

    def take_all(self) -> Iterator[Command]:
        """Takes the commands that are in the inbox now, without waiting."""
        try:
            while True:
                yield self._commands.get_nowait()
        except Empty:
            return

    def allow_abort(self, abortable: frozenset[object]) -> None:
        """From now on, the end of any of these sequences or requests aborts the decode. The caller calls
        `forbid_abort` after the decode."""
        with self._lock:
            self._context.resume()
            self._abortable = abortable

    def forbid_abort(self) -> None:
        """From now on, nothing aborts the decode."""
        if self._abortable:
            with self._lock:
                self._abortable = frozenset()

    def close(self) -> None:
        """Refuses further commands."""
        with self._lock:
            self._is_closed = True


E = TypeVar("E")


class StreamEnd(Struct, frozen=True):
    """Tells the reader that the decode thread has released the request."""

    error: AntiphonError | None = None
    """The error of a failed request; None for a complete or closed one."""


class EventMailbox(Generic[E]):
    """Events for one reader. Only the event loop's thread uses a mailbox; the decode thread only passes the
    object on."""

    __slots__ = ("_event_arrived", "_events", "end_event", "start_time")

    def __init__(self, start_time: float) -> None:
        self.start_time = start_time
        """The time of the request, in seconds of the engine's clock."""
        self.end_event: StreamEnd | None = None
        self._events: deque[E] = deque()
        self._event_arrived: asyncio.Future[None] | None = None

    def put(self, event: E | StreamEnd) -> None:
        """Adds an event and wakes the reader."""
        if isinstance(event, StreamEnd):
            self.end_event = event
        else:
            self._events.append(event)
        if self._event_arrived is not None and not self._event_arrived.done():
            self._event_arrived.set_result(None)

    async def take(self) -> E | None:
        """Waits for the next event and returns it; None after the last one. Raises the error of a failed
        request."""
        while not self._events and self.end_event is None:
            await self._wait_for_event()
        if self._events:
            return self._events.popleft()
        # A variable that refers to the error would form a cycle with the error's traceback, and keep the
        # request alive.
        end_event, self.end_event = self.end_event, StreamEnd()
        try:
            if end_event is not None and end_event.error is not None:
                raise end_event.error
        finally:
            del end_event
        return None

    async def wait_for_end(self) -> None:
        """Waits until the decode thread has released the request, and drops the events that arrive until
        then."""
        while self.end_event is None:
            await self._wait_for_event()
        self._events.clear()

    async def _wait_for_event(self) -> None:
        """Waits until an event is added."""
        self._event_arrived = asyncio.get_running_loop().create_future()
        try:
            await self._event_arrived
        finally:
            self._event_arrived = None


class SequenceStream(EventMailbox[TokenEvent]):
    """The events of one sequence."""

    __slots__ = ("last_token_at", "sequence", "sink")

    def __init__(self, sequence: TokenSequence, start_time: float, sink: EventSink | None = None) -> None:
        super().__init__(start_time)
        self.sequence = sequence
        self.sink = sink
        """Takes all events but the end; None to put all of them into this mailbox."""
        self.last_token_at = 0.0
        """The time at which the sequence's last token was drawn. Only the decode thread uses it."""


def deliver(deliveries: Iterable[tuple[EventMailbox[E], E | StreamEnd]]) -> None:
    """Puts events into their mailboxes."""
    for mailbox, event in deliveries:
        mailbox.put(event)


Delivery = tuple[SequenceStream, TokenEvent | StreamEnd]

FEW_EVENTS = 4
"""Up to this many events are sent by the decode thread. To encode and write more of them takes longer than to
wake the event loop, which does it while the next decode runs."""


class EventPost:
    """Delivers the events of sequences in their order: on the decode thread if they are few, otherwise on the
    event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted = 0
        """Deliveries that were left to the event loop. Only the decode thread counts them."""
        self._delivered = 0
        """How many of these have been made. Only the event loop counts them."""

    def post(self, deliveries: list[Delivery]) -> None:
        """Delivers events. The decode thread calls it."""
        if (
            len(deliveries) <= FEW_EVENTS
            and self._posted == self._delivered  # otherwise these events would overtake others
            and all(
                stream.sink is not None and not isinstance(event, StreamEnd) for stream, event in deliveries
            )
        ):
            pass_on(deliveries)
            return
        self._posted += 1
        with suppress(RuntimeError):  # the loop has closed, so nobody reads events any more
            self._loop.call_soon_threadsafe(self._deliver, deliveries)

    def _deliver(self, deliveries: list[Delivery]) -> None:
        """Delivers events on the event loop."""
        pass_on(deliveries)
        self._delivered += 1


def pass_on(deliveries: list[Delivery]) -> None:
    """Passes events to the sinks or mailboxes of their streams. A sequence's end wakes its reader only after
    the sinks have sent the events before it."""
    for stream, event in deliveries:
        if stream.sink is not None and not isinstance(event, StreamEnd):
            stream.sink.put(event)
    for stream, event in deliveries:
        if stream.sink is None or isinstance(event, StreamEnd):
            stream.put(event)
        else:
            stream.sink.flush()
