"""A stream whose deltas carry no tokens: without the vendor's usage its row is an estimate."""

from contextlib import suppress

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.limits import Measure
from antiphon.domain.messages import estimate_tokens, measure_text
from antiphon.domain.request import GenerationRequest, Output, RawPrompt
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import ProviderBroken
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.metrics import Metrics
from tests.support.accounting import Books, limit
from tests.support.vendor_engine import STARTED, USAGE, VendorDouble

ACTOR = Actor(ActorKind.USER, "key-1", "project-1", "user-1")

SAID: list[Event] = [
    STARTED,
    ReasoningDelta(0, "12345678"),
    ThinkingBlock(0, {"thinking": "12345678"}),
    TextDelta(0, "aé😀"),
    ToolCallStarted(0, 0, "c", "get_weather"),
    ToolCallDelta(0, 0, "{}"),
]
"""8 bytes of reasoning; 7 of text, 11 of a name and 2 of arguments: 28 in all."""


class Breaking(list[Event]):
    """Events after which the vendor's connection breaks."""

    def __iter__(self):
        yield from super().__iter__()
        raise ProviderBroken("the provider first broke off")


async def row(events, leave_after: int = 100, is_counted: bool = False):
    """The ledger's row of a stream, which the caller leaves after some events."""
    books = Books()
    model = Model("m", (ModelRoute(VendorDouble(lambda _: events, is_counted), "first"),), 1)
    pipeline = Pipeline(ModelRegistry((model,)), Metrics(), 5.0, books.accounting)
    request = GenerationRequest("m", (RawPrompt("hello"),))
    with suppress(ProviderBroken):
        async with pipeline.run(request, Context("r", clock=books.clock)) as stream:
            for _ in range(leave_after):
                if await anext(stream, None) is None:
                    break
    return books.ledger.entry


@pytest.mark.parametrize(
    ("events", "leave_after", "status"),
    [(Breaking(SAID), 100, "provider_stream_broken"), (SAID, 6, "cancelled")],
)
async def test_a_cut_stream_is_estimated_from_its_text(events, leave_after, status):
    entry = await row(events, leave_after)
    assert (entry.status, entry.source) == (status, UsageSource.ESTIMATED)
    assert (entry.prompt_tokens, entry.output_tokens, entry.reasoning_tokens) == (7, 7, 2)


async def test_any_text_is_at_least_one_token_and_none_is_none():
    for said, tokens in (([], 0), ([TextDelta(0, "a")], 1), ([TextDelta(0, "a" * 5)], 2)):
        entry = await row(Breaking([STARTED, *said]))
        assert (entry.source, entry.output_tokens) == (UsageSource.ESTIMATED, tokens)


@pytest.mark.parametrize("source", [UsageSource.REPORTED, UsageSource.COUNTED, UsageSource.ESTIMATED])
async def test_the_numbers_of_the_usage_win(source):
    end: list[Event] = [Finished(0, FinishReason.STOP), Usage(9, 40, 3, 30, source)]
    entry = await row([*SAID, *end])
    assert (entry.status, entry.source) == ("ok", source)
    assert (entry.prompt_tokens, entry.output_tokens, entry.reasoning_tokens) == (9, 40, 30)


async def test_what_an_engine_counts_is_not_estimated():
    entry = await row(Breaking([Started(5), TextDelta(0, "a" * 400, 3)]), is_counted=True)
    assert (entry.source, entry.output_tokens) == (UsageSource.ENGINE, 3)


def test_bytes_are_those_of_utf_8():
    for text in ("", "plain", "aé😀"):
        assert measure_text(text) == len(text.encode())
    assert [estimate_tokens(size) for size in (0, 1, 4, 5, 8)] == [0, 1, 1, 2, 2]


async def reserve_output(output: Output, usage: Usage) -> tuple[Books, int]:
    """The output tokens that are reserved of a minute's limit while the stream runs."""
    books = Books(limit(Measure.OUTPUT_TOKENS, 5000, key="key-1"))
    events: list[Event] = [STARTED, TextDelta(0, "a"), Finished(0, FinishReason.STOP), usage]
    model = Model("m", (ModelRoute(VendorDouble(lambda _: events), "first"),), 1)
    pipeline = Pipeline(ModelRegistry((model,)), Metrics(), 5.0, books.accounting)
    request = GenerationRequest("m", (RawPrompt("hello"),), output=output)
    async with pipeline.run(request, Context("r", actor=ACTOR, clock=books.clock)) as stream:
        await anext(stream)
        (held,) = await books.used()
        async for _ in stream:
            pass
    return books, held


async def test_all_output_is_reserved_where_deltas_carry_no_tokens():
    for output in (Output(), Output(max_tokens=1000)):
        _, held = await reserve_output(output, USAGE)
        assert held == 1000


async def test_usage_beyond_what_was_reserved_ends_nothing():
    books, _ = await reserve_output(Output(max_tokens=1000), Usage(7, 4_999, source=UsageSource.REPORTED))
    assert books.ledger.entry.output_tokens == 4_999 and books.ledger.entry.status == "ok"
    assert await books.used() == [4_999]
