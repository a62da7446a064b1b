"""Hands the words of a request and of its answer to whoever keeps them, where the project wants that."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Finished, ReasoningDelta, TextDelta, ToolCallBegun, ToolCallDelta
from antiphon.ledger.base import Recorder
from antiphon.pipeline.account import Account


async def recorded(
    events: AsyncGenerator[Event, None], account: Account, context: Context, recorder: Recorder
) -> AsyncGenerator[Event, None]:
    """The same events; when they end, for whatever reason, what was said is handed on, unless the request was
    refused before anything was made."""
    heard = Heard()
    try:
        async with aclosing(events):
            async for event in events:
                heard.add(event)
                yield event
    finally:
        if account.is_admitted:
            said = context.progress.body.decode("utf-8", "replace")
            recorder.keep(account.id, context.actor.project, account.at, said, heard.answer())


class Heard:
    """What the choices of one answer have said so far."""

    def __init__(self) -> None:
        self._choices: dict[int, dict[str, Any]] = {}

    def add(self, event: Event) -> None:
        """Takes an event of the stream, whatever it is."""
        if isinstance(event, TextDelta):
            self._of(event.choice)["text"].append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._of(event.choice)["reasoning"].append(event.text)
        elif isinstance(event, ToolCallBegun):
            call: dict[str, Any] = {"id": event.id, "name": event.name, "arguments": []}
            self._of(event.choice)["tool_calls"][event.index] = call
        elif isinstance(event, ToolCallDelta):
            self._of(event.choice)["tool_calls"][event.index]["arguments"].append(event.arguments)
        elif isinstance(event, Finished):
            self._of(event.choice)["finish_reason"] = event.reason

    def answer(self) -> str:
        """All choices as JSON; one that was cut has no finish reason."""
        return json.dumps(
            {"choices": [self._shown(index) for index in sorted(self._choices)]}, ensure_ascii=False
        )

    def _of(self, choice: int) -> dict[str, Any]:
        return self._choices.setdefault(
            choice, {"text": [], "reasoning": [], "tool_calls": {}, "finish_reason": None}
        )

    def _shown(self, index: int) -> dict[str, Any]:
        choice = self._choices[index]
        shown = {"index": index, "text": "".join(choice["text"]), "finish_reason": choice["finish_reason"]}
        if choice["reasoning"]:
            shown["reasoning"] = "".join(choice["reasoning"])
        if choice["tool_calls"]:
            shown["tool_calls"] = [
                {**call, "arguments": "".join(call["arguments"])} for call in choice["tool_calls"].values()
            ]
        return shown
