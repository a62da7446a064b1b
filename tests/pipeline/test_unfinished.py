"""What a caller pays who leaves a vendor's answer, at every time of leaving: never much less than the bill of
the vendor, never more than the reservation, and about the bill after half of a steady answer."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import floor
from types import TracebackType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.events import (
    Event,
    EventGroup,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
    UsageSource,
)
from antiphon.domain.ledger import Entry
from antiphon.domain.limits import Measure, Window
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Output,
    RawPrompt,
)
from antiphon.domain.values import replace
from antiphon.engines.base import RequestSize
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.engines.route_state import MIN_SAMPLES, RouteSpeed
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from antiphon.errors import BudgetExceeded, DeadlineExceeded, ProviderBroken
from antiphon.pipeline.late_settlements import open_late_settlements
from antiphon.pipeline.run import Pipeline
from antiphon.task_group import task_group
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import ScriptedEngine, flatten
from tests.support.accounting import PRICE, Books, ScriptedEmbedding, limit
from tests.support.billing_vendor import serve_billing_vendor
from tests.support.waiting import await_until

PROMPT = RawPrompt("hello")
SEEN_TOKEN = "four"
"""A token of as many bytes as the estimate takes for one."""


@dataclass(frozen=True)
class Vendor:
    """An answer as its vendor makes and bills it."""

    rate: float = 50.0
    """Tokens that it makes each second, of each choice."""
    first_s: float = 0.2
    """Seconds before it makes the first one."""
    hidden: int = 0
    """Tokens of hidden reasoning, which come first."""
    shown: int = 200
    burst: int = 1
    """Tokens that come together."""
    images: int = 0
    image_tokens: int = 1000
    choices: int = 1
    usage_after: float | None = 0.01
    """Seconds between the finish and the usage; None for no usage."""

    @property
    def tokens(self) -> int:
        return self.hidden + self.shown

    @property
    def seconds(self) -> float:
        """Until the finish."""
        return self.first_s + self.tokens / self.rate

    @property
    def size(self) -> RequestSize:
        """With the bounds that `engines.vendors` has: a byte is at most a token, an image at most 8,192."""
        media = 8192 * self.images
        return RequestSize(400 + media, 2 * self.tokens * self.choices, False, 100 + media, self.choices)

    def bill(self, seconds: float) -> Usage:
        """What it bills if the connection is closed after these seconds."""
        made = min(self.tokens, max(0, floor((seconds - self.first_s) * self.rate)))
        return Usage(100 + self.images * self.image_tokens, made * self.choices)


async def iterate_groups(events: AsyncGenerator[Event, None]) -> AsyncGenerator[EventGroup, None]:
    """Yields each event alone."""
    async for event in events:
        yield (event,)


@dataclass
class VendorStream:
    """`PreparedRequest.stream` of a vendor, by the test's clock. The caller leaves after some seconds."""

    vendor: Vendor
    context: Context
    advance: Callable[[float], None]
    leave_after: float | None
    closed_at: list[float]
    sent_at: float = 0.0

    async def __aenter__(self) -> AsyncIterator[EventGroup]:
        self.context.progress.report.record_sent(self.context.clock)
        self.sent_at = self.context.clock.monotonic()
        self._events = self._generate()
        self._groups = iterate_groups(self._events)
        return self._groups

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._groups.aclose()
        await self._events.aclose()
        self.closed_at.append(self.context.clock.monotonic() - self.sent_at)

    @property
    def has_arrived(self) -> bool:
        return False

    async def read_usage(self, seconds: float) -> Usage | None:
        late = self.vendor.usage_after
        self.advance(min(seconds, seconds if late is None else late))
        return self._usage if late is not None and late <= seconds else None

    @property
    def _usage(self) -> Usage:
        return replace(self.vendor.bill(self.vendor.seconds), source=UsageSource.REPORTED)

    async def _wait_until(self, seconds: float) -> None:
        """Moves the clock to that many seconds after the start, or has the caller leave before."""
        passed = self.context.clock.monotonic() - self.sent_at
        leave_after = self.leave_after
        if leave_after is not None and leave_after < seconds:
            self.advance(max(0.0, leave_after - passed))
            self.leave_after = None
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)
        self.advance(max(0.0, seconds - passed))

    async def _generate(self) -> AsyncGenerator[Event, None]:
        vendor = self.vendor
        start = Started(vendor.size.estimated_prompt_tokens, source=UsageSource.ESTIMATED)
        for made in range(0, vendor.shown, vendor.burst):
            count = min(vendor.burst, vendor.shown - made)
            await self._wait_until(vendor.first_s + (vendor.hidden + made + count) / vendor.rate)
            if made == 0:
                yield start
            for choice in range(vendor.choices):
                yield TextDelta(choice, SEEN_TOKEN * count)
        await self._wait_until(vendor.seconds)
        for choice in range(vendor.choices):
            yield Finished(choice, FinishReason.STOP)
        await self._wait_until(vendor.seconds + (vendor.usage_after or 0.0))
        yield (
            self._usage
            if vendor.usage_after is not None
            else replace(self._usage, source=UsageSource.ESTIMATED)
        )


class SimulatedEngine(ScriptedEngine):
    """The engine of the vendor that a test sets."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance
        self.vendor = Vendor()
        self.leave_after: float | None = None
        self.closed_at: list[float] = []
        """Seconds after which each connection was closed."""
        self.stream_type = VendorStream

    async def prepare(self, request: GenerationRequest, context: Context) -> "PreparedVendor":
        return PreparedVendor(self.vendor, self.leave_after, self._advance, self.closed_at, self.stream_type)


@dataclass
class PreparedVendor:
    vendor: Vendor
    leave_after: float | None
    advance: Callable[[float], None]
    closed_at: list[float]
    stream_type: type[VendorStream]
    report: EngineReport = field(default_factory=EngineReport)

    @property
    def size(self) -> RequestSize:
        return self.vendor.size

    def stream(self, context: Context) -> VendorStream:
        return self.stream_type(self.vendor, context, self.advance, self.leave_after, self.closed_at)


@dataclass
class Caller:
    """A caller of one route to a vendor."""

    books: Books = field(default_factory=Books)

    def __post_init__(self) -> None:
        self.engine = SimulatedEngine(self.books.clock.advance)
        self.route = ModelRoute(self.engine, "vendor")
        self.model = Model("m", (self.route,), 1)

    async def ask(self, vendor: Vendor, leave_after: float | None = None) -> Entry:
        """Asks and leaves after some seconds. Returns the row."""
        self.engine.vendor, self.engine.leave_after = vendor, leave_after
        async with open_late_settlements() as late_settlements:
            accounting = replace(self.books.accounting, late_settlements=late_settlements)
            pipeline = Pipeline(ModelRegistry((self.model,)), Metrics(), 5.0, accounting)
            request = GenerationRequest("m", (PROMPT,), output=Output(max_tokens=2 * vendor.tokens))
            context = Context("r", clock=self.books.clock)

            async def read() -> None:
                async with pipeline.run(request, context) as events:
                    async for _ in events:
                        pass

            async with task_group() as group:
                group.create_task(read())
        return list(self.books.ledger.entries.values())[-1]

    async def show_speed(self, vendor: Vendor, share: float = 1.0) -> None:
        """Reads answers of the vendor to their ends, made at this share of its speed. They are as many as
        tell a speed; all but the first are told without being read, which takes long."""
        first_s, speed = vendor.first_s / share, self.route.state.speed
        began = self.books.clock.monotonic()
        await self.ask(replace_vendor(vendor, rate=vendor.rate * share, first_s=first_s, choices=1))
        seconds = self.books.clock.monotonic() - began
        for _ in range(MIN_SAMPLES - 1):
            speed.add(vendor.tokens, seconds)


def replace_vendor(vendor: Vendor, **changes: object) -> Vendor:
    return Vendor(**(vendor.__dict__ | changes))


def cost(usage: Usage) -> int:
    return PRICE.compute_cost(usage.prompt_tokens, 0, usage.completion_tokens)


def reserve_cost(vendor: Vendor) -> int:
    return PRICE.compute_max_cost(vendor.size.prompt_tokens, vendor.size.output_tokens)


STEADY = st.builds(Vendor, rate=st.floats(5, 500), first_s=st.floats(0.05, 3.0), shown=st.integers(100, 300))
BURSTING = st.builds(Vendor, rate=st.floats(5, 500), shown=st.integers(100, 300), burst=st.integers(2, 90))
THINKING = st.builds(Vendor, rate=st.floats(5, 500), hidden=st.integers(100, 3000), shown=st.integers(1, 99))
PICTURES = st.builds(Vendor, images=st.integers(1, 9), image_tokens=st.integers(85, 8192))
SEVERAL = st.builds(Vendor, rate=st.floats(5, 500), choices=st.integers(2, 4))
VENDORS = st.one_of(STEADY, BURSTING, THINKING, PICTURES, SEVERAL)


@given(vendor=VENDORS, share=st.floats(0.5, 1.2), leave=st.floats(0.0, 1.1), data=st.data())
@settings(deadline=None)
async def test_no_caller_gains_by_when_they_leave(
    vendor: Vendor, share: float, leave: float, data: st.DataObject
):
    """The slack is half of the vendor's output: a vendor can be twice as fast as it has shown."""
    caller = Caller(Books(limit(Measure.COST, 10**15, Window.DAY)))
    has_shown = data.draw(st.booleans())
    if has_shown:
        await caller.show_speed(vendor, share)
    seconds = leave * vendor.seconds
    before = await caller.books.used()
    entry = await caller.ask(vendor, seconds)
    billed = vendor.bill(min(seconds, vendor.seconds))
    slack = PRICE.compute_cost(0, 0, billed.completion_tokens // 2) if has_shown else 0
    assert cost(billed) - slack <= entry.cost <= reserve_cost(vendor)
    assert await caller.books.used() == [before[0] + entry.cost], "the limit counts what the row says"


@given(vendor=STEADY)
@settings(deadline=None)
async def test_who_leaves_halfway_pays_about_the_bill(vendor: Vendor):
    vendor = replace_vendor(vendor, first_s=min(vendor.first_s, vendor.shown / vendor.rate / 9))
    caller = Caller()
    await caller.show_speed(vendor)
    entry = await caller.ask(vendor, vendor.seconds / 2)
    billed = cost(vendor.bill(vendor.seconds / 2))
    assert billed <= entry.cost <= 1.5 * billed
    assert (entry.status, entry.source) == ("cancelled", UsageSource.ESTIMATED)


@given(
    vendor=VENDORS, share=st.floats(0.5, 1.2), leaves=st.lists(st.floats(0.0, 1.2), min_size=4, max_size=12)
)
@settings(deadline=None)
async def test_a_budget_is_passed_by_no_more_than_the_slack(
    vendor: Vendor, share: float, leaves: list[float]
):
    """The slack of each request that left is half of its output."""
    budget = 3 * reserve_cost(vendor)
    caller = Caller(Books(limit(Measure.COST, budget, Window.DAY)))
    await caller.show_speed(vendor, share)
    (counted,) = await caller.books.used()
    billed = slack = 0
    for leave in leaves:
        seconds = leave * vendor.seconds
        try:
            entry = await caller.ask(vendor, seconds)
        except BudgetExceeded:
            break
        counted += entry.cost
        bill = vendor.bill(min(seconds, vendor.seconds))
        billed += cost(bill)
        slack += PRICE.compute_cost(0, 0, bill.completion_tokens // 2)
    assert counted <= budget
    assert billed <= budget + slack


async def test_the_usage_after_the_finish_is_waited_for():
    vendor = Vendor(hidden=400, usage_after=1.5)
    caller = Caller(Books(limit(Measure.CONCURRENT, 1, None)))
    entry = await caller.ask(vendor, vendor.seconds + 0.1)
    assert (entry.status, entry.source, entry.output_tokens) == ("cancelled", UsageSource.REPORTED, 600)
    assert caller.books.limiter.calls == ["reserve", "release_place", "settle"]
    assert await caller.books.used() == [0]


async def test_a_usage_that_does_not_come_in_two_seconds_is_estimated():
    vendor = Vendor(hidden=400)
    caller = Caller()
    await caller.show_speed(vendor)
    entry = await caller.ask(replace_vendor(vendor, usage_after=3.0), vendor.seconds + 0.1)
    assert (entry.status, entry.source) == ("cancelled", UsageSource.ESTIMATED)
    assert 600 <= entry.output_tokens <= 620, "the two seconds cost nothing"


@pytest.mark.parametrize("read", [1, 100, 201])
async def test_who_leaves_an_answer_that_has_arrived_pays_the_bill(read: int):
    """The vendor is done, however much of its answer was read."""
    books = Books(limit(Measure.COST, 10**15, Window.DAY))
    request = GenerationRequest(
        "m", (Conversation((Message(Role.USER, "hi"),)),), output=Output(max_tokens=4000)
    )
    with serve_billing_vendor() as vendor:
        options = ProviderOptions("v", vendor.url, ("Authorization", ""), allows_private=True)
        provider = Provider(options, OpenAIUpstream(), lambda: None)
        profile = build_profile(VendorProfile(), "v", "openai", frozenset())
        engine = VendorEngine(provider, VendorModel("whole", "v"), profile)
        try:
            async with open_late_settlements() as late_settlements:
                accounting = replace(books.accounting, late_settlements=late_settlements)
                models = ModelRegistry((Model("m", (ModelRoute(engine, "vendor"),), 1),))
                pipeline = Pipeline(models, Metrics(), 5.0, accounting)
                async with pipeline.run(request, Context("r")) as groups:
                    events = flatten(groups)
                    for _ in range(read):
                        await anext(events)
                await await_until(lambda: books.ledger.entries, what="the row is complete")
        finally:
            await provider.aclose()
    entry = books.ledger.entry
    assert (entry.source, entry.prompt_tokens, entry.output_tokens) == (UsageSource.REPORTED, 1000, 2000)


async def test_the_end_of_the_server_ends_the_wait():
    class Waiting(VendorStream):
        async def read_usage(self, seconds: float) -> Usage | None:
            began.set()
            await asyncio.Event().wait()
            return None

    began, vendor = asyncio.Event(), Vendor(usage_after=1.0)
    caller = Caller(Books(limit(Measure.COST, 10**15, Window.DAY)))
    caller.engine.stream_type = Waiting
    entry = await caller.ask(vendor, vendor.seconds + 0.1)
    assert began.is_set(), "a wait begins before it is ended"
    assert (entry.status, entry.source, entry.output_tokens) == ("cancelled", UsageSource.ESTIMATED, 400)
    assert caller.books.limiter.calls.count("settle") == 1 and caller.engine.closed_at


async def test_a_settlement_that_fails_ends_no_other(caplog: pytest.LogCaptureFixture):
    class Failing(VendorStream):
        async def __aexit__(self, *_: object) -> None:
            raise RuntimeError("a defect")

    vendor, caller = Vendor(hidden=400), Caller()
    caller.engine.stream_type = Failing
    await caller.ask(vendor, vendor.seconds + 0.001)
    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == [
        "late_settlement_failed"
    ]
    caller.engine.stream_type = VendorStream
    entry = await caller.ask(vendor, vendor.seconds + 0.001)
    assert (entry.source, entry.output_tokens) == (UsageSource.REPORTED, 600)


async def test_before_the_finish_the_connection_is_closed_at_once():
    vendor = Vendor()
    caller = Caller()
    await caller.ask(vendor, 1.0)
    assert caller.engine.closed_at == [1.0]


async def test_until_a_speed_is_shown_the_whole_output_is_charged():
    vendor = Vendor(shown=200)
    caller = Caller()
    assert (await caller.ask(vendor, 0.0)).output_tokens == 400
    await caller.ask(replace_vendor(vendor, shown=63))  # too short to show one
    assert (await caller.ask(vendor, 1.0)).output_tokens == 400
    await caller.ask(replace_vendor(vendor, choices=2))  # a vendor can make one after the other
    assert (await caller.ask(vendor, 1.0)).output_tokens == 400
    slow = replace_vendor(vendor, shown=64, first_s=20.0)  # a long prompt, so that thinking looks slow
    for _ in range(MIN_SAMPLES - 1):
        await caller.ask(slow)
    assert (await caller.ask(vendor, 1.0)).output_tokens == 400, "a few slow answers are easy to ask for"
    await caller.ask(vendor)
    assert 40 <= (await caller.ask(vendor, 1.0)).output_tokens < 60


async def test_a_caller_who_reads_slowly_makes_no_route_look_slow():
    class Held(VendorStream):
        async def _generate(self) -> AsyncGenerator[Event, None]:
            async for event in super()._generate():
                yield event
            self.advance(30.0)
            self.context.progress.report.held_s = 30.0

    vendor, caller = Vendor(), Caller()
    caller.engine.stream_type = Held
    await caller.ask(vendor)
    assert caller.route.state.speed.estimate() is None


async def test_a_vendor_that_fails_is_paid_for_what_came():
    """A caller cannot make a vendor fail, and what it bills is unknown."""

    class Broken(VendorStream):
        async def _generate(self) -> AsyncGenerator[Event, None]:
            yield Started(7, source=UsageSource.ESTIMATED)
            yield TextDelta(0, "12345678")
            raise ProviderBroken("it broke off")

    caller = Caller()
    caller.engine.stream_type = Broken
    with suppress(ProviderBroken):
        await caller.ask(Vendor())
    assert caller.books.ledger.entry.output_tokens == 2


async def test_a_deadline_is_a_way_to_leave():
    class Late(VendorStream):
        async def _generate(self) -> AsyncGenerator[Event, None]:
            self.advance(1.0)
            raise DeadlineExceeded("the time has passed")
            yield

    caller = Caller()
    await caller.show_speed(Vendor())
    caller.engine.stream_type = Late
    with suppress(DeadlineExceeded):
        await caller.ask(Vendor())
    entry = list(caller.books.ledger.entries.values())[-1]
    assert entry.prompt_tokens == 100 and 45 <= entry.output_tokens <= 50


async def test_who_leaves_an_embedding_pays_the_prompt():
    books = Books()

    async def make(context: Context) -> Embeddings:
        context.progress.report.record_sent(context.clock)
        raise asyncio.CancelledError

    class Embedder(ScriptedEngine):
        async def prepare_embedding(self, request: EmbeddingRequest, context: Context) -> ScriptedEmbedding:
            return ScriptedEmbedding(make, RequestSize(90, 0, False, 30))

    model = Model("m", (ModelRoute(Embedder(), "vendor"),), 1)
    pipeline = Pipeline(ModelRegistry((model,)), Metrics(), 5.0, books.accounting)
    with suppress(asyncio.CancelledError):
        await pipeline.embed(EmbeddingRequest("m", (PROMPT,)), Context("r", clock=books.clock))
    entry = books.ledger.entry
    assert (entry.prompt_tokens, entry.source) == (30, UsageSource.ESTIMATED)


def test_a_speed_is_the_95th_percentile_of_recent_answers():
    speed = RouteSpeed()
    for tokens in range(100, 200):
        assert (speed.estimate() is None) == (tokens < 100 + MIN_SAMPLES)
        speed.add(tokens, 1.0)
    assert speed.estimate() == 194
    for _ in range(1000):
        speed.add(63, 60.0)  # short answers show nothing
    assert speed.estimate() == 194
    for _ in range(200):
        speed.add(6400, 100.0)
    assert speed.estimate() == 64
