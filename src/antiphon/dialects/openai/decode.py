"""From a request body to a generation request: fields sifted, shapes checked."""

from typing import Any

from antiphon.dialects.base import Call
from antiphon.dialects.common.decode import build_chat_call, build_text_call
from antiphon.dialects.common.field_table import FieldReport
from antiphon.dialects.common.fields import FieldScope, filter_fields
from antiphon.dialects.common.messages import filter_messages
from antiphon.dialects.common.request_types import ChatCompletionRequest, CompletionRequest
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.common.tools import filter_tools


def decode_chat(body: bytes, report: bool = False, strict: bool = False) -> Call:
    """A body of POST /v1/chat/completions. Raises a RequestError; with `report` not for unknown fields, which
    are then ignored and named; with `strict` every keyword of a schema has to be kept."""
    found = FieldReport(report)
    given = filter_fields(read_object(body), FieldScope.CHAT, report=found)
    _filter_stream_options(given, found)
    given = filter_tools(filter_messages(given, found), found)
    return build_chat_call(convert(given, ChatCompletionRequest), found.names, strict)


def decode_text(body: bytes, report: bool = False, strict: bool = False) -> Call:
    """A body of POST /v1/completions. Raises a RequestError; the others as in `decode_chat`."""
    found = FieldReport(report)
    given = filter_fields(read_object(body), FieldScope.TEXT, report=found)
    _filter_stream_options(given, found)
    return build_text_call(convert(given, CompletionRequest), found.names, strict)


def _filter_stream_options(given: dict[str, Any], report: FieldReport) -> None:
    options = given.get("stream_options")
    if isinstance(options, dict):
        given["stream_options"] = filter_fields(options, FieldScope.STREAM, "stream_options.", report)
