"""The dialect as one value: its endpoints, its errors, its description."""

from antiphon.dialects.base import (
    AdapterOperations,
    Call,
    Chunks,
    Description,
    EmbeddingOperation,
    Head,
    ModelOperations,
    Operation,
    TokenOperations,
)
from antiphon.dialects.openai.adapters import VLLMAdapters
from antiphon.dialects.openai.decode import decode_chat, decode_text
from antiphon.dialects.openai.describe import describe, fields
from antiphon.dialects.openai.embeddings import OpenAIEmbeddings
from antiphon.dialects.openai.encode import OpenAIChunks, chat_answer, spelling, text_answer
from antiphon.dialects.openai.errors import encode_error
from antiphon.dialects.openai.forms import ChatForm, TextForm
from antiphon.dialects.openai.models import OpenAIModels
from antiphon.dialects.openai.tokens import VLLMTokens
from antiphon.domain.collect import Generation
from antiphon.errors import AntiphonError


class ChatCompletions:
    """POST /v1/chat/completions."""

    path = "/v1/chat/completions"

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_chat(body, self._report, self._strict)

    def answer(self, head: Head, call: Call, generation: Generation) -> bytes:
        return chat_answer(head, call, generation)

    def chunks(self, head: Head, call: Call) -> Chunks:
        return OpenAIChunks(ChatForm(spelling(call)), head, call)


class Completions:
    """POST /v1/completions."""

    path = "/v1/completions"

    def __init__(self, report: bool, strict: bool = False) -> None:
        self._report = report
        self._strict = strict

    def decode(self, body: bytes) -> Call:
        return decode_text(body, self._report, self._strict)

    def answer(self, head: Head, call: Call, generation: Generation) -> bytes:
        return text_answer(head, call, generation)

    def chunks(self, head: Head, call: Call) -> Chunks:
        return OpenAIChunks(TextForm(bool(call.request.output.logprobs), spelling(call)), head, call)


class OpenAI:
    """OpenAI's dialect. Holds no state; one value serves every request."""

    name = "openai"
    prefix = ""

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        """`report_unknown`: whether a generation's unknown fields are named in the answer, not refused;
        `strict_schemas`: whether a schema is refused of which a keyword is not kept."""
        self.operations: tuple[Operation, ...] = (
            ChatCompletions(report_unknown, strict_schemas),
            Completions(report_unknown, strict_schemas),
        )
        self.models: ModelOperations = OpenAIModels()
        self.tokens: TokenOperations = VLLMTokens()
        self.adapters: AdapterOperations = VLLMAdapters()
        self.embeddings: EmbeddingOperation = OpenAIEmbeddings(report_unknown)

    def status(self, error: AntiphonError) -> int:
        return error.status

    def error(self, error: AntiphonError) -> bytes:
        return encode_error(error)

    def describe(self) -> Description:
        return describe()

    def fields(self) -> frozenset[str]:
        return fields()
