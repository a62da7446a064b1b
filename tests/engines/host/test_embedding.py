"""Vectors across the socket: the same contract, ended from either side, and told truly when the host dies."""

import asyncio
from contextlib import aclosing

import pytest

from antiphon.domain.request import EmbedRequest, Vectors
from antiphon.engines.base import EngineState, LoadSpec, SequenceStarted
from antiphon.engines.host.client import HostTokenEngine, open_host_engine
from antiphon.engines.host.server import serve_engine
from antiphon.errors import EngineDied, EngineUnavailable, InvalidValue, UnsupportedParameter
from antiphon_testing import EmbeddingScript, ScriptedEmbeddingEngine, check_embedding_engine
from antiphon_testing.scripted_engine import make_vector
from tests.support.host_engines import SPEC, create_brief_engine
from tests.support.host_link import open_link, short_directory
from tests.support.waiting import await_until

PATIENCE = 20.0
TEXTS = ((1, 20, 2), (1, 30, 31, 2), (1, 2))


async def vectors(engine: HostTokenEngine) -> list[bytes]:
    return [event.values async for event in engine.embed(EmbedRequest(TEXTS)) if isinstance(event, Vectors)]


async def test_the_contract_holds_across_the_socket() -> None:
    async with open_link(ScriptedEmbeddingEngine(spec=LoadSpec("scripted", queue=4))) as link:
        await check_embedding_engine(link.client, queue=4)


async def test_vectors_are_refused_where_the_engine_makes_none() -> None:
    async with open_link(create_brief_engine()) as link:
        with pytest.raises(UnsupportedParameter, match="makes no vectors"):
            await vectors(link.client)
    async with open_link(ScriptedEmbeddingEngine()) as link:
        with pytest.raises(InvalidValue, match="token ids go from 0"):
            await anext(link.client.embed(EmbedRequest(((10**9,),))))
        assert await vectors(link.client) == [make_vector(text) for text in TEXTS]


async def test_leaving_ends_the_work_on_the_other_side() -> None:
    engine = ScriptedEmbeddingEngine(EmbeddingScript(hold=asyncio.Event()))
    async with open_link(engine) as link, asyncio.timeout(PATIENCE):
        async with aclosing(link.client.embed(EmbedRequest(TEXTS))) as events:
            assert isinstance(await anext(events), SequenceStarted)
        await await_until(lambda: engine.ended_count)


@pytest.mark.parametrize(
    ("script", "error"),
    [
        (EmbeddingScript(hold=asyncio.Event()), EngineDied),
        (EmbeddingScript(error=EngineUnavailable("not yet"), error_after=None), EngineUnavailable),
    ],
)
async def test_what_a_loss_means_depends_on_whether_it_was_begun(
    script: EmbeddingScript, error: type[Exception]
) -> None:
    with short_directory() as place:
        path = str(place / "0.sock")
        async with open_host_engine(path, "x") as client, asyncio.timeout(PATIENCE):
            async with serve_engine(ScriptedEmbeddingEngine(script), path):
                await client.load(SPEC)
                events = client.embed(EmbedRequest(TEXTS))
                if error is EngineDied:
                    assert isinstance(await anext(events), SequenceStarted)
                else:
                    with pytest.raises(EngineUnavailable):
                        await anext(events)
            if error is EngineDied:
                with pytest.raises(EngineDied):
                    _ = [event async for event in events]
            await await_until(lambda: client.state() is EngineState.RESTARTING)
            async with serve_engine(ScriptedEmbeddingEngine(), path):
                await client.load(SPEC)
                assert await vectors(client) == [make_vector(text) for text in TEXTS]
