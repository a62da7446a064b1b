"""The dialect as one value: its endpoints, its errors, its description."""

from antiphon.dialects.base import Call, Chunks, Description, Head, Operation
from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.describe import describe
from antiphon.dialects.empower.encode import EmpowerChunks, chat_answer
from antiphon.dialects.empower.errors import encode_error
from antiphon.dialects.empower.fields import PREFIX
from antiphon.dialects.empower.loras import EmpowerLoras
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError


class ChatCompletions:
    """POST /empower/api/v1/chat/completions."""

    path = f"{PREFIX}/chat/completions"

    def __init__(self, report: bool) -> None:
        self._report = report

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report)

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

    def __init__(self, report_unknown: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused."""
        self.operations: tuple[Operation, ...] = (ChatCompletions(report_unknown),)
        self.loras = EmpowerLoras()

    def status(self, error: AntiphonError) -> int:
        return error.status

    def error(self, error: AntiphonError) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe()
