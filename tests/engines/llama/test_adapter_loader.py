"""Adapters in the running engine: none answers for another, and what comes, goes or breaks disturbs nobody
else."""

import asyncio
import hashlib
import re
import shutil
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from antiphon.domain.models import AdapterLoad
from antiphon.domain.request import Constraint, ConstraintKind, Sampling
from antiphon.engines.base import KVLayout, PromptTokens, SequenceFinished, Steps, TokenEvent, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama import engine as engine_module
from antiphon.engines.llama.mailboxes import Delivery, deliver
from antiphon.engines.llama.sequence import TokenSequence
from antiphon.errors import EngineError, InvalidValue
from antiphon.weights.gguf import read_header
from antiphon_testing import check_adapters
from benchmarks.make_adapter import write, write_adapter
from tests.engines.llama.conftest import loaded
from tests.engines.llama.holding import PATIENCE, load_stepped, wait_until_submitted
from tests.engines.random_models import SIZES
from tests.support.model_files import CANTOR

LAYOUTS: dict[str, dict[str, Any]] = {
    "pool": {"layout": KVLayout.POOL},
    "streams": {"layout": KVLayout.STREAMS},
    "exact": {"exact": True},
}
EACH_LAYOUT = [pytest.param(name, marks=pytest.mark.soak if name == "streams" else []) for name in LAYOUTS]
"""Streams store cells in another way, which test_sharing.py shows; the soak takes all three."""
POOL_FIRST = [pytest.param(name, marks=pytest.mark.soak if name != "pool" else []) for name in LAYOUTS]
"""For what does not depend on how rows are batched."""
PROMPT = (1, *range(300, 500))
NEAR = 0.1
"""How far log-probabilities of F32 weights may lie apart, computed in other batches; logits as near as that
may swap places."""


@dataclass
class Said:
    """What a sequence says."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    alternatives: list[tuple[tuple[int, float], ...]] = field(default_factory=list)
    cached: int = 0
    """How much of the prompt was shared."""


def request(tokens: Sequence[int] = PROMPT, max_tokens: int = 12, **more: Any) -> TokenRequest:
    return TokenRequest(
        PromptTokens(tuple(tokens)),
        max_tokens,
        Sampling(0.0, ignore_eos=True),
        **{"logprobs": 2, **more},
    )


async def say(engine: LlamaTokenEngine, wanted: TokenRequest) -> Said:
    """All of it."""
    said = Said()
    async with aclosing(engine.generate(wanted)) as events:
        await hear(events, said)
    return said


async def hear(events: AsyncGenerator[TokenEvent, None], said: Said, steps: int = -1) -> Said:
    """Adds what comes next, to the end or so many steps."""
    async for event in events:
        if isinstance(event, Steps):
            said.tokens += event.tokens
            said.logprobs += event.logprobs
            said.alternatives += event.alternatives
            steps -= 1
        if isinstance(event, SequenceFinished):
            said.cached = event.counts.cached_tokens
        if not steps:
            break
    return said


def near(found: Said, expected: Said, tolerance: float = NEAR) -> bool:
    """Whether one says what the other does, up to where its two likeliest tokens were too near to tell."""
    for place, (mine, theirs) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        (_, first), (_, second) = expected.alternatives[place]
        if mine != theirs:
            return first - second < tolerance
        if abs(found.logprobs[place] - expected.logprobs[place]) > tolerance:
            return False
    return True


@pytest.fixture(scope="session")
def adapters(models: Path) -> dict[str, str]:
    """Path by digest: three for the tiny model, of different ranks."""
    found: dict[str, str] = {}
    for seed, rank in ((1, 4), (2, 8), (3, 16)):
        path = models / f"tiny-{seed}.lora"
        found[write_adapter(path, models / "tiny-f32.gguf", rank, seed, weight=0.5)] = str(path)
    return found


async def fresh(models: Path, digest: str | None, adapters: dict[str, str], **spec: Any) -> Said:
    """What an engine says that has heard nothing before."""
    async with loaded(models / "tiny-f32.gguf", **spec) as engine:
        if digest is not None:
            await engine.add_adapter(digest, adapters[digest])
        return await say(engine, request(adapter=digest))


async def hold_apart(models: Path, adapters: dict[str, str], spec: dict[str, Any], tolerance: float) -> None:
    """Asks for the same prompt under the base model and two adapters, one after another and at once; raises
    AssertionError unless each answers as in a fresh engine."""
    first, second, _ = adapters
    names: tuple[str | None, ...] = (None, first, second)
    expected = {name: await fresh(models, name, adapters, **spec) for name in names}
    assert len({tuple(said.tokens) for said in expected.values()}) == 3, "the adapters say different things"
    async with load_stepped(models / "tiny-f32.gguf", 0.001, **spec) as (engine, clock):
        for digest in (first, second):
            await engine.add_adapter(digest, adapters[digest])
        alone = (first, None, second, None, first, second, first, None)
        for name in alone:
            said = await say(engine, request(adapter=name))
            assert near(said, expected[name], tolerance), "one after another"
        order = [names[(place * 5) % 3] for place in range(12)]
        clock.hold()  # the thread hears of all at once, and its clock is its own: equal turns at any speed
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(say(engine, request(adapter=name))) for name in order]
            await wait_until_submitted(engine, len(alone) + len(order))
            clock.release()
        together = [task.result() for task in tasks]
        for name, said in zip(order, together, strict=True):
            assert near(said, expected[name], tolerance), "at once"
        assert sum(said.cached > 0 for said in together) >= 9, "each finds what it said before"


@pytest.mark.parametrize("layout", EACH_LAYOUT)
async def test_the_cache_of_one_adapter_never_serves_another(models, adapters, layout):
    await hold_apart(models, adapters, LAYOUTS[layout], 0.0 if layout == "exact" else NEAR)


class Careless(TokenSequence):
    """As a cache would have it that does not know of adapters."""

    def __init__(self, *said: Any) -> None:
        super().__init__(*said)
        self.key = (None, self.request.cache_salt)


@pytest.mark.parametrize("layout", POOL_FIRST)
async def test_that_test_fails_where_the_cache_ignores_adapters(models, adapters, layout, monkeypatch):
    monkeypatch.setattr(engine_module, "TokenSequence", Careless)
    with pytest.raises(AssertionError, match="one after another"):
        await hold_apart(models, adapters, LAYOUTS[layout], NEAR)


@pytest.mark.parametrize(
    ("rank", "seed", "threads", "users"),
    [
        (8, 2, 2, 3),
        *(pytest.param(*each, 3, marks=pytest.mark.soak) for each in ((4, 1, 1), (16, 3, 1))),
        *(pytest.param(*each, 8, marks=pytest.mark.soak) for each in ((4, 1, 1), (8, 2, 2), (16, 3, 1))),
    ],
)
async def test_exact_adapter_answers_have_equal_bits_alone_and_batched(tmp_path, rank, seed, threads, users):
    path = tmp_path / "adapter.gguf"
    digest = write_adapter(path, CANTOR, rank, seed, 0.5)
    prompts = [(1, *range(300 + 20 * user, 310 + 21 * user)) for user in range(users)]
    async with loaded(CANTOR, exact=True, sequences=users, threads=threads) as engine:
        await engine.add_adapter(digest, str(path))
        wanted = [request(prompt, 6 + 3 * user, adapter=digest) for user, prompt in enumerate(prompts)]
        alone = [await say(engine, one) for one in wanted]
        crowd = [*wanted, *(request(prompt, 8) for prompt in prompts)]
        together = await asyncio.gather(*(say(engine, one) for one in crowd))
        for found, expected in zip(together, alone, strict=False):
            assert (found.tokens, found.logprobs) == (expected.tokens, expected.logprobs)


# --- coming and going


@pytest.mark.parametrize("layout", POOL_FIRST)
async def test_adapters_come_and_go_while_others_run(models, adapters, layout):
    """Who runs with an adapter that is removed goes on; who comes then is refused, and it is forgotten after
    the last."""
    first, second, third = adapters
    async with loaded(models / "tiny-f32.gguf", **LAYOUTS[layout]) as engine:
        await engine.add_adapter(first, adapters[first])
        long = [request(max_tokens=120, adapter=name) for name in (first, None)]
        alone = [await say(engine, one) for one in long]
        async with aclosing(engine.generate(long[0])) as mine, aclosing(engine.generate(long[1])) as other:
            said = [await hear(events, Said(), 3) for events in (mine, other)]
            await engine.remove_adapter(first)
            with pytest.raises(InvalidValue, match="no adapter") as refused:
                await say(engine, request(adapter=first))
            assert refused.value.param == "adapter"
            for _ in range(3):
                for digest in (second, third):
                    await engine.add_adapter(digest, adapters[digest])
                    await say(engine, request(max_tokens=2, adapter=digest))
                    await engine.remove_adapter(digest)
            await hear(mine, said[0])
            await hear(other, said[1])
            assert all(near(found, expected) for found, expected in zip(said, alone, strict=True))
        assert (await engine.info()).load.adapters == ()
        await engine.add_adapter(first, adapters[first])
        again = await say(engine, long[0])
        assert near(again, alone[0]) and again.cached == 0, "nothing was kept of an adapter that was removed"


async def test_an_adapter_that_comes_back_while_it_is_in_use_stays(models, adapters):
    digest = next(iter(adapters))
    async with loaded(models / "tiny-f32.gguf") as engine:
        await engine.add_adapter(digest, adapters[digest])
        async with aclosing(engine.generate(request(max_tokens=100, adapter=digest))) as events:
            await hear(events, Said(), 1)
            await engine.remove_adapter(digest)
            await engine.add_adapter(digest, adapters[digest])
            await hear(events, Said())
        assert len((await say(engine, request(adapter=digest))).tokens) == 12


async def test_an_adapter_is_found_once_it_was_added(models, adapters):
    """Both calls are under way at once, as when a host came back."""
    digest = next(iter(adapters))
    async with loaded(models / "tiny-f32.gguf") as engine, asyncio.TaskGroup() as group:
        adding = [group.create_task(engine.add_adapter(digest, adapters[digest])) for _ in range(2)]
        asking = group.create_task(say(engine, request(adapter=digest)))
        assert len((await asking).tokens) == 12
        assert all(one.done() for one in adding)


async def test_what_was_never_added_is_removed_without_a_word(models):
    async with loaded(models / "tiny-f32.gguf") as engine:
        await engine.remove_adapter("0" * 64)


async def test_more_adapters_than_memory_holds_are_read_again(models, adapters):
    async with loaded(models / "tiny-f32.gguf", adapter_memory=0, keep_prefixes=False) as engine:
        for digest, path in adapters.items():
            await engine.add_adapter(digest, path)
        expected = {digest: await say(engine, request(adapter=digest)) for digest in adapters}
        together = await asyncio.gather(*(say(engine, request(adapter=one)) for one in [*adapters] * 3))
        for digest, said in zip([*adapters] * 3, together, strict=True):
            assert near(said, expected[digest])


async def test_the_load_counts_by_adapter(models, adapters):
    first, second, _ = adapters
    async with loaded(models / "tiny-f32.gguf") as engine:
        for digest in (first, second):
            await engine.add_adapter(digest, adapters[digest])
        await asyncio.gather(*(say(engine, request(adapter=name)) for name in (first, first, None)))
        assert (await engine.info()).load.adapters == (AdapterLoad(first, 0, 0, 24),)


# --- what is broken


def broken(base: Path, folder: Path) -> dict[str, Path]:
    """Files that are no adapters of this model, by what is wrong with them."""
    header = read_header(base)
    hidden = SIZES["tiny"].hidden
    rows = np.ones((2, hidden // 2), np.float32)
    name = "blk.0.attn_q.weight"
    found = {
        kind: folder / f"{kind}.gguf" for kind in ("text", "cut", "shapes", "alpha", "stranger", "woken")
    }
    found["text"].write_text("this is no adapter")
    write_adapter(found["cut"], base, 4, 9)
    found["cut"].write_bytes(found["cut"].read_bytes()[:-700])
    write(found["shapes"], header.architecture, 2.0, {f"{name}.lora_a": rows, f"{name}.lora_b": rows.T})
    good = {
        f"{name}.lora_a": np.ones((2, hidden), np.float32),
        f"{name}.lora_b": np.ones((hidden, 2), np.float32),
    }
    write(found["alpha"], header.architecture, float("nan"), good)
    write(found["stranger"], "qwen2", 2.0, good)
    write(found["woken"], header.architecture, 2.0, good, (5, 6))
    return found | {"model": base, "gone": folder / "gone.gguf"}


REASONS = {
    "text": "refused",
    "cut": "refused",
    "shapes": "shape",
    "alpha": "the alpha nan",
    "stranger": "mismatch",
    "woken": "activated",
    "model": "refused",
    "gone": "cannot be read",
}


@pytest.mark.parametrize("layout", POOL_FIRST)
async def test_a_corrupt_adapter_is_refused_and_nothing_else_disturbed(models, adapters, layout, tmp_path):
    digest = next(iter(adapters))
    async with loaded(models / "tiny-f32.gguf", **LAYOUTS[layout]) as engine:
        await engine.add_adapter(digest, adapters[digest])
        long = [request(max_tokens=200, adapter=name) for name in (digest, None)]
        alone = [await say(engine, one) for one in long]
        async with aclosing(engine.generate(long[0])) as mine, aclosing(engine.generate(long[1])) as other:
            said = [await hear(events, Said(), 3) for events in (mine, other)]
            for kind, path in broken(models / "tiny-f32.gguf", tmp_path).items():
                real = hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else "0" * 64
                with pytest.raises(InvalidValue, match=REASONS[kind]) as refused:
                    await engine.add_adapter(real, str(path))
                assert refused.value.param == "adapter" and str(tmp_path) not in refused.value.message
                with pytest.raises(InvalidValue, match="no adapter"):
                    await say(engine, request(adapter=real))
            with pytest.raises(InvalidValue, match="its file was changed"):
                await engine.add_adapter("0" * 64, adapters[digest])
            await hear(mine, said[0])
            await hear(other, said[1])
            assert all(near(found, expected) for found, expected in zip(said, alone, strict=True))


def spoilt(model: Path, path: Path, value: float) -> str:
    """An adapter of the model, all of whose numbers are this one."""
    header = read_header(model)
    tensors = {}
    for name, shape in header.shapes.items():
        if len(shape) == 2 and name.startswith("blk."):
            tensors[f"{name}.lora_a"] = np.full((4, shape[0]), value, np.float32)
            tensors[f"{name}.lora_b"] = np.full((shape[1], 4), value, np.float32)
    return write(path, header.architecture, 4.0, tensors)


@pytest.mark.parametrize(
    "value", [float("nan"), pytest.param(1e30, marks=pytest.mark.soak)], ids=["no number", "too large"]
)
@pytest.mark.parametrize("layout", POOL_FIRST)
async def test_an_adapter_that_computes_no_numbers_fails_alone(models, layout, value, tmp_path):
    """What is no number would stay in the cells, and come out in the answers of who gets them next."""
    bad = spoilt(models / "tiny-f32.gguf", tmp_path / "bad.gguf", value)
    async with loaded(models / "tiny-f32.gguf", sequences=2, **LAYOUTS[layout]) as engine:
        await engine.add_adapter(bad, str(tmp_path / "bad.gguf"))
        prompts = [(1, *range(at, at + 100)) for at in (300, 450, 600)]
        alone = [await say(engine, request(prompt, 30)) for prompt in prompts]
        async with aclosing(engine.generate(request(prompts[0], 30))) as other:
            said = await hear(other, Said(), 3)
            with pytest.raises(EngineError, match="give no numbers"):
                await say(engine, request(adapter=bad))
            assert near(await hear(other, said), alone[0])
        for _ in range(2):
            together = await asyncio.gather(*(say(engine, request(prompt, 30)) for prompt in prompts))
            assert all(near(found, expected) for found, expected in zip(together, alone, strict=True))
        steps = (await engine.info()).load.steps
        with pytest.raises(EngineError, match="give no numbers"):
            await say(engine, request(adapter=bad))
        assert (await engine.info()).load.steps == steps, "it is not tried again"


async def test_an_adapter_that_cannot_be_read_any_more_fails_alone(models, adapters, tmp_path):
    lost, kept = tmp_path / "lost.gguf", next(iter(adapters))
    digest = write_adapter(lost, models / "tiny-f32.gguf", 4, 7)
    async with loaded(models / "tiny-f32.gguf", adapter_memory=0) as engine:
        await engine.add_adapter(digest, str(lost))
        await engine.add_adapter(kept, adapters[kept])
        alone = [await say(engine, request(max_tokens=60, adapter=name)) for name in (kept, None)]
        lost.unlink()
        asked = [request(max_tokens=60, adapter=name) for name in (kept, None, digest, digest)]
        *good, first, second = await asyncio.gather(
            *(say(engine, one) for one in asked), return_exceptions=True
        )
        assert isinstance(first, EngineError) and isinstance(second, EngineError)
        assert "cannot be read" in first.message
        for found, expected in zip(good, alone, strict=True):
            assert not isinstance(found, BaseException) and near(found, expected)


async def test_a_file_that_was_changed_is_not_read_again(models, adapters, tmp_path):
    """Its digest would be another's, and so would be what is kept of it."""
    path, (kept, other, _) = tmp_path / "adapter.gguf", adapters
    shutil.copy(adapters[kept], path)
    async with loaded(models / "tiny-f32.gguf", adapter_memory=0) as engine:
        await engine.add_adapter(kept, str(path))
        await engine.add_adapter(other, adapters[other])
        shutil.copy(adapters[other], path)
        with pytest.raises(EngineError, match="was changed"):
            await say(engine, request(adapter=kept))
        assert len((await say(engine, request(adapter=other))).tokens) == 12


# --- turns


async def test_no_adapter_starves(models, adapters, monkeypatch):
    """Two adapters and the base model, two streams each: each goes on while the others do."""
    first, second, _ = adapters
    names = (None, first, second)
    heard: list[str | None] = []

    def note(deliveries: list[Delivery]) -> None:
        """In the thread's order. A reader that was kept waiting reads all of its sequence at once."""
        heard.extend(
            stream.sequence.request.adapter for stream, event in deliveries if isinstance(event, Steps)
        )
        deliver(deliveries)

    monkeypatch.setattr(engine_module, "deliver", note)
    # Each look at the clock is a turn later, so that steps alone count.
    async with load_stepped(models / "tiny-f32.gguf", 0.1, sequences=6, threads=1, quantum=4) as (
        engine,
        clock,
    ):
        for digest in (first, second):
            await engine.add_adapter(digest, adapters[digest])
        clock.hold()
        async with asyncio.TaskGroup() as group:
            for name in names * 2:
                group.create_task(say(engine, request(PROMPT[:20], 80, adapter=name)))
            await wait_until_submitted(engine, 6)
            clock.release()
    window = len(heard) // 3
    for start in range(0, 2 * window, 10):
        assert set(heard[start : start + window]) == set(names)


async def test_constraints_hold_while_adapters_take_turns(tmp_path):
    paths = [tmp_path / "a.gguf", tmp_path / "b.gguf"]
    digests = [write_adapter(path, CANTOR, 8, seed, 0.5) for seed, path in enumerate(paths)]
    code = Constraint(ConstraintKind.REGEX, "[a-z]{3}-[0-9]{3}")
    async with loaded(CANTOR, exact=True, sequences=6) as engine:
        for digest, path in zip(digests, paths, strict=True):
            await engine.add_adapter(digest, str(path))
        asked = [
            TokenRequest(
                PromptTokens(PROMPT[:9]), 40, Sampling(1.5, seed=3), adapter=name, constraint=constraint
            )
            for name in (None, *digests)
            for constraint in (code, None)
        ]
        pieces = (await engine.vocabulary()).pieces
        said = await asyncio.gather(*(say(engine, one) for one in asked))
        for one, found in zip(asked, said, strict=True):
            text = b"".join(pieces[token] for token in found.tokens)
            assert one.constraint is None or re.fullmatch(rb"[a-z]{3}-[0-9]{3}", text)


@pytest.mark.parametrize("layout", EACH_LAYOUT)
async def test_the_contract_is_kept_with_adapters(models, adapters, layout):
    tolerance = 0.0 if layout == "exact" else 0.05
    async with loaded(models / "tiny-f32.gguf", **LAYOUTS[layout]) as engine:
        await check_adapters(engine, adapters, tolerance=tolerance, patience=PATIENCE)


async def test_the_kit_finds_a_cache_that_ignores_adapters(models, adapters, monkeypatch):
    monkeypatch.setattr(engine_module, "TokenSequence", Careless)
    async with loaded(models / "tiny-f32.gguf") as engine:
        with pytest.raises(AssertionError, match="are never used for another adapter"):
            await check_adapters(engine, adapters, tolerance=0.05)
