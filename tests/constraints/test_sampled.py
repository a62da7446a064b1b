"""Every schema, regex and choice of the collection on the real engine with cantor at temperature 1.5: refused
by the name of its keyword, or every text that ends by itself is what was asked for."""

import asyncio
import json
import re
from collections.abc import Sequence
from typing import Any

import pytest

from antiphon.domain.request import Constraint, ConstraintKind, Sampling
from antiphon.engines.base import PromptTokens, SequenceFinished, Steps, StopCause, TextPiece, TokenRequest
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.errors import InvalidValue, UnsupportedParameter
from tests.constraints.collected import REFUSED, TAKEN
from tests.constraints.validation import accepts
from tests.engines.llama.conftest import loaded
from tests.support.constraint_texts import CHOICES, REGEXES, used
from tests.support.everyday_schemas import EVERYDAY
from tests.support.model_files import CANTOR

SCHEMAS: list[Any] = [*EVERYDAY.values(), *TAKEN, *REFUSED.values()]
SEQUENCES = 16
LONGEST = 96
"""Completion tokens: what has not ended by then is cut, and says nothing."""
PARTS = 8
MANY = 500
"""Characters of a schema from which on it may be refused for its size."""


async def text(
    engine: LlamaTokenEngine, constraint: Constraint, seed: int, turns: asyncio.Semaphore
) -> str | None:
    """One text at temperature 1.5; None when it was cut."""
    prompt = await engine.tokenize([TextPiece("Once upon a time")], True)
    asked = TokenRequest(
        PromptTokens(prompt), LONGEST, Sampling(temperature=1.5, seed=seed), constraint=constraint
    )
    tokens: list[int] = []
    async with turns:
        async for event in engine.generate(asked):
            if isinstance(event, Steps):
                tokens += event.tokens
            if isinstance(event, SequenceFinished) and event.cause is not StopCause.END:
                return None
    pieces = (await engine.vocabulary()).pieces
    return b"".join(pieces[token] for token in tokens).decode()


async def texts(engine: LlamaTokenEngine, constraint: Constraint, count: int) -> list[str] | str:
    """Those of `count` that ended by themselves, or why the constraint is refused."""
    try:
        await engine.check(constraint)
    except (InvalidValue, UnsupportedParameter) as refusal:
        return refusal.message
    turns = asyncio.Semaphore(2)
    found = await asyncio.gather(*(text(engine, constraint, seed, turns) for seed in range(count)))
    return [each for each in found if each is not None]


async def said(constraints: Sequence[Constraint], count: int) -> list[list[str] | str]:
    """What the engine makes of each."""
    async with loaded(CANTOR, sequences=SEQUENCES, context_length=256) as engine:
        turns = asyncio.Semaphore(SEQUENCES)

        async def one(constraint: Constraint) -> list[str] | str:
            async with turns:
                return await texts(engine, constraint, count)

        return await asyncio.gather(*map(one, constraints))


def named(schema: Any) -> set[str]:
    """What a refusal of this schema may name: its keywords, or what no keyword is at fault for."""
    if schema is False:
        return {"accepts nothing"}
    return {"schemas", *used(schema)} if len(json.dumps(schema)) > MANY else {*used(schema)}


async def require_schemas_kept(schemas: Sequence[Any], count: int) -> None:
    """Refused by a keyword's name, or kept; and at least half of all texts end by themselves."""
    ended = taken = 0
    asked = [Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema)) for schema in schemas]
    for schema, found in zip(schemas, await said(asked, count), strict=True):
        if isinstance(found, str):
            assert any(name in found for name in named(schema)), (schema, found)
            continue
        taken += count
        ended += len(found)
        for each in found:
            assert accepts(schema, each), (schema, each)
    assert ended > taken / 2


@pytest.mark.timeout(480)
@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.soak) for part in range(1, PARTS))]
)
async def test_every_schema_is_refused_by_name_or_kept(part: int) -> None:
    """One part of eight; the soak takes all. test_walks and test_kept walk masks without an engine."""
    await require_schemas_kept(SCHEMAS[part::PARTS], 1)


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
async def test_every_schema_is_kept_twenty_times(part: int) -> None:
    await require_schemas_kept(SCHEMAS[part::PARTS], 20)


@pytest.mark.timeout(480)
@pytest.mark.parametrize("count", [1, pytest.param(3, marks=pytest.mark.soak)])
async def test_regexes_and_choices_are_kept(count: int) -> None:
    asked = [Constraint(ConstraintKind.REGEX, each) for each in REGEXES]
    asked += [Constraint(ConstraintKind.CHOICE, json.dumps(choices)) for choices in CHOICES]
    answers = await said(asked, count)
    for pattern, found in zip(REGEXES, answers[: len(REGEXES)], strict=True):
        assert not isinstance(found, str) and all(re.fullmatch(pattern, each, re.ASCII) for each in found)
    for choices, found in zip(CHOICES, answers[len(REGEXES) :], strict=True):
        assert len(found) == count and set(found) <= set(choices)
