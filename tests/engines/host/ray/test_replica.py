"""A replica without Ray Serve: calls and replies are bytes, and nothing else leaves it."""

from contextlib import aclosing
from typing import Any

import pytest

from antiphon.domain.models import AdapterLoad, Histogram, Load
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.values import fields
from antiphon.engines.base import LoadSpec, PromptTokens, SequenceFinished, TextPiece, TokenRequest
from antiphon.engines.host.frames import (
    AddAdapterCall,
    CheckCall,
    DoneReply,
    ErrorReply,
    FinishedReply,
    GenerateCall,
    InfoCall,
    InfoReply,
    Reply,
    StartedReply,
    StepsReply,
    TokenizePiecesCall,
    TokensReply,
)
from antiphon.engines.host.ray import replica as frames
from antiphon.engines.host.ray.config import DeploymentSpec
from antiphon.engines.host.ray.load_sums import LoadSums
from antiphon.engines.host.ray.replica import EngineReplica
from antiphon.errors import EngineError, LoadError, ModelFileError
from antiphon_testing import ScriptedTokenEngine

SPEC = DeploymentSpec("m", "antiphon_testing:ScriptedTokenEngine", LoadSpec("/m.gguf"))


class NamedReplica(EngineReplica):
    """A replica that Ray Serve has not made."""

    @staticmethod
    def _get_own_name() -> str:
        return "r1"


async def make(spec: DeploymentSpec = SPEC) -> EngineReplica:
    replica = NamedReplica.__new__(NamedReplica)
    await replica.__init__(spec.name, frames.encode_spec(spec))  # type: ignore[misc]  # as Ray Serve does
    return replica


async def ask(replica: EngineReplica, call) -> frames.ReplicaReply:
    return frames.decode_replica_reply(await replica.ask(frames.encode_call(call)))


async def generate(replica: EngineReplica, frame: bytes) -> list[Reply]:
    async with aclosing(replica.generate(frame, 1)) as replies:
        return [frames.decode_reply(each) async for each in replies]


def sequence(tokens: int = 5, **more) -> GenerateCall:
    return GenerateCall(0, TokenRequest(PromptTokens((1, 2, 3)), tokens, **more))


async def test_a_sequence_is_a_stream_of_replies():
    replies = await generate(await make(), frames.encode_call(sequence()))
    assert isinstance(replies[0], StartedReply) and isinstance(replies[-1], FinishedReply)
    made = [token for each in replies if isinstance(each, StepsReply) for token in each.value.tokens]
    finished = replies[-1].value
    assert isinstance(finished, SequenceFinished) and finished.counts.completion_tokens == len(made) == 5


async def test_other_calls_have_one_answer_with_the_replicas_name():
    replica = await make()
    answer = await ask(replica, TokenizePiecesCall(0, (TextPiece("hello"),), True))
    assert answer.replica == "r1" and isinstance(answer.reply, TokensReply) and answer.reply.value
    assert isinstance((await ask(replica, InfoCall(0))).reply, InfoReply)


async def test_every_error_is_a_reply():
    replica = await make()
    (refused,) = await generate(
        replica, frames.encode_call(GenerateCall(0, TokenRequest(PromptTokens(()), 5)))
    )
    assert isinstance(refused, ErrorReply) and refused.value.code == "invalid_value"
    (unreadable,) = await generate(replica, b"\xc1")
    assert isinstance(unreadable, ErrorReply) and "cannot read this call" in unreadable.value.message
    check = CheckCall(0, Constraint(ConstraintKind.REGEX, "a"))
    answer = (await ask(replica, check)).reply
    assert isinstance(answer, ErrorReply) and answer.value.code == "unsupported_parameter"


async def test_another_release_is_refused_by_name(monkeypatch):
    frame = frames.encode_call(sequence())
    monkeypatch.setattr("antiphon.__version__", "0.0.1")
    (refused,) = await generate(await make(), frame)
    assert isinstance(refused, ErrorReply)
    assert "the replica has release 0.0.1 of Antiphon" in refused.value.message


async def test_a_new_replica_loads_the_adapter_of_a_sequence(tmp_path):
    replica, file = await make(), tmp_path / "adapter.gguf"
    file.write_bytes(b"adapter")
    without = await generate(replica, frames.encode_call(sequence(adapter="digest")))
    assert isinstance(without[0], ErrorReply)
    with_path = frames.encode_call(sequence(adapter="digest"), str(file))
    assert isinstance((await generate(replica, with_path))[-1], FinishedReply)
    assert replica.record_routing_stats() == {"adapters": ["digest"]}
    assert isinstance((await ask(replica, AddAdapterCall(0, "other", str(file)))).reply, DoneReply)
    assert replica.record_routing_stats() == {"adapters": ["digest", "other"]}


async def test_leaving_a_stream_ends_its_sequence():
    replica = await make()
    replies = replica.generate(frames.encode_call(sequence(1000)), 1)
    assert isinstance(frames.decode_reply(await anext(replies)), StartedReply)
    await replies.aclose()
    answer = (await ask(replica, InfoCall(0))).reply
    assert isinstance(answer, InfoReply) and answer.value.load.running == 0


class BrokenEngine(ScriptedTokenEngine):
    """An engine that cannot load."""

    async def load(self, spec: LoadSpec):
        raise ModelFileError(f"{spec.model} is no GGUF file")


async def test_why_a_replica_cannot_load_survives_ray_serves_text():
    broken = DeploymentSpec("m", f"{__name__}:BrokenEngine", LoadSpec("/m.gguf"))
    with pytest.raises(RuntimeError) as failure:
        await make(broken)
    told = f"A replica failed to start. Error:\nTraceback\n  RuntimeError: {failure.value}\nmore"
    error = frames.find_load_error(told)
    assert isinstance(error, ModelFileError) and error.message == "/m.gguf is no GGUF file"
    assert frames.find_load_error("A replica failed to start") is None


async def test_an_environment_without_the_engine_is_told_with_a_remedy():
    missing = DeploymentSpec("m", "no_such_package.engine:Engine", LoadSpec("/m.gguf"))
    with pytest.raises(RuntimeError) as failure:
        await make(missing)
    error = frames.find_load_error(str(failure.value))
    assert isinstance(error, LoadError) and "cluster.interpreter" in error.message


def test_an_answer_that_cannot_be_read_is_an_engine_error():
    for decode in (frames.decode_reply, frames.decode_replica_reply):
        with pytest.raises(EngineError, match="cannot be read"):
            decode(b"\xc1")


def test_every_number_of_a_load_is_in_the_sum():
    sums = LoadSums()
    numbers: dict[str, Any] = {each.name: 2 for each in fields(Load) if each.type is int}
    assert "drafts" in numbers
    for name in ("a", "b"):
        sums.note(name, Load(**numbers))
    assert {name: getattr(sums.sum(), name) for name in numbers} == dict.fromkeys(numbers, 4)


def test_totals_of_an_ended_replica_stay():
    sums = LoadSums()
    adapters = (AdapterLoad("d", 1, 2, 3),)
    sums.note("a", Load(running=3, decoded_tokens=10, queue_seconds=Histogram(total=2.0), adapters=adapters))
    sums.note("b", Load(running=1, decoded_tokens=5, queue_seconds=Histogram(total=1.0), adapters=adapters))
    both = sums.sum()
    assert (both.running, both.decoded_tokens, both.queue_seconds.total) == (4, 15, 3.0)
    assert both.adapters == (AdapterLoad("d", 2, 4, 6),)
    sums.set_replicas({"b"})
    assert (sums.sum().running, sums.sum().decoded_tokens) == (1, 15)
    assert sums.sum().adapters == adapters
    sums.set_replicas(())
    assert (sums.sum().running, sums.sum().decoded_tokens, sums.sum().adapters) == (0, 15, ())
