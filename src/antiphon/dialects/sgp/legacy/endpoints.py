"""The endpoints of the older API."""

from antiphon.dialects.base import Endpoint, GenerationCall, ResponseMeta, StreamEncoder
from antiphon.dialects.common.endpoints import declare_generation
from antiphon.dialects.sgp.legacy import wire_types
from antiphon.dialects.sgp.legacy.decode import decode_legacy_chat, decode_legacy_text
from antiphon.dialects.sgp.legacy.encode import (
    LegacyStreamEncoder,
    build_chat_answer,
    build_text_answer,
    encode_answer,
)
from antiphon.dialects.sgp.legacy.fields import LegacyScope
from antiphon.domain.collect import CollectedGeneration


class LegacyChatCompletions:
    """Decodes and encodes POST /sgp/v4/chat-completions."""

    shapes = (wire_types.LegacyChatRequest, wire_types.LegacyChatAnswer, wire_types.LegacyChatAnswer)

    def __init__(self, report_unknown: bool) -> None:
        self._reports_unknown = report_unknown

    def decode(self, body: bytes) -> GenerationCall:
        return decode_legacy_chat(body, self._reports_unknown)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_answer(build_chat_answer, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return LegacyStreamEncoder(build_chat_answer)


class LegacyCompletions:
    """Decodes and encodes POST /sgp/v4/completions."""

    shapes = (wire_types.LegacyTextRequest, wire_types.LegacyTextAnswer, wire_types.LegacyTextAnswer)

    def __init__(self, report_unknown: bool) -> None:
        self._reports_unknown = report_unknown

    def decode(self, body: bytes) -> GenerationCall:
        return decode_legacy_text(body, self._reports_unknown)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_answer(build_text_answer, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return LegacyStreamEncoder(build_text_answer)


def declare_legacy(dialect: str, report_unknown: bool) -> tuple[Endpoint, Endpoint]:
    """Declares both endpoints. `report_unknown`: unknown fields are ignored and named instead of refused."""
    chat, text = LegacyChatCompletions(report_unknown), LegacyCompletions(report_unknown)
    return (
        declare_generation(dialect, LegacyScope.CHAT, "Answer a conversation, in Scale's older form", chat),
        declare_generation(dialect, LegacyScope.TEXT, "Continue a text, in Scale's older form", text),
    )
