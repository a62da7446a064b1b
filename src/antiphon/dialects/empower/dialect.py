"""The dialect as one value: its endpoints, its errors, its description."""

from antiphon.dialects.base import Call, Chunks, Description, Head, Operation
from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.describe import describe, fields
from antiphon.dialects.empower.encode import EmpowerChunks, chat_answer
from antiphon.dialects.empower.errors import encode_error
from antiphon.dialects.empower.fields import PREFIX
from antiphon.dialects.empower.loras import EmpowerLoras
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError


class ChatCompletions:
    """POST /empower/api/v1/chat/completions."""

    path = f"{PREFIX}/chat/completions"

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report, self._strict)

    def answer(self, head: Head, call: Call, generation: Generation) -> bytes:
        return chat_answer(head, generation)

    def chunks(self, head: Head, call: Call) -> Chunks:
        return EmpowerChunks(head, call)


class Empower:
    """Empower's dialect. Holds no state; one value serves every request."""

    name = "empower"
    prefix = "/empower"
    models = None
    """LoRAs and base models have lists of their own."""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused;
        `strict_schemas`: whether a schema is refused of which a keyword is not kept."""
        self.operations: tuple[Operation, ...] = (ChatCompletions(report_unknown, strict_schemas),)
        self.loras = EmpowerLoras()

    def status(self, error: AntiphonError) -> int:
        return error.status

    def error(self, error: AntiphonError) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe()

    def fields(self) -> frozenset[str]:
        return fields()
