"""vLLM's endpoints that show token ids: /tokenize and /detokenize."""

from dataclasses import replace
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.base import DetokenizeCall, TokenizeCall
from antiphon.dialects.openai.decode import conversation, sift_messages
from antiphon.dialects.openai.fields import sift
from antiphon.dialects.openai.logprobs import spelt
from antiphon.dialects.openai.places import Place
from antiphon.dialects.openai.shape import shaped
from antiphon.dialects.openai.tools import listed_tools, sift_tools
from antiphon.dialects.openai.wire import (
    MAX_IDS,
    MAX_MESSAGES,
    MAX_TOOLS,
    ChatMessage,
    Name,
    TokenId,
    ToolShape,
)
from antiphon.dialects.strict_json import read_object
from antiphon.domain.request import RawPrompt
from antiphon.domain.tools import Tools
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter

_encode = msgspec.json.Encoder().encode


class TokenizeRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /tokenize: a prompt or messages."""

    model: Name | None = None
    prompt: str | None = None
    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=MAX_MESSAGES)] | None = None
    add_special_tokens: bool | None = None
    """Whether a raw prompt gets the model's begin token; a conversation has what its template writes."""
    add_generation_prompt: bool | None = None
    tools: Annotated[list[ToolShape], Meta(max_length=MAX_TOOLS)] | None = None
    return_token_strs: bool | None = None


class TokenizeAnswer(Struct, frozen=True):
    """The ids, how many they are, and the context they must fit."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | UnsetType = UNSET
    """The text of each, when it was asked for; `bytes:\\xe2\\x98` for part of a character, the name of a
    control token."""


class DetokenizeRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /detokenize."""

    model: Name | None = None
    tokens: Annotated[list[TokenId], Meta(max_length=MAX_IDS)]


class DetokenizeAnswer(Struct, frozen=True):
    """The text, without the space that the tokenizer's prefix added."""

    prompt: str


class VLLMTokens:
    """`TokenOperations` of the dialect."""

    tokenize_path = "/tokenize"
    detokenize_path = "/detokenize"

    def decode_tokenize(self, body: bytes) -> TokenizeCall:
        given, _ = sift(read_object(body), Place.TOKENIZE)
        wire = shaped(sift_tools(sift_messages(given), None), TokenizeRequest)
        if (wire.prompt is None) == (wire.messages is None):
            if wire.prompt is None:
                raise MissingParameter("send prompt or messages", param="prompt")
            raise InvalidValue("send prompt or messages, not both", param="messages")
        texts = bool(wire.return_token_strs)
        if wire.messages is None:
            for name in ("add_generation_prompt", "tools"):
                if getattr(wire, name) is not None:
                    raise InvalidValue(f"{name} is taken only with messages", param=name)
            special = wire.add_special_tokens is not False
            return TokenizeCall(wire.model, RawPrompt(text=wire.prompt), special, texts)
        if wire.add_special_tokens:
            raise UnsupportedParameter(
                "add_special_tokens is not supported with messages: the template writes them; leave it out",
                param="add_special_tokens",
            )
        prompt = conversation(wire.messages, wire.add_generation_prompt is not False)
        tools, _ = listed_tools(wire.tools or ())
        shown = replace(prompt, tools=Tools(tools)) if tools else prompt
        return TokenizeCall(wire.model, shown, True, texts)

    def decode_detokenize(self, body: bytes) -> DetokenizeCall:
        given, _ = sift(read_object(body), Place.DETOKENIZE)
        wire = shaped(given, DetokenizeRequest)
        return DetokenizeCall(wire.model, tuple(wire.tokens))

    def tokenized(
        self, tokens: tuple[int, ...], context_length: int, pieces: tuple[bytes, ...] | None = None
    ) -> bytes:
        texts = UNSET if pieces is None else list(map(spelt, pieces))
        return _encode(TokenizeAnswer(len(tokens), context_length, tokens, texts))

    def detokenized(self, text: str) -> bytes:
        return _encode(DetokenizeAnswer(text))
