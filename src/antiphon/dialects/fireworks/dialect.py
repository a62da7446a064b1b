"""The dialect as one value: its endpoints, its errors, its description."""

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.dialects.base import Call, Description, ResponseMeta, StreamEncoder
from antiphon.dialects.common.endpoints import declare_generation, model_list
from antiphon.dialects.fireworks import answers, wire
from antiphon.dialects.fireworks.decode import decode_chat, decode_text
from antiphon.dialects.fireworks.describe import describe_endpoints, list_all_fields
from antiphon.dialects.fireworks.encode import (
    FireworksChatChunkBuilder,
    FireworksStreamEncoder,
    FireworksTextChunkBuilder,
    encode_chat,
    encode_text,
)
from antiphon.dialects.fireworks.errors import encode_fireworks_error, map_status
from antiphon.dialects.fireworks.fields import PREFIX, FireworksScope
from antiphon.dialects.fireworks.models import FireworksModels
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError

NAME = "fireworks"


class FireworksCompletions:
    """Body and answers of POST /fireworks/inference/v1/completions."""

    shapes = (wire.FireworksCompletionRequest, answers.FireworksCompletion, answers.FireworksCompletion)

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_text(body, self._report, self._strict)

    def answer(self, meta: ResponseMeta, call: Call, declare_generation: Generation) -> bytes:
        return encode_text(meta, call, declare_generation)

    def encoder(self, meta: ResponseMeta, call: Call) -> StreamEncoder:
        return FireworksStreamEncoder(FireworksTextChunkBuilder(call), meta, call)


class FireworksChatCompletions:
    """Body and answers of POST /fireworks/inference/v1/chat/completions."""

    shapes = (
        wire.FireworksChatCompletionRequest,
        answers.FireworksChatCompletion,
        answers.FireworksChatCompletionChunk,
    )

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report, self._strict)

    def answer(self, meta: ResponseMeta, call: Call, declare_generation: Generation) -> bytes:
        return encode_chat(meta, call, declare_generation)

    def encoder(self, meta: ResponseMeta, call: Call) -> StreamEncoder:
        return FireworksStreamEncoder(FireworksChatChunkBuilder(call), meta, call)


class Fireworks:
    """Fireworks' dialect. Holds no state; one value serves every request."""

    name = NAME
    prefix = "/fireworks"
    aliases: Mapping[str, str] = MappingProxyType({"accounts/fireworks/models/*": "*"})
    """How its callers name models, as a rule of aliases; those of the settings come before it."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused;
        `strict_schemas`: whether a schema is refused of which a keyword is not kept."""
        text = FireworksCompletions(report_unknown, strict_schemas)
        chat = FireworksChatCompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, FireworksScope.TEXT, "Continue a text", text),
            declare_generation(NAME, FireworksScope.CHAT, "Answer a conversation", chat),
            *model_list(f"{PREFIX}/models", FireworksModels()),
        )

    def status(self, error: AntiphonError) -> int:
        return map_status(error)

    def error(self, error: AntiphonError) -> bytes:
        return encode_fireworks_error(error)

    def describe(self) -> Description:
        return describe_endpoints(self.endpoints)

    def fields(self) -> frozenset[str]:
        return list_all_fields(self.endpoints)
