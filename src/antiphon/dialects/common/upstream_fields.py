"""Reads the fields about the call to a vendor: its time limit, and additions to its body and headers.

A product's dialect has these fields under its own names. `/v1` has none of them. An added field that this
server knows acts as that field, on every engine. Only the other added fields go to vendors.
"""

import math
import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.dialects.common.request_types import CommonRequest
from antiphon.dialects.common.strict_json import convert, describe_value, sanitize_key
from antiphon.domain.upstream_headers import is_header_name, is_protected
from antiphon.domain.vendor_fields import EXTRA_HEADERS, EXTRA_PARAMS
from antiphon.errors import InvalidValue, UnsupportedParameter

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
