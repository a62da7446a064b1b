"""Encodes answers and streams in JamAI Base's form.

JamAI's client reads only `data:` lines and blank lines. It fails at comments and event names.
"""

import msgspec

from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.chunks import ChatChunkBuilder, OpenAIStreamEncoder
from antiphon.dialects.common.encode import build_extras, build_references, build_usage, encode_chat
from antiphon.dialects.common.response_types import ChatChunkChoice
from antiphon.dialects.http_types import Request
from antiphon.dialects.jamai.errors import encode_jamai_error
from antiphon.dialects.jamai.wire_types import (
    JamaiDelta,
    JamaiFunctionPart,
    JamaiToolCallPart,
    JamaiUsage,
)
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.events import ToolCallDelta, ToolCallStarted, Usage
from antiphon.domain.retrieval import References, UnknownCitations
from antiphon.errors import (
    AntiphonError,
)

_encode = msgspec.json.Encoder().encode


class JamaiChunkBuilder(ChatChunkBuilder):
    """Builds OpenAI's chat chunks. JamAI's client needs further keys in each part of a call."""

    def build_call(self, event: ToolCallStarted | ToolCallDelta) -> ChatChunkChoice:
        if isinstance(event, ToolCallStarted):
            call = JamaiToolCallPart(
                index=event.index,
                id=event.id,
                function=JamaiFunctionPart(name=event.name),
                extra_content=build_extras(event.signature),
            )
        else:
            call = JamaiToolCallPart(index=event.index, function=JamaiFunctionPart(arguments=event.arguments))
        return self.build_part(event.choice, JamaiDelta(tool_calls=[call]), event.scores)


class JamaiStreamEncoder(OpenAIStreamEncoder[ChatChunkChoice]):
    """Encodes one stream. Its last chunk always has a usage."""

    def __init__(self, meta: ResponseMeta, call: GenerationCall, request: Request) -> None:
        super().__init__(JamaiChunkBuilder(), meta, call)
        self._request = request

    def encode_references(self, references: References) -> bytes:
        return b"data: %b\n\n" % _encode(build_references(references))

    def encode_unknown_citations(self, unknown: UnknownCitations) -> bytes:
        """Returns nothing: JamAI's clients read references only from the first event."""
        return b""

    def encode_usage(self, usage: Usage) -> bytes:
        shape = build_usage(usage) or JamaiUsage()
        return b"data: %b\n\n" % _encode(
            self._builder.build_chunk(self._meta, [], shape)  # type: ignore[arg-type]
        )

    def encode_error(self, error: AntiphonError) -> bytes:
        return b"data: %b\n\n" % encode_jamai_error(error, self._request)

    def keep_alive(self) -> bytes:
        return b"\n"  # JamAI's client ignores a blank line


class JamaiChatEncoder:
    """Encodes the answers of one chat."""

    def __init__(self, request: Request) -> None:
        self._request = request

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_chat(meta, call, generation, JamaiUsage())

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> JamaiStreamEncoder:
        return JamaiStreamEncoder(meta, call, self._request)
