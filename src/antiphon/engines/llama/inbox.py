"""What other threads ask of the decode thread, and which running decode their asking aborts."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Protocol, TypeVar

from antiphon.errors import AntiphonError, EngineUnavailable

Result = TypeVar("Result")
Command = Callable[[], None]


class Abortable(Protocol):
    """A context whose running decode can be ended; `NativeContext` says what each does."""

    def abort(self) -> None: ...
    def resume(self) -> None: ...


class Inbox:
    """Commands in the order in which they came. Any thread puts; the decode thread takes."""

    def __init__(self, context: Abortable) -> None:
        self._context = context
        self._commands: SimpleQueue[Command] = SimpleQueue()
        self._lock = Lock()
        """Guards the next two."""
        self._flight: frozenset[object] = frozenset()
        """Whose leaving aborts the running decode."""
        self._shut = False

    def put(self, command: Command) -> None:
        """Raises EngineUnavailable when the thread has ended."""
        with self._lock:
            if self._shut:
                raise EngineUnavailable("the engine has stopped; try again soon")
            self._commands.put(command)

    def interrupt(self, command: Command, leaving: object | None = None) -> None:
        """The same for one that may abort the running decode: if it is for who leaves, or by default if it is
        for anybody whose leaving aborts it."""
        with self._lock:
            if leaving in self._flight or (leaving is None and self._flight):
                self._context.abort()
            self._commands.put(command)

    def ask(self, work: Callable[[], Result]) -> Future[Result]:
        """Has the thread do it between two steps. Raises EngineUnavailable when it has ended."""
        answer: Future[Result] = Future()

        def command() -> None:
            try:
                answer.set_result(work())
            except AntiphonError as error:
                answer.set_exception(error)

        self.put(command)
        return answer

    @property
    def is_shut(self) -> bool:
        return self._shut

    # --- the decode thread

    @property
    def empty(self) -> bool:
        return self._commands.empty()

    def wait(self) -> Command:
        """The next one, when it comes."""
        return self._commands.get()

    def all(self) -> Iterator[Command]:
        """Those that are there."""
        try:
            while True:
                yield self._commands.get_nowait()
        except Empty:
            return

    @contextmanager
    def abortable(self, flight: frozenset[object]) -> Iterator[None]:
        """While a decode runs that the leaving of one of these aborts."""
        with self._lock:
            self._context.resume()
            self._flight = flight
        try:
            yield
        finally:
            with self._lock:
                self._flight = frozenset()

    def shut(self) -> None:
        """Nothing more is put."""
        with self._lock:
            self._shut = True
