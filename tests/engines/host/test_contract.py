"""An engine behind the socket keeps the contract that it keeps without one."""

from antiphon.engines.base import EngineState, TextPiece
from antiphon.testing import Script, ScriptedTokenEngine, check_token_engine, scripted_info
from tests.support.host_engines import SPEC
from tests.support.host_link import open_link


async def test_the_stand_in_keeps_the_contract_of_token_engines() -> None:
    engine = ScriptedTokenEngine(Script(prefill=0.001), info=scripted_info(context_length=256, sequences=4))
    async with open_link(engine) as link:
        await check_token_engine(link.client)


async def test_facts_and_vocabulary_arrive_as_they_are() -> None:
    engine = ScriptedTokenEngine()
    async with open_link(engine) as link:
        assert await link.client.load(SPEC) == await engine.info()
        assert await link.client.vocabulary() == engine.table
        pieces = [TextPiece("Grüße 😀 \x00", False), TextPiece("<|im_end|>", True)]
        assert await link.client.tokenize(pieces, True) == engine.tokenizer.encode(pieces, True)
        assert link.client.state() is EngineState.READY
