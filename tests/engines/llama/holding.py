"""Holds the decode thread where a test wants it: between two steps, or in the middle of one.

With these a test makes certain that something overlaps, instead of hoping that the machine is slow.
"""

import asyncio
import ctypes
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from antiphon.domain.models import Load
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.context import NativeContext
from tests.engines.llama.conftest import loaded
from tests.support.waiting import await_until

Event = TypeVar("Event")

PATIENCE = 30.0
"""Seconds that one thread waits for another."""

DECODE_THREAD = "antiphon-decode"


class StepClock:
    """A clock that each look of the decode thread moves by `tick` seconds, however long the machine takes.
    While the clock is held the thread waits in its look."""

    def __init__(self, tick: float) -> None:
        self._tick = tick
        self._now = 0.0
        self._looks: int | None = None
        """How many more looks the thread may have; None is any number."""
        self._waits = False
        self._news = threading.Condition()

    def __call__(self) -> float:
        if threading.current_thread().name != DECODE_THREAD:
            return self._now
        with self._news:
            self._waits = True
            self._news.notify_all()
            if not self._news.wait_for(lambda: self._looks != 0, PATIENCE):
                raise TimeoutError("nobody lets the decode thread go on")
            self._waits = False
            self._now += self._tick
            if self._looks is not None:
                self._looks -= 1
            return self._now

    def hold(self) -> None:
        """The thread goes no further than its next look."""
        self._allow(0)

    def release(self) -> None:
        """The thread goes on."""
        self._allow(None)

    async def run_until(self, condition: Callable[[], bool]) -> None:
        """Lets the thread go on look by look until the condition holds, and holds it there."""
        await asyncio.to_thread(self._wait_for_look)
        while not condition():
            self._allow(1)
            await asyncio.to_thread(self._wait_for_look)

    def _allow(self, looks: int | None) -> None:
        with self._news:
            self._looks = looks
            self._news.notify_all()

    def _wait_for_look(self) -> None:
        with self._news:
            if not self._news.wait_for(lambda: self._waits and self._looks == 0, PATIENCE):
                raise TimeoutError("the decode thread looks at no clock")


@asynccontextmanager
async def load_stepped(
    path: Path, tick: float = 0.0, **spec: Any
) -> AsyncIterator[tuple[LlamaTokenEngine, StepClock]]:
    """An engine whose decode thread a test holds; it is free in the beginning and in the end."""
    clock = StepClock(tick)
    async with loaded(path, clock, **spec) as engine:
        try:
            yield engine, clock
        finally:
            clock.release()


class PacedClock:
    """A clock each look of the decode thread at which waits for a turn of the event loop. So a sequence that
    a test wants to outlast something does not end while the loop is kept from going on."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def __call__(self) -> float:
        if threading.current_thread().name == DECODE_THREAD:
            turned = threading.Event()
            self._loop.call_soon_threadsafe(turned.set)
            if not turned.wait(PATIENCE):
                raise TimeoutError("the event loop does not go on")
        return time.monotonic()


@asynccontextmanager
async def load_paced(path: Path, **spec: Any) -> AsyncIterator[LlamaTokenEngine]:
    """An engine whose decode thread is never far ahead of the event loop."""
    async with loaded(path, PacedClock(), **spec) as engine:
        yield engine


def get_load(engine: LlamaTokenEngine) -> Load:
    """Its counters, also while the decode thread is held."""
    return engine._get_loop().measure_load()


async def wait_until_submitted(engine: LlamaTokenEngine, count: int) -> None:
    """Waits until the decode thread was told of so many requests, all since it began; held, it does nothing
    about them."""
    await await_until(lambda: engine._get_loop()._submitted_count == count)


def get_context(engine: LlamaTokenEngine) -> NativeContext:
    """What its decode thread computes with."""
    return engine._get_loaded().context


async def take_event(events: AsyncGenerator[Event, None]) -> Event:
    """The next event, as a task may wait for it."""
    return await anext(events)


class Halt:
    """Stops a decode of the library in the middle, at one of the places where the library looks whether it is
    to be aborted, until it is."""

    def __init__(self, context: NativeContext) -> None:
        self._context = context
        self._at = 0
        self._token: int | None = None
        self.looks = 0
        """How often the library looked."""
        self.reached = threading.Event()
        kind = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p)
        self._callback = kind(self._look)
        """Kept for as long as the library may call it."""
        address = ctypes.cast(self._callback, ctypes.c_void_p)
        context._call.llama_set_abort_callback(context.pointer, address, None)

    def set(self, look: int, token: int | None = None) -> None:
        """Has a decode, one that computes this token if one is given, stop at this look from now on."""
        self.reached.clear()
        self.looks, self._at, self._token = 0, look, token

    def abort_when_reached(self) -> threading.Thread:
        """A thread that aborts the decode when it has stopped."""

        def abort() -> None:
            self.reached.wait(PATIENCE)
            self._context.abort()

        thread = threading.Thread(target=abort)
        thread.start()
        return thread

    def _look(self, _: object) -> bool:
        rows = self._context._batch.n_tokens
        if self._token is None or self._token in self._context.tokens[:rows]:
            self.looks += 1
            if self.looks == self._at:
                self.reached.set()
                until = time.monotonic() + PATIENCE
                while not self._is_aborted() and time.monotonic() < until:
                    time.sleep(0.001)
        return self._is_aborted()

    def _is_aborted(self) -> bool:
        return bool(self._context._flag.value)
