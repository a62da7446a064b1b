"""The dialect as one value: its endpoints, its errors, its description."""

from antiphon.dialects.base import Call, Description, ResponseMeta, StreamEncoder
from antiphon.dialects.common.endpoints import declare_generation, deployment_endpoints
from antiphon.dialects.empower import answers, wire
from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.describe import describe_endpoints, list_all_fields
from antiphon.dialects.empower.encode import EmpowerStreamEncoder, encode_chat
from antiphon.dialects.empower.errors import encode_flat_error
from antiphon.dialects.empower.fields import PREFIX, EmpowerScope
from antiphon.dialects.empower.loras import EmpowerLoras
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError

NAME = "empower"


class EmpowerChatCompletions:
    """Body and answers of POST /empower/api/v1/chat/completions."""

    shapes = (wire.ChatRequest, answers.ChatAnswer, answers.ChatChunk)

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report, self._strict)

    def answer(self, meta: ResponseMeta, call: Call, declare_generation: Generation) -> bytes:
        return encode_chat(meta, declare_generation)

    def encoder(self, meta: ResponseMeta, call: Call) -> StreamEncoder:
        return EmpowerStreamEncoder(meta, call)


class Empower:
    """Empower's dialect. Holds no state; one value serves every request."""

    name = NAME
    prefix = "/empower"

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused;
        `strict_schemas`: whether a schema is refused of which a keyword is not kept."""
        chat = EmpowerChatCompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, EmpowerScope.CHAT, "Answer a conversation, as Empower does", chat),
            *deployment_endpoints(EmpowerScope.DEPLOY, f"{PREFIX}/base-model", EmpowerLoras()),
        )

    def status(self, error: AntiphonError) -> int:
        return error.status

    def error(self, error: AntiphonError) -> bytes:
        return encode_flat_error(error)

    def describe(self) -> Description:
        return describe_endpoints(self.endpoints)

    def fields(self) -> frozenset[str]:
        return list_all_fields(self.endpoints)
