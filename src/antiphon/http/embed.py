"""Vectors over HTTP: decode, run, answer. It is never streamed."""

import asyncio

from starlette.types import Receive, Scope, Send

from antiphon.dialects.base import EmbeddingOperation
from antiphon.domain.context import Context, Origin
from antiphon.http.edge import Edge, exchange_of
from antiphon.http.errors import send_json
from antiphon.http.generate import ascribed, decoded
from antiphon.http.standings import limit_headers
from antiphon.http.work import attended

MANY_BYTES = 1 << 16
"""Bytes of vectors from which an answer is written in a thread: as many take some milliseconds in JSON."""


class Embed:
    """The ASGI endpoint of a dialect's embeddings."""

    def __init__(self, edge: Edge, operation: EmbeddingOperation, dialect: str) -> None:
        """`dialect`: its name."""
        self._edge = edge
        self._operation = operation
        self._origin = Origin(dialect, operation.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        call = await decoded(self._operation.decode, exchange)
        clock, seconds = self._edge.clock, self._edge.settings.request_timeout
        keeps_records = self._edge.pipeline.keeps_records
        context = Context(
            exchange.request_id,
            exchange.actor,
            clock.monotonic() + seconds,
            clock,
            origin=ascribed(self._origin, call.attribution, keeps_records),
            progress=exchange.progress,
        )
        async with attended(receive, self._edge.ongoing, seconds, exchange.actor) as work:
            with work.interruptible():
                found = await self._edge.pipeline.embed(call.request, context)
            if len(found.vectors) > MANY_BYTES:
                answer = await asyncio.to_thread(self._operation.answer, call, found)
            else:
                answer = self._operation.answer(call, found)
            headers = limit_headers(exchange.progress.standings)
            if ignored := call.ignored + (() if keeps_records else call.attribution.fields):
                headers.append((b"x-antiphon-ignored", ", ".join(ignored).encode()))
            await send_json(send, answer, headers)
