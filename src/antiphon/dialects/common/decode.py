"""Builds a generation request from the wire types of chats and text completions, by OpenAI's rules.

Defaults are OpenAI's. It reads the fields of sampling, the end user and tags. Messages, tools, constraints
and the memory strategy are read by other modules.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any, TypedDict

from antiphon.bodies.strict_json import describe_value, sanitize_key
from antiphon.dialects.calls import NO_ATTRIBUTION, Attribution, GenerationCall
from antiphon.dialects.common.constraint_fields import RelaxedConstraint, read_constraint, shorten_names
from antiphon.dialects.common.encode import read_retrieval
from antiphon.dialects.common.memory_strategy import read_memory
from antiphon.dialects.common.messages import build_conversation, build_messages, read_reasoning
from antiphon.dialects.common.request_types import (
    LARGEST_BIAS,
    MAX_SEQUENCES,
    BodyShape,
    ChatCompletionRequest,
    CommonRequest,
    CompletionRequest,
)
from antiphon.dialects.common.tools import read_tools
from antiphon.dialects.common.vendor_fields import read_chat_vendor_options
from antiphon.domain.fields import INT32_MAX, LONGEST_TAG
from antiphon.domain.ledger import NOTHING
from antiphon.domain.request import (
    NO_SAMPLING,
    NO_VENDOR_OPTIONS,
    GenerationRequest,
    Mirostat,
    Output,
    Prompt,
    RawPrompt,
    SamplingOptions,
    Truncation,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue

MIROSTAT_FIELDS = {"mirostat_target": "target", "mirostat_lr": "rate"}
"""Mirostat's fields of requests, and its options. It is on if either is set. The other has its default."""


NUL = "\0"
"""The character that some databases cannot store."""

TEXT_MAX_TOKENS = 16
"""OpenAI's default of max_tokens for text completions."""


@cache
def _find_sampling_fields(
    shape: type[BodyShape],
) -> tuple[tuple[str, ...], Callable[[object], tuple[Any, ...]], tuple[Any, ...]]:
    """Finds the sampling options among the fields of a wire type, a function that gets their values, and its
    result if none is set."""
    options = frozenset(SamplingOptions.__struct_fields__) | MIROSTAT_FIELDS.keys()
    names = tuple(name for name in shape.__struct_fields__ if name in options)
    # Of one name, it would return no tuple.
    return names, attrgetter(*names, "__class__", "__class__"), (*[None] * len(names), shape, shape)


def read_sampling(
    wire: BodyShape, max_tokens: int | None = None, defaults: Mapping[str, Any] = NOTHING
) -> SamplingOptions:
    """Reads the sampling options that the wire type has, by their names. `defaults`: the dialect's values of
    options that are not sent. Raises InvalidValue."""
    min_tokens: int | None = getattr(wire, "min_tokens", None)
    if min_tokens is not None and max_tokens is not None and min_tokens > max_tokens:
        raise InvalidValue(
            f"min_tokens must be at most max_tokens, which is {max_tokens}; got {min_tokens}",
            param="min_tokens",
        )
    names, get_values, unset_values = _find_sampling_fields(type(wire))
    values = get_values(wire)
    if values == unset_values and not defaults:
        return NO_SAMPLING
    options, mirostat = dict(defaults), {}
    for name, value in [pair for pair in zip(names, values, strict=False) if pair[1] is not None]:
        if name in MIROSTAT_FIELDS:
            mirostat[MIROSTAT_FIELDS[name]] = value
        elif name == "logit_bias":
            options[name] = read_biases(value)
        elif name == "allowed_token_ids":
            options[name] = tuple(dict.fromkeys(value))
        else:
            options[name] = value
    if mirostat:
        options["mirostat"] = Mirostat(**mirostat)
    if options.get("top_k", 0) < 0:
        options["top_k"] = 0
    return SamplingOptions(**options) if options else NO_SAMPLING


def read_biases(biases: dict[str, float]) -> tuple[tuple[int, float], ...]:
    """Returns the biases by token id. Raises InvalidValue."""
    for key, value in biases.items():
        # The key must be the shortest spelling, so that two keys never mean the same id.
        is_number = key.isascii() and key.isdigit() and len(key) <= len(str(INT32_MAX))
        if not is_number or str(int(key)) != key:
            raise InvalidValue(
                "logit_bias must have token ids as its keys, written as texts of digits; "
                "/tokenize shows them",
                param=f"logit_bias.{sanitize_key(key)}",
            )
        if not -LARGEST_BIAS <= value <= LARGEST_BIAS:
            raise InvalidValue(
                f"logit_bias.{key} must be a number of -100 to 100; got {describe_value(value)}",
                param=f"logit_bias.{key}",
            )
    return tuple((int(key), value) for key, value in biases.items())


def read_attribution(
    user: str | None, tags: Mapping[str, str] | None = None, safety_identifier: str | None = None
) -> Attribution:
    """Reads the end user, which can have two names, and the tags. Raises InvalidValue that names the wrong
    field."""
    if user is None and not tags and safety_identifier is None:
        return NO_ATTRIBUTION
    if safety_identifier is not None and user is not None and safety_identifier != user:
        raise InvalidValue("user and safety_identifier differ; send one of them", param="safety_identifier")
    values_by_field = {"user": user, "safety_identifier": safety_identifier}
    user_fields = tuple(name for name, value in values_by_field.items() if value is not None)
    for name in user_fields:
        require_no_nul(name, values_by_field[name] or "")
    for name, value in (tags or {}).items():
        if not 0 < len(name) <= LONGEST_TAG:
            raise InvalidValue(
                f"metadata must have keys of 1 to {LONGEST_TAG} characters; got {len(name)}", param="metadata"
            )
        require_no_nul("metadata", name + value)
    reported_fields = (*user_fields, "metadata") if tags else user_fields
    return Attribution((safety_identifier if user is None else user) or None, tags or {}, reported_fields)


def require_no_nul(name: str, text: str) -> None:
    """Raises InvalidValue if the text contains NUL."""
    if NUL in text:
        raise InvalidValue(f"{name} must hold no NUL character", param=name)


def build_chat_call(
    wire: ChatCompletionRequest,
    ignored: tuple[str, ...] = (),
    strict: bool = False,
    dialect_constraints: Sequence[RelaxedConstraint] = (),
) -> GenerationCall:
    """Builds the call of a chat of any dialect. `ignored`: names of fields without effect. `strict` and
    `dialect_constraints`: see `read_constraint`. Raises a RequestError."""
    max_tokens, newer_limit = wire.max_tokens, wire.max_completion_tokens
    if max_tokens is None:
        max_tokens = newer_limit
    elif newer_limit is not None and newer_limit != max_tokens:
        raise InvalidValue(
            "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
        )
    if wire.top_logprobs and not wire.logprobs:
        raise InvalidValue("top_logprobs is taken only together with logprobs: true", param="top_logprobs")
    relaxed_constraint = read_constraint(wire, strict, dialect_constraints)
    output = Output(
        max_tokens=max_tokens,
        choices=wire.n or 1,
        constraint=relaxed_constraint.constraint,
        echo=bool(wire.echo),
        logprobs=(wire.top_logprobs or 0) if wire.logprobs else None,
        **_read_output_options(wire),
    )
    if wire.top_logprobs and wire.logprob_token_ids:
        ignored += ("top_logprobs",)
    tools, tool_keywords = read_tools(wire.tools, wire.tool_choice, wire.parallel_tool_calls, strict)
    prompt = build_conversation(
        wire, build_messages(wire.messages), tools, wire.add_special_tokens, read_reasoning(wire)
    )
    call = _build_call(
        wire,
        (prompt,),
        output,
        ignored,
        relaxed_constraint.relaxed + tool_keywords,
        read_chat_vendor_options(wire),
    )
    if wire.memory_strategy is not None:
        call = replace(call, request=replace(call.request, memory=read_memory(wire.memory_strategy)))
    if wire.rag_params is not None:
        call = replace(call, request=replace(call.request, retrieval=read_retrieval(wire.rag_params)))
    if wire.safety_identifier is not None:
        attribution = read_attribution(wire.user, wire.metadata, wire.safety_identifier)
        call = replace(call, attribution=attribution)
    return call


def require_output(max_tokens: int | None, echo: bool | None) -> None:
    """Raises InvalidValue for a text completion without a token and without its prompt."""
    if max_tokens == 0 and not echo:
        raise InvalidValue(
            "max_tokens must be at least 1; 0 is taken with echo: true, to score a prompt", param="max_tokens"
        )


def build_text_call(
    wire: CompletionRequest,
    ignored: tuple[str, ...] = (),
    strict: bool = False,
    dialect_constraints: Sequence[RelaxedConstraint] = (),
) -> GenerationCall:
    """Builds the call of a text completion of any dialect. The parameters are those of `build_chat_call`."""
    require_output(wire.max_tokens, wire.echo)
    relaxed_constraint = read_constraint(wire, strict, dialect_constraints)
    output = Output(
        max_tokens=wire.max_tokens if wire.max_tokens is not None else TEXT_MAX_TOKENS,
        is_default_max_tokens=wire.max_tokens is None,
        choices=wire.n or 1,
        constraint=relaxed_constraint.constraint,
        echo=bool(wire.echo),
        logprobs=wire.logprobs,
        suffix=wire.suffix or "",
        **_read_output_options(wire),
    )
    prompts = build_raw_prompts(wire.prompt or "", wire.add_special_tokens is not False)
    return _build_call(wire, prompts, output, ignored, relaxed_constraint.relaxed)


class OutputOptions(TypedDict, total=False):
    """Options of chats and text completions about the ends of choices, and about their tokens."""

    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    best_of: int | None
    include_stop: bool
    show_special: bool
    token_ids: bool
    names_by_id: bool
    running_usage: bool
    prompt_logprobs: int | None
    truncate_prompt: int | None
    truncation: Truncation
    logprob_token_ids: tuple[int, ...]
    bad_words: tuple[str, ...]


_get_output_options = attrgetter(
    "stop",
    "stop_token_ids",
    "best_of",
    "stream_options",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "prompt_logprobs",
    "truncate_prompt_tokens",
    "truncation_side",
    "logprob_token_ids",
    "bad_words",
)
"""Returns the values of the fields that `_read_output_options` reads."""

NO_OUTPUT_OPTIONS = (None,) * 13


def _read_output_options(wire: CommonRequest) -> OutputOptions:
    """Reads the options about the ends of choices and about tokens. Most requests have none. Raises
    InvalidValue."""
    if _get_output_options(wire) == NO_OUTPUT_OPTIONS:
        return {}
    best_of, stream_options = wire.best_of, wire.stream_options
    if best_of and best_of < (wire.n or 1):
        raise InvalidValue(f"best_of must be at least n, which is {wire.n}; got {best_of}", param="best_of")
    if best_of and best_of > 1 and wire.stream:
        raise InvalidValue(
            "best_of cannot be streamed, because the best candidates are known only when all are complete; "
            "leave out best_of or stream",
            param="best_of",
        )
    if wire.prompt_logprobs is not None and wire.stream:
        raise InvalidValue(
            "prompt_logprobs are available only in a buffered answer; leave out stream",
            param="prompt_logprobs",
        )
    if wire.truncate_prompt_tokens == 0:
        raise InvalidValue(
            "truncate_prompt_tokens must be -1, or at least 1; got 0", param="truncate_prompt_tokens"
        )
    if wire.truncation_side is not None and wire.truncate_prompt_tokens is None:
        raise InvalidValue(
            "truncation_side is taken only together with truncate_prompt_tokens", param="truncation_side"
        )
    running_usage = stream_options is not None and bool(stream_options.continuous_usage_stats)
    if running_usage and stream_options is not None and not stream_options.include_usage:
        raise InvalidValue(
            "continuous_usage_stats is taken only together with include_usage: true",
            param="stream_options.continuous_usage_stats",
        )
    if wire.logprob_token_ids is not None and wire.max_tokens == 0:
        raise InvalidValue(
            "logprob_token_ids needs generated tokens, and max_tokens 0 generates no token; leave out one "
            "of the two",
            param="logprob_token_ids",
        )
    return OutputOptions(
        stop=read_stops(wire.stop),
        stop_token_ids=tuple(wire.stop_token_ids or ()),
        best_of=best_of if best_of and best_of > 1 else None,  # a single candidate needs no ranking
        include_stop=bool(wire.include_stop_str_in_output),
        show_special=wire.skip_special_tokens is False,
        token_ids=bool(wire.return_token_ids),
        names_by_id=bool(wire.return_tokens_as_token_ids),
        running_usage=running_usage,
        prompt_logprobs=wire.prompt_logprobs,
        truncate_prompt=wire.truncate_prompt_tokens,
        truncation=Truncation.RIGHT if wire.truncation_side == "right" else Truncation.LEFT,
        logprob_token_ids=tuple(dict.fromkeys(wire.logprob_token_ids or ())),
        bad_words=tuple(wire.bad_words or ()),
    )


def read_stops(stop: str | list[str] | None) -> tuple[str, ...]:
    """Returns the stop strings."""
    return (stop,) if isinstance(stop, str) else tuple(stop or ())


def require_few_sequences(prompts: Sequence[Prompt], output: Output) -> None:
    """Raises InvalidValue for too many sequences."""
    if len(prompts) * (output.best_of or output.choices) > MAX_SEQUENCES:
        factor = "best_of" if output.best_of else "n"
        param = "prompt" if len(prompts) > 1 else factor
        raise InvalidValue(f"prompts times {factor} must be at most {MAX_SEQUENCES}", param=param)


def _build_call(
    wire: CommonRequest,
    prompts: tuple[Prompt, ...],
    output: Output,
    ignored: tuple[str, ...],
    relaxed: tuple[str, ...],
    vendor_options: VendorOptions = NO_VENDOR_OPTIONS,
) -> GenerationCall:
    """Builds the call. `ignored` and `relaxed`: the ignored fields, and the schema keywords that are not
    enforced, for the response's headers. Raises InvalidValue for too many sequences, and for stream_options
    without a stream."""
    require_few_sequences(prompts, output)
    if wire.stream_options is not None and not wire.stream:
        raise InvalidValue("stream_options is taken only together with stream: true", param="stream_options")
    request = GenerationRequest(
        model=wire.model,
        prompts=prompts,
        sampling=read_sampling(wire, output.max_tokens),
        output=output,
        vendor_options=vendor_options,
        cache_salt=wire.cache_salt or "",
        priority=wire.priority or 0,
        is_buffered=not wire.stream,
    )
    if output.logprob_token_ids and output.logprobs is None:
        raise InvalidValue(
            "logprob_token_ids is taken only together with logprobs", param="logprob_token_ids"
        )
    if wire.return_tokens_as_token_ids and output.logprobs is None:
        raise InvalidValue(
            "return_tokens_as_token_ids is taken only together with logprobs, whose tokens it renames; "
            "return_token_ids gives ids without log-probabilities",
            param="return_tokens_as_token_ids",
        )
    return GenerationCall(
        request,
        bool(wire.stream),
        wire.stream_options is not None and bool(wire.stream_options.include_usage),
        ignored,
        relaxed=shorten_names(relaxed) if relaxed else (),
        attribution=read_attribution(wire.user, wire.metadata),
    )


def build_raw_prompts(prompt: str | list[Any], add_special: bool) -> tuple[RawPrompt, ...]:
    """Builds one prompt from a text or a list of token ids, and several prompts from a list of texts or a
    list of such lists. Raises InvalidValue."""
    if isinstance(prompt, str):
        return (RawPrompt(text=prompt, add_special=add_special),)
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
        return tuple(RawPrompt(text=text, add_special=add_special) for text in prompt)
    return tuple(_build_token_prompt(tokens, f"prompt[{index}]") for index, tokens in enumerate(prompt))


def _build_token_prompt(tokens: list[int], field: str) -> RawPrompt:
    """Builds a prompt of token ids. Raises InvalidValue for an empty list."""
    if not tokens:
        raise InvalidValue(f"{field} is empty; send at least one token id", param=field)
    return RawPrompt(tokens=tuple(tokens))
