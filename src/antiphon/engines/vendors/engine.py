"""One model of a vendor as an engine: translates a request, sends it, and yields the events of the answer.

A broken, stalled or unreadable stream raises an error, so it never looks finished. The engine does not retry.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from math import inf
from typing import TypeVar

from antiphon.domain.context import Context, EngineReport
from antiphon.domain.events import Event, EventGroup, Started, Usage, UsageSource
from antiphon.domain.messages import MediaContent, MediaKind, estimate_tokens, measure_text
from antiphon.domain.models import Profile
from antiphon.domain.request import (
    Conversation,
    EmbeddingRequest,
    Embeddings,
    GenerationRequest,
    Overflow,
    Ranking,
    RawPrompt,
    RerankRequest,
    build_user_message,
)
from antiphon.domain.values import Struct, field, replace
from antiphon.domain.vendor_fields import SCHEMA_NAME
from antiphon.engines.base import EngineState, RequestSize
from antiphon.engines.vendors.base import (
    BYTES_PER_VECTOR,
    MAX_NUMBERS,
    MAX_OBJECTS,
    MAX_VALUES,
    NO_ATTRIBUTES,
    UNREADABLE,
    Attributes,
    StreamDecoder,
    StreamFailure,
    UpstreamCall,
    VendorModel,
    estimate_inputs,
    estimate_prompt,
    require_bounded,
)
from antiphon.engines.vendors.connection import UpstreamResponse
from antiphon.engines.vendors.provider import Provider
from antiphon.engines.vendors.sse import EventSplitter
from antiphon.errors import (
    AntiphonError,
    DeadlineExceeded,
    ProviderBroken,
    ProviderError,
    ProviderFailed,
    ProviderTimeout,
)
from antiphon.telemetry.logs import record

T = TypeVar("T")

EVENT_STREAM = "text/event-stream"

CLOCK_SLACK_S = 0.01
"""Seconds by which the event loop's clock may reach a deadline before the request's clock does. uvloop's
counts whole milliseconds."""

MAX_OUTPUT = 16_384
"""Output tokens that are reserved if neither the request nor a table knows the most."""

IMAGE_TOKENS = 8192
"""An upper bound of the tokens of one image, at any vendor's highest resolution."""

BYTES_PER_AUDIO_TOKEN = 100
"""The fewest bytes in base64 that one token of a recording takes."""

MAX_HIDDEN_PROMPT = 65_536
"""Prompt tokens beyond the reserved ones that a vendor is believed: its own instructions, and what its own
tools found."""

MAX_IMAGE_TOKENS = 50_000
"""Tokens of one image that a vendor is believed. GPT-4o mini counts up to 48,169."""

LONGEST_CONTEXT = 1_048_576
"""The most prompt tokens that documents stand for if no table knows the model's context. Gemini's is as long,
and Anthropic's is not longer. Compressed text can make more tokens than it has bytes."""

MAX_HIDDEN_OUTPUT = 131_072
"""Output tokens of one choice beyond the reserved ones that a vendor is believed if it reports reasoning,
which not every vendor counts in `max_tokens`, or if the request sets no maximum."""

MAX_EXCESS_OUTPUT = 1_024
"""The same for a request with a maximum, and an answer without reasoning."""

ANSWER_FAILURES = (OSError, StreamFailure, *UNREADABLE)
"""The errors of a broken or unreadable answer. A TimeoutError is an OSError."""

INLINE_BYTES = 65_536
"""The most bytes of JSON that the event loop decodes itself. Threads decode larger ones."""

PIECE_BYTES = 8192
"""Bytes of a stream that are read at once. Other requests get their turn after each piece: one read can
contain thousands of tiny events."""

STREAM_BYTES = 16 << 20
"""Bytes of a stream beside its tokens: comments, and reasoning that the maximum does not count."""

BYTES_PER_TOKEN, BYTES_PER_SCORED_TOKEN = 1024, 8192
"""The most bytes of a stream for each output token, without and with log-probabilities. A token of speech is
allowed as many as one with log-probabilities: it can be 50 ms of pcm16, 3,200 bytes in base64."""

MAX_SPEECH = 64 << 20
"""The most bytes of a whole answer with speech: 17 minutes of wav in base64, which take 64,000 bytes each
second. The recording is one long text, which decodes fast."""

EVENTS_PER_TURN = 256
"""Events that one request passes on before other requests get their turn."""

MAX_VECTORS = 144 << 20
"""The most bytes of an answer with vectors. The decoder skips over the numbers, which takes two tenths of a
second; each vector is read apart from the others."""

ERROR_STATUS = 500
"""The status of a vendor's error inside an answer, if the vendor names none."""

IGNORED_HEADER, RELAXED_HEADER = "x-antiphon-ignored", "x-antiphon-relaxed"
"""Headers of another Antiphon: fields that it ignores, and keywords of schemas that it does not enforce."""

FIELDS_USED_HERE = frozenset(("user", "metadata", "safety_identifier"))
"""Fields that this server itself uses in its records, even if a vendor ignores them."""


class VendorEngine:
    """`Engine` over one model of a provider."""

    def __init__(self, provider: Provider, model: VendorModel, profile: Profile) -> None:
        self._provider = provider
        self._model = model
        self._profile = profile

    async def prepare(self, request: GenerationRequest, context: Context) -> "PreparedVendorRequest":
        """Translates the request. Raises a RequestError that names what the vendor lacks."""
        origin = context.origin
        attributes = (
            Attributes(origin.end_user, origin.tags) if origin.end_user or origin.tags else NO_ATTRIBUTES
        )
        request = shorten_output(request, self._profile.max_output)
        prompt = request.prompts[0]
        if isinstance(prompt, RawPrompt) and prompt.content:  # dialects allow it only as the only prompt
            request = replace(request, prompts=(build_user_message(prompt),))
        call = self._provider.upstream.encode(request, self._model, attributes)
        report = EngineReport(call.ignored, has_own_schemas=True)
        size = bound_size(request, call, self._model)
        return PreparedVendorRequest(self._provider, self._model, request, call, size, report)

    async def prepare_embedding(
        self, request: EmbeddingRequest, context: Context
    ) -> "PreparedVendorEmbedding":
        """Translates a request for vectors. Raises UnsupportedParameter if the vendor makes none."""
        call = self._provider.upstream.encode_embedding(request, self._model)
        return PreparedVendorEmbedding(self._provider, request, call)

    async def prepare_rerank(self, request: RerankRequest, context: Context) -> "PreparedVendorRerank":
        """Translates a request to rank documents. Raises UnsupportedParameter if the vendor ranks none."""
        call = self._provider.upstream.encode_rerank(request, self._model)
        return PreparedVendorRerank(self._provider, request, call)

    async def profile(self) -> Profile:
        return self._profile

    def state(self) -> EngineState:
        """Returns READY: whether the vendor is reachable is known only by asking it."""
        return EngineState.READY

    async def aclose(self) -> None:
        """Does nothing: several models share a provider, which assembly closes."""


def shorten_output(request: GenerationRequest, max_output: int | None) -> GenerationRequest:
    """Returns the request with at most as many output tokens as the model makes, if the caller allows it."""
    output = request.output
    if max_output is None or output.max_tokens is None or output.max_tokens <= max_output:
        return request
    if output.overflow is not Overflow.SHORTEN:
        return request
    return replace(request, output=replace(output, max_tokens=max_output))


def bound_size(request: GenerationRequest, call: UpstreamCall, model: VendorModel) -> RequestSize:
    """Returns an upper bound of a request's tokens, and the estimate of its prompt. No tokenizer makes more
    tokens than its text has bytes, but images and recordings have other bounds. A document counts like text,
    at most the model's context. Schemas are part of the prompt, so with them the estimate is that of the
    whole body."""
    text_bytes, media_tokens, document_tokens = len(call.body), 0, 0
    for part in iterate_media(request):
        text_bytes -= len(part.data)
        if part.kind is MediaKind.DOCUMENT:
            document_tokens += max(IMAGE_TOKENS, len(part.data))
        else:
            media_tokens += max(IMAGE_TOKENS, len(part.data) // BYTES_PER_AUDIO_TOKEN)
    document_tokens = min(document_tokens, model.profile.context_length or LONGEST_CONTEXT)
    has_schemas = request.output.constraint is not None or any(
        isinstance(prompt, Conversation) and prompt.tools is not None for prompt in request.prompts
    )
    prompt = estimate_tokens(text_bytes) if has_schemas else estimate_prompt(request)
    output_tokens = request.output.max_tokens
    if output_tokens is None:
        output_tokens = model.profile.max_output or MAX_OUTPUT
    if (prediction := request.vendor_options.prediction) is not None:
        output_tokens += len(prediction.text.encode())  # its rejected tokens count too
    choices = (request.output.best_of or request.output.choices) * len(request.prompts)
    return RequestSize(
        text_bytes + media_tokens + document_tokens,
        output_tokens * choices,
        is_counted=False,
        estimated_prompt_tokens=min(prompt, text_bytes) + media_tokens + estimate_tokens(document_tokens),
        choices=choices,
    )


def limit_usage(
    usage: Usage,
    request: GenerationRequest,
    size: RequestSize,
    provider: Provider,
    context: Context,
    context_length: int | None,
) -> Usage:
    """Returns the usage at the end of an answer. If nobody counted the prompt, adds its estimate. A count
    that cannot be true is replaced by what the request reserved, and logged."""
    if usage.source is UsageSource.ESTIMATED:
        return replace(usage, prompt_tokens=size.estimated_prompt_tokens)
    prompt, output = usage.prompt_tokens, usage.completion_tokens
    most_prompt, most_output = size.prompt_tokens + MAX_HIDDEN_PROMPT, size.output_tokens
    if prompt > most_prompt:
        kinds = [part.kind for part in iterate_media(request)]
        most_prompt += MAX_IMAGE_TOKENS * len(kinds)
        if MediaKind.DOCUMENT in kinds:
            most_prompt = max(most_prompt, context_length or LONGEST_CONTEXT)
    is_open = usage.reasoning_tokens > 0 or request.output.max_tokens is None
    most_output += size.choices * (MAX_HIDDEN_OUTPUT if is_open else MAX_EXCESS_OUTPUT)
    if prompt <= most_prompt and output <= most_output:
        return usage
    record_impossible_usage(provider, context, request.model, prompt, output)
    prompt = prompt if prompt <= most_prompt else size.prompt_tokens
    output = output if output <= most_output else size.output_tokens
    return Usage(
        prompt,
        output,
        min(usage.cached_tokens, prompt),
        min(usage.reasoning_tokens, output),
        UsageSource.ESTIMATED,
    )


def record_impossible_usage(
    provider: Provider, context: Context, model: str, prompt: int, output: int
) -> None:
    """Logs the counts of a vendor that are not believed."""
    record(
        "vendor_usage_impossible",
        logging.WARNING,
        request_id=context.request_id,
        provider=provider.name,
        model=model,
        prompt_tokens=prompt,
        completion_tokens=output,
    )


def add_upstream_reports(
    report: EngineReport, request: GenerationRequest, headers: Mapping[str, str]
) -> None:
    """Adds to `report` the ignored fields and the schema keywords without effect, if the vendor is another
    Antiphon that reports them."""
    constraint = request.output.constraint
    declared = constraint.declared if constraint is not None else None
    fields_used_here = (
        FIELDS_USED_HERE
        if declared is not None and declared.name is not None
        else FIELDS_USED_HERE | {SCHEMA_NAME}
    )
    ignored = [name for name in read_names(headers.get(IGNORED_HEADER, "")) if name not in fields_used_here]
    report.ignored = (*report.ignored, *ignored)
    report.relaxed = read_names(headers.get(RELAXED_HEADER, ""))


def read_names(header: str) -> tuple[str, ...]:
    """Returns the names in a header."""
    is_text = header.isascii() and header.isprintable()
    return tuple(filter(None, header.split(", "))) if is_text else ()


def iterate_media(request: GenerationRequest) -> Iterator[MediaContent]:
    """Yields the images, recordings and documents of a request."""
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            for message in prompt.messages:
                yield from [part for part in message.content if isinstance(part, MediaContent)]


class PreparedVendorRequest(Struct, frozen=True):
    """`PreparedRequest`: a translated request."""

    provider: Provider
    model: VendorModel
    request: GenerationRequest
    call: UpstreamCall
    size: RequestSize
    report: EngineReport

    def stream(self, context: Context) -> "VendorStream":
        return VendorStream(self, context)


class VendorStream:
    """One exchange with a vendor, as a context that iterates over the groups of events of its answer. Leaving
    it closes the connection, unless the answer was read to its end. It is a `LateUsageStream`."""

    __slots__ = (
        "_arrived_at",
        "_context",
        "_decoder",
        "_failure",
        "_first_event_due",
        "_has_returned_events",
        "_held_s",
        "_is_complete",
        "_is_decoding",
        "_loop",
        "_remaining_events",
        "_response",
        "_splitter",
        "_started",
        "_undecoded",
        "call",
        "model",
        "provider",
        "report",
        "request",
        "size",
    )

    def __init__(self, prepared: PreparedVendorRequest, context: Context) -> None:
        self.provider, self.model = prepared.provider, prepared.model
        self.request, self.call, self.size = prepared.request, prepared.call, prepared.size
        self.report = prepared.report
        self._context = context
        self._loop = asyncio.get_running_loop()
        self._response: UpstreamResponse | None = None
        self._first_event_due = inf
        self._decoder: StreamDecoder | None = None
        """The decoder of a streamed answer."""
        self._splitter = EventSplitter(self.provider.options.max_answer_bytes)
        self._undecoded = b""
        """Bytes that were read and not decoded yet."""
        self._remaining_events: list[Event] = []
        """Events that are decoded, and wait until other requests had their turn."""
        self._failure: AntiphonError | None = None
        """The error of the answer, until the events before it are returned."""
        self._started = Started(self.size.estimated_prompt_tokens, source=UsageSource.ESTIMATED)
        """The first event. It is an estimate until the vendor tells the counts of the prompt."""
        self._has_returned_events = False
        """Whether a group was returned. After that, no other route is tried."""
        self._is_decoding = False
        """Whether a piece is decoded. If the request is cancelled meanwhile, what is left of the piece is
        lost."""
        self._is_complete = False
        self._arrived_at: float | None = None
        """The event loop's time of the latest network read."""
        self._held_s = 0.0
        """Seconds in which the reader of the events did not read."""

    async def __aenter__(self) -> "VendorStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        response, self._response = self._response, None
        if response is not None:
            if not self._is_complete:
                response.close()
            await self.provider.end_request()

    def __aiter__(self) -> "VendorStream":
        return self

    async def __anext__(self) -> EventGroup:
        """Returns the events of a whole answer, or of the next pieces of a stream that have any. The first
        group has content, so another route can be tried until then. If the answer breaks after some events,
        returns these first, and raises the error afterwards."""
        if waiting_events := self._remaining_events:
            self._remaining_events = waiting_events[EVENTS_PER_TURN:]
            await asyncio.sleep(0)
            return waiting_events[:EVENTS_PER_TURN]
        if self._failure is not None:
            try:
                raise self._failure
            finally:
                self._failure = None  # its traceback refers to this stream
        if self._is_complete:
            raise StopAsyncIteration
        response = self._response or await self._send()
        events: list[Event] = []
        try:
            if self._decoder is None:
                events += await self._read_answer(response)
                self._is_complete = True
                self._withhold_start(events)
            while not events and not self._is_complete and self._decoder is not None:
                await self._read_piece(response, self._decoder, events)
                self._withhold_start(events)
        except ANSWER_FAILURES as failure:
            response.close()
            self._withhold_start(events)
            if not events:
                raise self._map_failure(failure, self._has_returned_events) from None
            self._failure = self._map_failure(failure, has_events=True)
        if not self._has_returned_events:
            self._has_returned_events = True
            events.insert(0, self._started)
        if len(events) > EVENTS_PER_TURN:
            events, self._remaining_events = events[:EVENTS_PER_TURN], events[EVENTS_PER_TURN:]
        return events

    def _withhold_start(self, events: list[Event]) -> None:
        """Before the first group, takes Started out of the events that were read, and keeps its counts: it is
        no content, so it does not end the search for a route."""
        if self._has_returned_events:
            return
        for event in events:
            if isinstance(event, Started) and event.prompt_tokens:
                self._started = event
        events[:] = [event for event in events if not isinstance(event, Started)]

    @property
    def has_arrived(self) -> bool:
        """`LateUsageStream.has_arrived`. A whole answer without a stream tells its usage with its events."""
        return self._response is not None and self._decoder is not None and self._response.is_closed

    async def read_usage(self, seconds: float) -> Usage | None:
        """`LateUsageStream.read_usage`."""
        response, decoder = self._response, self._decoder
        if response is None or decoder is None or self._is_decoding:
            return None
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    while not decoder.is_complete:
                        self._undecoded = self._undecoded or await response.read_part()
                        if not self._undecoded:
                            break
                        await self._decode_piece(decoder, [])
                        await asyncio.sleep(0)
            usage = next(event for event in decoder.close() if isinstance(event, Usage))
        except Exception:  # noqa: BLE001 - nobody waits for it, and it must not end the waits of others
            return None
        usage = limit_usage(
            usage, self.request, self.size, self.provider, self._context, self.model.profile.context_length
        )
        return None if usage.source is UsageSource.ESTIMATED else usage

    async def _send(self) -> UpstreamResponse:
        """Sends the request. Begins the decoder if the vendor streams its answer."""
        options, context, now = self.provider.options, self._context, self._loop.time()
        deadline = find_deadline(self.provider, context, now)
        first_event_due = min(deadline, now + options.first_byte_timeout)
        due = first_event_due if self.call.is_streamed else deadline
        call = trace_call(self.call, self.provider, context)
        on_sent = partial(self.report.record_sent, context.clock)
        try:
            response = self._response = await self.provider.send(call, due, on_sent)
        except ProviderTimeout:
            if is_expired(context):
                raise build_deadline_error() from None
            raise
        if options.reports_fields:
            reports = {
                name: self.provider.remove_secrets(response.headers[name])
                for name in (IGNORED_HEADER, RELAXED_HEADER)
                if name in response.headers
            }
            add_upstream_reports(self.report, self.request, reports)
        response.deadline = deadline
        if response.media_type == EVENT_STREAM:
            is_plain = self.request.output.logprobs is None and not self.request.vendor_options.wants_speech
            token_bytes = BYTES_PER_TOKEN if is_plain else BYTES_PER_SCORED_TOKEN
            response.limit(STREAM_BYTES + self.size.output_tokens * token_bytes)
            self._decoder = self.provider.upstream.start_stream(self.request, self.model)
            self._first_event_due = response.next_bytes_due = first_event_due
        return response

    async def _read_answer(self, response: UpstreamResponse) -> list[Event]:
        """Returns all events of a whole answer. If any part is invalid, raises, so that another route can be
        tried."""
        max_bytes = self.provider.options.max_answer_bytes
        if self.request.vendor_options.wants_speech:
            max_bytes = max(max_bytes, MAX_SPEECH)
        body = await response.read(max_bytes)
        upstream = self.provider.upstream
        events = await run_decode(lambda: tuple(upstream.decode_answer(self.request, self.model, body)), body)
        return list(map(self._limit_usage, events))

    async def _read_piece(
        self, response: UpstreamResponse, decoder: StreamDecoder, events: list[Event]
    ) -> None:
        """Adds the events of the next piece of a streamed answer. Reads from the network if no piece is
        left. Other requests get their turn between two pieces of one read."""
        if self._undecoded:
            await asyncio.sleep(0)
        elif not decoder.is_complete:
            if self._arrived_at is not None:
                now = self._loop.time()
                self._held_s += now - self._arrived_at
                due = now + self.provider.options.chunk_timeout
                response.next_bytes_due = max(self._first_event_due, due)
            self._undecoded = await response.read_part()
            self._arrived_at, response.next_bytes_due = self._loop.time(), inf
        if self._undecoded:
            self._is_decoding = True
            await self._decode_piece(decoder, events)
            self._is_decoding = False
            if events:
                self._first_event_due = 0.0
            if self._undecoded or not decoder.is_complete:
                return
        elif not decoder.is_complete:
            for name, payload in self._splitter.finish():
                events += decoder.feed(name, payload)
        self.report.held_s = self._held_s
        events += [self._limit_usage(event) for event in decoder.close()]
        self.provider.watch.finish(response)
        self._is_complete = True

    async def _decode_piece(self, decoder: StreamDecoder, events: list[Event]) -> None:
        """Adds the events that the next piece completes."""
        piece, self._undecoded = self._undecoded[:PIECE_BYTES], self._undecoded[PIECE_BYTES:]
        for name, payload in self._splitter.feed(piece):
            if len(payload) <= INLINE_BYTES:
                events += decoder.feed(name, payload)
            else:
                events += await run_decode(partial(decoder.feed, name, payload), payload)

    def _limit_usage(self, event: Event) -> Event:
        """Returns the event, with the counts of Usage limited to what can be true."""
        if not isinstance(event, Usage):
            return event
        return limit_usage(
            event, self.request, self.size, self.provider, self._context, self.model.profile.context_length
        )

    def _map_failure(self, failure: Exception, has_events: bool) -> AntiphonError:
        """Returns the error for a failure of the answer. `has_events`: whether events of the answer come
        before it. Then it is an error after which no other route is tried."""
        error = self._explain_failure(failure)
        if is_expired(self._context):
            return build_deadline_error(error.cause)
        if not has_events or not isinstance(error, ProviderError):
            return error
        return ProviderBroken(
            f"the stream of the provider {self.provider.name} broke: {error.message}", cause=error.cause
        )

    def _explain_failure(self, failure: Exception) -> AntiphonError:
        """Returns the error that names the failure, as it is if no event was yielded."""
        name = self.provider.name
        if isinstance(failure, StreamFailure):
            status = failure.error.status or ERROR_STATUS
            return self.provider.map_error(status, failure.error)
        if isinstance(failure, UNREADABLE):
            return ProviderFailed(
                f"the provider {name} gave an answer that cannot be read",
                cause=f"{name}: {self.provider.describe_failure(failure)}",
            )
        return self.provider.map_failure(failure)


class PreparedVendorEmbedding(Struct, frozen=True):
    """`PreparedEmbedding`: a translated request for vectors."""

    provider: Provider
    request: EmbeddingRequest
    call: UpstreamCall
    report: EngineReport = field(default_factory=EngineReport)

    @property
    def size(self) -> RequestSize:
        return bound_prompt(len(self.call.body), estimate_inputs(self.request))

    async def embed(self, context: Context) -> Embeddings:
        """Returns the vectors. Raises a ProviderError, also if the vendor ignored the request's
        dimensions."""
        decode = partial(self.provider.upstream.decode_embedding, self.request)
        vector_count = len(self.request.inputs) + 1  # one for what is beside the vectors
        max_bytes = min(MAX_VECTORS, vector_count * BYTES_PER_VECTOR)
        embeddings = await exchange(
            self.provider, self.call, decode, context, self.report, max_bytes, MAX_OBJECTS, MAX_NUMBERS
        )
        tokens = limit_prompt(embeddings.prompt_tokens, self.size, self.provider, context, self.request.model)
        if tokens != embeddings.prompt_tokens:
            embeddings = replace(embeddings, prompt_tokens=tokens, source=UsageSource.ESTIMATED)
        dimensions = self.request.dimensions
        if dimensions is not None and embeddings.dimensions != dimensions:
            raise ProviderFailed(
                f"the provider {self.provider.name} ignored dimensions: its vectors have "
                f"{embeddings.dimensions} numbers instead of {dimensions}"
            )
        return embeddings


class PreparedVendorRerank(Struct, frozen=True):
    """`PreparedRerank`: a translated request to rank documents."""

    provider: Provider
    request: RerankRequest
    call: UpstreamCall
    report: EngineReport = field(default_factory=EngineReport)

    @property
    def size(self) -> RequestSize:
        """An upper bound of the tokens. A vendor reads the query once with each document."""
        query = measure_text(self.request.query) * len(self.request.documents)
        byte_count = query + sum(map(measure_text, self.request.documents))
        return bound_prompt(byte_count, estimate_tokens(byte_count))

    async def rank(self, context: Context) -> Ranking:
        """Returns the scores. Raises a ProviderError."""
        decode = partial(self.provider.upstream.decode_rerank, self.request)
        ranking = await exchange(
            self.provider, self.call, decode, context, self.report, self.provider.options.max_answer_bytes
        )
        tokens = limit_prompt(ranking.prompt_tokens, self.size, self.provider, context, self.request.model)
        if tokens != ranking.prompt_tokens:
            ranking = replace(ranking, prompt_tokens=tokens, source=UsageSource.ESTIMATED)
        return ranking


def bound_prompt(byte_count: int, estimate: int) -> RequestSize:
    """Returns the size of a request without output. `byte_count`: an upper bound of its tokens."""
    return RequestSize(byte_count, 0, is_counted=False, estimated_prompt_tokens=min(estimate, byte_count))


def limit_prompt(tokens: int, size: RequestSize, provider: Provider, context: Context, model: str) -> int:
    """Returns a vendor's count of the tokens that it read. A count that cannot be true is replaced by what
    the request reserved, and logged."""
    if tokens <= size.prompt_tokens + MAX_HIDDEN_PROMPT:
        return tokens
    record_impossible_usage(provider, context, model, tokens, 0)
    return size.prompt_tokens


async def run_decode(
    decode: Callable[[], T], data: bytes, max_objects: int = MAX_OBJECTS, max_values: int = MAX_VALUES
) -> T:
    """Returns the result of `decode`, which reads `data`. A thread runs it if the data is large. Raises
    ValueError if the data has too many parts even for a thread."""
    if len(data) <= INLINE_BYTES:
        return decode()
    await asyncio.to_thread(require_bounded, data, max_objects, max_values)
    return await asyncio.to_thread(decode)


async def exchange(
    provider: Provider,
    call: UpstreamCall,
    decode: Callable[[bytes], T],
    context: Context,
    report: EngineReport,
    max_bytes: int,
    max_objects: int = MAX_OBJECTS,
    max_values: int = MAX_VALUES,
) -> T:
    """Sends a request, and returns its whole answer decoded. Raises a ProviderError."""
    deadline = find_deadline(provider, context, asyncio.get_running_loop().time())
    on_sent = partial(report.record_sent, context.clock)
    try:
        response = await provider.send(trace_call(call, provider, context), deadline, on_sent)
    except ProviderTimeout:
        if is_expired(context):
            raise build_deadline_error() from None
        raise
    try:
        body = await response.read(max_bytes)
        return await run_decode(partial(decode, body), body, max_objects, max_values)
    except UNREADABLE as failure:
        raise ProviderFailed(
            f"the provider {provider.name} gave an answer that cannot be read",
            cause=f"{provider.name}: {provider.describe_failure(failure)}",
        ) from None
    except OSError as failure:
        error = provider.map_failure(failure)
        raise (build_deadline_error(error.cause) if is_expired(context) else error) from None
    finally:
        response.close()
        await provider.end_request()


def trace_call(call: UpstreamCall, provider: Provider, context: Context) -> UpstreamCall:
    """Returns the call with the header that continues the request's trace, if tracing is on."""
    span = context.span
    if span is None:
        return call
    span.add({"server.address": provider.server[0], "server.port": provider.server[1]})
    return replace(call, headers=(*call.headers, ("traceparent", span.traceparent)))


def find_deadline(provider: Provider, context: Context, now: float) -> float:
    """Returns the event loop's time at which a request must end, by the provider's timeout or by the
    request's own deadline."""
    remaining, timeout = context.remaining(), provider.options.timeout
    return now + (timeout if remaining is None else min(timeout, remaining))


def is_expired(context: Context) -> bool:
    """Whether the request's own deadline has passed. The error then must not blame the vendor."""
    remaining = context.remaining()
    return remaining is not None and remaining <= CLOCK_SLACK_S


def build_deadline_error(cause: str | None = None) -> DeadlineExceeded:
    """Builds the error for a request whose own deadline has passed."""
    return DeadlineExceeded("the request's time has passed; ask for less, or allow more time", cause=cause)
