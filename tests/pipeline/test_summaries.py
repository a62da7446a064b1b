"""The memory strategy `summary` in the pipeline: what is written, what it costs, and what is refused."""

import asyncio
import re

import hypothesis
import pytest
from hypothesis import strategies as st

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.limits import Measure
from antiphon.domain.memory import MemoryReport, Summary
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import (
    Conversation,
    EmbeddingFacts,
    GenerationRequest,
    Output,
    Pooling,
    RawPrompt,
)
from antiphon.domain.tenancy import Grant
from antiphon.domain.values import replace
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    EngineUnavailable,
    InvalidValue,
    LargerThanLimit,
    MissingParameter,
    ModelNotFound,
    PermissionDenied,
    ProviderFailed,
    RateLimited,
    RequestError,
    UnsupportedParameter,
)
from antiphon.memory.summaries import BEFORE
from antiphon.pipeline.run import Pipeline
from antiphon.pipeline.summarise import MAX_PARTS
from antiphon.telemetry.metrics import Metrics
from antiphon_testing.scripted_engine import (
    SCRIPTED_PROFILE,
    FakeClock,
    ScriptedAnswer,
    ScriptedEngine,
    ScriptedRequest,
)
from tests.support.accounting import Books, limit

LONG = replace(SCRIPTED_PROFILE, context_length=100_000)


def build_talk(turns: int) -> tuple[Message, ...]:
    """A system message, and turns of about 70 bytes of which the last is open."""
    messages = [Message(Role.SYSTEM, "Be brief.")]
    for number in range(turns):
        messages.append(Message(Role.USER, f"question {number:04} " + "q" * 20))
        messages.append(Message(Role.ASSISTANT, f"answer {number:04} " + "a" * 20))
    return tuple(messages[:-1])


def list_messages(request: GenerationRequest) -> tuple[Message, ...]:
    """The messages of the request's only conversation."""
    (prompt,) = request.prompts
    assert isinstance(prompt, Conversation)
    return prompt.messages


def numbered(request: GenerationRequest) -> ScriptedAnswer:
    """Answers with the numbers of the questions that the writer reads, those in the summary so far first."""
    numbers = re.findall(r"(?:question|seen) (\d+)", list_messages(request)[-1].text)
    return ScriptedAnswer((f"seen {min(numbers)}", f" to {max(numbers)}"))


class ParkedEngine(ScriptedEngine):
    """An engine that is loaded by its first request, and has no profile before."""

    async def profile(self):
        if not self.prepared:
            raise EngineUnavailable("the model is not loaded; its first request has it loaded")
        return await super().profile()


class EmbeddingEngine(ParkedEngine):
    """A parked engine whose model makes vectors."""

    async def prepare(self, request, context):
        await super().prepare(request, context)
        raise UnsupportedParameter("it makes vectors", param="model")


class UncountingEngine(ScriptedEngine):
    """An engine that gives a bound of its prompts, as a vendor's does, and never refuses one."""

    def __init__(self, answer, profile):
        super().__init__(answer, profile=profile)
        self._context_length = 10**9

    async def prepare(self, request, context):
        prepared = await super().prepare(request, context)
        assert isinstance(prepared, ScriptedRequest)
        return replace(prepared, size=replace(prepared.size, is_counted=False))


class Bench:
    """A model `m` that answers and a model `w` that writes, over one pipeline."""

    def __init__(self, writes=numbered, profile=LONG, books=None, kinds=(ScriptedEngine, ScriptedEngine)):
        """`kinds`: the engines of `m` and of `w`."""
        answering, writing = kinds
        self.engine, self.writer = answering(), writing(writes, profile=profile)
        engines = {"m": self.engine, "w": self.writer}
        models = [Model(name, (ModelRoute(each, name=name),), 1) for name, each in engines.items()]
        self.books = books or Books(limit())
        self.pipeline = Pipeline(ModelRegistry(tuple(models)), Metrics(), 1.0, self.books.accounting)
        self.context = Context("req-1", clock=FakeClock())

    async def run(self, messages, tokens=600, model="w", actor=None, max_tokens=None):
        """The messages that `m` saw, and the report."""
        context = Context("req-1", clock=self.books.clock)
        context = context if actor is None else Context("req-1", actor, clock=self.books.clock)
        self.context = context
        prompt = Conversation(messages) if isinstance(messages, tuple) else messages
        request = GenerationRequest(
            "m", (prompt,), output=Output(max_tokens=max_tokens), memory=Summary(tokens, model)
        )
        async with self.pipeline.run(request, context) as events:
            await collect(events)
        seen = list_messages(self.engine.streams[-1].request)
        assert len(await self.engine.encode(Conversation(seen))) <= (tokens or 1024)
        return seen, context.progress.memory

    @property
    def written(self):
        """How many parts were written."""
        return len(self.writer.streams)


async def test_a_short_conversation_stays_as_it_is():
    bench = Bench()
    seen, report = await bench.run(build_talk(3))
    assert seen == build_talk(3) and report == MemoryReport(6) and not bench.written


async def test_older_turns_become_a_summary():
    bench = Bench()
    talk = build_talk(30)
    seen, report = await bench.run(talk)
    assert bench.written == 1 and report == MemoryReport(len(seen), 0, len(talk) - len(seen))
    assert seen[0] == talk[0] and seen[2:] == talk[-len(seen) + 2 :]
    first = talk[-len(seen) + 1]
    assert seen[1].role is Role.USER and seen[1].text.endswith(first.text)
    number = int(first.text.split()[1])
    assert seen[1].text.startswith(BEFORE) and f"seen 0000 to {number - 1:04}\n" in seen[1].text


async def test_a_growing_conversation_pays_for_each_turn_once():
    bench = Bench()
    read = []
    for turns in range(1, 61):
        _, report = await bench.run(build_talk(turns))
        assert report.dropped == 0 and report.kept + report.summarised == 2 * turns
    for stream in bench.writer.streams:
        read += re.findall(r"question (\d+)", list_messages(stream.request)[-1].text)
    assert read == sorted(set(read)) and 4 <= bench.written <= 15
    before = bench.written
    await bench.run(build_talk(60))
    assert bench.written == before


async def test_children_count_tokens_and_no_requests():
    every = [limit(measure, 10**6) for measure in (Measure.REQUESTS, Measure.TOKENS)]
    one_at_a_time = limit(Measure.CONCURRENT, 1, None)
    bench = Bench(books=Books(*every, one_at_a_time))
    await bench.run(build_talk(30))
    child, parent = bench.books.ledger.entries.values()
    assert child.parent == parent.id and parent.parent is None
    assert (child.model, child.status, parent.status) == ("w", "ok", "ok")
    assert child.request_id == parent.request_id and child.prompt_tokens and child.output_tokens == 2
    tokens = sum(each.prompt_tokens + each.output_tokens for each in (child, parent))
    assert await bench.books.used() == [1, tokens, 0]
    assert list(bench.books.ledger.intents) == [parent.id, child.id]


async def test_a_parent_that_fails_still_has_its_row():
    bench = Bench()
    bench.engine.answer = ScriptedAnswer(error=ProviderFailed("down"), error_after=None)
    with pytest.raises(ProviderFailed):
        await bench.run(build_talk(30))
    child, parent = bench.books.ledger.entries.values()
    assert (child.status, parent.status, parent.id) == ("ok", "provider_failed", child.parent)
    assert parent.output_tokens == 0


async def test_an_exhausted_limit_refuses_before_anything_is_written():
    bench = Bench(books=Books(limit(amount=1)))
    await bench.run(build_talk(30))
    for _ in range(2):
        with pytest.raises(RateLimited):
            await bench.run(build_talk(50))
    assert bench.written == 1 and len(bench.books.ledger.intents) == 2


async def test_a_writer_over_its_limit_refuses_the_request():
    books = Books(limit(Measure.TOKENS, 900))
    bench = Bench(books=books)
    with pytest.raises(LargerThanLimit, match=r"^memory_strategy\.model: w could not write a summary: "):
        await bench.run(build_talk(30))
    (parent,) = books.ledger.entries.values()
    assert parent.status == LargerThanLimit.code and not bench.engine.streams


async def test_limits_that_change_meanwhile_hold_for_both():
    books = Books(limit(Measure.TOKENS, 10**6))
    gate = asyncio.Event()
    bench = Bench(lambda request: ScriptedAnswer(("said",), gate=gate), books=books)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(bench.run(build_talk(30)))
        while not bench.writer.streams:
            await asyncio.sleep(0)
        books.rulebook.update((), ())
        gate.set()
    assert running.result()[1].summarised
    assert {each.status for each in books.ledger.entries.values()} == {"ok"}


async def test_another_projects_summary_is_never_used():
    bench = Bench()
    ann, bob = (replace(LOCAL_ANONYMOUS, project=name) for name in ("ann", "bob"))
    for actor, written in ((ann, 1), (ann, 1), (bob, 2), (bob, 2)):
        await bench.run(build_talk(30), actor=actor)
        assert bench.written == written


async def test_another_writer_writes_its_own():
    bench = Bench()
    await bench.run(build_talk(30))
    bench.engine.answer = ScriptedAnswer(("mine",))
    seen, _ = await bench.run(build_talk(30), model=None)
    assert "mine" in seen[1].text and bench.written == 1


async def test_a_writer_of_a_short_context_reads_in_parts():
    bench = Bench(profile=replace(LONG, context_length=1500))
    seen, report = await bench.run(build_talk(100))
    assert 4 < bench.written <= MAX_PARTS and report.summarised > 180
    assert "seen 0000 to 0" in seen[1].text


async def test_too_many_parts_are_refused_and_kept():
    bench = Bench(profile=replace(LONG, context_length=900))
    with pytest.raises(InvalidValue, match="send the request again") as caught:
        await bench.run(build_talk(200))
    assert caught.value.param == "memory_strategy" and bench.written == MAX_PARTS
    while bench.written < 200:
        try:
            _, report = await bench.run(build_talk(200))
        except InvalidValue:
            continue
        assert report.summarised
        return
    pytest.fail("it never came to an end")


async def test_a_turn_longer_than_the_writers_context_is_cut():
    bench = Bench(profile=replace(LONG, context_length=2000))
    talk = list(build_talk(10))
    talk[3] = replace(talk[3], text="question 0001 " + "x" * 30_000 + " the end")
    _, report = await bench.run(tuple(talk))
    read = [list_messages(each.request)[-1].text for each in bench.writer.streams]
    assert report.summarised and any("[...]" in text and "the end" in text for text in read)


async def test_a_long_summary_is_cut_to_the_budget():
    bench = Bench(lambda request: ScriptedAnswer(("blah " * 300,)))
    seen, _ = await bench.run(build_talk(30))
    assert "blah" in seen[1].text


@pytest.mark.parametrize("tokens", [1, 40, 120])
async def test_a_budget_without_room_is_refused_unpaid(tokens):
    bench = Bench()
    with pytest.raises(InvalidValue, match="no room for a summary") as caught:
        await bench.run(build_talk(30), tokens)
    assert caught.value.param == "memory_strategy.tokens"
    assert not bench.written and not bench.books.ledger.intents and await bench.books.used() == [0]


async def test_only_leading_messages_and_one_turn_are_refused():
    bench = Bench()
    with pytest.raises(InvalidValue, match="no room for a summary"):
        await bench.run((*build_talk(1)[:1], Message(Role.USER, "x" * 900)))


async def test_a_writer_that_writes_nothing_is_named():
    bench = Bench(lambda request: ScriptedAnswer((" \n",)))
    with pytest.raises(InvalidValue, match="wrote no summary") as caught:
        await bench.run(build_talk(30))
    assert caught.value.param == "memory_strategy.model"


async def test_an_unknown_or_forbidden_writer_is_named():
    bench = Bench()
    with pytest.raises(ModelNotFound, match=r"memory_strategy\.model") as missing:
        await bench.run(build_talk(30), model="gone")
    with pytest.raises(PermissionDenied, match=r"memory_strategy\.model") as forbidden:
        await bench.run(build_talk(30), actor=replace(LOCAL_ANONYMOUS, grant=Grant(models=("m",))))
    assert {missing.value.param, forbidden.value.param} == {"memory_strategy.model"}
    assert not bench.books.ledger.intents


async def test_errors_name_the_place_of_the_parameters():
    bench = Bench()
    for strategy, param in (
        (Summary(20, "w", "memory_strategy.params"), "tokens"),
        (Summary(20, "gone", "memory_strategy.params"), "model"),
    ):
        request = GenerationRequest("m", (Conversation(build_talk(30)),), memory=strategy)
        with pytest.raises(RequestError, match=rf"^memory_strategy\.params\.{param}: ") as caught:
            async with bench.pipeline.run(request, bench.context) as events:
                await collect(events)
        assert caught.value.param == f"memory_strategy.params.{param}" and not bench.engine.streams


@pytest.mark.parametrize("turns", [1, 30])
async def test_a_writer_without_conversations_is_named(turns):
    for profile in (replace(LONG, chat=False), replace(LONG, embedding=EmbeddingFacts(4, Pooling.MEAN))):
        bench = Bench(profile=profile)
        with pytest.raises(UnsupportedParameter, match="w answers no conversations") as caught:
            await bench.run(build_talk(turns))
        assert caught.value.param == "memory_strategy.model" and not bench.books.ledger.intents


async def test_a_writer_that_is_loaded_late_is_named():
    bench = Bench(kinds=(ScriptedEngine, EmbeddingEngine))
    with pytest.raises(UnsupportedParameter, match="w could not write a summary: it makes vectors") as caught:
        await bench.run(build_talk(30))
    assert caught.value.param == "memory_strategy.model" and not bench.books.ledger.intents


async def test_a_vendor_that_fails_to_write_is_named():
    bench = Bench(lambda request: ScriptedAnswer(error=ProviderFailed("down"), error_after=None))
    with pytest.raises(ProviderFailed) as caught:
        await bench.run(build_talk(30))
    assert caught.value.message == "memory_strategy.model: w could not write a summary: down"
    assert {each.status for each in bench.books.ledger.entries.values()} == {"provider_failed"}


async def test_a_writer_that_counts_no_tokens_reads_in_parts():
    bench = Bench(profile=replace(LONG, context_length=1500), kinds=(ScriptedEngine, UncountingEngine))
    _, report = await bench.run(build_talk(100))
    assert 4 < bench.written <= MAX_PARTS and report.summarised > 180


async def test_a_parked_model_is_loaded_before_its_context_is_known():
    bench = Bench(kinds=(ParkedEngine, ScriptedEngine))
    assert (await bench.run(build_talk(30), None))[1].summarised


@pytest.mark.parametrize(("tokens", "max_tokens", "most"), [(10**9, None, 2047), (1200, 1600, 448)])
async def test_the_budget_leaves_the_answer_its_room(tokens, max_tokens, most):
    bench = Bench()
    seen, report = await bench.run(build_talk(60), tokens, max_tokens=max_tokens)
    assert report.summarised and len(await bench.engine.encode(Conversation(seen))) <= most
    assert bench.engine.streams[-1].request.output.max_tokens == max_tokens


async def test_an_answer_without_room_is_told_before_it_is_paid():
    bench = Bench()
    with pytest.raises(InvalidValue, match=r"can have 48 tokens.*ask for a shorter answer") as caught:
        await bench.run(build_talk(30), max_tokens=2000)
    assert caught.value.param == "memory_strategy.tokens" and not bench.written


async def test_an_unknown_context_needs_a_budget():
    bench = Bench()
    assert (await bench.run(build_talk(30), None))[1].summarised
    bench.engine._profile = replace(SCRIPTED_PROFILE, context_length=None)
    with pytest.raises(MissingParameter) as caught:
        await bench.run(build_talk(30), None)
    assert caught.value.param == "memory_strategy.tokens"


async def test_a_raw_prompt_has_no_summary():
    with pytest.raises(UnsupportedParameter):
        await Bench().run(RawPrompt(text="hi"))


async def test_leaving_ends_the_writer_and_both_rows():
    bench = Bench(lambda request: ScriptedAnswer(("said",), gate=asyncio.Event()))
    running = asyncio.get_running_loop().create_task(bench.run(build_talk(30)))
    while not bench.writer.streams:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    child, parent = bench.books.ledger.entries.values()
    assert (child.status, parent.status, child.parent) == ("cancelled", "cancelled", parent.id)


@hypothesis.given(st.lists(st.integers(1, 400), min_size=1, max_size=30), st.integers(1, 1500))
async def test_no_prompt_exceeds_its_budget(lengths, tokens):
    talk = [Message(Role.SYSTEM, "Be brief.")]
    for at, length in enumerate(lengths):
        talk.append(Message(Role.ASSISTANT if at % 2 else Role.USER, f"question {at} " + "x" * length))
    bench = Bench()
    try:
        seen, report = await bench.run(tuple(talk), tokens)
    except InvalidValue:
        assert not bench.written
        return
    assert seen[0] == talk[0] and seen[-1].text.endswith(talk[-1].text)
    assert report.kept + report.summarised == len(talk) and report.kept == len(seen)
