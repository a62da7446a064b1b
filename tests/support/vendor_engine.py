"""An engine that replaces a vendor: it records each request and yields the test's events."""

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.events import (
    Event,
    EventGroup,
    Finished,
    FinishReason,
    Started,
    TextDelta,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import MediaContent, TextContent
from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.engines.base import RequestSize
from antiphon_testing import ScriptedEngine
from antiphon_testing.scripted_engine import ScriptedRequest

STARTED = Started(7, source=UsageSource.ESTIMATED)
USAGE = Usage(7, 5, source=UsageSource.REPORTED)


class VendorDouble(ScriptedEngine):
    """`requests` contains every request in order."""

    def __init__(
        self, answer: Callable[[GenerationRequest], Iterable[Event]], is_counted: bool = False
    ) -> None:
        super().__init__()
        self._is_counted = is_counted
        self.requests: list[GenerationRequest] = []
        self._vendor_answer = answer

    async def prepare(self, request: GenerationRequest, context: Context) -> ScriptedRequest:
        report = EngineReport(has_own_schemas=True)
        size = RequestSize(7, 1000, self._is_counted)
        return ScriptedRequest(size, partial(self.stream, request), report)

    @asynccontextmanager
    async def stream(
        self, request: GenerationRequest, context: Context
    ) -> AsyncGenerator[AsyncIterator[EventGroup], None]:
        self.requests.append(request)
        events = _iterate(self._vendor_answer(request))
        try:
            yield events
        finally:
            await events.aclose()


async def _iterate(events: Iterable[Event]) -> AsyncGenerator[EventGroup, None]:
    for event in events:
        yield (event,)


def say(text: str) -> list[Event]:
    """Returns the events of an answer with this text."""
    return [STARTED, TextDelta(0, text), Finished(0, FinishReason.STOP), USAGE]


def describe_request(request: GenerationRequest) -> list[Event]:
    """Returns the events of a JSON text with the request's fields that only vendors use."""
    vendor_options, declared = (
        request.vendor_options,
        request.output.constraint and request.output.constraint.declared,
    )
    messages = [
        message
        for prompt in request.prompts
        if isinstance(prompt, Conversation)
        for message in prompt.messages
    ]
    return say(
        json.dumps(
            {
                "hosted": [
                    vendor_options.verbosity,
                    vendor_options.service_tier,
                    vendor_options.prompt_cache_key,
                ],
                "schema": declared
                and [declared.source, declared.name, declared.description, declared.strict],
                "parts": [
                    [part.media_type, part.data, part.url, part.detail]
                    if isinstance(part, MediaContent)
                    else part.text
                    for message in messages
                    for part in message.content
                ],
                "marks": [
                    mark and [mark.lifetime]
                    for prompt in request.prompts
                    if isinstance(prompt, Conversation)
                    for mark in (
                        *(tool.cache_control for tool in (prompt.tools.tools if prompt.tools else ())),
                        *(
                            part.cache_control
                            for message in prompt.messages
                            for part in message.content
                            if isinstance(part, TextContent)
                        ),
                    )
                ],
                "extras": [dict(vendor_options.extra_params), dict(vendor_options.extra_headers)],
                "prediction": vendor_options.prediction and vendor_options.prediction.text,
                "modalities": vendor_options.modalities,
                "audio": vendor_options.audio
                and [vendor_options.audio.format, vendor_options.audio.voice, vendor_options.audio.is_custom],
                "speech": [message.speech_id for message in messages],
                "blocks": [block for message in messages for block in message.thinking_blocks],
                "signatures": [call.signature for message in messages for call in message.tool_calls],
            }
        )
    )
