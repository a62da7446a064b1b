"""Engines that hosts of these tests are told to hold, and requests that suit them."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator, Sequence

from antiphon.engines.base import (
    EngineInfo,
    LoadSpec,
    SequenceStarted,
    Steps,
    TextPiece,
    TokenEvent,
    TokenKind,
    TokenRequest,
    TokenSegment,
    Vocabulary,
)
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.errors import EngineUnavailable, LibraryError
from antiphon.processes.ipc import MAX_MESSAGE
from antiphon.testing import Script, ScriptedTokenEngine, scripted_info

SPEC = LoadSpec("no file")
PROMPT = (TokenSegment((1, 20, 30)),)


def asking(max_tokens: int = 1_000_000, logprobs: int | None = None) -> TokenRequest:
    return TokenRequest(PROMPT, max_tokens, logprobs=logprobs)


def endless() -> ScriptedTokenEngine:
    """Four sequences that say a token each hundredth of a second and never end."""
    script = Script(text="on and on ", endless=True, pace=0.01)
    return ScriptedTokenEngine(script, info=scripted_info(context_length=10_000_000, sequences=4))


def unhurried() -> ScriptedTokenEngine:
    """Says a sentence in about half a second, and ends."""
    return ScriptedTokenEngine(Script(text="Hello there.", pace=0.05))


def brief() -> ScriptedTokenEngine:
    """Says a sentence and ends."""
    return ScriptedTokenEngine(Script(text="Hello there."))


def choosy() -> ScriptedTokenEngine:
    """Refuses every adapter whose digest begins with an a."""
    engine = brief()
    engine.adapters.unfit = _Beginning({"a"})
    return engine


class _Beginning(set[str]):
    """All texts that begin like one of its members."""

    def __contains__(self, text: object) -> bool:
        return any(str(text).startswith(each) for each in self)


def embedded() -> LlamaTokenEngine:
    """The real one."""
    return LlamaTokenEngine()


class Lockstep(ScriptedTokenEngine):
    """Every sequence gets one token whenever `step` is called, all in the same turn of the event loop."""

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
    """As many tokens as can be taken, without a pause."""

    def __init__(self) -> None:
        super().__init__(
            Script(text="on and on ", endless=True, burst=20),
            info=scripted_info(context_length=10**9, sequences=16),
        )


class Unloadable(ScriptedTokenEngine):
    """Its library is missing."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        raise LibraryError("no engine library was found; install one")


class Defective(ScriptedTokenEngine):
    """Its loading has a defect, and so has every call."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        raise RuntimeError("a defect with /a/path in it")


class Careless(ScriptedTokenEngine):
    """Raises what no engine should, in a call and in the middle of a sequence, and says too much."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        raise RuntimeError("a defect at 0x7f0012345678")

    async def vocabulary(self) -> Vocabulary:
        return Vocabulary((b"x" * MAX_MESSAGE,), (TokenKind.NORMAL,), {}, ())

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        yield SequenceStarted(3)
        raise ZeroDivisionError("a defect at 0x7f0012345678")


class Loading(ScriptedTokenEngine):
    """Takes its time to load, in native code."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        await asyncio.to_thread(time.sleep, 600)
        return await self.info()


class Stuck(ScriptedTokenEngine):
    """Holds up the whole event loop as soon as anybody asks for something."""

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        time.sleep(600)  # noqa: ASYNC251 - that is the point
        return ()


class Lost(ScriptedTokenEngine):
    """Stops working once it was asked for tokens, and says so to whoever asks how it stands."""

    _lost = False

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        self._lost = True
        return ()

    async def info(self) -> EngineInfo:
        if self._lost:
            raise EngineUnavailable("the engine has stopped")
        return await super().info()


class Dying(ScriptedTokenEngine):
    """Its library ends the process while it loads."""

    async def load(self, spec: LoadSpec) -> EngineInfo:
        os.kill(os.getpid(), signal.SIGSEGV)
        return await self.info()
