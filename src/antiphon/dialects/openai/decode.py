"""From a request body to a generation request: fields sifted, shapes checked."""

from typing import Any

from antiphon.dialects.base import Call
from antiphon.dialects.common.chat import chat_call, sift_messages, text_call
from antiphon.dialects.common.conversion import convert
from antiphon.dialects.common.field_scopes import FieldScope
from antiphon.dialects.common.field_table import Report
from antiphon.dialects.common.fields import sift
from antiphon.dialects.common.strict_json import read_object
from antiphon.dialects.common.tools import sift_tools
from antiphon.dialects.common.wire import ChatCompletionRequest, CompletionRequest


def decode_chat(body: bytes, report: bool = False, strict: bool = False) -> Call:
    """A body of POST /v1/chat/completions. Raises a RequestError; with `report` not for unknown fields, which
    are then ignored and named; with `strict` every keyword of a schema has to be kept."""
    found = Report(report)
    given = sift(read_object(body), FieldScope.CHAT, report=found)
    _sift_stream_options(given, found)
    given = sift_tools(sift_messages(given, found), found)
    return chat_call(convert(given, ChatCompletionRequest), found.names, strict)


def decode_text(body: bytes, report: bool = False, strict: bool = False) -> Call:
    """A body of POST /v1/completions. Raises a RequestError; the others as in `decode_chat`."""
    found = Report(report)
    given = sift(read_object(body), FieldScope.TEXT, report=found)
    _sift_stream_options(given, found)
    return text_call(convert(given, CompletionRequest), found.names, strict)


def _sift_stream_options(given: dict[str, Any], report: Report) -> None:
    options = given.get("stream_options")
    if isinstance(options, dict):
        given["stream_options"] = sift(options, FieldScope.STREAM, "stream_options.", report)
