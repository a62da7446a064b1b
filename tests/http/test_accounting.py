"""Limits, budgets and the ledger as callers see them: headers, refusals in every dialect's shape, streams
that are stopped, and entries written before an answer's last bytes."""

import asyncio
import time
from datetime import datetime

import pytest

from antiphon.domain.limits import LimitStatus, Measure, Window
from antiphon.domain.values import replace
from antiphon.errors import AuthenticationFailed, BudgetExceeded, EngineUnavailable
from antiphon.http.limit_headers import RATE_LIMIT_HEADERS, build_limit_headers, format_duration
from antiphon_testing import ScriptedAnswer
from tests.support.accounting import PRICE, Books, limit, limited
from tests.support.http_server import CHAT, HELLO, PROMPT, TEXT, Reply, gone, request_bytes, serving

FIREWORKS = "/fireworks/inference/v1/completions"
FIREWORKS_CHAT = "/fireworks/inference/v1/chat/completions"
EMPOWER = "/empower/api/v1/chat/completions"
STREAM = PROMPT | {"stream": True, "max_tokens": 1000}
ENDLESS = ScriptedAnswer(endless=True)


def rates(reply: Reply) -> dict[str, str]:
    return {name: value for name, value in reply.headers.items() if name.startswith("x-ratelimit-")}


# --- headers ------------------------------------------------------------------------------------------------


async def test_answers_say_how_the_limits_of_a_minute_stand():
    async with limited(limit(amount=3), limit(Measure.TOKENS, 100), limit(amount=1, window=Window.DAY)) as (
        served,
        books,
    ):
        books.clock.advance(0.5)
        reply = await served.ask(TEXT, PROMPT | {"max_tokens": 16})
        assert rates(reply) == {
            "x-ratelimit-limit-requests": "3",
            "x-ratelimit-remaining-requests": "2",
            "x-ratelimit-reset-requests": rates(reply)["x-ratelimit-reset-requests"],
            "x-ratelimit-limit-tokens": "100",
            "x-ratelimit-remaining-tokens": str(100 - 2 - 16),
            "x-ratelimit-reset-tokens": rates(reply)["x-ratelimit-reset-tokens"],
        }
        assert rates(reply)["x-ratelimit-reset-requests"].startswith(("1m0", "60"))


async def test_a_stream_says_it_too_and_so_does_a_refusal():
    async with limited(limit(amount=2)) as (served, _):
        replies = [await served.ask(TEXT, PROMPT | {"stream": True}) for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [rates(reply)["x-ratelimit-remaining-requests"] for reply in replies] == ["1", "0", "0"]
    refusal = replies[-1]
    assert (
        refusal.error["code"] == "rate_limit_exceeded" and "2 requests per minute" in refusal.error["message"]
    )
    assert 1 <= int(refusal.headers["retry-after"]) <= 61 and refusal.headers["x-should-retry"] == "true"


async def test_clients_of_anthropic_read_limits_of_their_own_form():
    asked = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "Hi"}]}
    async with limited(limit(amount=2)) as (served, _):
        begun = time.time()
        replies = [
            await served.ask("/v1/messages", asked | {"stream": stream}) for stream in (False, True, False)
        ]
        ended = time.time()
        other = await served.ask(TEXT, PROMPT)
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert not any(name.startswith("anthropic") for name in other.headers)
    for reply, remaining in zip(replies, ("1", "0", "0"), strict=True):
        own = {name: value for name, value in reply.headers.items() if name.startswith("anthropic")}
        reset = datetime.fromisoformat(own.pop("anthropic-ratelimit-requests-reset"))
        assert reset.tzinfo is not None and begun + 59 <= reset.timestamp() <= ended + 62
        assert own == {
            "anthropic-ratelimit-requests-limit": "2",
            "anthropic-ratelimit-requests-remaining": remaining,
        }


async def test_where_nothing_is_limited_nothing_is_said():
    for limits in ((), (limit(window=Window.DAY),), (limit(Measure.CONCURRENT, 5, None),)):
        async with limited(*limits) as (served, _):
            assert rates(await served.ask(TEXT, PROMPT)) == {}


async def test_pages_of_allowed_origins_may_read_them():
    async with limited(limit(), cors_origins=("http://page.example",)) as (served, _):
        reply = await served.ask(TEXT, PROMPT, headers={"origin": "http://page.example"})
    exposed = reply.headers["access-control-expose-headers"].split(", ")
    assert {*RATE_LIMIT_HEADERS, "retry-after", "x-should-retry"} <= set(exposed)


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0, "0s"), (0.0171, "18ms"), (0.12, "120ms"), (1, "1s"), (8.64, "8.64s"), (59.9999, "1m0s"),
        (360, "6m0s"), (61.5, "1m1.5s"), (3600, "1h0m0s"), (86_399.25, "23h59m59.25s"),
    ],
)  # fmt: skip
def test_times_are_written_as_openai_writes_them(seconds: float, shown: str):
    assert format_duration(seconds) == shown.encode()


def test_of_several_limits_the_tightest_is_told():
    wide, tight = limit(amount=100, name="wide"), limit(amount=10, name="tight")
    found = dict(build_limit_headers((LimitStatus(wide, 5, 1.0), LimitStatus(tight, 2, 2.5))))
    assert found[b"x-ratelimit-limit-requests"] == b"10" and found[b"x-ratelimit-reset-requests"] == b"2.5s"
    kinds = (limit(Measure.INPUT_TOKENS, 50), limit(Measure.OUTPUT_TOKENS, 40), limit(Measure.COST, 1))
    found = dict(build_limit_headers(LimitStatus(each, 30 - place, 1.0) for place, each in enumerate(kinds)))
    assert found[b"x-ratelimit-limit-tokens"] == b"40" and len(found) == 3


# --- refusals -----------------------------------------------------------------------------------------------


async def test_a_budget_that_is_gone_is_said_in_every_dialects_way():
    async with limited(limit(Measure.TOKENS, 10, Window.DAY)) as (served, _):
        assert (await served.ask(TEXT, PROMPT | {"max_tokens": 8})).status == 200
        asked = {"max_tokens": 8}
        openai = await served.ask(CHAT, HELLO | asked)
        fireworks = await served.ask(FIREWORKS, PROMPT | asked)
        empower = await served.ask(EMPOWER, HELLO | asked)
    assert [reply.status for reply in (openai, fireworks, empower)] == [429, 402, 429]
    assert (openai.error["type"], openai.error["code"]) == ("insufficient_quota", "insufficient_quota")
    assert fireworks.error["code"] == "PAYMENT_REQUIRED"
    assert empower.json()["code"] == "insufficient_quota"
    for reply in (openai, fireworks, empower):
        assert "10 tokens per day for the key anonymous" in reply.body.decode()
        assert "resets at" in reply.body.decode() and reply.headers["x-should-retry"] == "false"
        assert 1 <= int(reply.headers["retry-after"]) <= 86_400


async def test_a_dialects_own_default_is_not_asked_by_the_caller():
    """Without max_tokens at most what there is is taken, also where the dialect has a number of its own."""
    room = limit(Measure.OUTPUT_TOKENS, 7)
    for path, body in ((TEXT, PROMPT), (FIREWORKS_CHAT, HELLO), (EMPOWER, HELLO)):
        async with limited(room, step=512) as (served, books):
            reply = await served.ask(path, body)
            assert reply.status == 200, (path, reply.body)
            assert (await served.ask(path, body | {"max_tokens": 8})).status == 400
            assert len(books.ledger.entries) == 1


async def test_a_rate_in_fireworks_is_429():
    async with limited(limit(amount=1)) as (served, _):
        await served.ask(FIREWORKS, PROMPT)
        refused = await served.ask(FIREWORKS, PROMPT)
    assert (refused.status, refused.error["code"]) == (429, "RATE_LIMIT_EXCEEDED")
    assert refused.headers["x-should-retry"] == "true"


async def test_a_refused_request_is_refunded_and_leaves_no_entry():
    async with limited(limit(amount=2), limit(Measure.OUTPUT_TOKENS, 20)) as (served, books):
        for _ in range(5):
            assert (await served.ask(TEXT, PROMPT | {"max_tokens": 30})).status == 400
        assert await books.used() == [0, 0] and books.ledger.intents == {}
        bad = await served.ask(TEXT, PROMPT | {"temperature": 9})
        assert bad.status == 400 and books.limiter.calls.count("reserve") == 5
        assert (await served.ask(TEXT, PROMPT | {"max_tokens": 3})).status == 200


async def test_fifty_at_once_on_a_budget_with_room_for_ten():
    """Each takes two tokens of prompt and makes three."""
    async with limited(limit(Measure.TOKENS, 50, Window.DAY), answer=ScriptedAnswer(pace=0.001)) as (
        served,
        books,
    ):
        asked = [served.ask(TEXT, PROMPT | {"max_tokens": 3}) for _ in range(50)]
        statuses = [reply.status for reply in await asyncio.gather(*asked)]
    assert statuses.count(200) == 10 and statuses.count(429) == 40
    assert await books.used() == [50] and len(books.ledger.entries) == 10


async def test_metrics_count_refusals_by_kind_and_cost_and_name_nobody():
    async with limited(limit(amount=1, name="secret-limit"), answer=ScriptedAnswer()) as (served, _):
        await served.ask(TEXT, PROMPT)
        await served.ask(TEXT, PROMPT)
        page = (await served.ask("/metrics")).body.decode()
    refused = 'antiphon_limit_refusals_total{measure="requests",subject="key",window="minute"} 1'
    assert refused in page and 'antiphon_cost_total{currency="USD",model="m"} 32' in page
    assert "secret-limit" not in page and 'anonymous"' not in page


async def test_a_cost_limit_refuses_unpriced_models_in_every_dialect():
    """A budget that counts nothing would let everything through."""
    for amount in (0, 1_000_000):
        books = Books(limit(Measure.COST, amount, Window.MONTH), prices=())
        async with serving(accounting=books.accounting) as served:
            replies = [
                await served.ask(path, body | streaming)
                for path, body in ((TEXT, PROMPT), (CHAT, HELLO), (FIREWORKS, PROMPT), (EMPOWER, HELLO))
                for streaming in ({}, {"stream": True})
            ]
        assert [reply.status for reply in replies] == [403] * 8
        for reply in replies:
            said = reply.body.decode()
            assert (
                "the model m has no price" in said
                and "per month for the key anonymous; the operator adds a price" in said
            )
            assert "permission_denied" in said.lower()
        assert books.limiter.calls == [] and books.ledger.intents == {} and served.engine.streams == []


async def test_a_model_priced_at_zero_fits_a_budget_of_zero():
    free = replace(PRICE, input=0, cached=None, output=0)
    books = Books(limit(Measure.COST, 0, Window.MONTH), prices=(free,))
    async with serving(accounting=books.accounting) as served:
        assert (await served.ask(TEXT, PROMPT)).status == 200
    assert books.ledger.entry.price == PRICE.id


async def test_a_cost_limit_that_does_not_apply_needs_no_price():
    """One of other models, of another caller, or of no cost; and a price that ended is none."""
    budget = limit(Measure.COST, 5, Window.MONTH)
    ended = replace(PRICE, until=1)
    for others in (replace(budget, models="n*"), replace(budget, target="key-2"), limit(Measure.TOKENS)):
        books = Books(others, prices=(ended,))
        async with serving(accounting=books.accounting) as served:
            assert (await served.ask(TEXT, PROMPT)).status == 200
        assert books.ledger.entry.price is None
    async with serving(accounting=Books(replace(budget, models="m*"), prices=(ended,)).accounting) as served:
        assert (await served.ask(TEXT, PROMPT)).status == 403


# --- in flight ----------------------------------------------------------------------------------------------


async def test_a_running_stream_stops_when_its_budget_is_gone():
    chat = HELLO | {"stream": True}
    async with limited(limit(Measure.OUTPUT_TOKENS, 21, Window.MONTH), answer=ENDLESS) as (served, books):
        reply = await served.ask(CHAT, chat)
        await served.engine.streams[0].over.wait()
    *chunks, last = reply.events()
    assert reply.status == 200 and last["error"]["code"] == "insufficient_quota"
    assert sum(bool(chunk["choices"][0]["delta"].get("content")) for chunk in chunks) == 21
    assert not any(chunk["choices"][0]["finish_reason"] for chunk in chunks)
    assert (books.ledger.entry.status, books.ledger.entry.output_tokens) == (BudgetExceeded.code, 22)


async def test_an_answer_that_runs_away_becomes_an_error():
    async with limited(limit(Measure.OUTPUT_TOKENS, 21, Window.MONTH), answer=ENDLESS) as (served, books):
        reply = await served.ask(CHAT, HELLO)
    assert (reply.status, reply.error["code"]) == (429, "insufficient_quota")
    assert books.ledger.entry.output_tokens == 22


@pytest.mark.parametrize("error", [AuthenticationFailed("ended"), EngineUnavailable("shutting down")])
async def test_what_the_server_ends_is_kept_with_its_error(error):
    async with limited(answer=ScriptedAnswer(endless=True, pace=0.001)) as (served, books):
        async with served.line() as line:
            await line.send(request_bytes(TEXT, STREAM))
            await line.until(b"world")
            served.edge.in_flight.end(error)
            await line.until(error.code.encode())
        await gone(served.edge.in_flight)
    assert books.ledger.entry.status == error.code and books.ledger.entry.output_tokens >= 2


async def test_a_caller_that_leaves_pays_for_what_was_made():
    async with limited(answer=ScriptedAnswer(endless=True, pace=0.001)) as (served, books):
        async with served.line() as line:
            await line.send(request_bytes(TEXT, STREAM))
            await line.until(b"world")
            line.drop()
        await gone(served.edge.in_flight)
    entry = books.ledger.entry
    assert entry.status == "cancelled" and entry.prompt_tokens == 2 and entry.output_tokens >= 2
    assert entry.cost == entry.prompt_tokens + 10 * entry.output_tokens


# --- the ledger ---------------------------------------------------------------------------------------------


async def test_no_stream_ends_well_before_its_end_is_written():
    async with limited() as (served, books):
        books.ledger.can_end = False
        for path, body in ((TEXT, PROMPT), (CHAT, HELLO), (FIREWORKS, PROMPT), (EMPOWER, HELLO)):
            reply = await served.ask(path, body | {"stream": True})
            assert b"[DONE]" not in reply.body and b"error" in reply.body.rpartition(b"data: ")[2]
    assert len(books.ledger.intents) == 4 and books.ledger.entries == {}


async def test_no_answer_is_given_before_its_end_is_written():
    async with limited() as (served, books):
        books.ledger.can_end = False
        for path, body in ((TEXT, PROMPT), (CHAT, HELLO), (FIREWORKS, PROMPT), (EMPOWER, HELLO)):
            assert (await served.ask(path, body)).status == 503


async def test_a_full_ledger_admits_nothing_and_suggests_a_retry():
    async with limited() as (served, books):
        books.ledger.has_room = False
        reply = await served.ask(TEXT, PROMPT)
    assert (reply.status, reply.error["code"]) == (503, "ledger_full")
    assert reply.headers["x-should-retry"] == "true"


async def test_an_entry_says_where_a_request_came_from():
    said = {"user": "ada", "metadata": {"team": "blue"}}
    async with limited() as (served, books):
        for path, body, dialect in (
            (CHAT, HELLO | said, "openai"),
            (FIREWORKS, PROMPT | said, "fireworks"),
            (EMPOWER, HELLO | {"user": "ada"}, "empower"),
        ):
            reply = await served.ask(path, body, headers={"x-request-id": "trace-7"})
            entry = books.ledger.entries.popitem()[1]
            assert reply.status == 200 and "x-antiphon-ignored" not in reply.headers
            assert (entry.dialect, entry.operation, entry.request_id) == (dialect, path, "trace-7")
            assert entry.end_user == "ada" and dict(entry.tags) in ({"team": "blue"}, {})
            assert entry.total_ms is not None and entry.ttft_ms is not None
        assert entry.tags == {} and (await served.ask(TEXT, PROMPT)).status == 200
        assert books.ledger.entries.popitem()[1].end_user is None


async def test_the_id_of_an_entry_begins_with_its_time():
    """So a database adds each entry next to the latest ones."""
    async with limited() as (served, books):
        for _ in range(2):
            await served.ask(TEXT, PROMPT)
        first, second = books.ledger.entries.values()
    assert int(first.id[:12], 16) == first.at and int(second.id[:12], 16) == second.at
    assert len(first.id) == 32 and first.id[12:] != second.id[12:]


async def test_an_alias_is_written_as_the_caller_spelt_it():
    spelt = "accounts/fireworks/models/m"
    async with limited() as (served, books):
        assert (await served.ask(FIREWORKS, PROMPT | {"model": spelt})).status == 200
    assert (books.ledger.entry.asked, books.ledger.entry.model) == (spelt, "m")


async def test_where_nothing_is_written_tags_and_end_user_are_named(served):
    for stream in (False, True):
        tagged = await served.ask(CHAT, HELLO | {"metadata": {"a": "b"}, "stream": stream})
        assert (tagged.status, tagged.headers["x-antiphon-ignored"]) == (200, "metadata")
        reply = await served.ask(CHAT, HELLO | {"user": "u", "metadata": {}, "stream": stream})
        assert (reply.status, reply.headers["x-antiphon-ignored"]) == (200, "user")
