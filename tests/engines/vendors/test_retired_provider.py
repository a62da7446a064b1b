"""The client of a provider that a reload took away closes with its last request."""

import asyncio
from urllib.parse import urlsplit

import psutil

from antiphon.engines.vendors.base import UpstreamCall
from antiphon.engines.vendors.openai.dialect import OpenAIUpstream
from antiphon.engines.vendors.provider import Provider, ProviderOptions
from tests.support.vendors.scripted_upstream import serve_upstream
from tests.support.waiting import await_until

CALL = UpstreamCall("/chat/completions", b'{"model": "fake", "messages": []}', is_streamed=False)


def count_connections(url: str) -> int:
    port = urlsplit(url).port
    found = psutil.Process().net_connections("tcp")
    return sum(each.status == "ESTABLISHED" and each.raddr.port == port for each in found if each.raddr)


async def test_the_last_request_of_a_retired_client_closes_it():
    with serve_upstream() as upstream:
        options = ProviderOptions("first", upstream.url, ("authorization", "Bearer "), allows_private=True)
        provider = Provider(options, OpenAIUpstream(), lambda: None)
        deadline = asyncio.get_running_loop().time() + 30
        one, two = await provider.send(CALL, deadline), await provider.send(CALL, deadline)
        await provider.retire()
        assert await one.read()
        await provider.end_request()
        assert await two.read(), "the other one goes on"
        assert count_connections(upstream.url) > 0
        await provider.end_request()
        await await_until(lambda: count_connections(upstream.url) == 0, what="all are closed")
        late = await provider.send(CALL, deadline)
        assert await late.read(), "a request that found it before can still use it"
        await provider.end_request()
        await await_until(lambda: count_connections(upstream.url) == 0, what="it is closed again")
