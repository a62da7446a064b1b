"""From a request body to a generation request: fields sifted, shapes checked, OpenAI's defaults and rules
applied."""

from typing import Any

from antiphon.dialects.base import Call
from antiphon.dialects.openai.fields import Place, sift
from antiphon.dialects.openai.shape import shaped
from antiphon.dialects.openai.wire import (
    MAX_SEQUENCES,
    ChatCompletionRequest,
    ChatMessage,
    Common,
    CompletionRequest,
)
from antiphon.dialects.strict_json import kind, read_object
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, Prompt, RawPrompt
from antiphon.domain.sampling import AskedSampling
from antiphon.errors import InvalidValue, UnsupportedParameter

TEXT_MAX_TOKENS = 16
"""What a text completion makes when nothing is said; OpenAI's default."""

PLAIN_MESSAGE = frozenset({"role", "content", "name"})
UNBUILT_ROLES = frozenset({"tool", "function"})


def decode_chat(body: bytes) -> Call:
    """A body of POST /v1/chat/completions. Raises a RequestError."""
    given, ignored = sift(read_object(body), Place.CHAT)
    _sift_stream_options(given)
    given = sift_messages(given)
    wire = shaped(given, ChatCompletionRequest)
    if None is not wire.max_completion_tokens != wire.max_tokens is not None:
        raise InvalidValue(
            "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
        )
    limit = wire.max_tokens if wire.max_tokens is not None else wire.max_completion_tokens
    return _call(wire, (conversation(wire.messages),), limit, ignored)


def decode_text(body: bytes) -> Call:
    """A body of POST /v1/completions. Raises a RequestError."""
    read = read_object(body)
    given, ignored = sift(read, Place.TEXT)
    _sift_stream_options(given)
    wire = shaped(given, CompletionRequest)
    if read.get("best_of") is not None and wire.n not in (None, 1):
        raise InvalidValue("best_of must be at least n", param="best_of")
    limit = wire.max_tokens if wire.max_tokens is not None else TEXT_MAX_TOKENS
    return _call(wire, _raw_prompts(wire.prompt), limit, ignored)


def sift_messages(given: dict[str, Any]) -> dict[str, Any]:
    """The same body with each message and content part sifted."""
    messages = given.get("messages")
    if not isinstance(messages, list):
        return given
    return given | {
        "messages": [_sift_message(message, f"messages[{i}]") for i, message in enumerate(messages)]
    }


def conversation(messages: list[ChatMessage], generation_prompt: bool = True) -> Conversation:
    """The conversation that wire messages say."""
    return Conversation(
        tuple(
            Message(
                Role(message.role),
                message.content
                if isinstance(message.content, str)
                else "".join(part.text for part in message.content),
                message.name,
            )
            for message in messages
        ),
        generation_prompt,
    )


def _sift_message(message: object, where: str) -> object:
    if not isinstance(message, dict):
        return message
    role, content = message.get("role"), message.get("content")
    if isinstance(role, str) and role in UNBUILT_ROLES:
        raise UnsupportedParameter(
            f"{where}.role {role} is not supported: tool calls are not built yet", param=f"{where}.role"
        )
    if isinstance(content, str) and message.keys() <= PLAIN_MESSAGE:
        return message
    kept, _ = sift(message, Place.MESSAGE, f"{where}.")
    if isinstance(content, list):
        kept["content"] = [_sift_part(part, f"{where}.content[{i}]") for i, part in enumerate(content)]
    return kept


def _sift_part(part: object, where: str) -> object:
    if not isinstance(part, dict):
        return part
    kept, _ = sift(part, Place.PART, f"{where}.")
    if kept.get("type", "text") != "text":
        raise InvalidValue(f"{where}.type must be text; got {kind(kept['type'])}", param=f"{where}.type")
    return kept


def _sift_stream_options(given: dict[str, Any]) -> None:
    options = given.get("stream_options")
    if isinstance(options, dict):
        given["stream_options"], _ = sift(options, Place.STREAM, "stream_options.")


def _call(wire: Common, prompts: tuple[Prompt, ...], limit: int | None, ignored: tuple[str, ...]) -> Call:
    choices = wire.n or 1
    if len(prompts) * choices > MAX_SEQUENCES:
        at_fault = "prompt" if len(prompts) > 1 else "n"
        raise InvalidValue(f"prompts times n must be at most {MAX_SEQUENCES}", param=at_fault)
    if wire.stream_options is not None and not wire.stream:
        raise InvalidValue("stream_options is taken only together with stream: true", param="stream_options")
    request = GenerationRequest(
        model=wire.model,
        prompts=prompts,
        sampling=AskedSampling(
            temperature=wire.temperature,
            top_p=wire.top_p,
            top_k=None if wire.top_k is None else max(0, wire.top_k),
            min_p=wire.min_p,
            seed=wire.seed,
        ),
        output=Output(
            max_tokens=limit,
            choices=choices,
            stop=(wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ()),
            stop_token_ids=tuple(wire.stop_token_ids or ()),
        ),
    )
    include_usage = wire.stream_options is not None and bool(wire.stream_options.include_usage)
    return Call(request, bool(wire.stream), include_usage, ignored)


def _raw_prompts(prompt: str | list[Any]) -> tuple[RawPrompt, ...]:
    """One prompt for a text or a list of ids; one for each item of a list of texts or of lists of ids."""
    if isinstance(prompt, str):
        return (_text_prompt(prompt, "prompt"),)
    kinds = set(map(type, prompt))
    if len(kinds) > 1:
        raise InvalidValue(
            "prompt must hold only texts, only token ids, or only lists of token ids", param="prompt"
        )
    if int in kinds:
        return (RawPrompt(tokens=tuple(prompt)),)
    if len(prompt) > MAX_SEQUENCES:
        raise InvalidValue(
            f"prompt must hold at most {MAX_SEQUENCES} prompts; got {len(prompt)}", param="prompt"
        )
    make = _text_prompt if str in kinds else _token_prompt
    return tuple(make(item, f"prompt[{index}]") for index, item in enumerate(prompt))


def _text_prompt(text: str, where: str) -> RawPrompt:
    if not text:
        raise InvalidValue(f"{where} is empty; send at least one character", param=where)
    return RawPrompt(text=text)


def _token_prompt(tokens: list[int], where: str) -> RawPrompt:
    if not tokens:
        raise InvalidValue(f"{where} is empty; send at least one token id", param=where)
    return RawPrompt(tokens=tuple(tokens))
