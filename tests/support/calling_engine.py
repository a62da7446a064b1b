"""A scripted token engine for conversations with tools."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.domain.request import Constraint
from antiphon.domain.values import replace
from antiphon.engines.base import TokenEvent, TokenRequest
from antiphon_testing import ScriptedTokenEngine


class CallingEngine(ScriptedTokenEngine):
    """One whose scripts keep every constraint. `constraints`: those of the requests."""

    constraints: tuple[str, ...] = ()

    async def check(self, constraint: Constraint) -> None:
        self.constraints += (constraint.source,)

    async def generate(self, request: TokenRequest) -> AsyncGenerator[TokenEvent, None]:
        async with aclosing(super().generate(replace(request, constraint=None))) as events:
            async for event in events:
                yield event

    def list_prompts(self) -> list[str]:
        """The prompts as text, with the names of control tokens."""
        prompts = [request.prompt.ids for request in self.requests]
        return [b"".join(self.table.pieces[token] for token in prompt).decode() for prompt in prompts]
