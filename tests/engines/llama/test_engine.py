"""The embedded engine on the real library: the contract, exactness, sharing, leaving, refusals."""

import asyncio
import random
import threading
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from antiphon.domain.request import Sampling
from antiphon.domain.values import replace
from antiphon.engines.base import (
    KVLayout,
    LoadSpec,
    PromptTokens,
    SequenceFinished,
    SequenceStarted,
    Steps,
    StopCause,
    TextPiece,
    TokenRequest,
)
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.context import ContextSizes, DecodeStatus, NativeContext
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel
from antiphon.errors import ContextLengthExceeded, EngineError, EngineUnavailable, InvalidValue, LoadError
from antiphon_testing import check_token_engine
from tests.engines.llama.conftest import loaded
from tests.engines.llama.holding import (
    PATIENCE,
    Halt,
    get_context,
    get_load,
    load_paced,
    load_stepped,
    take_event,
)
from tests.support.model_files import CANTOR

CLOSE = 0.05
"""Logits nearer to each other than this may swap places in the pool."""
Said = tuple[tuple[int, ...], tuple[float, ...], tuple[tuple[tuple[int, float], ...], ...]]


def request(
    tokens, max_tokens: int = 16, temperature: float = 0.0, seed: int = 0, ignore_eos: bool = False, **more
) -> TokenRequest:
    sampling = Sampling(temperature, seed=seed, ignore_eos=ignore_eos)
    return TokenRequest(PromptTokens(tuple(tokens)), max_tokens, sampling, **more)


async def say(engine: LlamaTokenEngine, wanted: TokenRequest) -> Said:
    """Everything that a sequence says."""
    steps = [event async for event in engine.generate(wanted) if isinstance(event, Steps)]
    return (
        tuple(token for step in steps for token in step.tokens),
        tuple(value for step in steps for value in step.logprobs),
        tuple(row for step in steps for row in step.alternatives),
    )


@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        ("q8_0", "exact"),
        ("f32", "pool"),
        pytest.param("f32", "streams", marks=pytest.mark.soak),  # exact mode has streams too
    ],
)
async def test_the_contract_is_kept(models, kind, layout):
    exact = layout == "exact"
    spec: dict[str, Any] = {"queue": 24, "queue_per_actor": 16} if exact else {}
    spread = KVLayout.STREAMS if exact else KVLayout(layout)
    async with load_paced(models / f"tiny-{kind}.gguf", exact=exact, layout=spread, **spec) as engine:
        tolerance = 0.0 if exact else CLOSE
        await check_token_engine(engine, tolerance=tolerance, patience=PATIENCE, **spec)


@pytest.mark.soak
async def test_the_contract_is_kept_with_cantor():
    async with load_paced(CANTOR, exact=True, queue=24, queue_per_actor=16) as engine:
        await check_token_engine(engine, patience=PATIENCE, queue=24, queue_per_actor=16)


def crowd(vocabulary: int) -> list[TokenRequest]:
    """Sixteen requests of mixed lengths and samplings."""
    dice = random.Random(3)
    lengths = [1, 2, 3, 17, 40, 64, 100, 127, 128, 129, 130, 200, 255, 257, 300, 400]
    return [
        request(
            [1, *(dice.randrange(263, vocabulary) for _ in range(length))],
            max_tokens=dice.randint(4, 12),
            temperature=dice.choice([0.0, 0.0, 1.0]),
            seed=length,
            logprobs=2,
        )
        for length in lengths
    ]


@pytest.mark.parametrize(
    ("kind", "count"),
    [
        ("q8_0", 32),
        ("f32", 24),
        pytest.param("f16", 24, marks=pytest.mark.soak),
        pytest.param("q8_0", 64, marks=pytest.mark.soak),
        pytest.param("f32", 64, marks=pytest.mark.soak),
        pytest.param("f16", 64, marks=pytest.mark.soak),
    ],
)
async def test_exact_streams_each_equal_themselves_alone(models, kind, count):
    async with loaded(models / f"tiny-{kind}.gguf", exact=True, sequences=16, threads=2) as engine:
        wanted = crowd(1001)
        alone = [await say(engine, one) for one in wanted]
        order = random.Random(1).sample(range(count), count)
        together = await asyncio.gather(*(say(engine, wanted[index % 16]) for index in order))
        assert all(said == alone[index % 16] for index, said in zip(order, together, strict=True))


async def test_64_pooled_streams_differ_only_where_logits_are_close(models):
    async with loaded(models / "tiny-f32.gguf", exact=False, sequences=16, threads=2) as engine:
        wanted = [one for one in crowd(1001) if one.sampling.temperature == 0]
        alone = [await say(engine, one) for one in wanted]
        chosen = [index % len(wanted) for index in range(64)]
        together = await asyncio.gather(*(say(engine, wanted[index]) for index in chosen))
        for index, (tokens, *_) in zip(chosen, together, strict=True):
            mine, _, alternatives = alone[index]
            pairs = enumerate(zip(mine, tokens, strict=False))
            place = next((at for at, (first, second) in pairs if first != second), None)
            if place is not None:
                (_, first), (_, second) = alternatives[place]
                assert first - second < CLOSE


async def test_draws_do_not_depend_on_how_the_prompt_was_cached(models):
    """Computed alone, computed in a group, or copied from a sibling."""
    async with loaded(models / "tiny-q8_0.gguf", exact=True) as engine:
        prompt = [1, *range(300, 500)]
        alone = [
            await say(engine, request(prompt, temperature=1.0, seed=4, choice=choice)) for choice in range(4)
        ]
        family = (request(prompt, temperature=1.0, seed=4, choice=choice, group="g") for choice in range(4))
        assert await asyncio.gather(*(say(engine, one) for one in family)) == alone
        assert len({said[0] for said in alone}) > 1


async def test_shared_cells_outlive_the_sibling_that_computed_them(models):
    """In the pool the first one lends its cells, then leaves, and its place is taken by another."""
    async with load_stepped(models / "tiny-f32.gguf", exact=False, sequences=2) as (engine, clock):
        wanted = request([1, *range(300, 400)], 30)
        alone, _, _ = await say(engine, wanted)
        async with (
            aclosing(engine.generate(replace(wanted, max_tokens=400, group="g"))) as first,
            aclosing(engine.generate(replace(wanted, group="g"))) as sibling,
            asyncio.TaskGroup() as group,
        ):
            clock.hold()
            first_start, start = (group.create_task(take_event(events)) for events in (first, sibling))
            await clock.run_until(lambda: first_start.done() and start.done())
            started = start.result()
            assert isinstance(started, SequenceStarted) and started.cached_tokens == 100
            leaving = group.create_task(first.aclose())
            others = [group.create_task(say(engine, request([1, 500 + index], 30))) for index in range(3)]
            await asyncio.sleep(0)  # each task runs to its first wait: the thread is told of them all
            clock.release()
            await leaving
            steps = [event async for event in sibling if isinstance(event, Steps)]
            assert tuple(token for step in steps for token in step.tokens) == alone
        assert all(other.result()[0] for other in others)


async def test_siblings_are_told_what_they_share(models):
    async with loaded(models / "tiny-q8_0.gguf") as engine:
        prompt = [1, *range(300, 400)]

        async def counts(choice: int):
            events = [event async for event in engine.generate(request(prompt, 3, choice=choice, group="g"))]
            assert isinstance(events[0], SequenceStarted) and isinstance(events[-1], SequenceFinished)
            return events[0].cached_tokens, events[-1].counts.cached_tokens

        assert await asyncio.gather(*map(counts, range(3))) == [(0, 0), (100, 100), (100, 100)]
        assert (await engine.info()).load.prefill_tokens == 101 + 2


@dataclass(frozen=True)
class Departure:
    """Where in the work of a prompt its caller leaves."""

    layout: dict[str, Any]
    passes: float
    """Passes through the network that are done by then."""


LEAVER = 262
"""A token that the leaver's prompt has and no other."""
DEPARTURES = {
    "pool, first pass": Departure({"layout": KVLayout.POOL}, 0.5),
    "pool, second pass": Departure({"layout": KVLayout.POOL}, 1.5),
    "streams, first pass": Departure({"layout": KVLayout.STREAMS}, 0.5),
    "streams, second pass": Departure({"layout": KVLayout.STREAMS}, 1.5),
    "exact": Departure({"exact": True}, 0.5),
}


@pytest.mark.parametrize("departure", DEPARTURES.values(), ids=DEPARTURES)
async def test_rows_that_were_lost_to_a_leaver_are_computed_again(models, departure):
    """Of one that waits for its next token and of one whose prompt is in the same decode."""
    spec: dict[str, Any] = {"context_length": 800, "prefill_chunk": 1500, "step_latency": 60.0}
    spec |= {"keep_prefixes": False, **departure.layout}
    async with (
        load_stepped(models / "tiny-f32.gguf", **spec) as (engine, clock),
        asyncio.TaskGroup() as group,
    ):
        halt = Halt(get_context(engine))
        await say(engine, request([1], 1))
        one_pass = halt.looks
        wanted = [request([1, *range(300, stop)], 20, logprobs=0, ignore_eos=True) for stop in (320, 900)]
        expected = [await say(engine, one) for one in wanted]
        clock.hold()
        speaker = group.create_task(say(engine, wanted[0]))
        await clock.run_until(lambda: get_load(engine).decoded_tokens > 1 + 2 * 20 + 2)
        leaver = engine.generate(request([1, LEAVER, *range(263, 963)], 5))
        reader, start = group.create_task(say(engine, wanted[1])), group.create_task(take_event(leaver))
        await asyncio.sleep(0)
        halt.set(round(departure.passes * one_pass), LEAVER)
        clock.release()
        assert await asyncio.to_thread(halt.reached.wait, PATIENCE)
        assert isinstance(await start, SequenceStarted)
        await leaver.aclose()
        found = [await speaker, await reader]
        assert [len(tokens) for tokens, *_ in found] == [20, 20]
        if "exact" in departure.layout:
            assert found == expected
        assert (get_load(engine).running, get_load(engine).cells_used) == (0, 0)


@pytest.mark.parametrize("exact", [True, False])
def test_a_running_decode_is_aborted_and_can_be_done_again(models, exact):
    """Below the loop: the flag that a C function reads, and what is left in the cache."""
    library, _ = find_library(None)
    model = NativeModel(library, models / "small.gguf")
    shape = ContextSizes(2048, 2, 1024, 64, 2, unified=not exact, flash=not exact, kv_type="f16")
    context = NativeContext(model, shape)
    halt = Halt(context)
    prompt = [1, *range(300, 600)]

    def compute() -> int:
        context.set_rows(0, prompt, 0, 1, True)
        return context.decode(len(prompt))

    assert compute() == DecodeStatus.DONE
    expected = context.read_logits(1)[0].copy()
    context.remove(1)
    halt.set(halt.looks // 2)  # in the third of five passes
    aborting = halt.abort_when_reached()
    assert compute() == DecodeStatus.ABORTED
    aborting.join()
    assert compute() < 0, "the rows of two passes are in the cache, and no row may come twice"
    context.remove(1)
    assert compute() == DecodeStatus.ABORTED, "until it is taken back"
    context.remove(1)
    context.resume()
    assert compute() == DecodeStatus.DONE
    assert (context.read_logits(1)[0] == expected).all()
    context.close()
    model.close()


REFUSED = [
    (request([1, 5000]), InvalidValue, "5000 is no token id"),
    (request([-1]), InvalidValue, "-1 is no token id"),
    (request([2**40]), InvalidValue, "1099511627776 is no token id"),
    (request([]), InvalidValue, "no tokens"),
    (request([1] * 512), ContextLengthExceeded, "your prompt has 512 tokens"),
    (request([1], max_tokens=0), InvalidValue, "at least 1"),
    (request([1], logprobs=100_000), InvalidValue, "logprobs must be from 0 to"),
    (request([1], logprobs=-1), InvalidValue, "logprobs must be from 0 to"),
    (replace(request([1], logprobs=1), logprob_token_ids=(5000,)), InvalidValue, "holds 5000, no token id"),
]


async def test_what_cannot_run_is_refused_alone(models):
    async with loaded(models / "tiny-q8_0.gguf") as engine, asyncio.TaskGroup() as group:
        good = group.create_task(say(engine, request([1, 300, 301], 30)))
        for wanted, kind, words in REFUSED:
            with pytest.raises(kind, match=words):
                await say(engine, wanted)
        assert len((await good)[0]) == 30


async def test_the_context_may_be_filled_to_its_end(models):
    async with loaded(models / "tiny-q8_0.gguf", context_length=300, exact=True) as engine:
        events = [event async for event in engine.generate(request([1] * 290, 1000))]
        finished = events[-1]
        assert isinstance(finished, SequenceFinished)
        assert finished.cause in (StopCause.LENGTH, StopCause.END)
        assert finished.counts.completion_tokens <= 10


@pytest.mark.parametrize("exact", [True, False])
async def test_small_contexts_and_chunks_are_kept_to(models, exact):
    """Less room than one pass takes, and chunks shorter than that."""
    async with loaded(models / "tiny-q8_0.gguf", exact=exact, context_length=24, sequences=1) as engine:
        assert 1 <= len((await say(engine, request([1] * 20, 100)))[0]) <= 4
    async with loaded(models / "tiny-q8_0.gguf", exact=exact, prefill_chunk=5, sequences=2) as engine:
        said = await asyncio.gather(*(say(engine, request([1, *range(300, 400)], 4)) for _ in range(3)))
        assert said[0] == said[1] == said[2] or not exact


async def test_more_than_fit_wait_and_are_served_in_turn(models):
    async with loaded(models / "tiny-q8_0.gguf", sequences=2) as engine:
        said = await asyncio.gather(*(say(engine, request([1, 300 + index], 5)) for index in range(40)))
        assert all(1 <= len(tokens) <= 5 for tokens, *_ in said)
        load = (await engine.info()).load
        assert (load.running, load.queued, load.free_sequences, load.cells_used) == (0, 0, 2, 0)


async def test_closing_the_engine_ends_what_runs_with_an_error(models):
    async def fails(engine: LlamaTokenEngine) -> None:
        with pytest.raises(EngineError):
            await say(engine, request([1, 300], 400, ignore_eos=True))

    async with load_stepped(models / "tiny-q8_0.gguf", sequences=2) as (engine, clock):
        clock.hold()
        async with asyncio.TaskGroup() as group:
            for _ in range(4):
                group.create_task(fails(engine))
            await clock.run_until(lambda: get_load(engine).decoded_tokens > 2)
            closing = group.create_task(engine.aclose())
            await asyncio.sleep(0)  # the thread is told to stop before it goes on
            clock.release()
            await closing
        with pytest.raises(EngineUnavailable):
            await say(engine, request([1]))


async def test_an_engine_that_did_not_load_can_be_closed(tmp_path):
    engine = LlamaTokenEngine()
    with pytest.raises(EngineUnavailable):
        await engine.info()
    with pytest.raises(LoadError):
        await engine.load(LoadSpec(str(tmp_path / "absent.gguf")))
    with pytest.raises(EngineUnavailable):
        await say(engine, request([1]))
    await engine.aclose()


async def test_no_model_is_freed_while_a_text_is_tokenized(models):
    async with loaded(models / "tiny-q8_0.gguf") as engine, asyncio.TaskGroup() as group:
        go = threading.Event()
        engine._long_text_threads.submit(go.wait, PATIENCE)
        closing = group.create_task(engine.aclose())
        assert engine._thread
        await asyncio.to_thread(engine._thread.join, 0.3)  # it frees the model as the last thing that it does
        assert engine._thread.is_alive()
        go.set()
        await closing
        assert not engine._thread.is_alive()


async def test_a_short_text_waits_for_no_long_one(models):
    async with loaded(models / "tiny-q8_0.gguf") as engine, asyncio.TaskGroup() as group:
        go = threading.Event()
        engine._long_text_threads.submit(go.wait, PATIENCE)
        long = group.create_task(engine.tokenize([TextPiece("a" * 10_000)], False))
        await asyncio.sleep(0)
        assert await engine.tokenize([TextPiece("a word")], False)
        assert not long.done()
        go.set()


async def test_tokenizing_a_long_text_leaves_decoding_alone(models):
    async with loaded(models / "tiny-q8_0.gguf") as engine, asyncio.TaskGroup() as group:
        speaking = group.create_task(say(engine, request([1, 300], 200)))
        ids = await engine.tokenize([TextPiece("word " * 100_000)], True)
        assert len(ids) > 100_000
        assert len((await speaking)[0]) > 0
