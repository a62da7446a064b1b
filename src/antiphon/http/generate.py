"""One generation over HTTP: decode, run, answer; buffered or streamed, from the same events."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.types import Scope, Send

from antiphon.dialects.base import UNASCRIBED, Attribution, Call, Chunks, Head, Operation
from antiphon.domain.collect import Generation, collect
from antiphon.domain.context import Context, Origin, Progress
from antiphon.domain.values import changed
from antiphon.errors import AntiphonError
from antiphon.http.connection import Connection, connection_of
from antiphon.http.edge import Edge, Exchange
from antiphon.http.errors import send_json, translated
from antiphon.http.records import record_failure
from antiphon.http.sse import EventWriter, Pace
from antiphon.http.standings import limit_headers
from antiphon.http.work import attended

T = TypeVar("T")

OFF_LOOP = 1 << 16
"""Bytes of a body from which it is decoded in a thread: reading as many takes a millisecond."""

MANY_SCORES = 512
"""Scored tokens of an answer from which it is written in a thread: with all alternatives they take some ten
milliseconds."""


class Generate:
    """The endpoint of one operation of a dialect."""

    def __init__(self, edge: Edge, operation: Operation, dialect: str) -> None:
        """`dialect`: its name."""
        self._edge = edge
        self._operation = operation
        self._origin = Origin(dialect, operation.path)

    async def answer(self, exchange: Exchange, scope: Scope, send: Send) -> None:
        """Answers a request whose body was read. Raises an AntiphonError, or ClientLeft."""
        call = await decoded(self._operation.decode, exchange)
        clock, seconds = self._edge.clock, self._edge.settings.request_timeout
        origin = ascribed(self._origin, call.attribution)
        progress = exchange.progress
        progress.body = exchange.body
        context = Context(
            exchange.request_id,
            exchange.actor,
            clock.monotonic() + seconds,
            clock,
            origin=origin,
            progress=progress,
        )
        head = Head(clock.unique(), int(clock.wall()), call.request.model)
        connection = connection_of(scope)
        if call.stream:
            chunks = self._operation.chunks(head, call)
            await self._stream(call, context, chunks, connection, send)
            return
        with attended(connection, self._edge.ongoing, seconds, exchange.actor, progress):
            async with self._edge.pipeline.run(call.request, context) as events:
                generation = await collect(events)
        answer = await self._encoded(call, head, generation)
        await send_json(send, answer, self._reported(call, progress))

    async def _encoded(self, call: Call, head: Head, generation: Generation) -> bytes:
        """The buffered answer; a large one is made in a thread."""
        scored = (*(choice.scores or () for choice in generation.choices), *generation.prompt_scores)
        if sum(map(len, scored)) > MANY_SCORES:
            return await asyncio.to_thread(self._operation.answer, head, call, generation)
        return self._operation.answer(head, call, generation)

    async def _stream(
        self, call: Call, context: Context, chunks: Chunks, connection: Connection, send: Send
    ) -> None:
        """Writes events as they come, and how the stream ended. Raises what fails before the first."""
        settings, ongoing = self._edge.settings, self._edge.ongoing
        headers = partial(self._reported, call, context.progress)
        pace = Pace(settings.keep_alive_interval, settings.send_timeout)
        writer = EventWriter(send, connection, pace, headers)
        last: bytes | None = None
        try:
            with (
                translated(context.request_id),
                attended(connection, ongoing, settings.request_timeout, context.actor, context.progress),
            ):
                await self._write_events(call, context, chunks, writer)
            last = chunks.end()
        except AntiphonError as error:
            if not writer.begun:
                raise
            record_failure("stream_failed", error, context.request_id, context.progress, self._edge)
            last = chunks.error(error)
        finally:
            if last is None:
                writer.abandon()
        await writer.close(last)

    async def _write_events(self, call: Call, context: Context, chunks: Chunks, writer: EventWriter) -> None:
        async with self._edge.pipeline.run(call.request, context) as events:
            async for event in events:
                await writer.put(chunks.encode(event))

    def _reported(self, call: Call, progress: Progress) -> list[tuple[bytes, bytes]]:
        """The headers that name the fields which were accepted and do nothing, and the keywords of schemas
        that are not kept; and how limits stand by now."""
        ignored = call.ignored + progress.unread
        if not self._edge.pipeline.keeps_records:
            ignored += call.attribution.fields
        named = ((b"x-antiphon-ignored", ignored), (b"x-antiphon-relaxed", call.relaxed))
        headers = [(name, ", ".join(fields).encode()) for name, fields in named if fields]
        return headers + limit_headers(progress.standings) if progress.standings else headers


def ascribed(origin: Origin, attribution: Attribution) -> Origin:
    """Where a request comes from, with what its caller says of it."""
    if attribution is UNASCRIBED:
        return origin
    return changed(origin, end_user=attribution.end_user, tags=attribution.tags)


async def decoded(decode: Callable[[bytes], T], exchange: Exchange) -> T:
    """What the body says; a large one is read in a thread, so that nobody else waits."""
    if len(exchange.body) <= OFF_LOOP:
        return decode(exchange.body)
    return await asyncio.to_thread(decode, exchange.body)
