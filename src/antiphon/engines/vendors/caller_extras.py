"""Adds the caller's extra fields and extra headers to a vendor's request.

The operator allows names for each provider. Any other name is refused; another route may allow it. A caller
never overwrites a field that the server wrote.
"""

from collections.abc import Mapping
from typing import Any

from antiphon.domain.request import (
    GenerationRequest,
)
from antiphon.domain.vendor_fields import (
    EXTRA_HEADERS,
    EXTRA_PARAMS,
)
from antiphon.engines.vendors.base import VendorModel
from antiphon.errors import UnsupportedParameter

COUNTED_FIELDS = frozenset(
    """
    model models messages prompt input contents system systemInstruction instructions stream stream_options
    max_completion_tokens max_output_tokens max_new_tokens max_tokens_to_sample generationConfig
    previous_response_id conversation background
    """.split()
)
"""Fields that determine what is generated and how much. Limits and prices rely on the server's values, so
callers can never add these fields."""

LONGEST_SHOWN = 64
"""The most characters of a caller's name in an error."""


def add_extra_fields(body: dict[str, Any], request: GenerationRequest, model: VendorModel) -> None:
    """Adds the caller's fields to the body. If the server and the caller both set an object, the two objects
    are merged. Raises UnsupportedParameter for a field that the operator does not allow, or that both set."""
    for name, value in request.vendor_options.extra_params.items():
        field = f"{EXTRA_PARAMS}.{name}"
        if name not in model.extra_fields:
            raise _build_refusal(field, "extra_params", model)
        body[name] = _merge_objects(body[name], value, field, model) if name in body else value


def _merge_objects(
    server_value: object, caller_value: object, field: str, model: VendorModel
) -> dict[str, Any]:
    """Returns one object with the entries of both. Raises UnsupportedParameter if the values are not objects,
    or have an entry of the same name."""
    if not isinstance(server_value, Mapping) or not isinstance(caller_value, Mapping):
        raise _build_conflict(field, model)
    for name in caller_value:
        if name in server_value:
            raise _build_conflict(f"{field}.{name[:LONGEST_SHOWN]}", model)
    return {**server_value, **caller_value}


def read_extra_headers(request: GenerationRequest, model: VendorModel) -> tuple[tuple[str, str], ...]:
    """Returns the caller's headers. Raises UnsupportedParameter for a header that the operator does not
    allow."""
    headers = request.vendor_options.extra_headers
    for name in headers:
        if name not in model.extra_headers:
            raise _build_refusal(f"{EXTRA_HEADERS}.{name}", "extra_headers", model)
    return tuple(headers.items())


def _build_conflict(field: str, model: VendorModel) -> UnsupportedParameter:
    """Builds the error for a field that this server has already written."""
    return UnsupportedParameter(
        f"{field} is not supported here: the rest of the request sets it for the provider {model.provider}; "
        "leave one of them out",
        param=field,
    )


def _build_refusal(field: str, setting: str, model: VendorModel) -> UnsupportedParameter:
    """Builds the error for a name that the operator does not allow."""
    return UnsupportedParameter(
        f"{field} is not allowed by the operator of this server for the provider {model.provider}; leave it "
        f"out, or have the operator add it to {setting} of the provider",
        param=field,
    )
