"""A request's own timeout: it bounds the generation on every engine, and what was made counts."""

import asyncio
import time

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Started, TextDelta, UsageSource
from antiphon.domain.ledger import Entry
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, EmbeddingRequest, GenerationRequest, Output, RawPrompt
from antiphon.engines.base import Engine
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.engine import CLOCK_SLACK_S, MAX_OUTPUT, VendorEngine
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import DeadlineExceeded
from antiphon.pipeline.run import Pipeline
from antiphon.rendering.renderer import Renderer
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, Script, ScriptedTokenEngine, flatten
from antiphon_testing.scripted_token_engine import Hold
from tests.support.accounting import Books, limit
from tests.support.billing_vendor import serve_billing_vendor
from tests.support.chat_templates import prove_here
from tests.support.vendors.answer_shapes import WORDS
from tests.support.vendors.scripted_upstream import serve_upstream
from tests.support.waiting import await_until

TALK = Conversation((Message(Role.USER, "Count."),))


def run_pipeline(engine: Engine, books: Books, route: str = "") -> Pipeline:
    """A pipeline over one engine."""
    model = Model("m", (ModelRoute(engine, name=route),), 1)
    return Pipeline(ModelRegistry((model,)), Metrics(), 5.0, books.accounting)


async def read_until_late(
    pipeline: Pipeline, request: GenerationRequest, context: Context, pace: float = 0.0
) -> list[Event]:
    """The events before the deadline's error. `pace`: seconds by which the fake clock goes on at each."""
    events: list[Event] = []
    try:
        async with pipeline.run(request, context) as stream:
            async for event in flatten(stream):
                events.append(event)
                if isinstance(context.clock, FakeClock):
                    context.clock.advance(pace)
    except DeadlineExceeded:
        return events
    pytest.fail("the request ended before its deadline")


@pytest.mark.parametrize(("seconds", "passed"), [(3.0, 3), (60.0, 5)])
async def test_the_earlier_of_two_deadlines_ends_a_request(seconds: float, passed: int):
    books, tokens = Books(limit()), ScriptedTokenEngine(Script(text=" the", endless=True))
    request = GenerationRequest("m", (RawPrompt("hello"),), output=Output(max_tokens=50), timeout=seconds)
    context = Context("r", deadline=books.clock.monotonic() + 5, clock=books.clock)
    pipeline = run_pipeline(Renderer(tokens, prove=prove_here), books)
    events = await read_until_late(pipeline, request, context, 1.0)
    made = sum(isinstance(event, TextDelta) for event in events)
    assert len(events) == passed
    assert isinstance(events[0], Started)
    assert (books.ledger.entry.status, books.ledger.entry.output_tokens) == ("deadline_exceeded", made)
    assert (await tokens.info()).load.running == 0


async def test_the_timeout_includes_the_wait_for_the_first_token():
    tokens = ScriptedTokenEngine(Script(text=" the", hold=Hold(asyncio.Event())))
    request = GenerationRequest("m", (RawPrompt("hello"),), timeout=0.05)
    pipeline = run_pipeline(Renderer(tokens, prove=prove_here), Books(limit()))
    assert await read_until_late(pipeline, request, Context("r", clock=FakeClock())) == []
    assert (await tokens.info()).load.running == 0


@pytest.mark.parametrize(
    ("model", "is_buffered", "words"),
    [
        ("fake-stall-at-before-headers", True, 0),
        ("fake-stall-at-before-headers", False, 0),
        ("fake-stall-at-mid-chunk", True, 0),
        ("fake-stall-at-between-chunks", False, 2),
    ],
)
async def test_a_vendor_that_takes_longer_is_left(model: str, is_buffered: bool, words: int):
    expected = "".join(WORDS[:words]), 1
    for seconds in (0.5, 5.0, 30.0):  # more for a busy machine, on which the words take longer
        if (found := await leave_vendor(model, is_buffered, seconds)) == expected:
            break
        assert expected[0].startswith(found[0])
    assert found == expected


async def test_vectors_that_take_longer_cost_their_prompt_and_do_not_blame_the_vendor():
    expected = ("deadline_exceeded", UsageSource.ESTIMATED, 50)
    for seconds in (0.5, 5.0, 30.0):  # more for a busy machine, on which the request is sent later
        entry = await leave_vectors(seconds)
        if (found := (entry.status, entry.source, entry.prompt_tokens)) == expected:
            break
    assert found == expected


async def leave_vectors(seconds: float) -> Entry:
    """The row of a request for vectors to a vendor that is silent, whose time passes."""
    with serve_billing_vendor() as vendor:
        options = ProviderOptions("first", vendor.url, ("Authorization", ""), allows_private=True)
        provider, described = (
            Provider(options, OpenAIUpstream(), lambda: None),
            VendorModel("silent", "first"),
        )
        shown = build_profile(VendorProfile(), "first", "openai", frozenset())
        books = Books(limit())
        pipeline = run_pipeline(VendorEngine(provider, described, shown), books)
        request, context = EmbeddingRequest("m", (RawPrompt("word" * 50),)), Context("r").limit_time(seconds)
        try:
            with pytest.raises(DeadlineExceeded):
                await pipeline.embed(request, context)
        finally:
            await provider.aclose()
    return books.ledger.entry


async def leave_vendor(model: str, is_buffered: bool, seconds: float) -> tuple[str, int]:
    """The text that comes from a vendor until the request's time has passed, and the requests that it got."""
    with serve_upstream() as upstream:
        options = ProviderOptions("first", upstream.url, ("Authorization", ""), allows_private=True)
        provider, described = Provider(options, OpenAIUpstream(), lambda: None), VendorModel(model, "first")
        shown = build_profile(VendorProfile(), "first", "openai", frozenset())
        books, began = Books(limit()), time.monotonic()
        pipeline = run_pipeline(VendorEngine(provider, described, shown), books, "first/fake")
        request = GenerationRequest("m", (TALK,), timeout=seconds, is_buffered=is_buffered)
        context = Context("r")
        try:
            events = await read_until_late(pipeline, request, context)
            assert time.monotonic() - began >= seconds - CLOCK_SLACK_S
            await await_until(
                lambda: upstream.open == 0 and upstream.left == len(upstream.requests),
                5,
                "the connection is closed",
            )
        finally:
            await provider.aclose()
    text = "".join(e.text for e in events if isinstance(e, TextDelta))
    entry = books.ledger.entry
    charged = (entry.status, entry.source, entry.output_tokens)
    assert charged == ("deadline_exceeded", UsageSource.ESTIMATED, MAX_OUTPUT), "it has shown no speed"
    (route,) = pipeline.models.get("m").routes
    assert (route.state.rests_until, route.state.failures) == (0, 0), "the vendor is not to blame"
    assert [each.route for each in context.progress.tries] == ["first/fake"]
    return text, len(upstream.requests)
