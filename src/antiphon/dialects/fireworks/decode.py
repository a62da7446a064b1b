"""Decodes a body of Fireworks' endpoints to a generation request, with the defaults and rules of Fireworks'
page.

The decoder of `/v1` reads the fields with the same meaning.
"""

from collections.abc import Mapping
from typing import Any

from antiphon.bodies.strict_json import read_object
from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.constraint_fields import (
    RelaxedConstraint,
    build_grammar_constraint,
    read_response_format,
    shorten_names,
)
from antiphon.dialects.common.decode import (
    TEXT_MAX_TOKENS,
    build_raw_prompts,
    read_attribution,
    read_sampling,
    read_stops,
    require_few_sequences,
    require_output,
)
from antiphon.dialects.common.encode import read_retrieval
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.media_parts import read_image
from antiphon.dialects.common.memory_strategy import read_memory
from antiphon.dialects.common.messages import build_messages, filter_messages, has_ignored_parts
from antiphon.dialects.common.request_types import (
    ImageUrlShape,
    NamedFunction,
    NamedSchema,
    PredictionShape,
    ToolChoiceShape,
)
from antiphon.dialects.common.request_types import ResponseFormat as OpenAIFormat
from antiphon.dialects.common.tools import filter_tools, read_tools, require_known_tool
from antiphon.dialects.common.vendor_fields import join_prediction, read_vendor_options
from antiphon.dialects.fireworks.fields import FIELD_TABLE, FireworksScope, filter_fields
from antiphon.dialects.fireworks.wire_types import (
    LEAST_BUDGET,
    ChosenTool,
    FireworksChatCompletionRequest,
    FireworksCommonRequest,
    FireworksCompletionRequest,
    FireworksResponseFormat,
)
from antiphon.domain.messages import Content, TextContent
from antiphon.domain.request import (
    Constraint,
    Conversation,
    GenerationRequest,
    Output,
    Overflow,
    Prediction,
    Prompt,
    RawPrompt,
    Reasoning,
    ReasoningFieldNames,
    VendorOptions,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MalformedBody, MissingParameter, UnsupportedParameter

CHAT_MAX_TOKENS = 200
"""The page's default of max_tokens for a chat."""

DEFAULTS: Mapping[str, float] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
}
"""The page's defaults of sampling options. A model's own defaults do not change them."""

LEAST_REPETITION = 1e-6
"""Replaces a repetition penalty of 0, because a division by 0 is impossible. Such a penalty favours earlier
tokens as much as possible."""

EFFORT_ON, EFFORT_OFF = "medium", "none"
"""The reasoning efforts for true and false."""

EFFORT_FIELD_NAMES = ReasoningFieldNames(budget="reasoning_effort", min_budget=1)

THINKING_FIELD_NAMES = ReasoningFieldNames(
    "thinking", "thinking.budget_tokens", "disabled", "enabled", LEAST_BUDGET
)

IMAGE_PLACEHOLDER = "<image>"
"""The mark of an image's place in a prompt."""

FORMAT_FIELD = "response_format"


class FireworksCall(GenerationCall, frozen=True):
    """A call of Fireworks' endpoints, with the form of its log-probabilities."""

    has_entries: bool = False
    """Whether the log-probabilities are a list with one entry per token instead of arrays."""


def filter_chat(fields: dict[str, Any], report: FieldReport) -> dict[str, Any]:
    """Filters the body of a chat."""
    accepted_fields = filter_fields(fields, FireworksScope.CHAT, report=report)
    return filter_tools(filter_messages(accepted_fields, report), report)


CHAT_BODY = BodyDecoder(
    FireworksChatCompletionRequest,
    FIELD_TABLE,
    FireworksScope.CHAT,
    filter_chat,
    has_ignored_parts,
)
TEXT_BODY = BodyDecoder(FireworksCompletionRequest, FIELD_TABLE, FireworksScope.TEXT)


def decode_text(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST completions. `report_unknown`: unknown fields are ignored and named instead of
    refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a RequestError."""
    wire, report = TEXT_BODY.decode(body, report_unknown)
    max_tokens = _read_max_tokens(wire, wire.max_tokens)
    require_output(max_tokens, wire.echo)
    relaxed_constraint = read_fireworks_format(wire.response_format, strict)
    output = _read_output(wire, max_tokens, TEXT_MAX_TOKENS, relaxed_constraint.constraint, bool(wire.echo))
    prompts = build_raw_prompts(wire.prompt, add_special=True)
    require_few_sequences(prompts, output)
    request = _build_request(wire, read_images(wire, prompts), output)
    return _build_call(wire, request, report, relaxed_constraint.relaxed)


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST chat/completions. The parameters are those of `decode_text`."""
    wire, report = CHAT_BODY.decode(body, report_unknown)
    max_tokens = _read_max_tokens(wire, wire.max_tokens)
    relaxed_constraint = read_fireworks_format(wire.response_format, strict)
    output = _read_output(wire, max_tokens, CHAT_MAX_TOKENS, relaxed_constraint.constraint)
    tools, relaxed = read_tools(wire.tools, _read_tool_choice(wire), wire.parallel_tool_calls, strict)
    prompt = Conversation(build_messages(wire.messages), tools=tools, reasoning=read_reasoning(wire))
    require_few_sequences((prompt,), output)
    request = replace(
        _build_request(wire, (prompt,), output),
        memory=None if wire.memory_strategy is None else read_memory(wire.memory_strategy),
        retrieval=None if wire.rag_params is None else read_retrieval(wire.rag_params),
    )
    return _build_call(wire, request, report, relaxed_constraint.relaxed + relaxed)


def _read_output(
    wire: FireworksCommonRequest,
    max_tokens: int | None,
    default_max_tokens: int,
    constraint: Constraint | None,
    echo: bool = False,
) -> Output:
    """Reads the options of the output. Choices keep their stop texts. Too many tokens are handled by
    `context_length_exceeded_behavior`."""
    return Output(
        max_tokens=default_max_tokens if max_tokens is None else max_tokens,
        is_default_max_tokens=max_tokens is None,
        choices=wire.n or 1,
        stop=read_stops(wire.stop),
        constraint=constraint,
        echo=echo,
        logprobs=_read_alternatives(wire),
        token_ids=bool(wire.return_token_ids),
        include_stop=True,
        overflow=Overflow.ERROR if wire.context_length_exceeded_behavior == "error" else Overflow.SHORTEN,
    )


def _build_request(
    wire: FireworksCommonRequest, prompts: tuple[Prompt, ...], output: Output
) -> GenerationRequest:
    """Builds the request, with the page's defaults."""
    sampling = read_sampling(wire, defaults=DEFAULTS)
    if not sampling.repetition_penalty:
        sampling = replace(sampling, repetition_penalty=LEAST_REPETITION)
    return GenerationRequest(
        wire.model,
        prompts,
        sampling,
        output,
        cache_salt=wire.prompt_cache_isolation_key or "",
        vendor_options=_read_vendor_options(wire),
        is_buffered=not wire.stream,
    )


def _build_call(
    wire: FireworksCommonRequest, request: GenerationRequest, report: FieldReport, relaxed: tuple[str, ...]
) -> FireworksCall:
    """Builds the call. Every stream contains the usage."""
    return FireworksCall(
        request,
        bool(wire.stream),
        include_usage=True,
        ignored=report.names,
        relaxed=shorten_names(relaxed),
        attribution=read_attribution(wire.user, wire.metadata),
        has_entries=wire.logprobs is True,
    )


def _read_max_tokens(wire: FireworksCommonRequest, max_tokens: int | None) -> int | None:
    """Returns max_tokens, which has a newer name. Raises InvalidValue if the caller sends different values
    under both names."""
    newer = wire.max_completion_tokens
    if newer is not None and max_tokens is not None and newer != max_tokens:
        raise InvalidValue(
            "max_tokens and max_completion_tokens differ; send one of them", param="max_completion_tokens"
        )
    return newer if max_tokens is None else max_tokens


def _read_alternatives(wire: FireworksCommonRequest) -> int | None:
    """Returns the requested number of likeliest tokens; None without log-probabilities."""
    if wire.logprobs is None or wire.logprobs is False:
        if wire.top_logprobs:
            raise InvalidValue("top_logprobs is taken only together with logprobs", param="top_logprobs")
        return None
    if wire.logprobs is True:
        return wire.top_logprobs or 0
    if wire.top_logprobs not in (None, wire.logprobs):
        raise InvalidValue(
            "logprobs and top_logprobs are different numbers; send one of them, or logprobs: true",
            param="top_logprobs",
        )
    return wire.logprobs


def _read_tool_choice(
    wire: FireworksChatCompletionRequest,
) -> str | ToolChoiceShape | None:
    """Returns the tool choice in the form of `/v1`."""
    tool_choice = wire.tool_choice
    if not isinstance(tool_choice, ChosenTool):
        return "required" if tool_choice == "any" else tool_choice
    if (tool_choice.name is None) == (tool_choice.function is None):
        if tool_choice.name is None:
            raise MissingParameter("tool_choice.function is missing", param="tool_choice.function")
        raise InvalidValue(
            "send tool_choice.name or tool_choice.function, not both", param="tool_choice.name"
        )
    if tool_choice.name is not None and wire.tools:
        require_known_tool(tool_choice.name, [tool.function.name for tool in wire.tools], "tool_choice.name")
    return ToolChoiceShape(
        "function",
        tool_choice.function if tool_choice.name is None else NamedFunction(tool_choice.name),
    )


def _read_vendor_options(wire: FireworksCommonRequest) -> VendorOptions:
    """Reads the options that vendors' models have. Raises InvalidValue for a prediction under both names."""
    vendor_options = read_vendor_options(wire.service_tier, wire.prompt_cache_key)
    if wire.prediction is None and wire.speculation is None:
        return vendor_options
    if wire.prediction is not None and wire.speculation is not None:
        raise InvalidValue("send prediction or speculation, not both", param="speculation")
    if isinstance(wire.speculation, list):
        prediction = Prediction("", tuple(wire.speculation), "speculation")
    elif wire.speculation is not None:
        prediction = Prediction(wire.speculation, field="speculation")
    elif isinstance(wire.prediction, PredictionShape):
        prediction = Prediction(join_prediction(wire.prediction))
    else:
        prediction = Prediction(wire.prediction or "")
    return replace(vendor_options, prediction=prediction)


def read_fireworks_format(response_format: FireworksResponseFormat | None, strict: bool) -> RelaxedConstraint:
    """Reads the constraint of each choice. `strict`: a schema with a keyword that is not enforced is refused.
    Raises a RequestError."""
    if response_format is None:
        return RelaxedConstraint(None)
    for kind, field in (("json_object", "schema"), ("json_schema", "json_schema"), ("grammar", "grammar")):
        if getattr(response_format, field) is not None and response_format.type != kind:
            raise InvalidValue(
                f"{FORMAT_FIELD}.{field} is taken only with type {kind}", param=f"{FORMAT_FIELD}.{field}"
            )
    if response_format.type == "grammar":
        if response_format.grammar is None:
            raise MissingParameter(f"{FORMAT_FIELD}.grammar is missing", param=f"{FORMAT_FIELD}.grammar")
        return RelaxedConstraint(build_grammar_constraint(response_format.grammar, f"{FORMAT_FIELD}.grammar"))
    schema, json_schema = response_format.schema, response_format.json_schema
    if isinstance(schema, str):
        schema = _read_schema(schema, f"{FORMAT_FIELD}.schema")
    if isinstance(json_schema, str):
        json_schema = NamedSchema(_read_schema(json_schema, f"{FORMAT_FIELD}.json_schema"))
    return next(
        read_response_format(OpenAIFormat(response_format.type, json_schema, schema), strict),
        RelaxedConstraint(None),
    )


def _read_schema(text: str, field: str) -> dict[str, Any]:
    """Returns the schema in a text. Raises InvalidValue if the text is not a JSON object."""
    try:
        return read_object(text.encode())
    except MalformedBody:
        raise InvalidValue(f"{field} must be a JSON Schema, as an object or as a text", param=field) from None


def read_images(wire: FireworksCompletionRequest, prompts: tuple[Prompt, ...]) -> tuple[Prompt, ...]:
    """Returns the prompts, with each image in the place of its mark. Raises a RequestError, also if there are
    more or fewer images than marks."""
    if wire.images is None:
        return prompts
    image_lists = [item for item in wire.images if isinstance(item, list)]
    single_images = [item for item in wire.images if isinstance(item, str)]
    if image_lists and single_images:
        raise InvalidValue("images must hold only texts or only lists of texts", param="images")
    has_many_prompts = isinstance(wire.prompt, list) and not isinstance(wire.prompt[0], int)
    if not has_many_prompts and len(image_lists) > 1:
        raise InvalidValue("images must be one list for one prompt", param="images")
    if has_many_prompts and (single_images or (image_lists and len(image_lists) != len(prompts))):
        raise InvalidValue(
            f"images must hold a list for each prompt, of which there are {len(prompts)}", param="images"
        )
    is_nested = bool(image_lists)
    if not is_nested:
        image_lists = [single_images] if single_images else [[] for _ in prompts]
    placed = tuple(
        _place_images(prompt, prompt_images, f"images[{index}]" if is_nested else "images")
        for index, (prompt, prompt_images) in enumerate(zip(prompts, image_lists, strict=True))
    )
    if len(placed) > 1 and placed != prompts:
        raise UnsupportedParameter(
            "images is not supported together with several prompts: send a request for each prompt",
            param="images",
        )
    return placed


def _place_images(prompt: Prompt, images: list[str], field: str) -> Prompt:
    """Returns the prompt with its images. `field`: the path of their list. Raises a RequestError."""
    if not isinstance(prompt, RawPrompt) or prompt.text is None:
        if images:
            raise InvalidValue(
                f"{field} needs a prompt that is a text with {IMAGE_PLACEHOLDER}", param="images"
            )
        return prompt
    texts = prompt.text.split(IMAGE_PLACEHOLDER)
    if len(texts) - 1 != len(images):
        raise InvalidValue(
            f"{field} must hold one image for each {IMAGE_PLACEHOLDER} in the prompt: it holds "
            f"{len(images)}, and the prompt has {len(texts) - 1}",
            param="images",
        )
    if not images:
        return prompt
    content: list[Content] = [TextContent(texts[0])] if texts[0] else []
    for index, (image, text) in enumerate(zip(images, texts[1:], strict=True)):
        content.append(read_image(ImageUrlShape(image), f"{field}[{index}]", url_field=None))
        content += [TextContent(text)] if text else []
    return RawPrompt(content=tuple(content), add_special=prompt.add_special)


def read_reasoning(wire: FireworksChatCompletionRequest) -> Reasoning:
    """Reads the reasoning options of a request. Raises InvalidValue if the caller sends both
    `reasoning_effort` and `thinking`."""
    effort, thinking = wire.reasoning_effort, wire.thinking
    if thinking is not None:
        if effort is not None:
            raise InvalidValue("send reasoning_effort or thinking, not both", param="thinking")
        if thinking.type == "disabled":
            if thinking.budget_tokens is not None:
                raise InvalidValue(
                    "thinking.budget_tokens is taken only with type enabled", param="thinking.budget_tokens"
                )
            return Reasoning(EFFORT_OFF, field_names=THINKING_FIELD_NAMES)
        if thinking.budget_tokens is None:
            return Reasoning(EFFORT_ON, field_names=THINKING_FIELD_NAMES)
        return Reasoning(budget=thinking.budget_tokens, field_names=THINKING_FIELD_NAMES)
    if isinstance(effort, bool):
        return Reasoning(EFFORT_ON if effort else EFFORT_OFF, field_names=EFFORT_FIELD_NAMES)
    if isinstance(effort, int):
        return Reasoning(budget=effort, field_names=EFFORT_FIELD_NAMES)
    return Reasoning(effort, field_names=EFFORT_FIELD_NAMES)
