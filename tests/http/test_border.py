"""The outermost layer: ids, envelopes for every error, and nothing that leaks."""

import logging

import pytest

from antiphon.domain.events import Started, TextDelta
from antiphon.errors import EngineBusy, EngineDied, EngineError, InternalError
from antiphon.telemetry.logs import FIELDS
from tests.support.http_server import CHAT, HELLO, KEY, LooseEngine, serving


@pytest.mark.parametrize("name", ["trace-7", "a", "A.b_c:d-9", "x" * 128])
async def test_a_request_id_is_taken_and_echoed(served, name):
    reply = await served.ask(CHAT, HELLO, headers={"x-request-id": name})
    assert reply.headers["x-request-id"] == name == served.engine.streams[0].context.request_id


@pytest.mark.parametrize(
    "name", ["", "x" * 129, "a b", "a\tb", 'a"b', "{{7*7}}", "é", "../../etc/passwd", "http://127.0.0.1:9/"]
)
async def test_any_other_request_id_is_replaced(served, name):
    reply = await served.ask(CHAT, HELLO, headers={"x-request-id": name})
    made = reply.headers["x-request-id"]
    assert made != name and made.startswith("req-") and len(made) == 36


async def test_two_request_ids_are_none(served):
    request = b"GET /health HTTP/1.1\r\nhost: localhost\r\nx-request-id: a\r\nx-request-id: b\r\n\r\n"
    assert (await served.raw(request)).headers["x-request-id"].startswith("req-")


@pytest.mark.parametrize(
    ("path", "how", "status"),
    [
        ("/health", {}, 200),
        ("/nowhere", {}, 404),
        ("/health", {"method": "DELETE"}, 405),
        (CHAT, {"body": b"x"}, 400),
        ("/v1/models", {"headers": {"host": "evil.example"}}, 403),
    ],
)
async def test_every_response_has_a_request_id_and_its_type_is_final(served, path, how, status):
    reply = await served.ask(path, **how)
    assert (reply.status, reply.headers["x-content-type-options"]) == (status, "nosniff")
    assert reply.headers["x-request-id"]


@pytest.mark.parametrize(
    "path", ["/x", "/v1", "/v1/", "/v2/models", f"{CHAT}/", "/health/", "/metrics/", "/debug", "/docs/x"]
)
async def test_an_unknown_path_is_a_404_in_the_envelope(served, path):
    for body in (None, HELLO):
        reply = await served.ask(path, body)
        assert (reply.status, reply.error["code"]) == (404, "route_not_found")
        assert "location" not in reply.headers


@pytest.mark.parametrize(
    ("path", "method", "allow"),
    [
        (CHAT, "GET", "POST"),
        (CHAT, "PUT", "POST"),
        ("/v1/models", "POST", "GET, HEAD"),
        ("/health", "OPTIONS", "GET, HEAD"),
    ],
)
async def test_a_wrong_method_is_a_405_that_names_the_right_ones(served, path, method, allow):
    reply = await served.ask(path, method=method)
    assert (reply.status, reply.error["code"]) == (405, "method_not_allowed")
    assert ", ".join(sorted(reply.headers["allow"].split(", "))) == allow


async def test_a_path_of_several_routes_names_the_methods_of_all(served):
    reply = await served.ask("/empower/api/v1/lora", method="PUT")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD, POST")


async def test_head_is_get_without_the_body(served):
    async with served.line() as line:
        await line.send(b"HEAD /health HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        head, _, body = (await line.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"content-length: 16" in head and body == b""


async def test_a_defect_says_the_request_id_and_nothing_else(caplog):
    """Neither the caller nor the log gets the message, which may hold a prompt."""

    async def broken():
        yield Started(1)
        raise KeyError("canary-prompt-93fe 0x7f0012 /srv/antiphon/x.py SELECT 1")

    async with serving(LooseEngine(broken)) as server:
        reply = await server.ask(CHAT, HELLO, headers={"x-request-id": "trace-9"})
    assert (reply.status, reply.error["type"], reply.error["param"]) == (500, "server_error", None)
    assert reply.error["message"] == "something went wrong inside the server; the request id is trace-9"
    (logged,) = [record for record in caplog.records if record.message == "internal_error"]
    fields = getattr(logged, FIELDS)
    assert fields["request_id"] == "trace-9" and fields["problem"].startswith("KeyError at ")
    assert "test_border.py" in fields["problem"] and "canary" not in caplog.text + str(fields)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_contained_engine_defect_is_logged_once_with_the_id(caplog, stream):
    async def broken():
        yield Started(1)
        raise InternalError("IndexError at filters.py:60 keep")

    async with serving(LooseEngine(broken)) as server:
        reply = await server.ask(CHAT, HELLO | {"stream": stream}, headers={"x-request-id": "trace-11"})
    assert b"trace-11" in reply.body and b"IndexError" not in reply.body
    (logged,) = [record for record in caplog.records if record.message == "internal_error"]
    assert getattr(logged, FIELDS) == {
        "request_id": "trace-11",
        "problem": "IndexError at filters.py:60 keep",
    }


async def test_refusals_are_logged_with_their_request_id(served, caplog):
    caplog.set_level(logging.INFO, logger="antiphon")
    await served.ask(CHAT, HELLO | {"n": 0}, headers={"x-request-id": "trace-10"})
    (logged,) = [getattr(record, FIELDS) for record in caplog.records if record.message == "refused"]
    assert (logged["request_id"], logged["status"], logged["code"], logged["param"]) == (
        "trace-10",
        400,
        "invalid_value",
        "n",
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (EngineError("it says canary-5", cause="the matcher stopped"), "the matcher stopped"),
        (EngineDied("the engine ended", cause="signal SIGSEGV"), "signal SIGSEGV"),
        (EngineBusy("no room for more"), "no room for more"),
    ],
)
async def test_an_engine_failure_is_logged_with_cause_and_no_output(caplog, error, cause, stream):
    """At the level of warnings, as an operator may have chosen no lower one."""
    caplog.set_level(logging.WARNING, logger="antiphon")

    async def broken():
        yield Started(1)
        yield TextDelta(0, "a")
        raise error

    async with serving(LooseEngine(broken)) as server:
        await server.ask(CHAT, HELLO | {"stream": stream}, headers={"x-request-id": "trace-12"})
    told = ("refused", "stream_failed")
    (logged,) = [getattr(each, FIELDS) for each in caplog.records if each.message in told]
    assert (logged["request_id"], logged["code"], logged["cause"]) == ("trace-12", error.code, cause)
    assert "canary" not in caplog.text + str(logged)


async def test_neither_key_nor_prompt_reaches_a_log_or_an_error(caplog):
    caplog.set_level(logging.DEBUG)
    prompt = "canary-prompt-93fe"
    chat = {"model": "m", "messages": [{"role": "user", "content": prompt}]}
    bodies = [
        chat,
        chat | {"n": 0},
        chat | {"model": "x"},
        {"model": "m", "messages": prompt},
        prompt.encode(),
    ]
    async with serving(key=KEY) as server:
        for key in (KEY, KEY + "x", KEY[:-1]):
            for body in bodies:
                reply = await server.ask(CHAT, body, headers={"authorization": f"Bearer {key}"})
                assert reply.status == 200 or prompt.encode() not in reply.body
                assert key.encode() not in reply.body
    logged = caplog.text + "".join(str(getattr(record, FIELDS, "")) for record in caplog.records)
    assert "canary" not in logged and KEY[:6] not in logged


async def test_the_list_of_models_has_a_path_with_a_slash_too(served):
    for prefix in ("/v1", "/fireworks/inference/v1"):
        listed, again = [await served.ask(f"{prefix}/models{end}") for end in ("", "/")]
        assert (again.status, again.json()) == (200, listed.json())


@pytest.mark.parametrize("path", ["/responses", "/openai/v1/responses", "/v1/v1/responses"])
async def test_the_path_of_responses_is_suggested(served, path):
    reply = await served.ask(path, HELLO)
    assert (reply.status, reply.error["code"]) == (404, "route_not_found")
    assert "did you mean /v1/responses?" in reply.error["message"]
