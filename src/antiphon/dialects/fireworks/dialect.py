"""The dialect as one value: its endpoints, its errors, its description."""

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.dialects.base import Call, Chunks, Description, Head, ModelOperations, Operation
from antiphon.dialects.fireworks.decode import decode_chat, decode_text
from antiphon.dialects.fireworks.describe import describe, fields
from antiphon.dialects.fireworks.encode import ChatForm, FireworksChunks, TextForm, chat_answer, text_answer
from antiphon.dialects.fireworks.errors import encode_error, status
from antiphon.dialects.fireworks.fields import Place
from antiphon.dialects.fireworks.models import FireworksModels
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError


class Completions:
    """POST /fireworks/inference/v1/completions."""

    path = Place.TEXT.value

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_text(body, self._report, self._strict)

    def answer(self, head: Head, call: Call, generation: Generation) -> bytes:
        return text_answer(head, call, generation)

    def chunks(self, head: Head, call: Call) -> Chunks:
        return FireworksChunks(TextForm(call), head, call)


class ChatCompletions:
    """POST /fireworks/inference/v1/chat/completions."""

    path = Place.CHAT.value

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report, self._strict)

    def answer(self, head: Head, call: Call, generation: Generation) -> bytes:
        return chat_answer(head, call, generation)

    def chunks(self, head: Head, call: Call) -> Chunks:
        return FireworksChunks(ChatForm(call), head, call)


class Fireworks:
    """Fireworks' dialect. Holds no state; one value serves every request."""

    name = "fireworks"
    prefix = "/fireworks"
    aliases: Mapping[str, str] = MappingProxyType({"accounts/fireworks/models/*": "*"})
    """How its callers name models, as a rule of aliases; those of the settings come before it."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused;
        `strict_schemas`: whether a schema is refused of which a keyword is not kept."""
        self.operations: tuple[Operation, ...] = (
            Completions(report_unknown, strict_schemas),
            ChatCompletions(report_unknown, strict_schemas),
        )
        self.models: ModelOperations = FireworksModels()

    def status(self, error: AntiphonError) -> int:
        return status(error)

    def error(self, error: AntiphonError) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe()

    def fields(self) -> frozenset[str]:
        return fields()
