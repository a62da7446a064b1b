"""From the wire types of chats and text completions to a generation request, with OpenAI's defaults and
rules."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, TypedDict

from antiphon.dialects.base import Call
from antiphon.dialects.common.attribution import read_attribution
from antiphon.dialects.common.constraints import asked_constraint, unread
from antiphon.dialects.common.conversations import rendered
from antiphon.dialects.common.field_scopes import FieldScope
from antiphon.dialects.common.field_table import Report
from antiphon.dialects.common.fields import sift
from antiphon.dialects.common.fields_messages import MEDIA
from antiphon.dialects.common.reasoning import asked_reasoning, thought, thought_field
from antiphon.dialects.common.relaxed_names import shorten
from antiphon.dialects.common.sampling import asked_sampling
from antiphon.dialects.common.strict_json import kind
from antiphon.dialects.common.tools import asked_tools, made_calls, require_answered, sift_calls
from antiphon.dialects.common.wire import (
    MAX_SEQUENCES,
    ChatCompletionRequest,
    ChatMessage,
    Common,
    CompletionRequest,
    RefusalPart,
    StreamOptions,
    TextPart,
)
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest, Output, Prompt, RawPrompt, Truncation
from antiphon.errors import InvalidValue, UnsupportedParameter

TEXT_MAX_TOKENS = 16
"""What a text completion makes when nothing is said; OpenAI's default."""

MEDIA_PARTS = ("image_url", "input_audio", "file", "video_url", "image", "audio", "video")
"""Types of parts that are known and that no model here takes."""

ROLES = {role.value: role for role in Role}

PLAIN_MESSAGE = frozenset({"role", "content", "name"})


def chat_call(wire: ChatCompletionRequest, ignored: tuple[str, ...] = (), strict: bool = False) -> Call:
    """What a chat of the superset asks for, by whichever dialect. Raises a RequestError."""
    if None is not wire.max_completion_tokens != wire.max_tokens is not None:
        raise InvalidValue(
            "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
        )
    if wire.top_logprobs and not wire.logprobs:
        raise InvalidValue("top_logprobs is taken only together with logprobs: true", param="top_logprobs")
    limit = wire.max_tokens if wire.max_tokens is not None else wire.max_completion_tokens
    form = asked_constraint(wire, strict)
    output = Output(
        max_tokens=limit,
        choices=wire.n or 1,
        stop=_stops(wire),
        stop_token_ids=tuple(wire.stop_token_ids or ()),
        constraint=form.constraint,
        best_of=_candidates(wire),
        echo=bool(wire.echo),
        logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
        **_shown(wire),
    )
    if wire.top_logprobs and wire.logprob_token_ids:
        ignored += ("top_logprobs",)
    tools, relaxed = asked_tools(wire, strict)
    prompt = rendered(wire, turns(wire.messages), tools, wire.add_special_tokens, asked_reasoning(wire))
    call = _call(wire, (prompt,), output, ignored, form.relaxed + relaxed)
    if wire.safety_identifier is not None:
        said = read_attribution(wire.user, wire.metadata, wire.safety_identifier)
        call = replace(call, attribution=said)
    return call


def text_call(wire: CompletionRequest, ignored: tuple[str, ...] = (), strict: bool = False) -> Call:
    """What a text completion of the superset asks for, by whichever dialect. Raises a RequestError."""
    if wire.max_tokens == 0 and not wire.echo:
        raise InvalidValue(
            "max_tokens must be at least 1; 0 is taken with echo: true, to score a prompt", param="max_tokens"
        )
    form = asked_constraint(wire, strict)
    output = Output(
        max_tokens=wire.max_tokens if wire.max_tokens is not None else TEXT_MAX_TOKENS,
        is_usual=wire.max_tokens is None,
        choices=wire.n or 1,
        stop=_stops(wire),
        stop_token_ids=tuple(wire.stop_token_ids or ()),
        constraint=form.constraint,
        best_of=_candidates(wire),
        echo=bool(wire.echo),
        logprobs=wire.logprobs,
        **_shown(wire),
    )
    prompts = _raw_prompts(wire.prompt or "", wire.add_special_tokens is not False)
    return _call(wire, prompts, output, ignored, form.relaxed)


def _candidates(wire: Common) -> int | None:
    """How many are made of which the best are given. Raises InvalidValue where that makes no sense."""
    if not wire.best_of:
        return None
    if wire.best_of < (wire.n or 1):
        raise InvalidValue(
            f"best_of must be at least n, which is {wire.n}; got {wire.best_of}", param="best_of"
        )
    if wire.stream and wire.best_of > 1:
        raise InvalidValue(
            "best_of cannot be streamed, as the best are known when all are complete; leave one of them out",
            param="best_of",
        )
    # One candidate is no choice among several: there is nothing to rank, nor to hold back in a stream.
    return None if wire.best_of == 1 else wire.best_of


class Shown(TypedDict):
    """What both endpoints can say of which tokens are given, and how: a choice's and its prompt's."""

    include_stop: bool
    show_special: bool
    token_ids: bool
    prompt_logprobs: int | None
    truncate_prompt: int | None
    truncation: Truncation
    logprob_token_ids: tuple[int, ...]
    bad_words: tuple[str, ...]


def _shown(wire: Common) -> Shown:
    """Raises InvalidValue."""
    if wire.prompt_logprobs is not None and wire.stream:
        raise InvalidValue(
            "prompt_logprobs are given in a whole answer only; leave out stream", param="prompt_logprobs"
        )
    if wire.truncate_prompt_tokens == 0:
        raise InvalidValue(
            "truncate_prompt_tokens must be -1, or at least 1; got 0", param="truncate_prompt_tokens"
        )
    if wire.truncation_side is not None and wire.truncate_prompt_tokens is None:
        raise InvalidValue(
            "truncation_side is taken only together with truncate_prompt_tokens", param="truncation_side"
        )
    return Shown(
        include_stop=bool(wire.include_stop_str_in_output),
        show_special=wire.skip_special_tokens is False,
        token_ids=bool(wire.return_token_ids),
        prompt_logprobs=wire.prompt_logprobs,
        truncate_prompt=wire.truncate_prompt_tokens,
        truncation=Truncation.RIGHT if wire.truncation_side == "right" else Truncation.LEFT,
        logprob_token_ids=_listed(wire),
        bad_words=tuple(wire.bad_words or ()),
    )


def _listed(wire: Common) -> tuple[int, ...]:
    """The tokens whose log-probabilities are asked for, each once. Raises InvalidValue."""
    if wire.logprob_token_ids is None:
        return ()
    if wire.max_tokens == 0:
        raise InvalidValue(
            "logprob_token_ids is about the tokens that are made, and max_tokens 0 makes none; leave one of "
            "them out",
            param="logprob_token_ids",
        )
    return tuple(dict.fromkeys(wire.logprob_token_ids))


def _stops(wire: Common) -> tuple[str, ...]:
    return (wire.stop,) if isinstance(wire.stop, str) else tuple(wire.stop or ())


def sift_messages(given: dict[str, Any], report: Report | None = None) -> dict[str, Any]:
    """The same body with each message and content part sifted."""
    messages = given.get("messages")
    if not isinstance(messages, list):
        return given
    return given | {
        "messages": [_sift_message(message, f"messages[{i}]", report) for i, message in enumerate(messages)]
    }


def turns(messages: list[ChatMessage]) -> tuple[Message, ...]:
    """What wire messages say. Raises a RequestError."""
    require_answered(messages)
    return tuple(_message(message, f"messages[{at}]") for at, message in enumerate(messages))


def conversation(messages: list[ChatMessage]) -> Conversation:
    """The conversation that wire messages say. Raises a RequestError."""
    return Conversation(turns(messages))


def text_of(content: str | Sequence[TextPart | RefusalPart]) -> str:
    """The text of a message's content."""
    if isinstance(content, str):
        return content
    return "".join(part.text if isinstance(part, TextPart) else part.refusal for part in content)


def _message(message: ChatMessage, where: str) -> Message:
    text = text_of(message.content or message.refusal or "")
    calls = made_calls(message, where) if message.tool_calls else ()
    said, field = thought(message, where), thought_field(message)
    return Message(ROLES[message.role], text, message.name, calls, message.tool_call_id, said, field)


def _sift_message(message: object, where: str, report: Report | None) -> object:
    if not isinstance(message, dict):
        return message
    role, content = message.get("role"), message.get("content")
    if role == "function":
        raise UnsupportedParameter(
            f"{where}.role function is not supported: send role tool with tool_call_id",
            param=f"{where}.role",
        )
    if isinstance(content, str) and role != "tool" and message.keys() <= PLAIN_MESSAGE:
        return message
    kept = sift(message, FieldScope.MESSAGE, f"{where}.", report)
    _require_no_images(message, where)
    if kept.get("refusal") and content and report is not None:
        report.paths.append(f"{where}.refusal")  # The content is the text.
    sift_calls(kept, where, report)
    if isinstance(content, list):
        parts = enumerate(content)
        kept["content"] = [_sift_part(part, f"{where}.content[{i}]", report) for i, part in parts]
    return kept


def _require_no_images(message: Mapping[str, Any], where: str) -> None:
    """Raises UnsupportedParameter for images that are no answer's: the model would not see them."""
    if message.get("images") and message.get("role") != "assistant":
        raise UnsupportedParameter(f"{where}.images is not supported: {MEDIA}", param=f"{where}.images")


def _sift_part(part: object, where: str, report: Report | None) -> object:
    if not isinstance(part, dict):
        return part
    place = FieldScope.REFUSAL if "refusal" in part else FieldScope.PART
    kept = sift(part, place, f"{where}.", report)
    if kept.get("type") in MEDIA_PARTS:
        raise UnsupportedParameter(
            f"{where}.type {kept['type']} is not supported: {MEDIA}", param=f"{where}.type"
        )
    if kept.get("type", "text") not in ("text", "refusal"):
        said = kind(kept["type"])
        raise InvalidValue(f"{where}.type must be text or refusal; got {said}", param=f"{where}.type")
    return kept


def _call(
    wire: Common,
    prompts: tuple[Prompt, ...],
    output: Output,
    ignored: tuple[str, ...],
    relaxed: tuple[str, ...],
) -> Call:
    each = output.best_of or output.choices
    if len(prompts) * each > MAX_SEQUENCES:
        many = "best_of" if output.best_of else "n"
        at_fault = "prompt" if len(prompts) > 1 else many
        raise InvalidValue(f"prompts times {many} must be at most {MAX_SEQUENCES}", param=at_fault)
    if wire.stream_options is not None and not wire.stream:
        raise InvalidValue("stream_options is taken only together with stream: true", param="stream_options")
    request = GenerationRequest(
        model=wire.model,
        prompts=prompts,
        sampling=asked_sampling(wire, output.max_tokens),
        output=output,
        cache_salt=wire.cache_salt or "",
        priority=wire.priority or 0,
    )
    if output.logprob_token_ids and output.logprobs is None:
        raise InvalidValue(
            "logprob_token_ids is taken only together with logprobs", param="logprob_token_ids"
        )
    if wire.return_tokens_as_token_ids and output.logprobs is None:
        raise InvalidValue(
            "return_tokens_as_token_ids is taken only together with logprobs, whose tokens it renames; "
            "return_token_ids gives ids without them",
            param="return_tokens_as_token_ids",
        )
    include_usage, continuous = (
        (False, False) if wire.stream_options is None else _usage_told(wire.stream_options)
    )
    names = bool(wire.return_tokens_as_token_ids)
    return Call(
        request,
        bool(wire.stream),
        include_usage,
        ignored + (unread(wire.response_format.json_schema) if wire.response_format else ()),
        relaxed=shorten(relaxed),
        continuous_usage=continuous,
        token_names=names,
        attribution=read_attribution(wire.user, wire.metadata),
    )


def _usage_told(options: StreamOptions) -> tuple[bool, bool]:
    """Whether a stream tells its usage at the end, and in each part. Raises InvalidValue."""
    if options.continuous_usage_stats and not options.include_usage:
        raise InvalidValue(
            "continuous_usage_stats is taken only together with include_usage: true",
            param="stream_options.continuous_usage_stats",
        )
    return bool(options.include_usage), bool(options.continuous_usage_stats)


def _raw_prompts(prompt: str | list[Any], special: bool) -> tuple[RawPrompt, ...]:
    """One prompt for a text or a list of ids; one for each item of a list of texts or of lists of ids."""
    if isinstance(prompt, str):
        return (RawPrompt(text=prompt, add_special=special),)
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
    if str in kinds:
        return tuple(RawPrompt(text=text, add_special=special) for text in prompt)
    return tuple(_token_prompt(tokens, f"prompt[{index}]") for index, tokens in enumerate(prompt))


def _token_prompt(tokens: list[int], where: str) -> RawPrompt:
    if not tokens:
        raise InvalidValue(f"{where} is empty; send at least one token id", param=where)
    return RawPrompt(tokens=tuple(tokens))
