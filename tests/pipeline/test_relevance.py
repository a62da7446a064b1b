"""The memory strategy `relevant` in the pipeline: what stays, what it costs, and what is refused."""

from array import array

import pytest

from antiphon.domain.collect import collect
from antiphon.domain.context import Context
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.memory import MemoryReport, RelevantTurns
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, Embeddings, GenerationRequest
from antiphon.domain.tenancy import Grant
from antiphon.domain.values import replace
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.errors import (
    ContextLengthExceeded,
    InvalidValue,
    ModelNotFound,
    PermissionDenied,
    ProviderFailed,
    RequestError,
    UnsupportedParameter,
)
from antiphon.pipeline.remember import TurnVectors
from antiphon.pipeline.run import Pipeline
from antiphon.telemetry.metrics import Metrics
from antiphon_testing.scripted_engine import ScriptedEngine
from tests.support.accounting import Books, limit
from tests.support.retrieval_engines import OneAnswer, VectorEngine, list_messages, vector_of

TURNS = ("red", "yellow", "blue", "yellow", "green")


def build_talk(colours=TURNS, question="a yellow one"):
    messages = [Message(Role.SYSTEM, "Be brief.")]
    for at, colour in enumerate(colours):
        messages.append(Message(Role.USER, f"{at} {colour} " + "x" * 40))
        messages.append(Message(Role.ASSISTANT, "y" * 40))
    return (*messages, Message(Role.USER, question))


class ShortEncoder(VectorEngine):
    """Takes texts of at most 100 characters."""

    async def prepare_embedding(self, request, context):
        if any(len(text.text) > 100 for text in request.inputs):
            raise ContextLengthExceeded("too long", param="input")
        return await super().prepare_embedding(request, context)


class WideEncoder(VectorEngine):
    """Makes vectors of three numbers."""

    async def prepare_embedding(self, request, context):
        self.prepared += 1
        vectors = b"".join(array("f", (*vector_of(text.text), 0.0)).tobytes() for text in request.inputs)
        return OneAnswer(Embeddings(vectors, 3, 5))


class BrokenEncoder(VectorEngine):
    """A vendor's model that fails."""

    async def prepare_embedding(self, request, context):
        raise ProviderFailed("down")


class Bench:
    """A model `m` that answers and an embedding model `e`."""

    def __init__(self, encoder=VectorEngine):
        self.engine, self.encoder, self.books = ScriptedEngine(), encoder(), Books(limit())
        engines = {"m": self.engine, "e": self.encoder}
        models = tuple(Model(name, (ModelRoute(each, name=name),), 1) for name, each in engines.items())
        self.pipeline = Pipeline(ModelRegistry(models), Metrics(), 1.0, self.books.accounting)

    async def run(self, messages=None, tokens=250, model="e", actor=LOCAL_ANONYMOUS):
        """The numbers of the older turns that `m` saw, and the report."""
        messages = messages or build_talk()
        context = Context("req-1", actor, clock=self.books.clock)
        memory = RelevantTurns(tokens, model)
        request = GenerationRequest("m", (Conversation(messages),), memory=memory)
        async with self.pipeline.run(request, context) as events:
            await collect(events)
        seen = list_messages(self.engine.streams[-1].request)
        assert (seen[0], seen[-1]) == (messages[0], messages[-1])
        assert tokens is None or len(await self.engine.encode(Conversation(seen))) <= tokens
        return [
            each.text.split()[0] for each in seen[1:-1] if each.role is Role.USER
        ], context.progress.memory


async def test_turns_near_to_the_question_stay():
    bench = Bench()
    assert await bench.run() == (["1", "3"], MemoryReport(6, 6))
    assert (await bench.run(build_talk(question="a blue one")))[0] == ["2", "4"]


async def test_what_fits_stays_and_costs_nothing():
    bench = Bench()
    assert await bench.run(tokens=2000) == (["0", "1", "2", "3", "4"], MemoryReport(12))
    assert not bench.encoder.prepared and len(bench.books.ledger.entries) == 1


async def test_the_vectors_are_children_and_kept():
    bench = Bench()
    await bench.run()
    child, parent = bench.books.ledger.entries.values()
    assert (child.parent, child.model, parent.parent) == (parent.id, "e", None)
    assert await bench.books.used() == [1]
    await bench.run()
    assert len(bench.books.ledger.entries) == 3 and bench.encoder.prepared == 1
    await bench.run(actor=replace(LOCAL_ANONYMOUS, project="other"))
    assert bench.encoder.prepared == 2


async def test_another_model_of_the_same_name_makes_its_own():
    bench = Bench()
    await bench.run()
    wide = WideEncoder()
    bench.pipeline.models.put(Model("e", (ModelRoute(wide, name="e"),), 2))
    assert (await bench.run())[0] == ["1", "3"] and wide.prepared == 1


async def test_a_vendor_that_makes_no_vectors_is_named():
    bench = Bench(BrokenEncoder)
    with pytest.raises(ProviderFailed) as caught:
        await bench.run()
    assert caught.value.message == "memory_strategy.model: e could not make vectors: down"


async def test_longer_texts_than_the_model_takes_are_cut():
    bench = Bench(ShortEncoder)
    talk = list(build_talk())
    talk[3] = Message(Role.USER, "1 yellow " + "x" * 300)
    seen, _ = await bench.run(tuple(talk), tokens=600)
    assert seen and bench.encoder.prepared == 1


async def test_without_a_budget_half_of_the_context_is_taken():
    bench = Bench()
    seen, report = await bench.run(build_talk(TURNS * 6), tokens=None)
    assert len(seen) > 5 and all(int(number) % 5 in (1, 3) for number in seen) and report.dropped


@pytest.mark.parametrize(
    ("fields", "error", "param"),
    [
        ({"tokens": 5}, InvalidValue, "memory_strategy.tokens"),
        ({"model": "gone"}, ModelNotFound, "memory_strategy.model"),
        ({"model": "m"}, UnsupportedParameter, "memory_strategy.model"),
        (
            {"actor": replace(LOCAL_ANONYMOUS, grant=Grant(models=("m",)))},
            PermissionDenied,
            "memory_strategy.model",
        ),
    ],
)
async def test_what_cannot_be_is_refused_by_name(fields, error, param):
    bench = Bench()
    with pytest.raises(error) as caught:
        await bench.run(**fields)
    assert isinstance(caught.value, RequestError) and caught.value.param == param
    assert not bench.engine.streams


def test_kept_vectors_are_bounded():
    kept = TurnVectors(2)
    for text in "abc":
        kept.add("p", "m", text, text.encode())
        kept.find("p", "m", "a")
    assert [kept.find("p", "m", text) for text in "abc"] == [b"a", None, b"c"]
