"""Reads responses of OpenAI's API, whole ones and streams.

A whole response is read as a stream whose items come complete. Events that are not known are skipped: their
content is in the events that end an item.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from secrets import token_hex

import msgspec

from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Scores,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
)
from antiphon.domain.messages import measure_text
from antiphon.domain.request import GenerationRequest
from antiphon.engines.vendors.base import (
    StreamFailure,
    VendorError,
    VendorModel,
    estimate_usage,
    is_possible,
)
from antiphon.engines.vendors.openai.decode import ESTIMATED_START, count_alternatives, read_scores
from antiphon.engines.vendors.openai.wire_types import (
    LogprobsWire,
    TokenWire,
    build_error,
    decode_error,
)
from antiphon.engines.vendors.parameters import shows_reasoning
from antiphon.engines.vendors.responses.wire_types import (
    CallItemWire,
    DeltaEventWire,
    EndEventWire,
    EventNameWire,
    InputDetailsWire,
    ItemEventWire,
    ItemWire,
    OutputDetailsWire,
    ReasoningItemWire,
    ResponseEndWire,
    ResponseUsageWire,
    ResponseWire,
    TextPartWire,
    WholeEventWire,
)
from antiphon.wire.placed_blocks import place_block
from antiphon.wire.responses import INCOMPLETE_REASONS

CHOICE = 0
"""The index of the only choice that this API makes."""

BETWEEN_PARTS = "\n\n"
"""What is between the parts of a summary."""

FINISHES: Mapping[str | None, FinishReason] = {
    reason: finish for finish, reason in INCOMPLETE_REASONS.items()
}
"""The finish reasons of incomplete answers."""

NO_INPUT_DETAILS, NO_OUTPUT_DETAILS = InputDetailsWire(), OutputDetailsWire()

read_response = msgspec.json.Decoder(ResponseWire).decode
read_name = msgspec.json.Decoder(EventNameWire).decode
read_item_event = msgspec.json.Decoder(ItemEventWire).decode
read_delta_event = msgspec.json.Decoder(DeltaEventWire).decode
read_end_event = msgspec.json.Decoder(EndEventWire).decode
read_whole_event = msgspec.json.Decoder(WholeEventWire).decode


class OpenItem:
    """An item of the answer, as far as it has arrived."""

    __slots__ = ("call", "has_content", "name", "part")

    def __init__(self) -> None:
        self.has_content = False
        self.part = 0
        """The index of the part of the summary that arrived last."""
        self.call: int | None = None
        """The number of the call in the answer; None if the item is no call."""
        self.name = ""
        """The called function."""


class ResponseReader:
    """`StreamDecoder` of one response."""

    def __init__(self, request: GenerationRequest, model: VendorModel) -> None:
        self._request = request
        self._provider = model.provider
        self._shows_reasoning = shows_reasoning(request)
        self._wants_scores = request.output.logprobs is not None
        self._max_alternatives = count_alternatives(request.output)
        self._items: dict[int, OpenItem] = {}
        self._calls: list[OpenItem] = []
        self._text_length = 0
        """Characters of text and refusals so far."""
        self._byte_count = 0
        """Bytes of all output so far."""
        self._has_scores = False
        self._has_started = False
        self._usage: Usage | None = None
        self.is_complete = False
        self._readers: Mapping[str, Callable[[bytes], Iterator[Event]]] = {
            "response.output_text.delta": self._read_text_delta,
            "response.function_call_arguments.delta": self._read_arguments_delta,
            "response.reasoning_summary_text.delta": self._read_reasoning_delta,
            "response.reasoning_text.delta": self._read_reasoning_delta,
            "response.refusal.delta": self._read_refusal_delta,
            "response.output_item.added": self._read_item_start,
            "response.output_item.done": self._read_item_end,
            "response.completed": self._read_end,
            "response.incomplete": self._read_end,
            "response.failed": self._read_end,
            "response.cancelled": self._read_end,
            "error": self._raise_failure,
        }

    def feed(self, name: str, data: bytes) -> Sequence[Event]:
        """`StreamDecoder.feed`. Skips unknown events, and everything after the end."""
        if self.is_complete:
            return ()
        read = self._readers.get(name or read_name(data).type)
        return () if read is None else self._start(list(read(data)))

    def read_answer(self, body: bytes) -> Sequence[Event]:
        """Returns the events of a whole response. Raises StreamFailure and ValueError."""
        return self._start(list(self._read_response(read_response(body))))

    def close(self) -> Sequence[Event]:
        """`StreamDecoder.close`."""
        if self._usage is None:
            raise ValueError("the answer ended before its last event")
        return (self._usage,)

    def _start(self, events: list[Event]) -> Sequence[Event]:
        """Returns the events, with Started before the first ones."""
        if events and not self._has_started:
            self._has_started = True
            events.insert(0, ESTIMATED_START)
        return events

    # --- events of a stream ---------------------------------------------------------------------------------

    def _read_text_delta(self, data: bytes) -> Iterator[Event]:
        """Reads the most frequent event."""
        event = read_delta_event(data)
        self._find_item(event.output_index).has_content = True
        yield from self._add_text(event.delta, event.logprobs)

    def _read_refusal_delta(self, data: bytes) -> Iterator[Event]:
        event = read_delta_event(data)
        self._find_item(event.output_index).has_content = True
        yield from self._add_text(event.delta, None, is_refusal=True)

    def _read_reasoning_delta(self, data: bytes) -> Iterator[Event]:
        event = read_delta_event(data)
        item = self._find_item(event.output_index)
        is_next_part, item.part = event.summary_index != item.part, event.summary_index
        text = BETWEEN_PARTS + event.delta if is_next_part and item.has_content else event.delta
        item.has_content = True
        yield from self._add_reasoning(text)

    def _read_arguments_delta(self, data: bytes) -> Iterator[Event]:
        event = read_delta_event(data)
        yield from self._add_arguments(self._find_item(event.output_index), event.delta)

    def _read_item_start(self, data: bytes) -> Iterator[Event]:
        event = read_item_event(data)
        item = self._find_item(event.output_index)
        if isinstance(event.item, CallItemWire):
            yield from self._start_call(item, event.item)
            yield from self._add_arguments(item, event.item.arguments)

    def _read_item_end(self, data: bytes) -> Iterator[Event]:
        event = read_item_event(data)
        yield from self._end_item(event.output_index, event.item)

    def _read_end(self, data: bytes) -> Iterator[Event]:
        if not self._has_started:  # the server sent no other events, or nothing has content
            yield from self._read_response(read_whole_event(data).response)
        else:
            yield from self._end(read_end_event(data).response)

    def _raise_failure(self, data: bytes) -> Iterator[Event]:
        raise StreamFailure(decode_error(data))

    # --- parts of the answer --------------------------------------------------------------------------------

    def _read_response(self, response: ResponseWire) -> Iterator[Event]:
        """Yields the events of a whole response."""
        for index, item in enumerate(response.output):
            yield from self._end_item(index, item)
        yield from self._end(response)

    def _find_item(self, index: int) -> OpenItem:
        return self._items.get(index) or self._items.setdefault(index, OpenItem())

    def _end_item(self, index: int, wire: ItemWire) -> Iterator[Event]:
        """Yields the events of a complete item. Its content is read only if no part of it came before."""
        item = self._find_item(index)
        if isinstance(wire, CallItemWire):
            if item.call is None:
                yield from self._start_call(item, wire)
            if item.name != wire.name:
                raise ValueError("the name of a call changed")
            if not item.has_content:
                yield from self._add_arguments(item, wire.arguments)
            return
        if isinstance(wire, ReasoningItemWire):
            if not item.has_content:
                parts = wire.summary or wire.content or ()
                yield from self._add_reasoning(BETWEEN_PARTS.join([part.text for part in parts]))
            yield from self._keep_reasoning(wire)
        elif not item.has_content:
            for part in wire.content:
                if isinstance(part, TextPartWire):
                    yield from self._add_text(part.text, part.logprobs)
                else:
                    yield from self._add_text(part.refusal, None, is_refusal=True)
        item.has_content = True

    def _add_text(
        self, text: str, logprobs: list[TokenWire] | None, is_refusal: bool = False
    ) -> Iterator[Event]:
        """Yields the event of text or of a refusal."""
        if not text:
            return
        scores: Scores = ()
        if logprobs and self._wants_scores:
            self._has_scores = True
            wire = LogprobsWire(content=logprobs)
            scores = tuple(read_scores(wire, self._text_length, self._max_alternatives))
        self._text_length += len(text)
        self._byte_count += measure_text(text)
        yield TextDelta(CHOICE, text, scores=scores, is_refusal=is_refusal)

    def _add_reasoning(self, text: str) -> Iterator[Event]:
        """Yields the event of reasoning, if the caller sees it."""
        self._byte_count += measure_text(text)
        if text and self._shows_reasoning:
            yield ReasoningDelta(CHOICE, text)

    def _keep_reasoning(self, wire: ReasoningItemWire) -> Iterator[Event]:
        """Yields the item that the vendor needs back in the next request. Without its sealed form the vendor
        could not find it, because it stores nothing."""
        if not wire.encrypted_content:
            return
        block: dict[str, object] = {
            "type": "reasoning",
            "id": wire.id,
            "encrypted_content": wire.encrypted_content,
            "provider": self._provider,
        }
        if wire.summary and self._shows_reasoning:
            block["summary"] = [part.text for part in wire.summary]
        yield ThinkingBlock(CHOICE, place_block(block, self._text_length, len(self._calls)))

    def _start_call(self, item: OpenItem, wire: CallItemWire) -> Iterator[Event]:
        """Yields the beginning of a call."""
        if item.call is not None or item.has_content:
            raise ValueError("an item begins twice")
        if not wire.name:
            raise ValueError("a call of a tool has no name")
        item.call, item.name = len(self._calls), wire.name
        self._calls.append(item)
        yield ToolCallStarted(CHOICE, item.call, wire.call_id or f"call_{token_hex(12)}", wire.name)

    def _add_arguments(self, item: OpenItem, text: str) -> Iterator[Event]:
        """Yields the event of arguments."""
        if item.call is None:
            raise ValueError("arguments without a call")
        if text:
            item.has_content = True
            self._byte_count += measure_text(text)
            yield ToolCallDelta(CHOICE, item.call, text)

    def _end(self, response: ResponseEndWire) -> Iterator[Event]:
        """Yields the end of the choice. Raises StreamFailure for an answer that failed, and ValueError for
        one without an end."""
        if response.error is not None:
            raise StreamFailure(build_error(response.error))
        details = response.incomplete_details
        if response.status == "completed":
            reason: FinishReason | None = FinishReason.TOOL_CALLS if self._calls else FinishReason.STOP
        elif response.status == "incomplete":
            reason = FINISHES.get(details.reason) if details is not None else None
        elif response.status in ("failed", "cancelled"):
            raise StreamFailure(VendorError(f"the answer has the status {response.status}", response.status))
        else:
            reason = None
        if reason is None:
            cause = details.reason if details is not None else None
            raise ValueError(f"the answer ended with the status {response.status} {cause or ''}".rstrip())
        if reason is FinishReason.TOOL_CALLS:
            for call in self._calls:
                if not call.has_content and call.call is not None:
                    yield ToolCallDelta(CHOICE, call.call, "{}")
        has_scores = self._wants_scores and (self._has_scores or not self._text_length)
        yield Finished(CHOICE, reason, scores=() if has_scores else None)
        self._usage = self._build_usage(response.usage)
        self.is_complete = True

    def _build_usage(self, reported: ResponseUsageWire | None) -> Usage:
        """Returns the vendor's usage. Returns an estimate if the vendor reported none, or impossible
        numbers."""
        if reported is None or reported.input_tokens is None or reported.output_tokens is None:
            return estimate_usage(self._request, self._byte_count)
        input_details = reported.input_tokens_details or NO_INPUT_DETAILS
        output_details = reported.output_tokens_details or NO_OUTPUT_DETAILS
        usage = Usage(
            reported.input_tokens,
            reported.output_tokens,
            input_details.cached_tokens or 0,
            output_details.reasoning_tokens or 0,
            UsageSource.REPORTED,
            cache_write_tokens=input_details.cache_write_tokens or 0,
        )
        return usage if is_possible(usage) else estimate_usage(self._request, self._byte_count)
