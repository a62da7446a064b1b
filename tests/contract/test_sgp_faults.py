"""scale-gp, unchanged, against an engine that fails as it is told: its exception classes, its retries and its
timeouts."""

from typing import Any

import pytest

from antiphon.domain.limits import Measure, Window
from antiphon_testing.scripted_engine import StreamEnding
from tests.contract.calls import ended, find_records
from tests.contract.conftest import KEY, Scripted, scripted_server
from tests.contract.sgp.caller import (
    CHAT,
    GENERATING,
    OLD_CHAT,
    OLD_TEXT,
    TEXT,
    Scale,
    join_chunks,
    read_error,
    read_text,
)
from tests.support.accounting import Books, limit

pytestmark = pytest.mark.timeout(480)


def say(name: str, words: str) -> dict[str, Any]:
    """The fields by which an endpoint gets these words."""
    return {"messages": [{"role": "user", "content": words}]} if "chat" in name else {"prompt": words}


@pytest.fixture
def scale(scripted: Scripted) -> Scale:
    # the client gives the older streams the type of another product's answers
    return Scale(scripted.url, "any", "scripted", strict=False)


def test_a_wrong_key_is_an_authentication_error_a_right_one_not(keyed: Scripted) -> None:
    (known,) = Scale(keyed.url, KEY, "scripted").call((CHAT, {}))
    (stranger,) = Scale(keyed.url, KEY + "x", "scripted").call((CHAT, {}))
    assert read_text(known["answer"]) == "Hello world, héllo 😀!"
    assert read_error(stranger)[:2] == ("AuthenticationError", 401) and KEY not in str(stranger)


@pytest.mark.parametrize("name", GENERATING)
def test_busy_and_away_are_of_the_clients_classes(scale: Scale, name: str) -> None:
    for stream in (False, True):
        busy, away = scale.call(
            *((name, say(name, words) | {"stream": stream}) for words in ("be busy", "be away"))
        )
        assert read_error(busy)[:2] == ("RateLimitError", 429)
        assert read_error(away)[:2] == ("InternalServerError", 503)


@pytest.mark.parametrize("name", GENERATING)
def test_an_error_inside_a_stream_is_raised_after_its_chunks(scale: Scale, name: str) -> None:
    for later in (False, True):
        (broken,) = scale.call((name, say(name, "die midway") | {"stream": True}), later=later)
        assert join_chunks(broken["chunks"]) == "Hello world"
        assert read_error(broken) == ("APIStatusError", 200, "the engine's process ended")
        assert broken["error"]["body"]["status_code"] == 503


@pytest.mark.parametrize("name", GENERATING)
def test_a_stream_that_begins_late_is_the_same_to_the_client(scale: Scale, name: str) -> None:
    (result,) = scale.call((name, say(name, "begin late") | {"stream": True}))
    assert join_chunks(result["chunks"]) == "Hello world!"


def test_the_clients_own_retry_succeeds_once_the_engine_is_back(scripted: Scripted) -> None:
    patient = Scale(scripted.url, "any", "scripted", retries=2, strict=False)
    for name in GENERATING:
        for stream in (False, True):
            words = say(name, f"be away once, {name}, {stream}")
            (result,) = patient.call((name, words | {"stream": stream}))
            text = join_chunks(result["chunks"]) if stream else read_text(result["answer"])
            assert text == "Hello world!"


def test_a_request_that_may_have_killed_an_engine_is_not_retried(scripted: Scripted) -> None:
    """The client would try each 5xx again, unless the answer says otherwise."""
    patient = Scale(scripted.url, "any", "scripted", retries=2)
    before = len(scripted.engine.streams)  # other files ask the same engine
    (died,) = patient.call((OLD_TEXT, {"prompt": "die once"}))
    assert read_error(died)[:2] == ("InternalServerError", 503)
    asked = [
        record for record in scripted.engine.streams[before:] if "die once" in str(record.request.prompts)
    ]
    assert len(asked) == 1


def test_a_timeout_is_the_clients_and_ends_the_work(scripted: Scripted) -> None:
    hasty = Scale(scripted.url, "any", "scripted", seconds=0.3)
    for name in (CHAT, OLD_CHAT):
        (result,) = hasty.call((name, say(name, f"never begin {name}")))
        assert result["error"]["class"] == "APITimeoutError"
        ended(scripted, f"never begin {name}")


@pytest.mark.parametrize("name", [CHAT, TEXT])
def test_an_inference_timeout_ends_the_work(scale: Scale, scripted: Scripted, name: str) -> None:
    for seconds in (0.2, "0.2"):
        words = f"never begin {name}, {seconds}"
        (late,) = scale.call((name, say(name, words) | {"inference_timeout": seconds}))
        assert read_error(late)[:2] == ("InternalServerError", 504)
        assert find_records(scripted, words)[-1].ending is StreamEnding.FAILED


@pytest.mark.parametrize("name", [CHAT, OLD_CHAT])
def test_a_client_that_leaves_a_stream_ends_its_work(scale: Scale, scripted: Scripted, name: str) -> None:
    (left,) = scale.call((name, say(name, "never end") | {"stream": True}), leave_after=4)
    assert len(left["chunks"]) == 4 and "error" not in left
    ended(scripted, "never end")


def test_a_budget_that_is_gone_is_a_rate_limit_error(scale: Scale) -> None:
    books = Books(limit(Measure.OUTPUT_TOKENS, 7, Window.DAY))
    fields: Any = {TEXT: {"max_tokens": 6}, OLD_TEXT: {"model_parameters": {"max_tokens": 6}}}
    with scripted_server(accounting=books.accounting) as server:
        spender = Scale(server.url, "any", "scripted")
        taken, *refused = spender.call(*((name, fields[name]) for name in (TEXT, TEXT, OLD_TEXT)))
    assert "answer" in taken
    assert [read_error(result)[:2] for result in refused] == [("RateLimitError", 429)] * 2


def test_a_model_with_a_slash_is_shown_and_asked(scale: Scale) -> None:
    name = "org/scripted"
    shown, *asked = scale.call(
        ("models.retrieve", {"model_id": name}), *((each, {"model": name}) for each in GENERATING)
    )
    assert shown["answer"]["id"] == name
    assert [read_text(each["answer"]) for each in asked] == ["Hello world, héllo 😀!"] * len(GENERATING)


def test_the_account_is_a_tag_in_the_records(scale: Scale) -> None:
    for name in (OLD_CHAT, OLD_TEXT):
        books = Books()
        with scripted_server(accounting=books.accounting) as server:
            (result,) = Scale(server.url, "any", "scripted").call((name, {"account_id": "acme"}))
        assert "answer" in result and books.ledger.entry.tags == {"account_id": "acme"}
