"""Records the text of a request and its answer, for projects that turned it on."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Finished, ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStarted
from antiphon.ledger.base import Recorder
from antiphon.pipeline.request_meter import RequestMeter


async def record_stream(
    events: AsyncGenerator[Event, None], account: RequestMeter, context: Context, recorder: Recorder
) -> AsyncGenerator[Event, None]:
    """Gives the same events. At the end, for any reason, records the answer, unless the request was refused
    before it ran."""
    heard = RecordedAnswer()
    try:
        async with aclosing(events):
            async for event in events:
                heard.add(event)
                yield event
    finally:
        if account.is_admitted:
            said = context.progress.body.decode("utf-8", "replace")
            recorder.keep(account.id, context.actor.project, account.at, said, heard.to_json())


@dataclass(slots=True)
class RecordedCall:
    """The recorded part of a tool call."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class RecordedChoice:
    """The recorded part of one choice."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, RecordedCall] = field(default_factory=dict)
    reason: str | None = None

    def to_dict(self, index: int) -> dict[str, object]:
        """The JSON form that is stored."""
        shown: dict[str, object] = {
            "index": index,
            "text": "".join(self.text),
            "finish_reason": self.reason,
        }
        if self.reasoning:
            shown["reasoning"] = "".join(self.reasoning)
        if self.calls:
            shown["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": "".join(call.arguments)}
                for call in self.calls.values()
            ]
        return shown


class RecordedAnswer:
    """The recorded part of all choices."""

    def __init__(self) -> None:
        self._choices: dict[int, RecordedChoice] = {}

    def add(self, event: Event) -> None:
        """Records an event of the stream."""
        if isinstance(event, TextDelta):
            self._choice(event.choice).text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._choice(event.choice).reasoning.append(event.text)
        elif isinstance(event, ToolCallStarted):
            self._choice(event.choice).calls[event.index] = RecordedCall(event.id, event.name)
        elif isinstance(event, ToolCallDelta):
            self._choice(event.choice).calls[event.index].arguments.append(event.arguments)
        elif isinstance(event, Finished):
            self._choice(event.choice).reason = event.reason

    def to_json(self) -> str:
        """All choices as JSON. A choice that was cut has no finish reason."""
        choices = [choice.to_dict(index) for index, choice in sorted(self._choices.items())]
        return json.dumps({"choices": choices}, ensure_ascii=False)

    def _choice(self, choice: int) -> RecordedChoice:
        return self._choices.setdefault(choice, RecordedChoice())
