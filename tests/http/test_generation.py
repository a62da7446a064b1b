"""An answer is the same whether it is buffered or streamed."""

import pytest

from antiphon.domain.events import Event
from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.values import replace
from antiphon.errors import ContextLengthExceeded, EngineBusy, EngineDied, EngineUnavailable, Overloaded
from antiphon_testing import ScriptedAnswer
from antiphon_testing.scripted_engine import StreamEnding
from tests.support.http_server import CHAT, HELLO, PROMPT, TEXT, LooseEngine, serving

REQUESTS = {
    "chat": (CHAT, HELLO),
    "chat, three choices": (CHAT, HELLO | {"n": 3}),
    "chat, cut": (CHAT, HELLO | {"max_tokens": 2}),
    "text": (TEXT, PROMPT),
    "text, two prompts, two choices": (TEXT, PROMPT | {"prompt": ["a", "bb"], "n": 2}),
    "text, echoed": (TEXT, PROMPT | {"prompt": ["a", "bb"], "echo": True, "n": 2}),
    "text, token ids": (TEXT, PROMPT | {"prompt": [[1, 2], [3]]}),
}


def folded(events):
    """Choices and usage of a stream, as a buffered answer has them."""
    assert events[-1] == "[DONE]" and events.count("[DONE]") == 1
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    usage = None
    for chunk in events[:-1]:
        if not chunk["choices"]:
            assert usage is None
            usage = chunk["usage"]
        for choice in chunk["choices"]:
            assert usage is None and choice["index"] not in reasons
            text = choice["text"] if "text" in choice else choice["delta"].get("content", "")
            texts[choice["index"]] = texts.get(choice["index"], "") + text
            if choice["finish_reason"] is not None:
                reasons[choice["index"]] = choice["finish_reason"]
    return [(index, texts[index], reasons[index]) for index in sorted(texts)], usage


def told(answer):
    """The same of a buffered answer."""
    choices = [
        (c["index"], c["text"] if "text" in c else c["message"]["content"], c["finish_reason"])
        for c in answer["choices"]
    ]
    return choices, answer["usage"]


@pytest.mark.parametrize(("path", "body"), REQUESTS.values(), ids=REQUESTS)
async def test_streamed_and_buffered_are_the_same(served, path, body):
    buffered = await served.ask(path, body)
    streamed = await served.ask(path, body | {"stream": True, "stream_options": {"include_usage": True}})
    assert (buffered.status, streamed.status) == (200, 200)
    assert told(buffered.json()) == folded(streamed.events())
    assert buffered.headers["content-type"] == "application/json"
    assert streamed.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert all(record.ending is StreamEnding.COMPLETE for record in served.engine.streams)


async def test_a_stream_without_usage_says_nothing_of_it(served):
    reply = await served.ask(CHAT, HELLO | {"stream": True})
    assert all("usage" not in chunk for chunk in reply.events()[:-1])


async def test_all_chunks_of_an_answer_share_an_id_that_is_unique(served):
    replies = [await served.ask(CHAT, HELLO | {"stream": True}) for _ in range(2)]
    ids = [{chunk["id"] for chunk in reply.events()[:-1]} for reply in replies]
    assert [len(found) for found in ids] == [1, 1] and ids[0] != ids[1]


async def test_the_engine_sees_the_request_id_the_actor_and_a_deadline(served):
    await served.ask(CHAT, HELLO, headers={"x-request-id": "trace-7"})
    context = served.engine.streams[0].context
    assert (context.request_id, context.actor) == ("trace-7", replace(LOCAL_ANONYMOUS, client="127.0.0.1"))
    assert 3500 < (context.remaining() or 0) <= 3600


async def test_ignored_fields_are_named_in_a_header(served):
    for stream in (False, True):
        reply = await served.ask(CHAT, HELLO | {"user": "u", "prompt_cache_key": "k", "stream": stream})
        assert reply.headers["x-antiphon-ignored"] == "prompt_cache_key, user"
    assert "x-antiphon-ignored" not in (await served.ask(CHAT, HELLO)).headers


async def test_unknown_fields_are_named_in_the_header_if_not_refused():
    odd = HELLO | {"temprature": 1}
    async with serving() as server:
        assert (await server.ask(CHAT, odd)).error["code"] == "unknown_parameter"
    async with serving(unknown_fields="report") as server:
        for body in (odd, odd | {"stream": True}):
            reply = await server.ask(CHAT, body)
            assert (reply.status, reply.headers["x-antiphon-ignored"]) == (200, "temprature")


ERRORS = [
    (Overloaded("the queue is full", retry_after=2.4), 429, "3"),
    (EngineBusy("the queue of m is full", retry_after=1.1), 503, "2"),
    (EngineUnavailable("m is restarting", retry_after=0.2), 503, "1"),
    (EngineDied("the engine's process ended"), 503, "1"),
    (ContextLengthExceeded("the prompt has 3000 tokens", param="messages"), 400, None),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("error", "status", "retry"), ERRORS, ids=[error.code for error, _, _ in ERRORS])
async def test_an_error_before_the_first_token_is_a_plain_http_error(error, status, retry, stream):
    async with serving(ScriptedAnswer(error=error)) as server:
        reply = await server.ask(CHAT, HELLO | {"stream": stream})
    assert (reply.status, reply.error["code"], reply.error["message"]) == (status, error.code, error.message)
    assert (reply.error["param"], reply.headers.get("retry-after")) == (error.param, retry)
    retried_by_clients = {True: "true", False: "false" if status >= 429 else None}[error.retryable]
    assert reply.headers.get("x-should-retry") == retried_by_clients
    assert reply.headers["content-type"] == "application/json"


async def test_a_late_error_ends_a_buffered_answer_with_its_status():
    async with serving(ScriptedAnswer(error=EngineDied("gone"), error_after=2)) as server:
        reply = await server.ask(CHAT, HELLO)
    assert (reply.status, reply.error["code"]) == (503, "engine_died")


async def test_an_engine_that_breaks_its_contract_is_an_internal_error():
    async def silent():
        for event in list[Event]():
            yield event

    async with serving(LooseEngine(silent)) as server:
        reply = await server.ask(CHAT, HELLO)
    assert (reply.status, reply.error["code"]) == (500, "internal_error")
