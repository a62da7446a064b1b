"""The Responses API over the wire: streams, errors before and after the headers, counts, and other paths."""

import asyncio

import pytest

from antiphon.errors import ContextLengthExceeded, EngineBusy, EngineDied
from antiphon_testing import ScriptedAnswer
from tests.support.http_server import request_bytes, serving
from tests.support.response_events import check_events

HELLO = {"model": "m", "input": "Hi"}


async def test_an_answer_and_its_stream():
    async with serving() as served:
        whole = await served.ask("/v1/responses", HELLO)
        assert whole.status == 200
        assert whole.json()["output"][0]["content"][0]["text"] == "Hello world!"
        streamed = await served.ask("/v1/responses", HELLO | {"stream": True})
        *events, done = streamed.events()
        response = check_events(events)
        assert done == "[DONE]" and streamed.headers["content-type"].startswith("text/event-stream")
        names = [line for line in streamed.body.decode().split("\n") if line.startswith("event: ")]
        assert names == [f"event: {event['type']}" for event in events]
        ids = {"id", "created_at", "completed_at", "output"}
        assert {name: value for name, value in response.items() if name not in ids} == {
            name: value for name, value in whole.json().items() if name not in ids
        }


async def test_errors_before_the_answer_have_the_form_of_openai():
    async with serving(key="sk-key-of-the-test-000000000000") as served:
        refused = await served.ask("/v1/responses", HELLO)
        assert (refused.status, refused.error["code"]) == (401, "invalid_api_key")
    async with serving() as served:
        for body, code, param, status in (
            (HELLO | {"model": "nobody"}, "model_not_found", "model", 404),
            (HELLO | {"max_output_tokens": 0}, "invalid_value", "max_output_tokens", 400),
            ({"input": "Hi"}, "missing_required_parameter", "model", 400),
            (HELLO | {"background": True}, "unsupported_parameter", "background", 400),
        ):
            for stream in (False, True):
                reply = await served.ask("/v1/responses", body | {"stream": stream})
                assert (reply.status, reply.error["code"], reply.error["param"]) == (status, code, param)
                assert reply.error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (EngineBusy("all places are taken"), 503, "engine_busy"),
        (ContextLengthExceeded("the prompt is too long"), 400, "context_length_exceeded"),
    ],
)
async def test_an_error_of_the_engine_is_a_status(error, status, code):
    async with serving(ScriptedAnswer(error=error)) as served:
        for stream in (False, True):
            reply = await served.ask("/v1/responses", HELLO | {"stream": stream})
            assert (reply.status, reply.error["code"]) == (status, code)


async def test_a_stream_that_breaks_ends_with_its_failure_and_the_body():
    """openai/codex#43140: a body that stays open after the failure hides the cause. openai/codex#24973: so
    does an error that is null."""
    broken = ScriptedAnswer(error=EngineDied("the engine ended"), error_after=2)
    async with serving(broken) as served:
        reply = await served.ask("/v1/responses", HELLO | {"stream": True})
        response = check_events(reply.events())
        assert response["status"] == "failed" and response["output"] == []
        assert response["error"] == {"code": "server_error", "message": "the engine ended"}
        assert b"[DONE]" not in reply.body and b"response.completed" not in reply.body


async def test_a_limit_of_tokens_makes_the_answer_incomplete():
    async with serving() as served:
        body = HELLO | {"max_output_tokens": 1}
        whole = (await served.ask("/v1/responses", body)).json()
        *events, done = (await served.ask("/v1/responses", body | {"stream": True})).events()
        for response in (whole, check_events(events)):
            assert response["incomplete_details"] == {"reason": "max_output_tokens"}
            assert response["output"][0]["content"][0]["text"] == "Hello"
        assert events[-1]["type"] == "response.incomplete" and done == "[DONE]"


async def test_unknown_fields_are_named_and_not_refused():
    async with serving() as served:
        reply = await served.ask("/v1/responses", HELLO | {"a_field_of_tomorrow": 1})
        assert reply.status == 200 and reply.headers["x-antiphon-ignored"] == "a_field_of_tomorrow"


async def test_what_a_model_lacks_is_named_and_not_refused():
    """Agents send these by the model's name, without knowing the model."""
    async with serving() as served:
        reply = await served.ask("/v1/responses", HELLO | {"text": {"verbosity": "low"}})
        assert reply.status == 200 and reply.headers["x-antiphon-ignored"] == "verbosity"


async def test_texts_have_their_log_probabilities():
    async with serving() as served:
        body = HELLO | {"top_logprobs": 1}
        whole = (await served.ask("/v1/responses", body)).json()["output"][0]["content"][0]["logprobs"]
        *events, _ = (await served.ask("/v1/responses", body | {"stream": True})).events()
        assert check_events(events)["output"][0]["content"][0]["logprobs"] == whole
        assert [token["token"] for token in whole] == ["Hello", " world", "!"]


async def test_tools_that_openai_runs_are_refused_if_the_operator_says_so():
    tools = [{"type": "function", "name": "f"}, {"type": "web_search"}]
    async with serving(hosted_tools="refuse") as served:
        for path in ("/v1/responses", "/v1/responses/input_tokens"):
            reply = await served.ask(path, HELLO | {"tools": tools})
            assert (reply.status, reply.error["param"]) == (400, "tools[1].type")


async def test_a_silence_has_events_that_codex_reads():
    """openai/codex#31539: comments do not reset its timer, and it sends the turn again."""
    gate = asyncio.Event()
    async with serving(ScriptedAnswer(gate=gate), keep_alive_interval=0.05) as served, served.line() as line:
        await line.send(request_bytes("/v1/responses", HELLO | {"stream": True}))
        head = await line.until(b"event: response.in_progress")
        assert b"200 OK" in head and b"event: response.created" in head
        again = await line.until(b"event: response.in_progress")
        assert b"response.created" not in again
        gate.set()
        rest = await line.until(b"[DONE]")
        assert b"event: response.completed" in rest and b"response.created" not in rest


async def test_paths_that_are_not_served():
    async with serving() as served:
        for path in ("/v1/responses/compact", "/v1/conversations", "/v1/alpha/search"):
            assert (await served.ask(path, HELLO)).status == 404
