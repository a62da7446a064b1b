"""Kept prefixes, scores of prompts, and too few cells, on the real library: answers stay what they are."""

import asyncio
import re
import struct
from contextlib import aclosing
from typing import Any

import pytest

from antiphon.domain.request import Constraint, ConstraintKind, Sampling
from antiphon.domain.values import replace
from antiphon.engines.base import (
    KVLayout,
    LoadSpec,
    PromptScores,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenRequest,
)
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    EngineBusy,
    InvalidValue,
    LoadError,
    Overloaded,
)
from tests.engines.llama.conftest import loaded
from tests.engines.llama.holding import StepClock, get_load, load_stepped, take_event, wait_until_submitted
from tests.support.model_files import CANTOR

TALE = "Once upon a time there was a small dragon who lived under a hill and counted the stars every night. "
LAYOUTS: dict[str, dict[str, Any]] = {
    "pool": {"layout": KVLayout.POOL},
    "streams": {"layout": KVLayout.STREAMS},
    "exact": {"exact": True},
}
Said = tuple[list[int], list[float], int]


def request(tokens, max_tokens: int = 12, temperature: float = 0.0, seed: int = 0, **more) -> TokenRequest:
    return TokenRequest(PromptTokens(tuple(tokens)), max_tokens, Sampling(temperature, seed=seed), **more)


async def say(engine: LlamaTokenEngine, wanted: TokenRequest) -> Said:
    """Tokens, their log-probabilities, and how much of the prompt was shared."""
    tokens: list[int] = []
    logprobs: list[float] = []
    cached = 0
    async for event in engine.generate(wanted):
        if isinstance(event, Steps):
            tokens += event.tokens
            logprobs += event.logprobs
        if isinstance(event, SequenceFinished):
            cached = event.counts.cached_tokens
    return tokens, logprobs, cached


async def tale(engine: LlamaTokenEngine, times: int, end: str = "") -> tuple[int, ...]:
    return await engine.tokenize([TextPiece(TALE * times + end)], True)


async def test_an_exact_answer_upon_a_kept_prefix_has_the_same_bits():
    async with (
        loaded(CANTOR, exact=True, keep_prefixes=False) as cold,
        loaded(CANTOR, exact=True) as warm,
    ):
        await say(warm, request(await tale(warm, 7)))
        for end in ("The dragon said", "But"):
            wanted = request(await tale(warm, 7, end), 12, temperature=1.0, logprobs=2)
            expected, found = await say(cold, wanted), await say(warm, wanted)
            assert found[:2] == expected[:2]
            assert expected[2] == 0 and found[2] >= 128 and found[2] % 128 == 0
        again = await say(warm, wanted)
        assert again[:2] == expected[:2]
        assert again[2] == len(wanted.prompt.ids) - 1, "all of an equal prompt"


@pytest.mark.parametrize("layout", ["pool", "streams"])
async def test_an_answer_upon_a_kept_prefix_is_the_answer(models, layout):
    """Of weights whose products are not rounded to eight bits; with those it moves by up to 0.04."""
    path, start = models / "tiny-f32.gguf", (1, *range(300, 500))
    async with (
        loaded(path, keep_prefixes=False, **LAYOUTS[layout]) as cold,
        loaded(path, **LAYOUTS[layout]) as warm,
    ):
        await say(warm, request(start))
        for end in ((510, 511), (520,), (530, 531, 532)):
            wanted = request((*start, *end), logprobs=0)
            expected, found = await say(cold, wanted), await say(warm, wanted)
            assert (expected[2], found[2]) == (0, 201)
            assert found[0] == expected[0]
            assert found[1] == pytest.approx(expected[1], abs=1e-2)
        load = (await warm.info()).load
        assert (load.prefix_hits, load.admitted, load.cached_tokens) == (3, 4, 3 * 201)
        assert load.cells_used == 0 < load.cells_cached <= load.cells


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_sixteen_users_compute_the_prompt_that_they_share_once(models, layout):
    spec: dict[str, Any] = {"context_length": 1200, "sequences": 16, **LAYOUTS[layout]}
    async with loaded(models / "tiny-q8_0.gguf", **spec) as engine:
        shared = (1, *(300 + place % 500 for place in range(1023)))
        users = [request((*shared, *range(400 + 32 * user, 430 + 32 * user)), 2) for user in range(16)]
        await asyncio.gather(*(say(engine, user) for user in users))
        load = (await engine.info()).load
        assert load.prefill_tokens <= 1024 + 16 * 30
        assert load.prefix_hits == 15


async def scores(engine: LlamaTokenEngine, tokens) -> list[float]:
    """Log-probabilities of these tokens from the second on, computed cold."""
    events = [event async for event in engine.generate(request(tokens, 0, prompt_logprobs=0))]
    packed = b"".join(event.logprobs for event in events if isinstance(event, PromptScores))
    return [value for (value,) in struct.iter_unpack("<f", packed)]


async def test_an_answer_that_was_put_back_goes_on_from_its_own_tokens(models):
    """Cells for two of four: the youngest are computed again, and their clients see but a pause. What is said
    of each token is what it scores when the whole is read at once."""
    wanted = [
        replace(one, sampling=replace(one.sampling, ignore_eos=True))
        for one in (request((1, *range(at, at + 20)), 100, 1.0, 7, logprobs=0) for at in (300, 400, 500, 600))
    ]
    spec = {"context_length": 200, "cells": 256}
    async with (
        load_stepped(models / "tiny-f32.gguf", **spec) as (engine, clock),
        asyncio.TaskGroup() as group,
    ):
        clock.hold()
        asked = [group.create_task(say(engine, one)) for one in wanted]
        await wait_until_submitted(engine, 4)
        clock.release()
        together = [await one for one in asked]
        load = (await engine.info()).load
        assert load.preemptions > 0 and load.admitted == 4
        assert (load.cells, load.cells_used, load.running, load.queued) == (256, 0, 0, 0)
        for one, (tokens, logprobs, _) in zip(wanted, together, strict=True):
            assert len(tokens) == 100
            expected = await scores(engine, (*one.prompt.ids, *tokens))
            assert logprobs == pytest.approx(expected[-100:], abs=0.05)


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_prompt_scores_equal_those_of_drawn_tokens(models, layout):
    async with loaded(models / "tiny-f32.gguf", **LAYOUTS[layout]) as engine:
        prompt = (1, *range(300, 420))
        tokens, logprobs, _ = await say(engine, request(prompt, 40, logprobs=0))
        whole = (*prompt, *tokens)
        events = [event async for event in engine.generate(request(whole, 0, prompt_logprobs=2))]
        assert isinstance(events[0], SequenceStarted) and events[0].cached_tokens == 0
        assert isinstance(events[-1], SequenceFinished) and events[-1].cause is StopCause.LENGTH
        assert events[-1].counts.completion_tokens == 0
        scores = [event for event in events if isinstance(event, PromptScores)]
        assert [event.start for event in scores] == [1, 129]
        said = [value for event in scores for (value,) in struct.iter_unpack("<f", event.logprobs)]
        assert len(said) == len(whole) - 1
        assert said[-len(tokens) :] == pytest.approx(logprobs, abs=1e-2)
        best = [pair for event in scores for pair in struct.iter_unpack("<ii", event.alternative_ids)]
        assert [first for first, _ in best[-len(tokens) :]] == tokens
        follow = await say(engine, request(whole, 1))
        assert follow[2] >= 128, "what was scored is kept"


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_a_prompt_that_fills_the_context_is_only_scored(models, layout):
    spec: dict[str, Any] = {**LAYOUTS[layout], "context_length": 256}
    async with loaded(models / "tiny-f32.gguf", **spec) as engine:
        full = (1, *range(300, 555))
        assert len(await scores(engine, full)) == 255
        assert len(await scores(engine, full[:-1])) == 254
        with pytest.raises(ContextLengthExceeded):
            await say(engine, request(full, 1))


async def test_a_prompt_of_one_token_has_no_scores():
    async with loaded(CANTOR) as engine:
        events = [event async for event in engine.generate(request((1,), 0, prompt_logprobs=0))]
        assert [type(event) for event in events] == [SequenceStarted, SequenceFinished]


async def test_the_queue_has_bounds(models):
    spec = {"context_length": 2048, "sequences": 1, "queue": 3, "queue_per_actor": 2}
    endless = request((1, 300), 2000, actor="a", group="g")
    endless = replace(endless, sampling=replace(endless.sampling, ignore_eos=True))
    async with load_stepped(models / "small.gguf", **spec) as (engine, clock):
        async with asyncio.TaskGroup() as group, aclosing(engine.generate(endless)) as running:
            clock.hold()
            start = group.create_task(take_event(running))
            await clock.run_until(start.done)

            async def queue(**more) -> None:
                group.create_task(say(engine, request((1, 300), 1, **more)))
                await asyncio.sleep(0)

            async def refuse(kind: type[AntiphonError], actor: str) -> float | None:
                with pytest.raises(kind) as refused:
                    await say(engine, request((1,), 1, actor=actor))
                return refused.value.retry_after

            await queue(actor="a")
            await queue(actor="a")
            overloaded = group.create_task(refuse(Overloaded, "a"))
            await clock.run_until(overloaded.done)
            retry_after = overloaded.result()
            assert retry_after is not None and retry_after >= 1
            await queue(actor="b")
            busy = group.create_task(refuse(EngineBusy, "c"))
            await clock.run_until(busy.done)
            await queue(actor="c", group="g", choice=1)
            await clock.run_until(lambda: get_load(engine).queued == 4)
            clock.release()
            await running.aclose()
        load = (await engine.info()).load
        assert (load.admitted, load.refused, sum(load.queue_seconds.counts)) == (5, 2, 5)


async def test_an_adapter_that_is_not_loaded_is_refused(models):
    async with loaded(models / "tiny-q8_0.gguf") as engine:
        with pytest.raises(InvalidValue, match="no adapter 'abc'") as refused:
            await say(engine, request((1, 300), adapter="abc"))
        assert refused.value.param == "adapter"


async def test_fewer_cells_than_a_context_shorten_it(models):
    async with loaded(models / "tiny-q8_0.gguf", context_length=512, cells=300) as engine:
        info = await engine.info()
        assert (info.context_length, info.load.cells) == (300, 300)
    with pytest.raises(LoadError):
        await LlamaTokenEngine().load(LoadSpec(str(models / "tiny-q8_0.gguf"), cells=0))


OTHERS = 6
"""Requests of the other caller, one after another."""
TICK = 0.08
"""Seconds of each look at the clock: a step has a few, so long answers outlast every patience."""


async def say_beside_another_caller(
    engine: LlamaTokenEngine, clock: StepClock, wanted: list[TokenRequest], short: TokenRequest
) -> list[Said]:
    """What one caller's requests say that fill every place, while another caller waits for one of them: it
    has asked before any of them is over, and asks again."""
    before = get_load(engine)
    async with asyncio.TaskGroup() as group:
        clock.hold()
        long = [group.create_task(say(engine, replace(one, actor="a"))) for one in wanted]
        await wait_until_submitted(engine, before.admitted + len(wanted))
        await clock.run_until(lambda: get_load(engine).running == len(wanted))
        asking = group.create_task(say(engine, replace(short, actor="b")))
        await wait_until_submitted(engine, before.admitted + len(wanted) + 1)
        clock.release()
        await asking
        for _ in range(OTHERS - 1):
            await say(engine, replace(short, actor="b"))
    after = get_load(engine)
    assert after.preemptions > before.preemptions
    assert after.admitted - before.admitted == len(wanted) + OTHERS
    return [one.result() for one in long]


@pytest.mark.parametrize("layout", ["pool", "streams"])
async def test_a_preempted_answer_goes_on_from_its_own_tokens(models, layout):
    """Siblings of one request and requests alone. What is said of each token is what it scores when the whole
    is read at once."""
    wanted = [
        request((1, *range(at, at + 20)), 120, 1.0, at, logprobs=0, group=siblings, choice=choice)
        for at, siblings, choice in ((300, "g", 0), (300, "g", 1), (400, None, 0), (500, None, 0))
    ]
    wanted = [replace(one, sampling=replace(one.sampling, ignore_eos=True)) for one in wanted]
    async with load_stepped(models / "tiny-f32.gguf", TICK, **LAYOUTS[layout]) as (engine, clock):
        found = await say_beside_another_caller(engine, clock, wanted, request((1, 600), 4))
        for one, (tokens, logprobs, _) in zip(wanted, found, strict=True):
            assert len(tokens) == 120
            expected = await scores(engine, (*one.prompt.ids, *tokens))
            assert logprobs == pytest.approx(expected[-120:], abs=0.2)


@pytest.mark.parametrize("layout", ["pool", pytest.param("streams", marks=pytest.mark.soak)])
async def test_a_constraint_holds_over_a_place_that_was_given_away(models, layout):
    shape = Constraint(ConstraintKind.REGEX, "([a-z]{2}-\\d{2} ){12}")
    async with load_stepped(models / "tiny-q8_0.gguf", TICK, **LAYOUTS[layout]) as (engine, clock):
        prompt = await tale(engine, 1)
        wanted = [request(prompt, 140, 1.0, seed, constraint=shape) for seed in range(4)]
        found = await say_beside_another_caller(engine, clock, wanted, request((*prompt, 300), 2))
        vocabulary = await engine.vocabulary()
        for tokens, _, _ in found:
            text = b"".join(vocabulary.pieces[token] for token in tokens).decode()
            assert re.fullmatch(shape.source, text), text


async def test_a_preempted_exact_answer_has_the_same_bits(models):
    """Free ones, one whose tokens a constraint forces in part, and one upon the prompt of another."""
    shape = Constraint(
        ConstraintKind.REGEX, "([a-z]{2} and then there was nothing more than [0-9]{2}[,.] ){5}"
    )
    async with load_stepped(models / "tiny-q8_0.gguf", TICK, exact=True) as (engine, clock):
        prompt = await tale(engine, 3)
        wanted = [
            request(prompt, 120, 1.0, 1, logprobs=0),
            request((*prompt[:-2], 300), 120, 1.0, 2, logprobs=0),
            request(prompt, 120, 0.8, 3, constraint=shape),
            request(prompt[5:], 120, 1.0, 4, logprobs=0),
        ]
        for at in (0, 1, 3):
            wanted[at] = replace(wanted[at], sampling=replace(wanted[at].sampling, ignore_eos=True))
        alone = [await say(engine, one) for one in wanted]
        assert (await engine.info()).load.preemptions == 0
        found = await say_beside_another_caller(engine, clock, wanted, request((*prompt, 300), 2))
        assert [one[:2] for one in found] == [one[:2] for one in alone]
        assert len(alone[2][0]) > 70
