"""jamaibase, unchanged, against an engine that fails as it is told: its errors and its streams."""

from typing import Any

import pytest

from tests.contract.conftest import KEY, Scripted
from tests.contract.jamai.caller import Base, join_chunks, read_error

pytestmark = pytest.mark.timeout(480)


def say(words: str, **fields: Any) -> dict[str, Any]:
    """The fields of a chat with these words."""
    return {"messages": [{"role": "user", "content": words}]} | fields


@pytest.fixture
def base(scripted: Scripted) -> Base:
    return Base(scripted.url, "any", "scripted")


def test_a_wrong_key_is_an_authorization_error_a_right_one_not(keyed: Scripted) -> None:
    (known,) = Base(keyed.url, KEY, "scripted").chat(say("Hi"))
    (stranger,) = Base(keyed.url, KEY + "x", "scripted").chat(say("Hi"))
    assert known["answer"]["choices"][0]["message"]["content"] == "Hello world, héllo 😀!"
    assert read_error(stranger)[0] == "AuthorizationError" and KEY not in str(stranger)


@pytest.mark.parametrize("stream", [False, True])
def test_busy_and_away_are_of_the_clients_classes(base: Base, stream: bool) -> None:
    busy, away = base.chat(*(say(words, stream=stream) for words in ("be busy", "be away")))
    assert (read_error(busy)[0], busy["error"]["numbers"]["retry_after"]) == ("RateLimitExceedError", 7)
    assert read_error(away)[0] == "ServerBusyError"


@pytest.mark.parametrize("later", [False, True])
def test_an_error_inside_a_stream_is_raised_after_its_chunks(base: Base, later: bool) -> None:
    (broken,) = base.chat(say("die midway", stream=True), later=later)
    assert join_chunks(broken["chunks"]) == "Hello world"
    # the client has no class for it, and shows the whole object
    assert "Unexpected SSE chunk" in read_error(broken)[1]
    assert '"object":"error","error":"busy","message":"the engine' in read_error(broken)[1]


@pytest.mark.parametrize("later", [False, True])
def test_a_silence_before_the_first_event_is_no_chunk(base: Base, later: bool) -> None:
    (result,) = base.chat(say("begin late", stream=True), later=later)
    assert join_chunks(result["chunks"]) == "Hello world!" and "error" not in result


def test_a_model_with_a_slash_keeps_its_name(base: Base) -> None:
    info, answer = base.call(
        ("model_ids", {"prefer": "org/scripted"}),
        (
            "generate_chat_completions",
            {"request": {"$type": "ChatRequest", "model": "org/scripted"} | say("a")},
        ),
    )
    assert info["answer"] == ["org/scripted", "antiphon/scripted"]
    assert answer["answer"]["model"] == "org/scripted"
