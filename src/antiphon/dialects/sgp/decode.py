"""Decodes a body of Scale's endpoints to a generation request, with the rules of Scale's page.

The decoder of `/v1` reads the fields with the same meaning.
"""

from typing import Any

from antiphon.dialects.base import GenerationCall
from antiphon.dialects.common import request_types as openai_types
from antiphon.dialects.common.constraint_fields import (
    RelaxedConstraint,
    read_schema,
)
from antiphon.dialects.common.decode import build_chat_call, build_text_call
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import filter_stream_options
from antiphon.dialects.common.messages import filter_messages
from antiphon.dialects.common.request_types import MAX_STOPS
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.common.tools import filter_tools
from antiphon.dialects.common.upstream_fields import (
    merge_extra_params,
    read_extra_headers,
    read_inference_timeout,
)
from antiphon.dialects.sgp.fields import TABLES, SgpScope, filter_fields
from antiphon.dialects.sgp.messages import normalize_messages
from antiphon.dialects.sgp.wire_types import (
    KnownFormat,
    SgpChatCompletionRequest,
    SgpCommonRequest,
    SgpCompletionRequest,
)
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue

SAME_FIELDS = (
    "model", "include_stop_str_in_output", "stream", "stream_options", "stop", "frequency_penalty",
    "presence_penalty", "logit_bias", "n", "best_of", "seed", "temperature", "top_p", "top_k", "user",
    "metadata", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip
"""The fields that have the same name in `/v1`."""

SAME_CHAT_FIELDS = (
    "messages", "logprobs", "top_logprobs", "chat_template", "chat_template_kwargs", "tools", "tool_choice",
    "parallel_tool_calls", "reasoning_effort", "memory_strategy", "rag_params", "guided_whitespace_pattern",
    "modalities", "audio", "prediction",
)  # fmt: skip

LIMIT_FIELDS = ("max_completion_tokens", "max_tokens", "max_new_tokens")
"""The names of the limit of a choice's tokens. A name overrides the names after it."""

GUIDED_FIELDS = ("guided_json", "guided_choice", "guided_regex", "guided_grammar")

FORMATS = ("text", "json_object", "json_schema")
"""The types of response formats. Any other object is itself a JSON Schema."""


def decode_chat(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST chat/completions. `report_unknown`: unknown fields are ignored and named instead
    of refused. `strict`: a schema with a keyword that is not enforced is refused. Raises a RequestError."""
    field_report = FieldReport(report_unknown)
    merged_body = merge_extra_params(
        read_object(body), TABLES[SgpScope.CHAT], openai_types.ChatCompletionRequest
    )
    accepted_fields = filter_fields(merged_body.fields, SgpScope.CHAT, report=field_report)
    filter_stream_options(accepted_fields, field_report)
    accepted_fields = filter_messages(normalize_messages(accepted_fields, field_report), field_report)
    wire = convert(filter_tools(accepted_fields, field_report), SgpChatCompletionRequest)
    max_tokens, (known_format, dialect_constraints) = (
        _read_max_tokens(wire, field_report),
        _read_formats(wire, strict),
    )
    fields = _get_fields(wire, SAME_FIELDS + SAME_CHAT_FIELDS) | merged_body.v1_values
    openai_request = openai_types.ChatCompletionRequest(
        max_tokens=max_tokens, response_format=known_format, **fields
    )
    call = build_chat_call(openai_request, field_report.names, strict, dialect_constraints)
    return _add_inference_fields(call, wire, merged_body.unknown_fields)


def decode_text(body: bytes, report_unknown: bool = False, strict: bool = False) -> GenerationCall:
    """Decodes a body of POST completions. The parameters are those of `decode_chat`."""
    field_report = FieldReport(report_unknown)
    merged_body = merge_extra_params(read_object(body), TABLES[SgpScope.TEXT], openai_types.CompletionRequest)
    accepted_fields = filter_fields(merged_body.fields, SgpScope.TEXT, report=field_report)
    filter_stream_options(accepted_fields, field_report)
    wire = convert(accepted_fields, SgpCompletionRequest)
    max_tokens, (known_format, dialect_constraints) = (
        _read_max_tokens(wire, field_report),
        _read_formats(wire, strict),
    )
    fields = _get_fields(wire, SAME_FIELDS) | {"stop": _join_stops(wire)} | merged_body.v1_values
    openai_request = openai_types.CompletionRequest(
        prompt=wire.prompt,
        suffix=wire.suffix,
        max_tokens=max_tokens,
        logprobs=_read_logprobs(wire),
        response_format=known_format,
        **fields,
    )
    call = build_text_call(openai_request, field_report.names, strict, dialect_constraints)
    return _add_inference_fields(call, wire, merged_body.unknown_fields)


def _get_fields(wire: SgpCommonRequest, names: tuple[str, ...]) -> dict[str, Any]:
    """Returns the values of these fields."""
    return {name: getattr(wire, name) for name in names}


def _read_max_tokens(wire: SgpCommonRequest, report: FieldReport) -> int | None:
    """Returns the most tokens of a choice; None if the caller sent no limit. Reports the other limits as
    ignored."""
    limits = {name: value for name in LIMIT_FIELDS if (value := getattr(wire, name, None)) is not None}
    report.paths += list(limits)[1:]
    return next(iter(limits.values()), None)


def _read_logprobs(wire: SgpCompletionRequest) -> int | None:
    """Returns the requested number of likeliest tokens; None without log-probabilities."""
    if wire.logprobs or wire.return_token_log_probs:
        return wire.top_logprobs or 0
    if wire.top_logprobs:
        raise InvalidValue("top_logprobs is taken only together with logprobs: true", param="top_logprobs")
    return None


def _join_stops(wire: SgpCompletionRequest) -> list[str]:
    """Returns the stop strings of `stop` and `stop_sequences`. Raises InvalidValue for too many."""
    stops = [wire.stop] if isinstance(wire.stop, str) else list(wire.stop or ())
    stops = list(dict.fromkeys((*stops, *(wire.stop_sequences or ()))))
    if len(stops) > MAX_STOPS:
        raise InvalidValue(
            f"stop_sequences and stop must hold at most {MAX_STOPS} texts together", param="stop_sequences"
        )
    return stops


def _read_formats(
    wire: SgpCommonRequest, strict: bool
) -> tuple[openai_types.ResponseFormat | None, list[RelaxedConstraint]]:
    """Returns the response format in the form of `/v1`, or the constraint of a format that is itself a
    schema. Raises a RequestError, also for two guided fields."""
    sent_fields = [name for name in GUIDED_FIELDS if getattr(wire, name) is not None]
    if len(sent_fields) > 1:
        raise InvalidValue(f"Only one of {', '.join(GUIDED_FIELDS)} can be enabled.", param=sent_fields[1])
    response_format = wire.response_format
    if response_format is None:
        return None, []
    if response_format.get("type") not in FORMATS:
        return None, [read_schema(response_format, "response_format", strict)]
    return convert({"response_format": response_format}, KnownFormat).response_format, []


def _add_inference_fields(
    call: GenerationCall, wire: SgpCommonRequest, extra_params: dict[str, Any]
) -> GenerationCall:
    """Returns the call with the caller's timeout and additions to a vendor's request. Raises a
    RequestError."""
    seconds = wire.inference_timeout
    vendor_options = replace(
        call.request.vendor_options,
        extra_params=extra_params,
        extra_headers=read_extra_headers(wire.inference_extra_headers or {}),
    )
    timeout = None if seconds is None else read_inference_timeout(seconds)
    return replace(call, request=replace(call.request, vendor_options=vendor_options, timeout=timeout))
