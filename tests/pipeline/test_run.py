"""The pipeline as the edge sees it: resolve, attempt, meter over a scripted engine."""

import asyncio
import logging

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.events import TextDelta
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.messages import MediaContent, MediaKind, Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, RawPrompt
from antiphon.domain.tenancy import Grant
from antiphon.domain.values import replace
from antiphon.engines.base import EngineState
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    EngineDied,
    EngineLost,
    EngineUnavailable,
    InvalidValue,
    ModelNotFound,
    UnsupportedParameter,
)
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.logs import FIELDS
from antiphon.telemetry.metrics import Metrics
from antiphon_testing import flatten
from antiphon_testing.scripted_engine import (
    SCRIPTED_PROFILE,
    FakeClock,
    ScriptedAnswer,
    ScriptedEngine,
    StreamEnding,
)

REQUEST = GenerationRequest("m", (RawPrompt(text="hello"),))


class Bench:
    """A pipeline over one scripted engine, and the records it logged."""

    def __init__(self, caplog, answer=ScriptedAnswer(), patience=1.0, engine=None):
        self.engine = engine or ScriptedEngine(answer)
        self.metrics = Metrics()
        self.pipeline = Pipeline(
            ModelRegistry((Model("m", (ModelRoute(self.engine),), 1),)), self.metrics, patience
        )
        self.caplog = caplog
        caplog.set_level(logging.INFO, logger="antiphon")

    def run(self, request=REQUEST, clock=None):
        return self.pipeline.run(request, Context("req-1", clock=clock or FakeClock()))

    def logged(self):
        return [getattr(record, FIELDS) for record in self.caplog.records if record.message == "generation"]


@pytest.fixture
def bench(caplog):
    return lambda *args, **kwargs: Bench(caplog, *args, **kwargs)


async def test_tokens_of_candidates_count_when_the_caller_leaves(bench):
    at = bench(ScriptedAnswer(endless=True))
    request = replace(REQUEST, output=Output(best_of=5))
    async with at.run(request) as events:
        async for event in flatten(events):
            if isinstance(event, TextDelta):
                break
    (line,) = at.logged()
    assert (line["status"], line["completion_tokens"]) == ("cancelled", 5)


async def test_a_generation_passes_through_and_is_logged_once(bench):
    at = bench()
    async with at.run() as events:
        generation = await collect(events)
    assert generation.choices[0].text == "Hello world!"
    (line,) = at.logged()
    assert (line["status"], line["request_id"], line["actor"], line["model"]) == (
        "ok",
        "req-1",
        "anonymous",
        "m",
    )
    assert (line["prompt_tokens"], line["completion_tokens"], line["finish_reasons"]) == (5, 3, ["stop"])
    assert at.metrics.ended_generations == {("m", "ok"): 1} and at.metrics.running["m"] == 0


async def test_neither_prompt_nor_answer_is_logged(bench):
    at = bench(ScriptedAnswer(texts=("SECRETANSWER",)))
    async with at.run(GenerationRequest("m", (RawPrompt(text="SECRETPROMPT"),))) as events:
        await collect(events)
    assert "SECRET" not in str(at.logged())


async def test_an_unknown_model_is_refused_with_the_known_names(bench):
    at = bench()
    with pytest.raises(ModelNotFound, match=r"`x` does not exist.* This server has: m"):
        async with at.run(GenerationRequest("x", REQUEST.prompts)) as events:
            await collect(events)
    assert at.engine.streams == []


async def test_entering_begins_nothing(bench):
    at = bench()
    async with at.run():
        pass
    assert at.engine.streams == []


async def test_leaving_mid_stream_ends_the_engine_and_logs_tokens(bench):
    at = bench(ScriptedAnswer(endless=True))
    async with at.run(GenerationRequest("m", REQUEST.prompts, output=Output(max_tokens=1000))) as events:
        async for _ in events:
            if at.engine.streams[0].events >= 4:
                break
    assert at.engine.streams[0].ending is StreamEnding.LEFT
    (line,) = at.logged()
    assert line["status"] == "cancelled" and at.metrics.running["m"] == 0


async def test_a_cancelled_task_ends_the_engine_and_is_logged(bench):
    at = bench(ScriptedAnswer(gate=asyncio.Event()))

    async def consume():
        async with at.run() as events:
            await collect(events)

    async with asyncio.TaskGroup() as group:
        task = group.create_task(consume())
        while not at.engine.streams:
            await asyncio.sleep(0)
        task.cancel()
    assert at.engine.streams[0].ending is StreamEnding.LEFT
    assert [line["status"] for line in at.logged()] == ["cancelled"]


async def test_a_missed_deadline_is_not_logged_as_a_left_caller(bench):
    at, clock = bench(ScriptedAnswer(endless=True)), FakeClock()
    context = Context("req-1", deadline=clock.monotonic() + 5, clock=clock)
    async with at.pipeline.run(REQUEST, context) as events:
        async for event in flatten(events):
            if isinstance(event, TextDelta):
                clock.advance(5)
                break
    assert [line["status"] for line in at.logged()] == ["deadline_exceeded"]


async def test_a_queued_request_survives_an_engine_restart(bench):
    engine = ScriptedEngine(state=EngineState.RESTARTING)
    at = bench(patience=30.0, engine=engine)

    async def come_back():
        while not engine.prepared:
            await asyncio.sleep(0)
        engine.engine_state = EngineState.READY

    async with asyncio.TaskGroup() as group:
        group.create_task(come_back())
        async with at.run() as events:
            generation = await collect(events)
    assert generation.choices[0].text == "Hello world!"
    assert engine.prepared >= 2 and len(engine.streams) == 1
    assert [line["status"] for line in at.logged()] == ["ok"]


async def test_patience_begins_when_the_engine_is_lost(bench):
    """The request was in the queue for longer than that before."""
    clock, losses = FakeClock(), [EngineLost("gone")]

    def answer(_request):
        if not losses:
            return ScriptedAnswer()
        clock.advance(20.0)
        engine.engine_state = EngineState.RESTARTING
        return ScriptedAnswer(error=losses.pop())

    engine = ScriptedEngine(answer)
    at = bench(patience=15.0, engine=engine)

    async def come_back():
        while engine.engine_state is EngineState.READY or engine.prepared < 2:
            await asyncio.sleep(0)
        engine.engine_state = EngineState.READY

    async with asyncio.TaskGroup() as group:
        group.create_task(come_back())
        async with at.run(clock=clock) as events:
            generation = await collect(events)
    assert generation.choices[0].text == "Hello world!" and len(engine.streams) == 2


async def test_patience_ends(bench):
    at = bench(patience=0.0, engine=ScriptedEngine(state=EngineState.RESTARTING))
    with pytest.raises(EngineUnavailable):
        async with at.run() as events:
            await collect(events)
    assert at.engine.prepared == 1
    assert at.metrics.ended_generations == {("m", "engine_unavailable"): 1}


async def test_an_engine_that_was_given_up_is_not_waited_for(bench):
    at = bench(patience=1000.0, engine=ScriptedEngine(state=EngineState.FAILED))
    with pytest.raises(EngineUnavailable):
        async with at.run() as events:
            await collect(events)
    assert at.engine.prepared == 1


async def test_another_route_is_taken_while_an_engine_restarts(bench):
    restarting, ready = ScriptedEngine(state=EngineState.RESTARTING), ScriptedEngine()
    at = bench(patience=1000.0)
    model = Model("m", (ModelRoute(restarting), ModelRoute(ready)), 1)
    at.pipeline = Pipeline(ModelRegistry((model,)), at.metrics, 1000.0)
    async with at.run() as events:
        generation = await collect(events)
    assert generation.choices[0].text == "Hello world!"
    assert (restarting.prepared, ready.prepared) == (0, 1)


@pytest.mark.parametrize("error", [EngineDied("gone"), InvalidValue("no"), EngineUnavailable("late")])
async def test_no_retry_after_the_first_event_or_a_final_error(bench, error):
    after = 1 if isinstance(error, EngineUnavailable) else None
    at = bench(ScriptedAnswer(error=error, error_after=after), patience=1000.0)
    with pytest.raises(type(error)):
        async with at.run() as events:
            await collect(events)
    assert len(at.engine.streams) == 1
    assert at.metrics.ended_generations == {("m", error.code): 1}
    assert at.logged() == [], "the edge logs the error, with what was made"


async def test_a_defect_is_logged_as_an_internal_error(bench):
    def broken(_request):
        raise ZeroDivisionError

    at = bench(broken)
    with pytest.raises(ZeroDivisionError):
        async with at.run() as events:
            await collect(events)
    assert [line["status"] for line in at.logged()] == ["internal_error"]


@pytest.mark.parametrize(("losses", "status", "tries"), [(1, "ok", 2), (5, "engine_lost", 2)])
async def test_a_request_survives_one_engine_death_and_not_two(bench, losses, status, tries):
    left = [EngineLost("gone")] * losses

    def answer(_request):
        return ScriptedAnswer(error=left.pop()) if left else ScriptedAnswer()

    at = bench(answer, patience=1000.0)
    if status == "ok":
        async with at.run() as events:
            await collect(events)
    else:
        with pytest.raises(EngineLost):
            async with at.run() as events:
                await collect(events)
    assert len(at.engine.streams) == tries and at.metrics.ended_generations == {("m", status): 1}


async def test_a_model_without_eyes_names_the_models_that_have_them(caplog):
    part = MediaContent(MediaKind.IMAGE, "image/png", "AAAA", field="messages[0].content[0].image_url")
    look = GenerationRequest("blind", (Conversation((Message(Role.USER, "", content=(part,)),)),))
    seeing = ScriptedEngine(profile=replace(SCRIPTED_PROFILE, modalities=("text", "image")))
    asleep = ScriptedEngine(state=EngineState.STARTING)
    engines = {"blind": ScriptedEngine(), "asleep": asleep, "owl": seeing, "secret": seeing}
    models = ModelRegistry(tuple(Model(name, (ModelRoute(each),), 1) for name, each in engines.items()))
    actor = Actor(ActorKind.SERVICE_KEY, "k", grant=Grant(models=("blind", "owl")))
    for context, names in ((Context("r"), "owl, secret"), (Context("r", actor=actor), "owl")):
        with pytest.raises(UnsupportedParameter) as refused:
            async with Pipeline(models, Metrics(), 1.0).run(look, context) as events:
                await collect(events)
        assert refused.value.message == (
            "messages[0].content[0].image_url is not supported: this model takes no images (modalities in "
            f"/v1/models/{{model}}); leave it out, or send it to a model that takes it: {names}"
        )
