"""An engine behind the socket keeps the contract that it keeps without one."""

from antiphon.engines.base import EngineState, TextPiece, TokenRequest
from antiphon_testing import Script, ScriptedTokenEngine, check_token_engine, scripted_info
from antiphon_testing.rules import UNTIL_CLOSED
from tests.support.host_engines import SPEC
from tests.support.host_link import open_link


async def test_the_stand_in_keeps_the_contract_of_token_engines() -> None:
    def choose_script(request: TokenRequest) -> Script:
        """The host goes on with what nobody reads: what runs until it is closed takes its time."""
        return Script(prefill=0.001, pace=0.02 if request.max_tokens == UNTIL_CLOSED else 0.0)

    engine = ScriptedTokenEngine(choose_script, info=scripted_info(context_length=256, sequences=4))
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
