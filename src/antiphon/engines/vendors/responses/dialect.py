"""`UpstreamDialect` of OpenAI's API whose chats are responses. Everything else is as in `OpenAIUpstream`."""

from collections.abc import Iterable

from antiphon.domain.events import Event
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.vendors.base import Attributes, StreamDecoder, UpstreamCall, VendorModel
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.responses.decode import ResponseReader
from antiphon.engines.vendors.responses.encode import encode_conversation


class ResponsesUpstream(OpenAIUpstream):
    """OpenAI's responses, completions and embeddings."""

    def encode(self, request: GenerationRequest, model: VendorModel, attributes: Attributes) -> UpstreamCall:
        prompt = request.prompts[0]
        if isinstance(prompt, Conversation):
            return encode_conversation(request, prompt, model, attributes)
        return super().encode(request, model, attributes)

    def decode_answer(self, request: GenerationRequest, model: VendorModel, body: bytes) -> Iterable[Event]:
        if isinstance(request.prompts[0], Conversation):
            reader = ResponseReader(request, model)
            return (*reader.read_answer(body), *reader.close())
        return super().decode_answer(request, model, body)

    def start_stream(self, request: GenerationRequest, model: VendorModel) -> StreamDecoder:
        if isinstance(request.prompts[0], Conversation):
            return ResponseReader(request, model)
        return super().start_stream(request, model)
