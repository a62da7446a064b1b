"""The openai client, unchanged, against limits and budgets: what it tries again by itself, and what not."""

from typing import Any

import openai
import pytest

from antiphon.domain.limits import Measure, Window
from tests.contract.conftest import scripted_server
from tests.support.accounting import Books, limit
from tests.support.waiting import wait_until

MODEL = "scripted"
RETRIES = 2


def say(words: str) -> Any:
    return [{"role": "user", "content": words}]


def test_a_budget_that_is_gone_is_not_tried_again() -> None:
    books = Books(limit(Measure.OUTPUT_TOKENS, 7, Window.DAY))
    with scripted_server(accounting=books.accounting) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=RETRIES)
        client.chat.completions.create(model=MODEL, messages=say("Hello!"), max_completion_tokens=6)
        books.limiter.calls.clear()
        for stream in (False, True):
            with pytest.raises(openai.RateLimitError) as refused:
                client.chat.completions.create(
                    model=MODEL, messages=say("Hello!"), max_completion_tokens=6, stream=stream
                )
            assert (refused.value.code, refused.value.type) == ("insufficient_quota", "insufficient_quota")
            assert "resets at" in refused.value.message
    assert books.limiter.calls.count("reserve") == 2


def test_a_rate_is_tried_again_after_the_time_that_was_said() -> None:
    books = Books(limit(Measure.CONCURRENT, 1, None))
    with scripted_server(accounting=books.accounting) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=RETRIES)
        held = client.chat.completions.create(model=MODEL, messages=say("never end"), stream=True)
        next(iter(held))

        def leave() -> None:
            """Makes room before the refusal is sent."""
            settled = books.limiter.calls.count("settle")
            held.close()
            wait_until(lambda: books.limiter.calls.count("settle") > settled)

        with pytest.raises(openai.RateLimitError) as refused:
            client.with_options(max_retries=0).chat.completions.create(model=MODEL, messages=say("Hello!"))
        assert refused.value.code == "rate_limit_exceeded"
        assert refused.value.response.headers["retry-after"] == "1"
        books.limiter.on_refusal = leave
        answer = client.chat.completions.create(model=MODEL, messages=say("Hello!"))
        assert answer.choices[0].message.content
    assert books.limiter.calls.count("reserve") == 4


def test_headers_are_there_for_the_client_to_read() -> None:
    books = Books(limit(amount=60), limit(Measure.TOKENS, 10_000))
    with scripted_server(accounting=books.accounting) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any")
        raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=say("Hello!"))
    assert raw.headers["x-ratelimit-limit-requests"] == "60"
    assert raw.headers["x-ratelimit-remaining-requests"] == "59"
    assert int(raw.headers["x-ratelimit-remaining-tokens"]) < 10_000


def test_a_stream_that_is_stopped_raises_and_says_which_budget() -> None:
    books = Books(limit(Measure.OUTPUT_TOKENS, 20, Window.MONTH))
    with scripted_server(accounting=books.accounting) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any", max_retries=RETRIES)
        stream = client.chat.completions.create(model=MODEL, messages=say("never end"), stream=True)
        with pytest.raises(openai.APIError) as stopped:
            list(stream)
    assert (
        stopped.value.code == "insufficient_quota" and "20 output tokens per month" in stopped.value.message
    )


def test_whom_it_is_for_and_what_for_stand_in_the_ledger() -> None:
    books = Books()
    with scripted_server(accounting=books.accounting) as server:
        client = openai.OpenAI(base_url=server.base_url, api_key="any")
        client.chat.completions.create(
            model=MODEL, messages=say("Hello!"), safety_identifier="ada", metadata={"team": "blue"}
        )
    assert (books.ledger.entry.end_user, books.ledger.entry.tags) == ("ada", {"team": "blue"})
