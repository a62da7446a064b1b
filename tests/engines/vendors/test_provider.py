"""Connections of a provider: kept, stale, stalled and left ones."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.domain.context import Context
from antiphon.domain.events import Event, Finished, TextDelta, Usage, UsageSource
from antiphon.domain.messages import Message, Role
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import replace
from antiphon.engines.vendors.base import VendorModel
from antiphon.engines.vendors.engine import VendorEngine
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.profiles import VendorProfile, build_profile
from antiphon.engines.vendors.provider import MAX_STALE_CONNECTIONS, Provider, ProviderOptions
from antiphon.errors import ProviderBroken, ProviderFailed, ProviderKeyRefused, ProviderTimeout, SettingsError
from antiphon_testing import flatten
from tests.support.vendors.answer_shapes import WORDS
from tests.support.vendors.scripted_upstream import ScriptedUpstream, serve_upstream
from tests.support.waiting import await_until

REQUEST = GenerationRequest("m", (Conversation((Message(Role.USER, "Count."),)),))


@pytest.fixture
def upstream() -> Iterator[ScriptedUpstream]:
    with serve_upstream() as upstream:
        yield upstream


@asynccontextmanager
async def connect(upstream: ScriptedUpstream, **options: Any) -> AsyncIterator[Provider]:
    """A provider of the scripted vendor."""
    usual = ProviderOptions("first", upstream.url, ("Authorization", "Bearer "), allows_private=True)
    provider = Provider(replace(usual, **options), OpenAIUpstream(), lambda: "a-key")
    try:
        yield provider
    finally:
        await provider.aclose()


@asynccontextmanager
async def stream(
    provider: Provider, model: str, is_buffered: bool = False
) -> AsyncIterator[AsyncIterator[Event]]:
    """The events of a request to one of the vendor's models."""
    shown = build_profile(VendorProfile(), "first", "openai", frozenset())
    engine, context = VendorEngine(provider, VendorModel(model, "first"), shown), Context("r")
    request = GenerationRequest(REQUEST.model, REQUEST.prompts, is_buffered=is_buffered)
    prepared = await engine.prepare(request, context)
    async with prepared.stream(context) as groups:
        yield flatten(groups)


async def read(provider: Provider, model: str = "fake", is_buffered: bool = False) -> str:
    """The text of an answer."""
    async with stream(provider, model, is_buffered) as events:
        return "".join([event.text async for event in events if isinstance(event, TextDelta)])


async def hear(provider: Provider, model: str, words: list[str]) -> None:
    """Adds the parts of an answer to `words`, also of one that breaks."""
    async with stream(provider, model) as events:
        async for event in events:
            words += [event.text] if isinstance(event, TextDelta) else []


@pytest.mark.parametrize("is_buffered", [True, False])
async def test_a_connection_is_used_again(upstream: ScriptedUpstream, is_buffered: bool):
    async with connect(upstream) as provider:
        for _ in range(6):
            assert await read(provider, is_buffered=is_buffered) == "".join(WORDS)
        assert upstream.connections <= 2  # nobody waits for the end of a stream's body


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """However late a closed connection is noticed, it counts as noticed at once."""
    monkeypatch.setattr("antiphon.engines.vendors.provider.STALE_S", 60.0)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("is_buffered", [True, False])
async def test_a_connection_that_closes_as_we_ask_is_replaced(upstream: ScriptedUpstream, is_buffered: bool):
    async with connect(upstream) as provider:
        for _ in range(3):
            assert await read(provider, "fake-closing", is_buffered) == "".join(WORDS)
        assert len(upstream.requests) == 3
        assert upstream.connections == 3


@pytest.mark.usefixtures("patient")
async def test_several_stale_connections_are_replaced(upstream: ScriptedUpstream):
    # A request can meet every closed connection of the first round, which may come back to the pool late, and
    # one that each other request gives back.
    count = MAX_STALE_CONNECTIONS // 2
    async with connect(upstream) as provider:
        for _ in range(2):
            asked = await asyncio.gather(*(read(provider, "fake-closing") for _ in range(count)))
            assert asked == ["".join(WORDS)] * count
        assert len(upstream.requests) == 2 * count


@pytest.mark.parametrize("fault", ["reset", "close"])
async def test_a_new_connection_that_breaks_is_not_asked_again(upstream: ScriptedUpstream, fault: str):
    async with connect(upstream) as provider:
        with pytest.raises(ProviderFailed):
            await read(provider, f"fake-{fault}-at-before-headers")
        assert len(upstream.requests) == 1


async def test_half_an_answer_is_not_asked_again(upstream: ScriptedUpstream):
    async with connect(upstream) as provider:
        await read(provider)
        with pytest.raises(ProviderFailed):
            await read(provider, "fake-truncated-at-before-headers")
        assert len(upstream.requests) == 2


async def test_what_broke_late_is_not_asked_again(upstream: ScriptedUpstream):
    upstream.thinking = 1.1
    async with connect(upstream) as provider:
        await read(provider)
        with pytest.raises(ProviderFailed):
            await read(provider, "fake-close-at-before-headers")
        assert len(upstream.requests) == 2


async def test_nobody_waits_for_the_end_of_a_complete_stream(
    upstream: ScriptedUpstream, monkeypatch: pytest.MonkeyPatch
):
    """The vendor never ends it, so who waits for the end waits for a minute."""
    async with connect(upstream, chunk_timeout=60) as provider:
        monkeypatch.setattr("antiphon.engines.vendors.connection.LAST_BYTES_S", 120.0)
        began = time.monotonic()
        assert await read(provider, "fake-stall-at-after-done") == "".join(WORDS)
        assert time.monotonic() - began < 60
        assert upstream.open == 1
        monkeypatch.undo()
        assert await read(provider, "fake-stall-at-after-done") == "".join(WORDS)
        await await_until(lambda: upstream.open == 1, 20, "the second stalled connection is closed")


async def test_a_slow_reader_is_no_stall_of_the_vendor(upstream: ScriptedUpstream):
    upstream.is_at_once = True  # the vendor is not late, however busy the machine is
    async with connect(upstream, chunk_timeout=0.1) as provider, stream(provider, "fake") as events:
        words = []
        async for event in events:
            if isinstance(event, TextDelta):
                words.append(event.text)
                await asyncio.sleep(0.15)
        assert tuple(words) == WORDS


async def test_the_first_content_has_its_own_time(upstream: ScriptedUpstream):
    upstream.pace = 0.3  # between the head, the role and the first word, after which nothing comes
    async with connect(upstream, chunk_timeout=0.1, first_byte_timeout=60) as provider:
        words: list[str] = []
        with pytest.raises(ProviderBroken):
            await hear(provider, "fake-stall-at-mid-chunk", words)
        assert words == [WORDS[0]]
    upstream.pace = 60.0
    async with connect(upstream, chunk_timeout=0.1, first_byte_timeout=0.2) as provider:
        with pytest.raises(ProviderTimeout):
            await read(provider)


@pytest.mark.parametrize("model", ["fake", "fake-stall-at-before-headers", "fake-stall-at-after-headers"])
@pytest.mark.parametrize("is_buffered", [True, False])
async def test_a_request_that_is_left_closes_its_connection(
    upstream: ScriptedUpstream, model: str, is_buffered: bool
):
    upstream.pace = 600.0
    async with connect(upstream, chunk_timeout=600) as provider:
        async with asyncio.TaskGroup() as group:
            asking = group.create_task(read(provider, model, is_buffered))
            await await_until(lambda: upstream.requests, what="the vendor is asked")
            await asyncio.sleep(0.1)  # the answer may begin
            asking.cancel()
        assert asking.cancelled() and len(upstream.requests) == 1
        await await_until(lambda: upstream.left == 1 and upstream.open == 0, 10, "the connection is closed")


async def test_a_request_that_waits_for_a_connection_is_never_sent(upstream: ScriptedUpstream):
    upstream.pace = 1.0  # the answer, of which nobody reads, does not end meanwhile
    async with connect(upstream, connections=1) as provider:
        async with stream(provider, "fake") as events:
            await anext(events)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await read(provider)
            upstream.pace = 0.0
            assert [event async for event in events][-1:]
        assert await read(provider) == "".join(WORDS)
        assert len(upstream.requests) == 2 and upstream.connections == 1


async def test_missing_usage_is_an_estimate(upstream: ScriptedUpstream):
    async with connect(upstream) as provider:
        for is_buffered in (True, False):
            async with stream(provider, "fake-no-usage", is_buffered) as events:
                *_, finished, usage = [event async for event in events]
            assert isinstance(finished, Finished) and isinstance(usage, Usage)
            assert usage.source is UsageSource.ESTIMATED
        assert upstream.requests[-1].body["stream_options"] == {"include_usage": True}


async def test_only_these_headers_are_sent(upstream: ScriptedUpstream):
    async with connect(upstream, headers={"x-project": "p"}) as provider:
        await read(provider)
        assert upstream.requests[0].headers.keys() == {
            "host",
            "authorization",
            "user-agent",
            "content-type",
            "content-length",
            "accept-encoding",
            "x-project",
        }
        assert upstream.requests[0].headers["accept-encoding"] == "identity"


@pytest.mark.parametrize("name", ["User-Agent", "user-agent"])
async def test_a_user_agent_of_the_operator_is_sent(upstream: ScriptedUpstream, name: str):
    for headers, agent in (({}, "antiphon"), ({name: "corp/7"}, "corp/7")):
        async with connect(upstream, headers=headers) as provider:
            await read(provider)
            assert upstream.requests[-1].headers["user-agent"] == agent


async def test_a_refused_key_is_read_again(upstream: ScriptedUpstream, tmp_path: Path):
    file = tmp_path / "key"
    file.write_text("old-key")

    def read_key() -> str:
        if not file.exists():
            raise SettingsError("the file is gone")
        return file.read_text()

    upstream.refused_key = "old-key"
    options = ProviderOptions("first", upstream.url, ("Authorization", "Bearer "), allows_private=True)
    provider = Provider(options, OpenAIUpstream(), read_key)
    try:
        file.unlink()
        with pytest.raises(ProviderKeyRefused, match="operator"):
            await read(provider)
        file.write_text("new-key")
        with pytest.raises(ProviderKeyRefused):
            await read(provider)
        assert await read(provider) == "".join(WORDS)
    finally:
        await provider.aclose()
