"""Endpoints that show the processing of a request: vLLM's /tokenize, /detokenize and /tokenizer_info, and
llama.cpp's /apply-template."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.base import Endpoint, Handler, RequestBody
from antiphon.dialects.calls import ApplyCall, DetokenizeCall, TokenizeCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.encode import spell_token
from antiphon.dialects.common.endpoints import declare_get, decode_body
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import FIELD_TABLE, FieldScope, filter_fields
from antiphon.dialects.common.messages import (
    build_conversation,
    build_messages,
    filter_messages,
    has_ignored_parts,
)
from antiphon.dialects.common.request_types import (
    ApplyRequest,
    ChatMessage,
    ConversationRequest,
    DetokenizeRequest,
    TokenizeRequest,
)
from antiphon.dialects.common.tools import build_tools, filter_tools
from antiphon.dialects.http_types import JSON, Answer, Request, Response
from antiphon.dialects.services import PromptTokens, Services
from antiphon.domain.identity import Right
from antiphon.domain.messages import Tools
from antiphon.domain.models import TokenizerInfo
from antiphon.domain.request import Conversation, RawPrompt
from antiphon.errors import InvalidValue, MissingParameter

MESSAGE_FIELDS = (
    "add_generation_prompt continue_final_message chat_template chat_template_kwargs documents tools".split()
)
"""Fields that are allowed only with messages."""

MODEL_QUERY: Mapping[str, Any] = {
    "name": "model",
    "in": "query",
    "description": "Name of a model; may be left out when there is only one",
    "schema": {"type": "string"},
}

_encode = msgspec.json.Encoder().encode

DETOKENIZE_BODY = BodyDecoder(DetokenizeRequest, FIELD_TABLE, FieldScope.DETOKENIZE)


class ApplyAnswer(Struct, frozen=True):
    """The rendered text of the template, with the names of control tokens."""

    prompt: str


class TokenizeAnswer(Struct, frozen=True):
    """The token ids, their number, and the length of the context."""

    count: int
    max_model_len: int
    tokens: tuple[int, ...]
    token_strs: list[str] | UnsetType = UNSET
    r"""The text of each token, if the caller asked for it. It is `bytes:\xe2\x98` for part of a character,
    and the name for a control token."""


class DetokenizeAnswer(Struct, frozen=True):
    """The text, without the space that the tokenizer's prefix added."""

    prompt: str


class AddedToken(Struct, frozen=True, kw_only=True):
    """A control token, as the transformers library writes it."""

    content: str
    lstrip: bool = False
    normalized: bool = False
    rstrip: bool = False
    single_word: bool = False
    special: bool = True


class TokenizerConfig(Struct, frozen=True, kw_only=True):
    """A model's tokenizer, in the form of `tokenizer_config.json` of the transformers library."""

    tokenizer_class: str = "PreTrainedTokenizerFast"
    """The general class of the library, because the model file contains no class."""
    model_max_length: int
    """The most tokens that a prompt and its answer can have together."""
    bos_token: str | None
    eos_token: str | None
    add_bos_token: bool
    """Whether the tokenizer adds the begin token to a text prompt."""
    clean_up_tokenization_spaces: bool = False
    added_tokens_decoder: dict[str, AddedToken]
    """The control tokens by id."""
    additional_special_tokens: list[str]
    """The names of the control tokens, except those of the begin and end tokens."""
    chat_template: str | None
    """The model's own template in Jinja."""


def filter_conversation(scope: FieldScope, fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body. No answer names the ignored fields."""
    accepted_fields = filter_fields(fields, scope, report=report)
    return filter_tools(filter_messages(accepted_fields, report), report)


TOKENIZE_BODY = BodyDecoder(
    TokenizeRequest,
    FIELD_TABLE,
    FieldScope.TOKENIZE,
    partial(filter_conversation, FieldScope.TOKENIZE),
    has_ignored_parts,
)
APPLY_BODY = BodyDecoder(
    ApplyRequest,
    FIELD_TABLE,
    FieldScope.APPLY,
    partial(filter_conversation, FieldScope.APPLY),
    has_ignored_parts,
)


def decode_tokenize(body: bytes) -> TokenizeCall:
    """Decodes a body of POST /tokenize. Raises a RequestError."""
    wire, _ = TOKENIZE_BODY.decode(body)
    if (wire.prompt is None) == (wire.messages is None):
        if wire.prompt is None:
            raise MissingParameter("send prompt or messages", param="prompt")
        raise InvalidValue("send prompt or messages, not both", param="messages")
    with_texts = bool(wire.return_token_strs)
    if wire.messages is not None:
        return TokenizeCall(
            wire.model, _build_conversation(wire, wire.messages, wire.add_special_tokens), with_texts
        )
    for name in MESSAGE_FIELDS:
        if getattr(wire, name) is not None:
            raise InvalidValue(f"{name} is taken only with messages", param=name)
    add_special = wire.add_special_tokens is not False
    return TokenizeCall(wire.model, RawPrompt(text=wire.prompt, add_special=add_special), with_texts)


def decode_apply(body: bytes) -> ApplyCall:
    """Decodes a body of POST /v1/apply-template. Raises a RequestError."""
    wire, _ = APPLY_BODY.decode(body)
    return ApplyCall(wire.model, _build_conversation(wire, wire.messages))


def decode_detokenize(body: bytes) -> DetokenizeCall:
    """Decodes a body of POST /detokenize. Raises a RequestError."""
    wire, _ = DETOKENIZE_BODY.decode(body)
    return DetokenizeCall(wire.model, tuple(wire.tokens))


def encode_tokens(tokens: PromptTokens) -> bytes:
    """Encodes the answer to /tokenize."""
    texts = UNSET if tokens.pieces is None else list(map(spell_token, tokens.pieces))
    return _encode(TokenizeAnswer(len(tokens.ids), tokens.context_length, tokens.ids, texts))


def encode_tokenizer(info: TokenizerInfo) -> bytes:
    """Encodes the answer to /tokenizer_info."""
    controls = sorted(info.controls.items())
    return _encode(
        TokenizerConfig(
            model_max_length=info.context_length,
            bos_token=info.bos,
            eos_token=info.eos,
            add_bos_token=info.add_bos,
            added_tokens_decoder={str(token): AddedToken(content=name) for token, name in controls},
            additional_special_tokens=[name for _, name in controls if name not in (info.bos, info.eos)],
            chat_template=info.chat_template,
        )
    )


def _build_conversation(
    wire: ConversationRequest, messages: list[ChatMessage], add_special: bool | None = None
) -> Conversation:
    """Builds the conversation with its tools, as for a generation. Raises a RequestError."""
    tools, _ = build_tools(wire.tools or ())
    return build_conversation(wire, build_messages(messages), Tools(tools) if tools else None, add_special)


async def tokenize(request: Request, services: Services) -> Answer:
    call = await decode_body(decode_tokenize, request, services)
    return Response(encode_tokens(await services.tokenize(call, request)))


async def detokenize(request: Request, services: Services) -> Answer:
    call = await decode_body(decode_detokenize, request, services)
    return Response(_encode(DetokenizeAnswer(await services.detokenize(call, request))))


async def apply_template(request: Request, services: Services) -> Answer:
    call = await decode_body(decode_apply, request, services)
    return Response(_encode(ApplyAnswer(await services.apply_template(call, request))))


async def show_tokenizer(request: Request, services: Services) -> Answer:
    model = dict(request.query()).get("model")
    return Response(encode_tokenizer(await services.load_tokenizer(model, request)))


def declare_tokens() -> tuple[Endpoint, ...]:
    """Declares the endpoints for token ids, the rendered template and the tokenizer."""
    apply_summary = "Show the prompt that the chat template makes of a conversation"
    return (
        _declare_post(
            "/tokenize", tokenize, "Show the token ids of a prompt", TokenizeRequest, TokenizeAnswer
        ),
        _declare_post(
            "/detokenize", detokenize, "Show the text of token ids", DetokenizeRequest, DetokenizeAnswer
        ),
        _declare_post("/apply-template", apply_template, apply_summary, ApplyRequest, ApplyAnswer),
        declare_get(
            "/tokenizer_info",
            show_tokenizer,
            "Show a model's tokenizer",
            "models",
            TokenizerConfig,
            MODEL_QUERY,
        ),
    )


def _declare_post(path: str, handler: Handler, summary: str, body: type, answer: type) -> Endpoint:
    """Declares a POST endpoint that needs the right to read. It has a second path below /v1."""
    return Endpoint(
        method="POST",
        path=path,
        aliases=(f"/v1{path}",),
        handler=handler,
        right=Right.READ,
        body=RequestBody(shape=body),
        summary=summary,
        tag="tokens",
        answers={JSON: answer},
    )
