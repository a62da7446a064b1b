"""Long texts are tokenized in the order of turns, short ones at once."""

import asyncio

import pytest

from antiphon.domain.context import Context
from antiphon.domain.fair_queue import FairSemaphore
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.request import RawPrompt
from antiphon.engines.base import TextPiece
from antiphon.errors import Overloaded
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.tokenizer import LONG_TEXT, QUEUE_LIMITS, FairTokenizer
from antiphon_testing import FakeClock, ScriptedTokenEngine, scripted_info
from tests.rendering.scripted_renderer import answer, asking
from tests.support.chat_templates import prove_here
from tests.support.references import is_freed
from tests.support.waiting import settle

CONTEXT = 8 * LONG_TEXT


class Slow(ScriptedTokenEngine):
    """Tokenizes a long text when it is let; `begun` holds the first words of those that it was given."""

    def __init__(self):
        super().__init__(info=scripted_info(context_length=CONTEXT))
        self.begun = []
        self.let = asyncio.Semaphore(0)

    async def tokenize(self, pieces, add_bos):
        text = "".join(piece.text for piece in pieces)
        self.begun.append(text[:3])
        if len(text) > LONG_TEXT:
            await self.let.acquire()
            return (0,)
        return await super().tokenize(pieces, add_bos)


def actor(name):
    return Actor(ActorKind.SERVICE_KEY, name)


@pytest.mark.parametrize("generates", [True, False])
async def test_who_sends_many_long_texts_keeps_nobody_else_waiting(generates):
    engine = Slow()
    renderer = Renderer(engine, prove=prove_here)
    await renderer.profile()

    async def ask(name, size=LONG_TEXT + 1):
        prompt = RawPrompt((name + " ") * (size // 4 + 1))
        if generates:
            await answer(renderer, asking(prompt, max_tokens=1), Context("r", actor(name)))
        else:
            await renderer.encode(prompt, actor(name))

    async with asyncio.TaskGroup() as group:
        for name in ("ada", "ada", "ada", "ada", "bob", "eve"):
            group.create_task(ask(name))
        await settle()
        assert engine.begun == ["ada"]
        await ask("bob", 100)
        assert engine.begun == ["ada", "bob"], "a short one waits for nobody"
        for _ in range(6):
            engine.let.release()
            await settle()
    assert engine.begun[2:] == ["ada", "bob", "eve", "ada", "ada"]


async def test_more_long_texts_of_one_caller_than_may_wait_are_refused():
    engine, places, clock = Slow(), FairSemaphore(QUEUE_LIMITS), FakeClock()
    text = [TextPiece("ada " * LONG_TEXT)]

    async def ask():
        await FairTokenizer(engine, places, actor("ada"), clock).tokenize(text, False)

    async with asyncio.TaskGroup() as group:
        jobs = [group.create_task(ask()) for _ in range(1 + QUEUE_LIMITS.queue_per_actor)]
        await settle()
        with pytest.raises(Overloaded, match="long texts of yours may wait") as refused:
            await ask()
        assert refused.value.retry_after == QUEUE_LIMITS.queue_per_actor * QUEUE_LIMITS.seconds_per_item
        assert await is_freed(ask, Overloaded)
        for job in jobs:
            job.cancel()
    assert len(engine.begun) == 1


async def test_a_request_of_many_long_texts_waits_as_one():
    """So that a few of the largest requests for vectors are not too many."""
    engine, places, clock = Slow(), FairSemaphore(QUEUE_LIMITS), FakeClock()
    async with asyncio.TaskGroup() as group:
        for name in ("ada", "bob"):
            tokens = FairTokenizer(engine, places, actor("all"), clock)
            text = [TextPiece(f"{name} " * LONG_TEXT)]
            for _ in range(QUEUE_LIMITS.queue_per_actor):
                group.create_task(tokens.tokenize(text, False))
        await settle()
        for _ in range(2 * QUEUE_LIMITS.queue_per_actor):
            engine.let.release()
    assert len(engine.begun) == 2 * QUEUE_LIMITS.queue_per_actor
    assert engine.begun[:4] == ["ada", "bob", "ada", "bob"]
