"""One generation over HTTP: decode, run, answer; buffered or streamed, from the same events."""

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.types import Receive, Scope, Send

from antiphon.dialects.base import UNASCRIBED, Attribution, Call, Chunks, Head, Operation
from antiphon.domain.collect import collect
from antiphon.domain.context import Context, Origin, Progress
from antiphon.domain.values import changed
from antiphon.errors import AntiphonError, UnsupportedParameter
from antiphon.http.edge import Edge, Exchange, exchange_of
from antiphon.http.errors import cause_of, level_of, send_json
from antiphon.http.middleware import ABORT, translated
from antiphon.http.sse import Outbox, Pace, Sender
from antiphon.http.standings import limit_headers
from antiphon.http.work import ClientLeft, Work, attended
from antiphon.telemetry.logs import record

T = TypeVar("T")

OFF_LOOP = 1 << 16
"""Bytes of a body from which it is decoded in a thread: reading as many takes a millisecond."""

MANY_SCORES = 512
"""Scored tokens of an answer from which it is written in a thread: with all alternatives they take some ten
milliseconds."""


class Generate:
    """The ASGI endpoint of one operation of a dialect."""

    def __init__(self, edge: Edge, operation: Operation, dialect: str) -> None:
        """`dialect`: its name."""
        self._edge = edge
        self._operation = operation
        self._origin = Origin(dialect, operation.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange = exchange_of(scope)
        call = await decoded(self._operation.decode, exchange)
        clock, settings = self._edge.clock, self._edge.settings
        deadline = clock.monotonic() + settings.request_timeout
        origin = ascribed(self._origin, call.attribution, self._edge.pipeline.keeps_records)
        progress = exchange.progress
        progress.body = exchange.body
        context = Context(
            exchange.request_id, exchange.actor, deadline, clock, origin=origin, progress=progress
        )
        head = Head(clock.unique(), int(clock.wall()), call.request.model)
        async with attended(receive, self._edge.ongoing, settings.request_timeout, exchange.actor) as work:
            if call.stream:
                outbox = Outbox()
                sender = self._sender(scope, send, outbox, work)
                delivery = work.group.create_task(sender.deliver(partial(self._reported, call, progress)))
                await self._stream(call, context, self._operation.chunks(head, call), work, outbox)
                await delivery
            else:
                answer = await self._answer(call, context, head, work)
                await send_json(send, answer, self._reported(call, progress))

    async def _answer(self, call: Call, context: Context, head: Head, work: Work) -> bytes:
        with work.interruptible():
            async with self._edge.pipeline.run(call.request, context) as events:
                generation = await collect(events)
        scored = (*(choice.scores or () for choice in generation.choices), *generation.prompt_scores)
        if sum(map(len, scored)) > MANY_SCORES:
            return await asyncio.to_thread(self._operation.answer, head, call, generation)
        return self._operation.answer(head, call, generation)

    async def _stream(self, call: Call, context: Context, chunks: Chunks, work: Work, outbox: Outbox) -> None:
        try:
            with translated(context.request_id), work.interruptible():
                await self._fill(outbox, call, context, chunks)
            outbox.close(chunks.end())
        except AntiphonError as error:
            if not outbox.begun:
                raise
            record(
                "stream_failed",
                level_of(error),
                request_id=context.request_id,
                code=error.code,
                cause=cause_of(error),
            )
            outbox.close(chunks.error(error))

    async def _fill(self, outbox: Outbox, call: Call, context: Context, chunks: Chunks) -> None:
        async with self._edge.pipeline.run(call.request, context) as events:
            async for event in events:
                await outbox.put(chunks.encode(event))

    def _reported(self, call: Call, progress: Progress) -> list[tuple[bytes, bytes]]:
        """The headers that name the fields which were accepted and do nothing, and the keywords of schemas
        that are not kept; and how limits stand by now."""
        ignored = call.ignored + progress.unread
        if not self._edge.pipeline.keeps_records:
            ignored += call.attribution.fields
        named = ((b"x-antiphon-ignored", ignored), (b"x-antiphon-relaxed", call.relaxed))
        headers = [(name, ", ".join(fields).encode()) for name, fields in named if fields]
        return headers + limit_headers(progress.standings) if progress.standings else headers

    def _sender(self, scope: Scope, send: Send, outbox: Outbox, work: Work) -> Sender:
        abort: Callable[[], None] = scope["state"].get(ABORT, lambda: None)

        def cut() -> None:
            abort()
            work.end(ClientLeft())

        settings = self._edge.settings
        return Sender(send, outbox, Pace(settings.keep_alive_interval, settings.send_timeout), cut)


def ascribed(origin: Origin, attribution: Attribution, keeps_records: bool) -> Origin:
    """Where a request comes from, with what its caller says of it. Raises UnsupportedParameter for tags where
    nothing keeps them."""
    if attribution is UNASCRIBED:
        return origin
    if attribution.tags and not keeps_records:
        raise UnsupportedParameter(
            "metadata is not supported: it stands in the records of usage, and this server keeps none, as "
            "its keys are off (ANTIPHON_KEYS); leave it out",
            param="metadata",
        )
    return changed(origin, end_user=attribution.end_user, tags=attribution.tags)


async def decoded(decode: Callable[[bytes], T], exchange: Exchange) -> T:
    """What the body says; a large one is read in a thread, so that nobody else waits."""
    if len(exchange.body) <= OFF_LOOP:
        return decode(exchange.body)
    return await asyncio.to_thread(decode, exchange.body)
