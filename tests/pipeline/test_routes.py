"""Which route serves a request, which is tried next, and what ends a request."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import EventGroup, TextDelta
from antiphon.domain.request import GenerationRequest, RawPrompt, VendorOptions
from antiphon.domain.values import replace
from antiphon.engines.base import EngineState
from antiphon.engines.registry import Model, ModelRoute
from antiphon.errors import (
    AntiphonError,
    ContextLengthExceeded,
    EngineBusy,
    EngineLost,
    EngineUnavailable,
    InvalidValue,
    ModelNotLoaded,
    ProviderBroken,
    ProviderFailed,
    ProviderKeyRefused,
    ProviderModelMissing,
    ProviderRateLimited,
    ProviderRefused,
    ProviderTimeout,
    ProviderUnavailable,
    RateLimited,
    UnsupportedParameter,
)
from antiphon.limits.local import LocalLimiter
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import FakeClock, ScriptedAnswer, ScriptedEngine, flatten
from tests.support.accounting import Books, limit
from tests.support.routing import HELLO, RouteEngine, build_bench, build_route, get_engine

RETRYABLE = (
    ProviderFailed,
    ProviderUnavailable,
    ProviderTimeout,
    ProviderRateLimited,
    ProviderKeyRefused,
    EngineBusy,
)
FINAL = (ProviderRefused, ProviderModelMissing, InvalidValue, RateLimited)


# --- the choice ---------------------------------------------------------------------------------------------


async def test_routes_are_drawn_by_their_weights():
    bench = build_bench(build_route("a", weight=3), build_route("b"))
    served = await bench.count(400)
    assert 270 <= served["a"] <= 330 and served["a"] + served["b"] == 400


async def test_equal_weights_give_equal_shares_of_three():
    served = await build_bench("a", "b", "c").count(300)
    assert all(75 <= served[name] <= 125 for name in "abc")


async def test_the_faster_of_two_routes_serves():
    bench = build_bench("slow", "fast")
    get_engine(bench, "slow").on_ask = lambda: bench.clock.advance(0.3)
    get_engine(bench, "fast").on_ask = lambda: bench.clock.advance(0.1)
    await bench.count(10)
    served = await bench.count(50)
    assert served.get("slow", 0) <= 2 and served["fast"] >= 48


async def test_a_slow_route_is_tried_again_later():
    bench = build_bench("slow", "fast")
    now = bench.clock.monotonic()
    by_name = {route.name: route.state for route in bench.routes}
    by_name["slow"].add_latency(3.0, now)
    by_name["fast"].add_latency(0.5, now)
    for _ in range(8):
        bench.clock.advance(10)
        by_name["fast"].add_latency(0.5, bench.clock.monotonic())
    assert "slow" in await bench.count(20)


async def test_the_less_busy_of_two_routes_serves():
    bench = build_bench("busy", "idle")
    bench.routes[0].state.in_flight = 3
    assert await bench.count(20) == {"idle": 20}


async def test_requests_in_flight_count_in_relation_to_weights():
    bench = build_bench(build_route("a", weight=9), build_route("b"))
    bench.routes[0].state.in_flight, bench.routes[1].state.in_flight = 9, 1
    assert (await bench.count(100))["a"] > 80


async def test_a_lower_order_serves_while_it_is_ready():
    bench = build_bench(build_route("second", order=2), build_route("first"))
    assert await bench.count(5) == {"first": 5}
    get_engine(bench, "first").failures = [ProviderFailed("no")]
    assert await bench.count(1) == {"second": 1}


async def test_a_single_route_draws_no_random_number():
    class Seedless(FakeClock):
        def seed(self) -> int:
            raise AssertionError

    bench = build_bench("a")
    bench.clock = Seedless()
    assert await bench.count(2) == {"a": 2}


# --- the next route -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", RETRYABLE)
async def test_another_route_is_tried_after_a_failure(error):
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").failures = [error("no")]
    await bench.run()
    assert bench.served == "b" and bench.list_tries() == [("a", error.code), ("b", None)]


@pytest.mark.parametrize("error", FINAL)
async def test_a_refusal_ends_the_request(error):
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").failures = [error("no")]
    with pytest.raises(error):
        await bench.run()
    assert get_engine(bench, "b").prepared == 0 and bench.routes[0].state.rests_until == 0
    assert bench.list_tries() == [("a", error.code)]


async def test_three_attempts_are_the_most():
    bench = build_bench(*(build_route(name, order=number) for number, name in enumerate("abcd", 1)))
    for name in "abcd":
        get_engine(bench, name).failures = [ProviderFailed(f"{name} failed")]
    with pytest.raises(ProviderFailed, match="c failed"):
        await bench.run()
    assert [get_engine(bench, name).asked for name in "abcd"] == [1, 1, 1, 0]


async def test_one_request_asks_each_route_once():
    bench = build_bench("a")
    get_engine(bench, "a").failures = [ProviderFailed("no")] * 3
    with pytest.raises(ProviderFailed):
        await bench.run()
    assert get_engine(bench, "a").asked == 1


async def test_nothing_is_tried_after_the_first_event():
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").script = ScriptedAnswer(error=ProviderBroken("torn"), error_after=1)
    with pytest.raises(ProviderBroken):
        await bench.run()
    assert get_engine(bench, "b").prepared == 0 and bench.list_tries() == [("a", None)]


async def test_nothing_is_tried_after_the_deadline():
    bench = build_bench("a", build_route("b", order=2), deadline=5.0)
    engine = get_engine(bench, "a")
    engine.failures, engine.on_ask = [ProviderTimeout("late")], lambda: bench.clock.advance(5)
    with pytest.raises(ProviderTimeout):
        await bench.run()
    assert get_engine(bench, "b").prepared == 0


# --- what a route cannot do ---------------------------------------------------------------------------------


async def test_a_route_that_can_do_the_request_serves_it():
    bench = build_bench(*(build_route(name, order=number) for number, name in enumerate("abcd", 1)))
    for name in "abc":
        get_engine(bench, name).refusal = UnsupportedParameter("top_k is not there", param="top_k")
    await bench.run()
    assert bench.served == "d", "a refusal is no attempt"
    assert bench.list_tries()[0] == ("a", "unsupported_parameter")


async def test_a_request_that_no_route_can_do_names_field_and_routes():
    bench = build_bench("x/a", "y/b")
    for name in ("x/a", "y/b"):
        get_engine(bench, name).refusal = UnsupportedParameter("top_k is not there", param="top_k")
    with pytest.raises(UnsupportedParameter) as refused:
        await bench.run()
    assert refused.value.param == "top_k"
    assert all(f"{name}: top_k is not there" in refused.value.message for name in ("x/a", "y/b"))


async def test_the_only_route_refuses_in_its_own_words():
    bench = build_bench("a")
    get_engine(bench, "a").refusal = UnsupportedParameter("top_k is not there", param="top_k")
    with pytest.raises(UnsupportedParameter, match=r"^top_k is not there$"):
        await bench.run()


async def test_a_longer_context_of_another_route_is_asked():
    bench = build_bench("short", build_route("long", order=2))
    get_engine(bench, "short").refusal = ContextLengthExceeded("too long")
    await bench.run()
    assert bench.served == "long"
    get_engine(bench, "long").refusal = ContextLengthExceeded("too long here too")
    with pytest.raises(ContextLengthExceeded, match="here too"):
        await bench.run()


async def test_a_failure_is_told_before_an_inability():
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").refusal = UnsupportedParameter("no")
    get_engine(bench, "b").failures = [ProviderFailed("b failed")]
    with pytest.raises(ProviderFailed, match="b failed"):
        await bench.run()


# --- rests --------------------------------------------------------------------------------------------------


async def test_rests_double_and_one_success_ends_them():
    bench = build_bench("a")
    state, engine = bench.routes[0].state, get_engine(bench, "a")
    for seconds in (1, 2, 4, 8, 16, 32, 60, 60):
        engine.failures = [ProviderFailed("no")]
        with pytest.raises(ProviderFailed):
            await bench.run()
        assert state.rests_until == bench.clock.monotonic() + seconds
        bench.clock.advance(seconds)
    await bench.run()
    assert (state.rests_until, state.failures) == (0, 0)
    assert bench.metrics.routes["m", "a"].rests == 8


async def test_a_resting_route_is_not_chosen_while_another_is_ready():
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").failures = [ProviderFailed("no")]
    await bench.count(5)
    assert get_engine(bench, "a").asked == 1
    bench.clock.advance(1.1)
    assert await bench.count(5) == {"a": 5}


async def test_one_request_at_a_time_tries_a_rested_route():
    bench = build_bench("a", build_route("b", order=2))
    engine = get_engine(bench, "a")
    engine.failures = [ProviderFailed("no")]
    await bench.run()
    bench.clock.advance(1.1)
    gate = asyncio.Event()
    engine.script = ScriptedAnswer(gate=gate)
    async with asyncio.TaskGroup() as group:
        group.create_task(bench.run())
        while engine.asked < 2:
            await asyncio.sleep(0)
        assert await bench.count(3) == {"b": 3}
        gate.set()
    assert await bench.count(3) == {"a": 3}


async def test_a_probe_whose_caller_leaves_lets_another_probe():
    bench = build_bench("a", build_route("b", order=2))
    engine = get_engine(bench, "a")
    engine.failures = [ProviderFailed("no")]
    await bench.run()
    bench.clock.advance(1.1)
    engine.script = ScriptedAnswer(gate=asyncio.Event())
    async with asyncio.TaskGroup() as group:
        probe = group.create_task(bench.run())
        while engine.asked < 2:
            await asyncio.sleep(0)
        probe.cancel()
    engine.script = ScriptedAnswer()
    assert await bench.count(1) == {"a": 1}
    assert bench.routes[0].state.in_flight == 0


async def test_an_only_route_is_tried_while_it_rests_by_itself():
    bench = build_bench("a")
    get_engine(bench, "a").failures = [ProviderFailed("no")]
    with pytest.raises(ProviderFailed):
        await bench.run()
    assert await bench.count(1) == {"a": 1}


@pytest.mark.parametrize("error", [ProviderRateLimited, ProviderUnavailable])
async def test_retry_after_is_kept_and_told(error):
    bench = build_bench("x/a", "x/b")
    for name, rest in (("x/a", 30.0), ("x/b", 20.0)):
        get_engine(bench, name).failures = [error(f"{name} says so", retry_after=rest)]
    with pytest.raises(error):
        await bench.run()
    bench.clock.advance(5)
    with pytest.raises(error, match=r"x/b rests .* 15 s.* x/b says so") as refused:
        await bench.run()
    assert refused.value.retry_after == 15 and bench.tries == ()
    bench.clock.advance(15)
    assert await bench.count(1) == {"x/b": 1}


async def test_a_short_retry_after_is_kept_under_a_longer_rest():
    bench = build_bench("a")
    get_engine(bench, "a").failures = [
        *[ProviderFailed("no")] * 3,
        ProviderRateLimited("slow down", retry_after=2.0),
    ]
    for _ in range(4):
        with pytest.raises(AntiphonError):
            await bench.run()
    with pytest.raises(ProviderRateLimited, match="rests"):
        await bench.run()
    bench.clock.advance(2)
    assert await bench.count(1) == {"a": 1}


async def test_failures_at_the_same_time_are_one_failure():
    bench = build_bench("a")
    engine, gates = get_engine(bench, "a"), [asyncio.Event() for _ in range(8)]
    left = iter(gates)
    engine.answer = lambda _: ScriptedAnswer(error=ProviderFailed("no"), gate=next(left))

    async def fail() -> None:
        with pytest.raises(ProviderFailed):
            await bench.run()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(fail()) for _ in gates]
        while len(engine.streams) < len(gates):
            await asyncio.sleep(0)
        for number, gate in enumerate(gates, 1):
            bench.clock.advance(0.01)
            gate.set()
            while sum(task.done() for task in tasks) < number:
                await asyncio.sleep(0)
    assert bench.routes[0].state.failures == 1


async def test_streams_that_break_rest_their_route_longer_each_time():
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").script = ScriptedAnswer(error=ProviderBroken("torn"), error_after=1)
    for seconds in (1, 2, 4):
        with pytest.raises(ProviderBroken):
            await bench.run()
        state = bench.routes[0].state
        assert state.rests_until == bench.clock.monotonic() + seconds
        assert await bench.count(1) == {"b": 1}
        bench.clock.advance(seconds)


async def test_a_replaced_route_rests_without_a_record(caplog: pytest.LogCaptureFixture):
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").failures = [ProviderFailed("no"), ProviderFailed("no")]
    bench.routes[0].state.is_replaced = True
    await bench.run()
    bench.clock.advance(10)
    await bench.run()
    bench.clock.advance(10)
    assert await bench.count(1) == {"a": 1}
    assert not {"route_rests", "route_serves_again"} & {line.message for line in caplog.records}


async def test_a_caller_who_leaves_rests_no_route():
    bench = build_bench("a")
    get_engine(bench, "a").script = ScriptedAnswer(endless=True)
    async with bench.pipeline.run(HELLO, Context("req-1", clock=bench.clock)) as events:
        async for event in flatten(events):
            if isinstance(event, TextDelta):
                break
    state = bench.routes[0].state
    assert (state.rests_until, state.in_flight, state.failures) == (0, 0, 0)
    assert bench.list_outcomes() == {("m", "a", "cancelled"): 1}


# --- local engines ------------------------------------------------------------------------------------------


async def test_an_engine_is_waited_for_when_nothing_else_is_there():
    engine = RouteEngine("local", EngineState.RESTARTING)
    held = build_route("vendor")
    bench = build_bench(ModelRoute(engine, name="local"), held)
    held.state.rest(ProviderRateLimited("no", retry_after=60.0), bench.clock.monotonic(), 1000.0)

    async def come_back():
        while not engine.prepared:
            await asyncio.sleep(0)
        engine.engine_state = EngineState.READY

    async with asyncio.TaskGroup() as group:
        group.create_task(come_back())
        await bench.run()
    assert bench.served == "local"
    assert bench.list_tries() == [("local", "engine_unavailable"), ("local", None)]


async def test_waiting_for_an_engine_is_no_attempt():
    bench = build_bench("local", patience=1e9)
    engine = get_engine(bench, "local")
    engine.failures = [EngineUnavailable("again")] * 5
    await bench.run()
    assert bench.served == "local" and engine.asked == 6


async def test_a_request_that_ends_two_engines_is_not_given_to_a_third():
    bench = build_bench(*(build_route(name, order=number) for number, name in enumerate("abc", 1)))
    for name in "abc":
        get_engine(bench, name).failures = [EngineLost("gone")]
    with pytest.raises(EngineLost):
        await bench.run()
    assert get_engine(bench, "c").prepared == 0


async def test_an_engine_that_was_given_up_leaves_the_other_routes():
    engine = RouteEngine("local", EngineState.FAILED)
    bench = build_bench(ModelRoute(engine, name="local"), build_route("vendor", order=2))
    assert await bench.count(3) == {"vendor": 3}
    get_engine(bench, "vendor").failures = [ProviderFailed("no")]
    with pytest.raises(AntiphonError):
        await bench.run()


class LoadingEngine(RouteEngine):
    """An engine that is loaded on request, after some tries."""

    loads = 0

    def request_load(self) -> None:
        self.loads += 1


async def test_a_load_is_waited_for_beyond_the_patience():
    engine = LoadingEngine("local", EngineState.LOADING)
    bench = build_bench(ModelRoute(engine, name="local"), patience=0.0)

    async def come_back():
        while not engine.prepared:
            await asyncio.sleep(0)
        engine.engine_state = EngineState.READY

    async with asyncio.TaskGroup() as group:
        group.create_task(come_back())
        await bench.run()
    assert bench.served == "local"


async def test_a_refused_load_is_not_waited_for():
    engine = LoadingEngine("local", EngineState.PARKED)
    bench = build_bench(ModelRoute(engine, name="local"), patience=1e9)
    engine.refusal = ModelNotLoaded("no memory", retry_after=2.0)
    with pytest.raises(ModelNotLoaded):
        await bench.run()


async def test_a_better_route_loads_while_another_serves():
    first, last = LoadingEngine("first", EngineState.PARKED), LoadingEngine("last", EngineState.PARKED)
    bench = build_bench(
        ModelRoute(first, name="first"),
        build_route("vendor", order=2),
        ModelRoute(last, name="last", order=3),
    )
    await bench.run()
    assert (bench.served, first.loads, last.loads) == ("vendor", 1, 0)


# --- limits of routes ---------------------------------------------------------------------------------------


async def test_a_full_route_is_passed_over_and_then_refused():
    bench = build_bench(build_route("a", in_flight_limit=1), build_route("b", order=2, in_flight_limit=1))
    gate = asyncio.Event()
    for name in "ab":
        get_engine(bench, name).script = ScriptedAnswer(gate=gate)
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(bench.run()) for _ in range(2)]
        while get_engine(bench, "a").asked + get_engine(bench, "b").asked < 2:
            await asyncio.sleep(0)
        assert (get_engine(bench, "a").asked, get_engine(bench, "b").asked) == (1, 1)
        with pytest.raises(ProviderUnavailable, match="full") as refused:
            await bench.run()
        gate.set()
    assert refused.value.retry_after == 1.0 and all(task.done() for task in tasks)
    assert await bench.count(1) == {"a": 1}


async def test_several_processes_share_a_routes_limit():
    clock = FakeClock()
    limiter = LocalLimiter(clock)
    benches = [
        build_bench(build_route("a", in_flight_limit=2), limiter=limiter, clock=clock) for _ in range(3)
    ]
    gate = asyncio.Event()
    for bench in benches:
        get_engine(bench, "a").script = ScriptedAnswer(gate=gate)
    async with asyncio.TaskGroup() as group:
        for bench in benches[:2]:
            group.create_task(bench.run())
        while sum(get_engine(bench, "a").asked for bench in benches) < 2:
            await asyncio.sleep(0)
        with pytest.raises(ProviderUnavailable, match="full"):
            await benches[2].run()
        gate.set()
    await benches[2].run()
    assert [bench.routes[0].state.in_flight for bench in benches] == [0, 0, 0]


async def test_all_names_of_a_pattern_share_its_limit():
    metrics, gate = Metrics(), asyncio.Event()
    benches = [
        build_bench(
            replace(build_route(f"x/{name}", in_flight_limit=1), label="x/*"), label="x/*", metrics=metrics
        )
        for name in "ab"
    ]
    get_engine(benches[0], "x/a").script = ScriptedAnswer(gate=gate)
    async with asyncio.TaskGroup() as group:
        group.create_task(benches[0].run())
        while not get_engine(benches[0], "x/a").asked:
            await asyncio.sleep(0)
        with pytest.raises(ProviderUnavailable, match="full"):
            await benches[1].run()
        gate.set()
    await benches[1].run()


# --- one prefix, one route ----------------------------------------------------------------------------------


def _keyed(key):
    return replace(HELLO, vendor_options=VendorOptions(prompt_cache_key=key))


async def test_requests_of_one_cache_key_prefer_one_route():
    bench = build_bench("a", "b", "c", prefers_prefix=True)
    found = [await bench.count(5, _keyed(f"key-{number}")) for number in range(30)]
    assert all(len(each) == 1 for each in found)
    assert {name for each in found for name in each} == {"a", "b", "c"}
    without = build_bench("a", "b", "c")
    assert len(await without.count(20, _keyed("key"))) > 1


async def test_requests_of_one_long_beginning_prefer_one_route():
    bench = build_bench("a", "b", "c", prefers_prefix=True)
    prompts = [RawPrompt("x" * 1024 + str(number)) for number in range(10)]
    served = [await bench.count(1, replace(HELLO, prompts=(prompt,))) for prompt in prompts]
    assert all(each == served[0] for each in served)
    assert len(await bench.count(20)) > 1, "a short prompt prefers none"


async def test_a_preferred_route_that_is_much_busier_is_left():
    bench = build_bench("a", "b", prefers_prefix=True)
    (preferred,) = await bench.count(1, _keyed("key"))
    route = next(each for each in bench.routes if each.name == preferred)
    route.state.in_flight = 4
    assert await bench.count(1, _keyed("key")) == {preferred: 1}
    route.state.in_flight = 50
    assert preferred not in await bench.count(5, _keyed("key"))


async def test_a_route_that_rests_moves_only_its_own_keys():
    bench = build_bench("a", "b", "c", prefers_prefix=True)
    before = {key: next(iter(await bench.count(1, _keyed(key)))) for key in map(str, range(30))}
    gone = next(route for route in bench.routes if route.name == "b")
    gone.state.rest(ProviderFailed("no"), bench.clock.monotonic(), bench.clock.monotonic())
    after = {key: next(iter(await bench.count(1, _keyed(key)))) for key in before}
    assert all(after[key] == name for key, name in before.items() if name != "b")


# --- what is told -------------------------------------------------------------------------------------------


async def test_the_ledger_says_which_routes_were_tried():
    books = Books(limit())
    bench = build_bench("x/a", build_route("x/b", order=2), books=books)
    engine = get_engine(bench, "x/a")
    engine.failures, engine.on_ask = [ProviderFailed("no")], lambda: bench.clock.advance(0.25)
    await bench.run()
    assert json.loads(bench.entry.routes) == [
        {"route": "x/a", "error": "provider_failed", "ms": 250},
        {"route": "x/b", "error": None, "ms": 0},
    ]
    assert bench.entry.attempts == 2
    assert json.loads(next(iter(books.ledger.intents.values())).routes) == [
        {"route": "x/a", "error": "aborted", "ms": 0}
    ]


class HeldClose(RouteEngine):
    """An engine whose streams do not close until they are cancelled."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.closing = asyncio.Event()

    @asynccontextmanager
    async def stream(
        self, request: GenerationRequest, context: Context
    ) -> AsyncIterator[AsyncIterator[EventGroup]]:
        async with super().stream(request, context) as events:
            try:
                yield events
            finally:
                self.closing.set()
                await asyncio.Event().wait()


async def test_a_try_is_known_while_its_stream_is_being_closed():
    engine = HeldClose("a")
    bench = build_bench(ModelRoute(engine, "vendor", name="a"), build_route("b", order=2), books=Books())
    engine.failures = [ProviderFailed("no")]
    async with asyncio.TaskGroup() as group:
        request = group.create_task(bench.run())
        await engine.closing.wait()
        request.cancel()
    assert bench.list_tries() == [("a", ProviderFailed.code)]
    assert json.loads(bench.entry.routes) == [{"route": "a", "error": ProviderFailed.code, "ms": 0}]
    assert bench.routes[0].state.in_flight == 0


async def test_a_broken_stream_is_how_its_route_ended():
    bench = build_bench("a", books=Books(limit()))
    get_engine(bench, "a").script = ScriptedAnswer(error=ProviderBroken("torn"), error_after=1)
    with pytest.raises(ProviderBroken):
        await bench.run()
    assert json.loads(bench.entry.routes) == [{"route": "a", "error": "provider_stream_broken", "ms": 0}]


async def test_a_request_is_reserved_and_written_once():
    books = Books(limit())
    bench = build_bench("a", build_route("b", order=2), books=books)
    get_engine(bench, "a").failures = [ProviderFailed("no")]
    await bench.run()
    assert books.limiter.calls == ["reserve", "settle"] and len(books.ledger.entries) == 1


async def test_metrics_count_attempts_by_route():
    bench = build_bench("a", build_route("b", order=2))
    get_engine(bench, "a").failures = [ProviderFailed("no")]
    await bench.run()
    assert bench.list_outcomes() == {("m", "a", "provider_failed"): 1, ("m", "b", "ok"): 1}
    counted = bench.metrics.routes
    assert [sum(counted["m", name].first_events.build_histogram().counts) for name in "ab"] == [0, 1]
    assert [each.in_flight for each in counted.values()] == [0, 0]
    bench.metrics.forget_routes("m", {"b"})
    assert list(counted) == [("m", "b")], "a reload removed the route"
    bench.metrics.forget("m")
    assert not counted


async def test_labels_are_patterns_and_never_a_callers_name():
    route = ModelRoute(RouteEngine("first/secret"), name="first/secret", label="first/*")
    bench = build_bench(route, label="*", books=Books(limit()))
    await bench.run()
    metrics = bench.metrics
    assert metrics.ended_generations == {("*", "ok"): 1} and bench.list_outcomes() == {
        ("*", "first/*", "ok"): 1
    }
    assert set(metrics.cost) == {("*", "USD")} and "secret" not in str(list(metrics.list_series()))


def test_a_routes_header_is_printable_ascii():
    model = Model("m", (ModelRoute(ScriptedEngine(), name="first/ü\r\nx"), ModelRoute(ScriptedEngine())), 1)
    assert [route.header for route in model.routes] == [b"first/???x", b"m"]


def test_a_local_model_is_described_by_a_host_that_is_ready():
    """A model of the settings' routes is described by its first one, since its routes differ."""
    first, second = ScriptedEngine(state=EngineState.RESTARTING), ScriptedEngine()
    routes = ModelRoute(first, name="m/1"), ModelRoute(second, name="m/2")
    assert Model("m", routes, 0).engine is second
    assert Model("m", routes, 0, is_routed=True).engine is first
    second.engine_state = EngineState.FAILED
    assert Model("m", routes, 0).engine is first
