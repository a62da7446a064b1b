"""Constrained sequences on the real library with cantor: what they say is allowed at every token, alone and
beside others, and whatever breaks is an error."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.guide import Guide
from antiphon.constraints.mask_workers import MaskWorkers, build_token_table, split_after_line_break
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint, ConstraintKind, Sampling
from antiphon.engines.base import PromptTokens, SequenceFinished, Steps, StopCause, TextPiece, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.engines.llama.libllama.library import find_library
from antiphon.engines.llama.libllama.model import NativeModel, read_vocabulary
from antiphon.errors import AntiphonError, EngineError, InvalidValue
from tests.engines.llama.conftest import loaded
from tests.support.model_files import CANTOR
from tests.support.waiting import await_until

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "city": {"enum": ["Paris", "London"]},
    },
    "required": ["name", "age", "city"],
    "additionalProperties": False,
}
JSON = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))
CODE = Constraint(ConstraintKind.REGEX, "[a-z]{3}-\\d{3}")


@pytest.fixture(scope="module", params=[False, True], ids=["pool", "exact"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[LlamaTokenEngine]:
    async with loaded(CANTOR, exact=request.param) as made:
        yield made


class Said:
    """What one sequence said."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.steps: list[int] = []
        self.cause: StopCause | None = None
        self.logprobs: list[float] = []


async def say(
    engine: LlamaTokenEngine, constraint: Constraint | None, said: Said | None = None, **more: Any
) -> Said:
    """Runs one sequence; what it had said is in `said` also when it fails."""
    said = said or Said()
    prompt = await engine.tokenize([TextPiece("Once upon a time")], True)
    drawing: dict[str, Any] = {"seed": 1, "temperature": 1.5}
    drawn = ("seed", "temperature", "banned", "allowed_token_ids")
    sampling = Sampling(**drawing | {name: more.pop(name) for name in drawn if name in more})
    most = more.pop("max_tokens", 120)
    asked = TokenRequest(PromptTokens(prompt), most, sampling, constraint=constraint, **more)
    async for event in engine.generate(asked):
        if isinstance(event, Steps):
            said.tokens += event.tokens
            said.steps.append(len(event.tokens))
            said.logprobs += event.logprobs
        if isinstance(event, SequenceFinished):
            said.cause = event.cause
            assert event.counts.completion_tokens == len(said.tokens)
    return said


async def text(engine: LlamaTokenEngine, said: Said) -> str:
    pieces = (await engine.vocabulary()).pieces
    return b"".join(pieces[token] for token in said.tokens).decode()


async def test_output_satisfies_its_constraint_alone_and_batched(
    engine: LlamaTokenEngine,
) -> None:
    constraints = [JSON, None, CODE, JSON, None, JSON]
    together = await asyncio.gather(*(say(engine, one, seed=at) for at, one in enumerate(constraints)))
    for seed, constraint in enumerate(constraints):
        found = await text(engine, together[seed])
        if constraint is JSON:
            assert {*json.loads(found)} == {"name", "age", "city"} and found == json.dumps(
                json.loads(found), ensure_ascii=False
            )
            assert together[seed].cause is StopCause.END and max(together[seed].steps) > 1
        elif constraint is CODE:
            assert len(found) == 7
        if constraint is not None and (await engine.info()).exact:
            assert (await say(engine, constraint, seed=seed)).tokens == together[seed].tokens


def test_forced_text_has_the_tokens_that_the_model_learnt_for_it() -> None:
    """cantor's tokenizer puts a space before a text, which what stands in the middle of one does not have."""
    library, _ = find_library(None)
    model = NativeModel(library, CANTOR)
    try:
        table = read_vocabulary(model)
        split = split_after_line_break(model.tokenize, table)
        assert [table.pieces[token] for token in split(b"difference")] == [b"di", b"f", b"fer", b"ence"]
        for text in (
            b'{"name": "multiply", "arguments": {"',
            b"Berlin",
            b" a",
            b"a\nb",
            b"\n",
            "é😀".encode(),
        ):
            assert b"".join(table.pieces[token] for token in split(text)) == text
            assert split(text) == model.tokenize(b"Hello.\n" + text)[-len(split(text)) :]
        longest = CompilerVocabulary(build_token_table(table)).tokenizer.tokenize_bytes(b"Berlin")
        assert CompilerVocabulary(build_token_table(table), split).tokenizer.tokenize_bytes(
            b"Berlin"
        ) == split(b"Berlin")
        assert longest != split(b"Berlin")
        assert split_after_line_break(lambda _: [], table)(b"a") == []
    finally:
        model.close()


async def test_forced_tokens_have_log_probabilities_when_asked_for(engine: LlamaTokenEngine) -> None:
    plain, scored = await say(engine, JSON, seed=5), await say(engine, JSON, seed=5, logprobs=2)
    assert plain.tokens == scored.tokens and len(scored.logprobs) == len(scored.tokens)
    assert len(plain.steps) < len(scored.steps)


async def test_what_the_caller_excludes_is_not_forced(engine: LlamaTokenEngine) -> None:
    certain = Constraint(ConstraintKind.REGEX, "hello there")
    free = await say(engine, certain)
    for excluding in (
        {"banned": (free.tokens[-2:-1],)},
        {"banned": (tuple(free.tokens[:2]),)},
        {"allowed_token_ids": tuple({*range(2048)} - {free.tokens[1]})},
    ):
        said = Said()
        with pytest.raises(InvalidValue, match="no token is left"):
            await say(engine, certain, said, **excluding)
        assert said.tokens == free.tokens[: len(said.tokens)] != free.tokens
    coin = Constraint(ConstraintKind.CHOICE, json.dumps(["Paris", "London"]))
    pieces = (await engine.vocabulary()).pieces
    for letter, word in ((b"P", "London"), (b"L", "Paris")):
        banned = tuple((token,) for token, piece in enumerate(pieces) if piece.startswith(letter))
        assert await text(engine, await say(engine, coin, banned=banned)) == word


async def test_a_text_that_is_cut_says_so_and_a_stop_token_ends_it(engine: LlamaTokenEngine) -> None:
    for most in (1, 3, 7):
        cut = await say(engine, JSON, max_tokens=most)
        assert cut.cause is StopCause.LENGTH and len(cut.tokens) == most
    whole = await say(engine, JSON)
    stopped = await say(engine, JSON, stop_token_ids=(whole.tokens[4],))
    assert stopped.cause is StopCause.STOP_TOKEN
    assert stopped.tokens == whole.tokens[: whole.tokens.index(whole.tokens[4]) + 1]


async def test_what_cannot_be_kept_is_refused_before_a_token(engine: LlamaTokenEngine) -> None:
    unsound = Constraint(ConstraintKind.REGEX, "(?=a)b", field="guided_regex")
    for ask in (engine.check(unsound), say(engine, unsound)):
        with pytest.raises(InvalidValue, match="lookaround"):
            await ask


async def test_no_open_object_has_a_key_twice(engine: LlamaTokenEngine) -> None:
    """With few characters to make keys of, and everything else as likely as the model has it."""
    table = await engine.vocabulary()
    few = [token for token, piece in enumerate(table.pieces) if piece and not {*piece} - {*b'{}":, a\\u0'}]
    drawing: dict[str, Any] = {"temperature": 3.0, "allowed_token_ids": (*few, *table.end_ids)}
    repeatable = Constraint(
        ConstraintKind.JSON_SCHEMA,
        json.dumps({"type": "object", "additionalProperties": {"enum": ["a", ""]}}),
    )
    for made in await asyncio.gather(*(say(engine, repeatable, seed=seed, **drawing) for seed in range(4))):
        strings = re.findall(r'("(?:\\.|[^"\\])*")(:?)', await text(engine, made))
        keys = [string for string, colon in strings if colon]
        assert len({*keys}) == len(keys)
        assert keys == [json.dumps(json.loads(key), ensure_ascii=False) for key in keys]


class Broken:
    """Masks, of which the answers of a guide go wrong from the `at`-th on."""

    def __init__(self, masks: MaskWorkers, at: int, how: Callable[[Guide], None]) -> None:
        self.result_ready = masks.result_ready
        self.size = masks.size
        self._masks = masks
        self._left = at
        self._how = how

    def put(self, guide: Guide) -> None:
        self._left -= 1
        if self._left > 0:
            self._masks.put(guide)
        else:
            self._how(guide)
            self.result_ready.set()

    def abandon(self, guide: Guide) -> None:
        self._masks.abandon(guide)


def fails(guide: Guide) -> None:
    guide.error = EngineError("broken")
    guide.is_settled = guide.is_ready = True


def settles_only(guide: Guide) -> None:
    guide.is_settled = True


def answers_nothing(guide: Guide) -> None:
    """The worker is gone."""


def knows_no_mask(guide: Guide) -> None:
    guide.is_settled = guide.is_ready = True


@pytest.mark.parametrize(
    ("at", "how"),
    [(1, fails), (4, fails), (4, settles_only), (4, answers_nothing), (4, knows_no_mask)]
    + [
        pytest.param(1, how, marks=pytest.mark.soak) for how in (settles_only, answers_nothing, knows_no_mask)
    ],
)
async def test_a_failure_is_an_error_and_never_unconstrained_text(
    at: int, how: Callable[[Guide], None]
) -> None:
    """What was said before satisfies the constraint so far, and others go on."""
    async with loaded(CANTOR) as engine:
        masks = MaskWorkers(tokens := build_token_table(await engine.vocabulary()))
        words = CompilerVocabulary(tokens)
        grammar = check_constraint(JSON, words)

        class Standin:
            async def create_guide(self, constraint: Constraint) -> Guide:
                return Guide(
                    grammar, Broken(masks, at, how), lambda: clock.pop(0) if len(clock) > 1 else clock[0]
                )

            async def aclose(self) -> None:
                masks.close()

        clock = [0.0] * 40 + [1000.0]
        engine._constraints = Standin()  # type: ignore[assignment]
        said = Said()
        other = asyncio.ensure_future(say(engine, None, seed=9))  # noqa: TID251 - a test's own, awaited below
        with pytest.raises(EngineError):
            await say(engine, JSON, said)
        assert (await other).tokens and said.cause is None
        Matcher(grammar, words).consume(said.tokens)


class Held:
    """Workers that begin no first result until `release`."""

    def __init__(self, masks: MaskWorkers) -> None:
        self.result_ready = masks.result_ready
        self.size = masks.size
        self.asked: list[Guide] = []
        """The guides whose grammars are asked to be compiled, in order."""
        self._masks = masks
        self._is_held = True

    def put(self, guide: Guide) -> None:
        if guide.is_first:
            self.asked.append(guide)
        if not (guide.is_first and self._is_held):
            self._masks.put(guide)

    def abandon(self, guide: Guide) -> None:
        self._masks.abandon(guide)

    def release(self) -> None:
        self._is_held = False
        for guide in tuple(self.asked):
            self._masks.put(guide)


async def test_a_grammar_is_compiled_when_its_sequence_has_a_place_and_callers_take_turns() -> None:
    """A caller with many slow grammars keeps the threads busy for as many of them as there are places."""
    async with loaded(CANTOR, sequences=2) as engine, asyncio.TaskGroup() as group:
        checker, masks = await engine._get_constraints()._ensure_checker()
        held, owners = Held(masks), dict[Guide, str]()

        class Standin:
            async def create_guide(self, constraint: Constraint) -> Guide:
                guide = Guide(await checker.check(constraint), held)
                owners[guide] = constraint.field
                return guide

            async def aclose(self) -> None:
                await checker.aclose()
                masks.close()

        engine._constraints = Standin()  # type: ignore[assignment]

        def start(actor: str) -> asyncio.Task[Said]:
            constraint = Constraint(ConstraintKind.REGEX, "[ab]{3}", field=actor)
            return group.create_task(say(engine, constraint, actor=actor))

        async def count_queued() -> int:
            return (await engine.info()).load.queued

        answers = [start("first") for _ in range(6)]
        await await_until(lambda: len(owners) == 6 and len(held.asked) >= 2)
        answers.append(start("second"))

        async def is_queued() -> bool:
            return len(owners) == 7 and await count_queued() == 5

        await await_until(is_queued)
        assert [owners[guide] for guide in held.asked[:3]].count("first") == 2 and len(held.asked) <= 3
        held.release()
        for answer in answers:
            assert len((await answer).tokens)
        assert "second" in [owners[guide] for guide in held.asked[:4]]


async def test_a_dead_checker_refuses() -> None:
    async with loaded(CANTOR) as engine:
        checker, _ = await engine._get_constraints()._ensure_checker()
        checker._limits = type(checker._limits)(start=0.001)
        with pytest.raises(AntiphonError):
            await say(engine, JSON)
