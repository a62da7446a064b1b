"""Engines for the tests of engine hosts, and their requests."""

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from antiphon.domain.media import Medium, MediumShape
from antiphon.domain.messages import MediaKind
from antiphon.domain.values import replace
from antiphon.engines.base import (
    MEDIUM_CELL,
    EngineInfo,
    LoadSpec,
    MediaFacts,
    MediumLayout,
    MediumSpan,
    PromptTokens,
    RefusedMedium,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEvent,
    TokenKind,
    TokenRequest,
    Vocabulary,
)
from antiphon.errors import EngineUnavailable, LibraryError
from antiphon.processes.ipc import MAX_MESSAGE
from antiphon_testing import Script, ScriptedTokenEngine, scripted_info

if TYPE_CHECKING:
    from antiphon.engines.llama import LlamaTokenEngine

SPEC = LoadSpec("no file")
PROMPT = PromptTokens((1, 20, 30))


def build_request(max_tokens: int = 1_000_000, logprobs: int | None = None) -> TokenRequest:
    return TokenRequest(PROMPT, max_tokens, logprobs=logprobs)


def create_endless_engine() -> ScriptedTokenEngine:
    """Four sequences at a time, each with a token per 10 ms and without an end."""
    script = Script(text="on and on ", endless=True, pace=0.01)
    return ScriptedTokenEngine(script, info=scripted_info(context_length=10_000_000, sequences=4))


def create_slow_engine() -> ScriptedTokenEngine:
    """Its answer takes about half a second. Its host waits for it also on a machine that is slower."""
    vars(sys.modules["__main__"])["DRAIN_SECONDS"] = 60.0
    return ScriptedTokenEngine(Script(text="Hello there.", pace=0.05))


def create_brief_engine() -> ScriptedTokenEngine:
    """Its answer ends after a sentence."""
    return ScriptedTokenEngine(Script(text="Hello there."))


def create_selective_engine() -> ScriptedTokenEngine:
    """Refuses every adapter whose digest starts with `a`."""
    engine = create_brief_engine()
    engine.adapters.unfit = _PrefixSet({"a"})
    return engine


class _PrefixSet(set[str]):
    """A set that contains all texts that start with one of its members."""

    def __contains__(self, text: object) -> bool:
        return any(str(text).startswith(prefix) for prefix in self)


def create_llama_engine() -> "LlamaTokenEngine":
    """llama.cpp takes longer to import than all that the scripted engines need, so only its own host does."""
    from antiphon.engines.llama import LlamaTokenEngine

    return LlamaTokenEngine()


class Seeing(ScriptedTokenEngine):
    """Takes media, and has them in `held` while they are held."""

    def __init__(self) -> None:
        facts = replace(scripted_info(), media=MediaFacts((MediaKind.IMAGE,)))
        super().__init__(Script(text="Hello there."), info=facts)
        self.held: list[Medium] = []
        self.encoded: set[tuple[str, str]] = set()
        """Digest and cache salt of what it needs no data of."""

    async def lay_out(self, shapes: Sequence[MediumShape]) -> tuple[MediumLayout, ...]:
        return tuple(MediumLayout((MEDIUM_CELL,), (MediumSpan(0, 1, shape.kind),)) for shape in shapes)

    def watch_encodes(self, report: Callable[[str], None]) -> None:
        pass

    def refuse_medium(self, refused: RefusedMedium) -> None:
        pass

    def has_encoded(self, digest: str, cache_salt: str) -> bool:
        return (digest, cache_salt) in self.encoded

    @asynccontextmanager
    async def hold(self, medium: Medium, cache_salt: str = "") -> AsyncIterator[None]:
        self.held.append(medium)
        try:
            yield
        finally:
            self.held.remove(medium)


class Lockstep(ScriptedTokenEngine):
    """`step` gives every sequence one token in the same turn of the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = 0
        self._turn = asyncio.Event()

    def step(self) -> None:
        turn, self._turn, self.waiting = self._turn, asyncio.Event(), 0
        turn.set()

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield SequenceStarted(3)
        while True:
            self.waiting += 1
            await self._turn.wait()
            yield Steps((7,))


class Torrent(ScriptedTokenEngine):
    """Sends tokens without a pause."""

    def __init__(self) -> None:
        super().__init__(
            Script(text="on and on ", endless=True, burst=20),
            info=scripted_info(context_length=10**9, sequences=16),
        )


class Unloadable(ScriptedTokenEngine):
    """Fails to load, as if its library were missing."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        raise LibraryError("no engine library was found; install one")


class Defective(ScriptedTokenEngine):
    """Raises RuntimeError when it loads."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        raise RuntimeError("a defect with /a/path in it")


class Careless(ScriptedTokenEngine):
    """Raises unexpected errors in calls and sequences, and returns a vocabulary larger than a message."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        raise RuntimeError("a defect at 0x7f0012345678")

    async def vocabulary(self) -> Vocabulary:
        return Vocabulary((b"x" * MAX_MESSAGE,), (TokenKind.NORMAL,), {}, ())

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield SequenceStarted(3)
        raise ZeroDivisionError("a defect at 0x7f0012345678")


class Loading(ScriptedTokenEngine):
    """Blocks a thread for ten minutes while it loads."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        await asyncio.to_thread(time.sleep, 600)
        return await self.info()


class Stuck(ScriptedTokenEngine):
    """Blocks the event loop in the first call of `tokenize`."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        time.sleep(600)  # noqa: ASYNC251 - blocks on purpose
        return ()


class Lost(ScriptedTokenEngine):
    """After the first call of `tokenize`, `info` raises EngineUnavailable."""

    _lost = False

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        self._lost = True
        return ()

    async def info(self) -> EngineInfo:
        if self._lost:
            raise EngineUnavailable("the engine has stopped")
        return await super().info()


class Dying(ScriptedTokenEngine):
    """Kills its process with SIGSEGV while it loads."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        os.kill(os.getpid(), signal.SIGSEGV)
        return await self.info()
