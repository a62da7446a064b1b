"""Reads fields for vendors: their own options, data of earlier answers, and the call to a vendor.

Data of earlier answers are blocks of reasoning and signatures of calls. Clients send both in the assistant's
messages. Their content is not changed.

The fields about the call are its time limit, and additions to its body and headers. A product's dialect has
them under its own names. `/v1` has none of them. An added field that this server knows acts as that field, on
every engine. Only the other added fields go to vendors.
"""

import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from operator import attrgetter
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.bodies.strict_json import convert, describe_value, sanitize_key
from antiphon.dialects.common.request_types import (
    ChatCompletionRequest,
    ChatMessage,
    CommonRequest,
    PredictionShape,
    SpeechShape,
)
from antiphon.dialects.common.tools import require_shallow
from antiphon.domain.request import NO_VENDOR_OPTIONS, SPEECH, Prediction, SpeechOptions, VendorOptions
from antiphon.domain.values import replace
from antiphon.domain.vendor_fields import EXTRA_HEADERS, EXTRA_PARAMS, is_header_name, is_protected
from antiphon.errors import InvalidValue, MissingParameter, UnsupportedParameter

_get_chat_options = attrgetter(
    "service_tier", "prompt_cache_key", "verbosity", "prediction", "modalities", "audio"
)
"""Returns the values of the options of a chat that only vendors have."""

NO_CHAT_OPTIONS = (None,) * 6

LARGEST_BLOCKS = 1 << 22
"""The most characters of JSON in one message's blocks. The longest reasoning of current models has 128,000
tokens, which are about a megabyte with the signature."""

LONGEST_SIGNATURE = 1 << 20
"""The most characters of a call's signature. Vendors send some thousands."""

NOTHING: tuple[Mapping[str, object], ...] = ()

INFERENCE_TIMEOUT = "inference_timeout"

PROTECTED = frozenset(
    (
        "model",
        "messages",
        "prompt",
        "stream",
        "stream_options",
        INFERENCE_TIMEOUT,
        EXTRA_PARAMS,
        EXTRA_HEADERS,
    )
)
"""Fields that cannot be added, because they determine the generation and the form of its answer."""

PARAM_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}")
"""The name of a field for a vendor."""

LONGEST_NAME = 64
"""The most characters of a header's name."""

NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?")
"""A number as JSON writes it."""


def read_vendor_options(
    service_tier: str | None, prompt_cache_key: str | None, verbosity: str | None = None
) -> VendorOptions:
    """Reads the options that chats and text completions share. An empty `prompt_cache_key` counts as
    absent."""
    if service_tier is None and not prompt_cache_key and verbosity is None:
        return NO_VENDOR_OPTIONS
    return VendorOptions(verbosity, service_tier, prompt_cache_key or None)


def read_chat_vendor_options(wire: ChatCompletionRequest) -> VendorOptions:
    """Reads the options of a chat. Raises a RequestError."""
    if _get_chat_options(wire) == NO_CHAT_OPTIONS:
        return NO_VENDOR_OPTIONS
    vendor_options = read_vendor_options(wire.service_tier, wire.prompt_cache_key, wire.verbosity)
    if wire.prediction is not None:
        _require_predictable(wire)
        vendor_options = replace(vendor_options, prediction=Prediction(join_prediction(wire.prediction)))
    if wire.modalities is None and wire.audio is None:
        return vendor_options
    return replace(vendor_options, modalities=read_modalities(wire), audio=read_speech_options(wire.audio))


def _require_predictable(wire: ChatCompletionRequest) -> None:
    """Raises UnsupportedParameter for a field that OpenAI refuses together with `prediction`."""
    others = {
        "n above 1": (wire.n or 1) > 1,
        "tools": bool(wire.tools),
        "audio": wire.audio is not None or SPEECH in (wire.modalities or ()),
    }
    for other, is_sent in others.items():
        if is_sent:
            raise UnsupportedParameter(
                f"prediction is not supported together with {other}; leave one of them out",
                param="prediction",
            )


def join_prediction(prediction: PredictionShape) -> str:
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def read_modalities(wire: ChatCompletionRequest) -> tuple[str, ...]:
    """Returns the requested kinds of output. Raises a RequestError if `modalities` and `audio` contradict
    each other."""
    modalities = tuple(dict.fromkeys(wire.modalities or ()))
    if SPEECH not in modalities and wire.audio is not None:
        raise InvalidValue("audio is taken only together with modalities that contain audio", param="audio")
    if SPEECH in modalities and wire.audio is None:
        raise MissingParameter(
            "audio is missing: modalities with audio need it; send a format and a voice", param="audio"
        )
    return modalities


def read_speech_options(audio: SpeechShape | None) -> SpeechOptions | None:
    """Returns the options of a spoken answer."""
    if audio is None:
        return None
    voice = audio.voice
    if isinstance(voice, str):
        return SpeechOptions(audio.format, voice)
    return SpeechOptions(audio.format, voice.id, is_custom=True)


def read_thinking_blocks(message: ChatMessage, path: str) -> tuple[Mapping[str, object], ...]:
    """Returns the blocks of reasoning of a message. Raises InvalidValue if they are too large, nested too
    deeply, or not in an assistant's message."""
    blocks: Sequence[Mapping[str, Any]] | None = message.thinking_blocks
    if not blocks:
        return NOTHING
    field = f"{path}.thinking_blocks"
    if message.role != "assistant":
        raise InvalidValue(f"{field} is taken only in messages of the role assistant", param=field)
    require_shallow(blocks, field)
    try:
        size = len(json.dumps(blocks, allow_nan=False, ensure_ascii=False))
    except ValueError:
        raise InvalidValue(f"{field} must hold finite numbers", param=field) from None
    if size > LARGEST_BLOCKS:
        raise InvalidValue(
            f"{field} has {size:,} characters as JSON; the limit is {LARGEST_BLOCKS:,}", param=field
        )
    return tuple(blocks)


def read_signature(extra_content: Mapping[str, Any] | None, field: str) -> str | None:
    """Returns the signature of a call, in Google's form. `field`: the caller's name of `extra_content`.
    Raises InvalidValue if the signature is not a text or too long."""
    google = extra_content.get("google") if extra_content else None
    signature = google.get("thought_signature") if isinstance(google, Mapping) else None
    if signature is None:
        return None
    path = f"{field}.google.thought_signature"
    if not isinstance(signature, str) or not 0 < len(signature) <= LONGEST_SIGNATURE:
        raise InvalidValue(f"{path} must be a text of 1 to {LONGEST_SIGNATURE:,} characters", param=path)
    return signature


def is_only_signature(extra_content: object) -> bool:
    """Whether the object contains only a signature."""
    if not isinstance(extra_content, dict) or extra_content.keys() != {"google"}:
        return False
    google = extra_content["google"]
    return isinstance(google, dict) and google.keys() == {"thought_signature"}


def read_inference_timeout(value: float | str) -> float:
    """Returns the time limit of a generation in seconds, from a number or a text with a number. Raises
    InvalidValue unless it is finite and above 0."""
    seconds = _parse_seconds(value)
    if not 0 < seconds < math.inf:
        received = value if math.isnan(seconds) else seconds
        raise InvalidValue(
            f"{INFERENCE_TIMEOUT} must be a number of seconds above 0, or a text with one; got "
            f"{describe_value(received)}",
            param=INFERENCE_TIMEOUT,
        )
    return seconds


def _parse_seconds(value: float | str) -> float:
    """Returns the number; NaN for a text without a number, infinity for a number that is too large."""
    if isinstance(value, str) and not NUMBER.fullmatch(value):
        return math.nan
    try:
        return float(value)
    except OverflowError:
        return math.inf


class MergedBody(Struct, frozen=True):
    """A body with the fields that its caller adds in `inference_extra_params`."""

    fields: dict[str, Any]
    """The body's fields, including added fields of the dialect."""
    v1_values: dict[str, Any]
    """Added fields that only `/v1` has, checked by its wire type."""
    unknown_fields: dict[str, Any]
    """Added fields that this server does not know."""


def merge_extra_params(
    fields: dict[str, Any], dialect_fields: Collection[str], shape: type[CommonRequest]
) -> MergedBody:
    """Merges the added fields into a body. Call it before the conversion to the dialect's wire type, which
    checks `inference_extra_params`.

    `dialect_fields`: names of the dialect's own fields. `shape`: the wire type of `/v1`. Raises a
    RequestError for a protected field, for a field that the body also has, and for an invalid value of a
    field of `/v1`.
    """
    extra_params = fields.get(EXTRA_PARAMS)
    if not isinstance(extra_params, dict):
        return MergedBody(fields, {}, {})
    merged_fields, v1_values, unknown_fields = dict(fields), {}, {}
    for name, value in extra_params.items():
        _require_addable(name, fields)
        if name in dialect_fields:
            merged_fields[name] = value
        elif name in shape.__struct_fields__:
            v1_values[name] = value
        else:
            unknown_fields[name] = value
    return MergedBody(merged_fields, _read_values(v1_values, shape), unknown_fields)


def _require_addable(name: str, fields: Mapping[str, Any]) -> None:
    """Raises a RequestError if no field can be added under this name."""
    field = f"{EXTRA_PARAMS}.{sanitize_key(name)}"
    if not PARAM_NAME.fullmatch(name):
        raise InvalidValue(
            f"{EXTRA_PARAMS} must have names of 1 to 64 letters, digits and characters of _.-; got {field}",
            param=field,
        )
    if name in PROTECTED:
        raise UnsupportedParameter(
            f"{field} is not supported: {name} belongs into the body itself; send it there", param=field
        )
    if fields.get(name) is not None:
        raise InvalidValue(f"{field} and {name} are both set; send one of them", param=field)


def _read_values(values: dict[str, Any], shape: type[CommonRequest]) -> dict[str, Any]:
    """Returns the values of `/v1`'s fields, checked by its wire type. Null means absent."""
    if not values:
        return {}
    checked_values = getattr(convert({EXTRA_PARAMS: values}, _build_shape(shape)), EXTRA_PARAMS)
    return {name: value for name in values if (value := getattr(checked_values, name)) is not None}


@cache
def _build_shape(shape: type[CommonRequest]) -> type[msgspec.Struct]:
    """Builds the wire type of a body that has only `inference_extra_params`, with the fields of `/v1`."""
    fields = [
        (field.name, field.type, None)
        for field in msgspec.structs.fields(shape)
        if field.name not in PROTECTED
    ]
    extra_fields = msgspec.defstruct("ExtraFields", fields, frozen=True, kw_only=True)
    return msgspec.defstruct("ExtraBody", [(EXTRA_PARAMS, extra_fields)], frozen=True)


def read_extra_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns the headers that a caller adds, with names in lower case. Raises a RequestError for an invalid
    name or value, and for headers that callers cannot set."""
    lower_case: dict[str, str] = {}
    for name, value in headers.items():
        field = f"{EXTRA_HEADERS}.{sanitize_key(name)}"
        if len(name) > LONGEST_NAME or not is_header_name(name):
            raise InvalidValue(
                f"{EXTRA_HEADERS} must have names of headers with at most {LONGEST_NAME} characters; got "
                f"{field}",
                param=field,
            )
        if is_protected(name):
            raise UnsupportedParameter(
                f"{field} is not supported: headers of credentials and of the connection are not passed on; "
                "leave it out",
                param=field,
            )
        if name.lower() in lower_case:
            raise InvalidValue(f"{field} is set twice, because case is ignored; send it once", param=field)
        if not value.isascii() or not value.isprintable():
            raise InvalidValue(f"{field} must be printable ASCII", param=field)
        lower_case[name.lower()] = value
    return lower_case
