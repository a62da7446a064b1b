"""Vectors over HTTP: decode, run, answer. It is never streamed."""

import asyncio

from starlette.types import Scope, Send

from antiphon.dialects.base import EmbeddingOperation
from antiphon.domain.context import Context, Origin
from antiphon.http.connection import connection_of
from antiphon.http.edge import Edge, Exchange
from antiphon.http.errors import send_json
from antiphon.http.generate import ascribed, decoded
from antiphon.http.standings import limit_headers
from antiphon.http.work import attended

MANY_BYTES = 1 << 16
"""Bytes of vectors from which an answer is written in a thread: as many take some milliseconds in JSON."""


class Embed:
    """The endpoint of a dialect's embeddings."""

    def __init__(self, edge: Edge, operation: EmbeddingOperation, dialect: str) -> None:
        """`dialect`: its name."""
        self._edge = edge
        self._operation = operation
        self._origin = Origin(dialect, operation.path)

    async def answer(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        """Answers a request whose body was read. Raises an AntiphonError, or ClientLeft."""
        call = await decoded(self._operation.decode, exchange)
        clock, seconds = self._edge.clock, self._edge.settings.request_timeout
        keeps_records = self._edge.pipeline.keeps_records
        context = Context(
            exchange.request_id,
            exchange.actor,
            clock.monotonic() + seconds,
            clock,
            origin=ascribed(self._origin, call.attribution),
            progress=exchange.progress,
        )
        with attended(connection_of(scope), self._edge.ongoing, seconds, exchange.actor, exchange.progress):
            found = await self._edge.pipeline.embed(call.request, context)
        if len(found.vectors) > MANY_BYTES:
            answer = await asyncio.to_thread(self._operation.answer, call, found)
        else:
            answer = self._operation.answer(call, found)
        headers = limit_headers(exchange.progress.standings)
        if ignored := call.ignored + (() if keeps_records else call.attribution.fields):
            headers.append((b"x-antiphon-ignored", ", ".join(ignored).encode()))
        await send_json(send, answer, headers)
