"""The answers of the scripted vendor in the shapes of three wire formats, with the points at which they can
fail. All answers have the same words and the same usage."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

WORDS = ("One", " two", " three", " four", " five")
"""The text of every answer, in parts."""

TEXT = "".join(WORDS)

PROMPT_TOKENS, OUTPUT_TOKENS = 11, 5

ERROR_MESSAGE = "boom at http://10.1.2.3/x"
"""The message of an error in the place of a part."""

POINTS = (
    "before-headers",
    "after-headers",
    "mid-chunk",
    "between-chunks",
    "after-finish",
    "after-done",
)
"""Where an exchange can fail, in its order. A whole answer has one chunk. `after-finish` is before the mark
of the end, and in OpenAI's shape before the usage. `after-done` is before the end of the body."""

WHOLE_PLACES = {"before-headers": 0, "after-headers": 1, "mid-chunk": 1, "after-done": 2}
"""The number of parts that come before the fault of a whole answer."""

Json = dict[str, Any]


@dataclass(frozen=True)
class AnswerOptions:
    """The options of a request."""

    model: str
    is_streamed: bool
    is_chat: bool = True
    asks_usage: bool = True


@dataclass(frozen=True)
class AnswerShape:
    """One wire format."""

    name: str
    """The kind of a provider."""
    build_parts: Callable[[AnswerOptions], list[bytes]]
    """The parts of an answer: one for a whole answer, or the events of a stream."""
    build_error: Callable[[int, str], Json]
    """The body of an error with this status and message."""
    places: Mapping[str, int]
    """The number of parts that come before the fault of a stream. The headers are the first part. A negative
    number counts from the end of the body, which is the last part."""
    unfinished: bytes
    """A part that is cut."""
    part_event: bytes = b"data: "
    """The bytes before a part in a stream."""
    error_event: bytes = b"data: "
    """The bytes before an error in a stream."""


def has_no_finish(options: AnswerOptions) -> bool:
    """Whether the answer lacks its finish reason."""
    return options.model == "fake-missing-finish"


# --- OpenAI -------------------------------------------------------------------------------------------------


def build_openai_parts(options: AnswerOptions) -> list[bytes]:
    """The parts of a chat completion, or of a completion."""
    name = "chat.completion" if options.is_chat else "text_completion"
    base = {"id": "chatcmpl-1", "object": name, "created": 1, "model": options.model}
    counts = {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": 16}
    usage = {} if options.model == "fake-no-usage" else {"usage": counts}
    finish = None if has_no_finish(options) else "stop"
    if not options.is_streamed:
        choice: Json = {"index": 0, "finish_reason": finish}
        choice |= {"message": {"role": "assistant", "content": TEXT}} if options.is_chat else {"text": TEXT}
        return [json.dumps(base | {"choices": [choice]} | usage).encode()]
    base["object"] = name + ".chunk" if options.is_chat else name
    deltas: list[Json] = [{"delta": {"role": "assistant", "content": ""}}] if options.is_chat else []
    deltas += [{"delta": {"content": word}} if options.is_chat else {"text": word} for word in WORDS]
    chunks = [base | {"choices": [{"index": 0, "finish_reason": None} | delta]} for delta in deltas]
    end: Json = {"delta": {}} if options.is_chat else {"text": ""}
    chunks.append(base | {"choices": [{"index": 0, "finish_reason": finish} | end]})
    if usage and options.asks_usage:
        chunks.append(base | {"choices": []} | usage)
    return [b"data: %b\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]


def build_openai_error(status: int, message: str) -> Json:
    return {"error": {"message": message, "type": "said", "code": None}}


OPENAI = AnswerShape(
    "openai",
    build_openai_parts,
    build_openai_error,
    {
        "before-headers": 0,
        "after-headers": 1,
        "mid-chunk": 3,
        "between-chunks": 4,
        "after-finish": -3,
        "after-done": -1,
    },
    b'{"choices": [{"index": 0, "delta": {"content": "cu',
)


# --- Anthropic ----------------------------------------------------------------------------------------------

CLAUDE_ERRORS = {429: "rate_limit_error", 500: "api_error", 503: "overloaded_error"}


def build_claude_parts(options: AnswerOptions) -> list[bytes]:
    """The parts of a message."""
    stop = None if has_no_finish(options) else "end_turn"
    usage = {"input_tokens": PROMPT_TOKENS, "output_tokens": OUTPUT_TOKENS}
    message: Json = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": options.model,
        "content": [{"type": "text", "text": TEXT}],
        "stop_reason": stop,
        "usage": usage,
    }
    if not options.is_streamed:
        return [json.dumps(message).encode()]
    start = message | {"content": [], "stop_reason": None, "usage": usage | {"output_tokens": 1}}
    events: list[Json] = [
        {"type": "message_start", "message": start},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}}
            for word in WORDS
        ),
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": stop}, "usage": usage},
        {"type": "message_stop"},
    ]
    return [f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode() for event in events]


def build_claude_error(status: int, message: str) -> Json:
    kind = CLAUDE_ERRORS.get(status, "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


CLAUDE = AnswerShape(
    "anthropic",
    build_claude_parts,
    build_claude_error,
    {
        "before-headers": 0,
        "after-headers": 1,
        "mid-chunk": 4,
        "between-chunks": 5,
        "after-finish": -2,
        "after-done": -1,
    },
    b'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "cu',
    b"event: content_block_delta\ndata: ",
    b"event: error\ndata: ",
)


# --- Gemini -------------------------------------------------------------------------------------------------

GEMINI_STATUSES = {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 503: "UNAVAILABLE"}


def build_gemini_parts(options: AnswerOptions) -> list[bytes]:
    """The chunks of an answer. The last one has the finish reason and the usage. No mark of the end
    follows."""
    usage = {"promptTokenCount": PROMPT_TOKENS, "candidatesTokenCount": OUTPUT_TOKENS}
    texts = (*WORDS, "") if options.is_streamed else (TEXT,)
    chunks: list[Json] = [
        {"candidates": [{"content": {"parts": [{"text": text}], "role": "model"}, "index": 0}]}
        for text in texts
    ]
    chunks[-1]["usageMetadata"] = usage
    if not has_no_finish(options):
        chunks[-1]["candidates"][0]["finishReason"] = "STOP"
    if not options.is_streamed:
        return [json.dumps(chunks[0]).encode()]
    return [b"data: %b\r\n\r\n" % json.dumps(chunk).encode() for chunk in chunks]


def build_gemini_error(status: int, message: str) -> Json:
    kind = GEMINI_STATUSES.get(status, "INVALID_ARGUMENT")
    return {"error": {"code": status, "message": message, "status": kind}}


GEMINI = AnswerShape(
    "gemini",
    build_gemini_parts,
    build_gemini_error,
    {"before-headers": 0, "after-headers": 1, "mid-chunk": 2, "between-chunks": 3, "after-finish": -1},
    b'{"candidates": [{"index": 0, "content": {"parts": [{"text": "cu',
)

SHAPES = {shape.name: shape for shape in (OPENAI, CLAUDE, GEMINI)}


def find_place(shape: AnswerShape, point: str, is_streamed: bool, parts: int) -> int:
    """Returns the number of parts before the fault. `parts`: number of all parts, with headers and end."""
    place = shape.places[point] if is_streamed else WHOLE_PLACES[point]
    return place if place >= 0 else parts + place


def count_words(shape: AnswerShape, point: str) -> int:
    """The words of a stream that come before the fault."""
    if shape.places[point] < 0:
        return len(WORDS)
    word_counts = {"mid-chunk": 1, "between-chunks": 2}
    return word_counts.get(point, 0)


# --- corrupt parts ------------------------------------------------------------------------------------------

HUGE = 17 << 20

GARBAGE = b"\x00\xff not an event\n\ndata: {]"


def build_corrupt_part(shape: AnswerShape, fault: str, is_streamed: bool) -> bytes:
    """Returns the bytes that replace a part."""
    if fault == "garbage":
        return GARBAGE + b"\n\n" if is_streamed else GARBAGE
    data = {
        "truncated": shape.unfinished,
        "error": json.dumps(shape.build_error(500, ERROR_MESSAGE)).encode(),
        "huge": b"x" * HUGE,
    }[fault]
    if not is_streamed:
        return data
    return shape.error_event + data + b"\n\n" if fault == "error" else shape.part_event + data


def build_corrupt_headers(shape: AnswerShape, fault: str) -> bytes:
    """Returns the bytes that replace the headers."""
    error = json.dumps(shape.build_error(500, ERROR_MESSAGE)).encode()
    return {
        "garbage": b"\x00\xff no answer\r\n\r\n",
        "truncated": b"HTTP/1.1 200 OK\r\ncontent-ty",
        "error": b"HTTP/1.1 500 Oh\r\ncontent-length: %d\r\n\r\n%b" % (len(error), error),
        "huge": b"HTTP/1.1 200 OK\r\nx-huge: " + b"x" * HUGE,
    }[fault]
