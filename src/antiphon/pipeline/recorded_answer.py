"""The texts of an answer, for projects that record their requests and for spans that contain texts."""

import json

from antiphon.domain.events import (
    Event,
    EventGroup,
    Finished,
    ReasoningDelta,
    SpeechDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from antiphon.domain.retrieval import References
from antiphon.domain.values import Struct, field


class RecordedCall(Struct):
    """The recorded part of a tool call."""

    id: str
    name: str
    arguments: list[str] = field(default_factory=list)


class RecordedChoice(Struct):
    """The recorded part of one choice."""

    text: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: dict[int, RecordedCall] = field(default_factory=dict)
    transcript: list[str] = field(default_factory=list)
    """The transcript of the speech. The audio is not recorded."""
    finish_reason: str | None = None

    def to_dict(self, index: int) -> dict[str, object]:
        """Returns the choice in the JSON form that is stored."""
        fields: dict[str, object] = {
            "index": index,
            "text": "".join(self.text),
            "finish_reason": self.finish_reason,
        }
        if self.reasoning:
            fields["reasoning"] = "".join(self.reasoning)
        if self.transcript:
            fields["transcript"] = "".join(self.transcript)
        if self.calls:
            fields["tool_calls"] = [
                {"id": call.id, "name": call.name, "arguments": "".join(call.arguments)}
                for call in self.calls.values()
            ]
        return fields


class RecordedAnswer:
    """The recorded part of all choices."""

    def __init__(self) -> None:
        self._choices: dict[int, RecordedChoice] = {}
        self._references: References | None = None

    def add(self, group: EventGroup) -> None:
        """Records events of the stream."""
        for event in group:
            self._add_event(event)

    def _add_event(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._get_choice(event.choice).text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._get_choice(event.choice).reasoning.append(event.text)
        elif isinstance(event, SpeechDelta):
            self._get_choice(event.choice).transcript.append(event.transcript)
        elif isinstance(event, ToolCallStarted):
            self._get_choice(event.choice).calls[event.index] = RecordedCall(event.id, event.name)
        elif isinstance(event, ToolCallDelta):
            self._get_choice(event.choice).calls[event.index].arguments.append(event.arguments)
        elif isinstance(event, Finished):
            self._get_choice(event.choice).finish_reason = event.reason
        elif isinstance(event, References):
            self._references = event

    def to_json(self) -> str:
        """Returns all choices as JSON, and the query and the ids of chunks if a knowledge table was searched.
        A choice that was cut off has no finish reason."""
        choices = [choice.to_dict(index) for index, choice in sorted(self._choices.items())]
        fields: dict[str, object] = {"choices": choices}
        if (references := self._references) is not None:
            fields["references"] = {
                "table_id": references.table,
                "search_query": references.query,
                "chunks": [
                    {"document_id": chunk.document, "chunk_id": chunk.id} for chunk in references.chunks
                ],
            }
        return json.dumps(fields, ensure_ascii=False)

    def list_choices(self) -> list[RecordedChoice]:
        """Returns the choices in order."""
        return [choice for _, choice in sorted(self._choices.items())]

    def _get_choice(self, choice: int) -> RecordedChoice:
        return self._choices.setdefault(choice, RecordedChoice())
