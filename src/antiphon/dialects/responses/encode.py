"""Encodes answers in the form of the Responses API: events, and the response that they add up to.

A buffered answer is built from the same events as a streamed one, so both are equal.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypedDict

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.dialects.common.chunks import DONE
from antiphon.dialects.common.encode import build_chat_logprobs
from antiphon.dialects.responses.conversation import CALL_SIGNATURE
from antiphon.dialects.responses.custom_input import CustomInputReader
from antiphon.dialects.responses.decode import ResponsesCall
from antiphon.dialects.responses.tools import CalledTool, CallForm
from antiphon.dialects.responses.wire_types import (
    AnswerCall,
    AnswerCustomCall,
    AnswerMessage,
    AnswerReasoning,
    AnswerRefusal,
    AnswerSearch,
    AnswerSummary,
    AnswerText,
    AnswerThought,
    ArgumentsDelta,
    ArgumentsDone,
    IncompleteDetails,
    InputDelta,
    InputDone,
    InputTokenDetails,
    ItemAdded,
    ItemDone,
    ItemStatus,
    KeepAlive,
    OutputItem,
    OutputTokenDetails,
    PartAdded,
    PartDone,
    RefusalDelta,
    RefusalDone,
    ResponseAnswer,
    ResponseCompleted,
    ResponseCreated,
    ResponseError,
    ResponseFailed,
    ResponseIncomplete,
    ResponseInProgress,
    ResponseUsage,
    StreamEvent,
    SummaryAdded,
    SummaryDone,
    SummaryTextDelta,
    SummaryTextDone,
    TextDeltaEvent,
    TextDone,
    ThoughtDelta,
    ThoughtDone,
)
from antiphon.dialects.services import ResponseMeta
from antiphon.domain.context import Clock, RequestProgress
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    Scores,
    Started,
    TextDelta,
    ThinkingBlock,
    ToolCallDelta,
    ToolCallStarted,
    Usage,
    UsageSource,
    join_scores,
)
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.domain.values import replace
from antiphon.errors import AntiphonError, ProviderBroken
from antiphon.wire.responses import INCOMPLETE_REASONS

ID_PREFIX = "resp_"

SERVER_ERROR, TOO_MANY_REQUESTS = 500, 429

TEXT_EVENT = (
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":%b,"logprobs":[],'
    b'"sequence_number":%d%b'
)
"""A `TextDeltaEvent` without log-probabilities: its text, its number, and its place."""

Seal = Callable[[SealedReasoning], str]
"""Encrypts reasoning for a client that carries it to its next request."""

_encode = msgspec.json.Encoder().encode


def encode_event(event: StreamEvent) -> bytes:
    """Encodes one event of a stream. Some clients read its name from the line before its data."""
    name: str = event.__struct_config__.tag  # type: ignore[assignment]
    return b"event: %b\ndata: %b\n\n" % (name.encode(), _encode(event))


def encode_response(response: ResponseAnswer) -> bytes:
    """Encodes a buffered answer."""
    return _encode(response)


def build_usage(usage: Usage) -> ResponseUsage | None:
    """Builds the usage. Returns None for an estimate, because callers must get only counted numbers."""
    if usage.source is UsageSource.ESTIMATED:
        return None
    return ResponseUsage(
        input_tokens=usage.prompt_tokens,
        input_tokens_details=InputTokenDetails(usage.cached_tokens, usage.cache_write_tokens),
        output_tokens=usage.completion_tokens,
        output_tokens_details=OutputTokenDetails(usage.reasoning_tokens),
        total_tokens=usage.total_tokens,
    )


class _Place(TypedDict):
    """Where an event of an item belongs, and its number."""

    sequence_number: int
    item_id: str
    output_index: int


class _PartPlace(_Place):
    content_index: int


class _Item:
    """An item that is not complete."""

    prefix: str
    """The beginning of its id."""

    def __init__(self, builder: "ResponseBuilder") -> None:
        self._builder = builder
        self._index = 0
        self._id = ""

    def open(self) -> Iterator[StreamEvent]:
        """Yields the events that begin the item. All items before it are complete."""
        self._index = len(self._builder.output)
        self._id = f"{self.prefix}_{self._builder.meta.id}_{self._index}"
        number, item = self._builder.number(), self._build("in_progress")
        yield ItemAdded(sequence_number=number, output_index=self._index, item=item)

    def close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """Yields the events that end the item."""
        number, item = self._builder.number(), self._build(status)
        self._builder.output.append(item)
        yield ItemDone(sequence_number=number, output_index=self._index, item=item)

    def _build(self, status: ItemStatus) -> OutputItem:
        """Builds the item with the content so far."""
        raise NotImplementedError

    def _place(self) -> _Place:
        """Numbers the next event of the item."""
        return _Place(sequence_number=self._builder.number(), item_id=self._id, output_index=self._index)


class _Message(_Item):
    """A message: text, or a vendor's refusal, or both."""

    prefix = "msg"

    def __init__(self, builder: "ResponseBuilder") -> None:
        super().__init__(builder)
        self._parts: list[AnswerText | AnswerRefusal] = []
        self._is_refusal: bool | None = None
        """Whether the open part is a refusal; None if no part is open."""
        self._ending: bytes | None = None
        """The bytes of an event of the open part behind its number."""
        self._texts: list[str] = []
        self._scores: list[Scores] = []

    def add(self, text: str, is_refusal: bool, scores: Scores) -> Iterator[StreamEvent]:
        """Yields the events of more text. An empty text only begins a part."""
        if self._is_refusal is not is_refusal:
            yield from self._close_part()
            self._is_refusal = is_refusal
            yield PartAdded(**self._place_part(), part=AnswerRefusal("") if is_refusal else AnswerText(""))
        if not text:
            return
        self._texts.append(text)
        if is_refusal:
            yield RefusalDelta(**self._place_part(), delta=text)
            return
        self._scores.append(scores)
        logprobs = build_chat_logprobs(scores).content if scores else []
        yield TextDeltaEvent(**self._place_part(), delta=text, logprobs=logprobs)

    def encode_text(self, event: TextDelta) -> bytes | None:
        """Encodes the event of more text. Most events are text, so the bytes around it are encoded once for
        each part. Returns None if the event is no text for the open part, or has scores."""
        if self._is_refusal is not False or event.is_refusal or event.scores or not event.text:
            return None
        self._texts.append(event.text)
        if self._ending is None:
            place = b',"item_id":%b,"output_index":%d,"content_index":%d}\n\n'
            self._ending = place % (_encode(self._id), self._index, len(self._parts))
        return TEXT_EVENT % (_encode(event.text), self._builder.number(), self._ending)

    def close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        yield from self._close_part()
        yield from super().close(status)

    def _build(self, status: ItemStatus) -> AnswerMessage:
        return AnswerMessage(id=self._id, status=status, content=list(self._parts))

    def _place_part(self) -> _PartPlace:
        """Numbers the next event of the open part."""
        return _PartPlace(**self._place(), content_index=len(self._parts))

    def _close_part(self) -> Iterator[StreamEvent]:
        """Yields the events that end the open part, if there is one."""
        if self._is_refusal is None:
            return
        text = "".join(self._texts)
        part: AnswerText | AnswerRefusal
        if self._is_refusal:
            part = AnswerRefusal(text)
            yield RefusalDone(**self._place_part(), refusal=text)
        else:
            scores = join_scores(self._scores)
            logprobs = build_chat_logprobs(scores).content if scores else []
            part = AnswerText(text, logprobs=logprobs)
            yield TextDone(**self._place_part(), text=text, logprobs=logprobs)
        yield PartDone(**self._place_part(), part=part)
        self._parts.append(part)
        self._is_refusal = self._ending = None
        self._texts, self._scores = [], []


class _Reasoning(_Item):
    """Reasoning: the item's content, or its summary."""

    prefix = "rs"

    def __init__(self, builder: "ResponseBuilder") -> None:
        super().__init__(builder)
        self._has_summary = builder.call.has_summary
        self._texts: list[str] = []
        self.blocks: list[Mapping[str, object]] = []
        """The vendor's blocks of this reasoning."""

    def add(self, text: str) -> Iterator[StreamEvent]:
        """Yields the events of more reasoning. The first text begins its part."""
        if not self._texts:
            if self._has_summary:
                yield SummaryAdded(**self._place(), part=AnswerSummary(""))
            else:
                yield PartAdded(**self._place(), content_index=0, part=AnswerThought(""))
        self._texts.append(text)
        if self._has_summary:
            yield SummaryTextDelta(**self._place(), delta=text)
        else:
            yield ThoughtDelta(**self._place(), content_index=0, delta=text)

    def close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        text = "".join(self._texts)
        if text and self._has_summary:
            yield SummaryTextDone(**self._place(), text=text)
            yield SummaryDone(**self._place(), part=AnswerSummary(text))
        elif text:
            yield ThoughtDone(**self._place(), content_index=0, text=text)
            yield PartDone(**self._place(), content_index=0, part=AnswerThought(text))
        yield from super().close(status)

    def _build(self, status: ItemStatus) -> AnswerReasoning:
        text = "".join(self._texts)
        sealed: str | UnsetType = UNSET
        if status != "in_progress":
            builder, is_sealed = self._builder, self._builder.call.is_sealed
            if is_sealed or (self.blocks and builder.response.store):
                seal = builder.seal(SealedReasoning(text, builder.meta.model, blocks=tuple(self.blocks)))
                if is_sealed:
                    sealed = seal
                else:
                    builder.sealed[self._index] = seal
        return AnswerReasoning(
            id=self._id,
            status=status,
            summary=[AnswerSummary(text)] if self._has_summary and text else [],
            content=[AnswerThought(text)] if text and not self._has_summary else [],
            encrypted_content=sealed,
        )


class _Call(_Item):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, builder: "ResponseBuilder", started: ToolCallStarted, tool: CalledTool) -> None:
        super().__init__(builder)
        self.number = started.index
        """The number of the call in the answer."""
        self._call_id = started.id
        self._tool = tool
        self._arguments: list[str] = []

    def add(self, arguments: str) -> Iterator[StreamEvent]:
        """Yields the events of more arguments."""
        self._arguments.append(arguments)
        yield ArgumentsDelta(**self._place(), delta=arguments)

    @property
    def is_empty(self) -> bool:
        """Whether the model has written no arguments so far."""
        return not self._arguments

    def is_whole(self) -> bool:
        """Whether the arguments are an object."""
        try:
            return isinstance(msgspec.json.decode("".join(self._arguments)), dict)
        except msgspec.DecodeError:
            return False

    def close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        if not self._arguments and status == "completed":
            yield from self.add("{}")  # clients join the deltas
        yield ArgumentsDone(**self._place(), name=self._tool.name, arguments="".join(self._arguments))
        yield from super().close(status)

    def cut(self) -> None:
        """Adds the call to the response as far as it came. It has no events that end it: Codex runs a custom
        call when it reads them, whatever its status is."""
        self._builder.output.append(self._build("incomplete"))

    def _build(self, status: ItemStatus) -> OutputItem:
        return AnswerCall(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._tool.name,
            arguments="".join(self._arguments),
            namespace=self._tool.namespace or UNSET,
        )


class _CustomCall(_Call):
    """A call of a custom tool. The model's argument is an object with one text, and the item has the text."""

    prefix = "ctc"

    def __init__(self, builder: "ResponseBuilder", started: ToolCallStarted, tool: CalledTool) -> None:
        super().__init__(builder, started, tool)
        self._reader = CustomInputReader()

    def add(self, arguments: str) -> Iterator[StreamEvent]:
        self._arguments.append(arguments)
        if text := self._reader.read(arguments):
            yield InputDelta(**self._place(), delta=text)

    def close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        if rest := self._reader.finish():
            yield InputDelta(**self._place(), delta=rest)
        yield InputDone(**self._place(), input=self._reader.text)
        yield from _Item.close(self, status)

    def _build(self, status: ItemStatus) -> OutputItem:
        return AnswerCustomCall(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._tool.name,
            input=self._reader.text,
            namespace=self._tool.namespace or UNSET,
        )


class _SearchCall(_Call):
    """A search for tools. It has no events for its arguments, which are an object."""

    prefix = "tsc"

    def add(self, arguments: str) -> Iterator[StreamEvent]:
        self._arguments.append(arguments)
        return iter(())

    def close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        yield from _Item.close(self, status)

    def _build(self, status: ItemStatus) -> OutputItem:
        arguments = msgspec.json.decode("".join(self._arguments)) if self.is_whole() else {}
        return AnswerSearch(id=self._id, status=status, call_id=self._call_id, arguments=arguments)


CALL_ITEMS = {CallForm.FUNCTION: _Call, CallForm.CUSTOM: _CustomCall, CallForm.SEARCH: _SearchCall}


class ResponseBuilder:
    """Builds the events of one answer, and the response that they add up to. One item is open at a time."""

    def __init__(
        self, meta: ResponseMeta, call: ResponsesCall, clock: Clock, seal: Seal, progress: RequestProgress
    ) -> None:
        self.meta = meta
        self.call = call
        self.seal = seal
        self._clock = clock
        self._progress = progress
        self.output: list[OutputItem] = []
        """The complete items."""
        self.sealed: dict[int, str] = {}
        """By the indexes of items: sealed reasoning that only the stored items have."""
        self._loose_blocks: list[Mapping[str, object]] = []
        """A vendor's blocks that came outside of reasoning, and the signatures of calls."""
        self.response = replace(call.template, id=ID_PREFIX + meta.id, created_at=meta.created)
        """The response. It has its output from its end on."""
        self._next_number = 0
        self._item: _Item | None = None
        self._empty_calls: set[int] = set()
        """The numbers of calls whose items ended without arguments."""
        self._reason = FinishReason.STOP

    @property
    def open_message(self) -> _Message | None:
        """The open item, if it is a message."""
        return self._item if isinstance(self._item, _Message) else None

    def number(self) -> int:
        """Returns the number of the next event."""
        number = self._next_number
        self._next_number = number + 1
        return number

    def add(self, event: Event) -> Iterator[StreamEvent]:
        """Yields the events for one event of the generation."""
        match event:
            case TextDelta() if event.text:
                message = self._item if isinstance(self._item, _Message) else _Message(self)
                yield from self._open(message)
                yield from message.add(event.text, event.is_refusal, event.scores)
            case ReasoningDelta() if event.text:
                reasoning = self._item if isinstance(self._item, _Reasoning) else _Reasoning(self)
                yield from self._open(reasoning)
                yield from reasoning.add(event.text)
            case ThinkingBlock():
                if isinstance(self._item, _Reasoning):
                    self._item.blocks.append(event.block)
                else:
                    self._loose_blocks.append(event.block)
            case ToolCallStarted():
                if event.signature is not None:
                    block = {"type": CALL_SIGNATURE, "call": event.id, "signature": event.signature}
                    self._loose_blocks.append(block)
                yield from self._close("completed")
                tool = self.call.called.get(event.name) or CalledTool(CallForm.FUNCTION, event.name)
                yield from self._open(CALL_ITEMS[tool.form](self, event, tool))
            case ToolCallDelta() if isinstance(self._item, _Call) and self._item.number == event.index:
                yield from self._item.add(event.arguments)
            case ToolCallDelta():
                if event.arguments != "{}" or event.index not in self._empty_calls:
                    raise ProviderBroken("the vendor mixed the parts of several calls")
            case Started():
                report = self._progress.report
                if report.temperature is not None and report.top_p is not None:
                    self.response = replace(self.response, temperature=report.temperature, top_p=report.top_p)
                yield from self.start()
            case Finished():
                yield from self._finish(event.reason)
            case Usage():
                self._end(event)

    def start(self) -> Iterator[StreamEvent]:
        """Yields the first events, unless they have been sent during a silence."""
        if self._next_number == 0:
            yield ResponseCreated(sequence_number=self.number(), response=self.response)
            yield ResponseInProgress(sequence_number=self.number(), response=self.response)

    def list_stored_items(self) -> list[OutputItem]:
        """Lists the items with the reasoning that the vendor needs back, which the caller did not request."""
        return [
            replace(item, encrypted_content=self.sealed[index])
            if index in self.sealed and isinstance(item, AnswerReasoning)
            else item
            for index, item in enumerate(self.output)
        ]

    def keep_alive(self) -> Iterator[StreamEvent]:
        """Yields events without content. They have numbers, because Codex reads no comments. Before the first
        item the response is sent again. Later a client would take it for the whole answer."""
        if self._next_number == 0:
            yield from self.start()
        elif self._item is None and not self.output:
            yield ResponseInProgress(sequence_number=self.number(), response=self.response)
        else:
            yield KeepAlive(sequence_number=self.number())

    def complete(self) -> StreamEvent:
        """Returns the last event of a complete answer."""
        kind = ResponseCompleted if self.response.status == "completed" else ResponseIncomplete
        return kind(sequence_number=self.number(), response=self.response)

    def fail(self, error: AntiphonError) -> Iterator[StreamEvent]:
        """Yields the last events of an answer that broke. The open item has no end."""
        yield from self.start()
        if error.status == TOO_MANY_REQUESTS:
            code = "rate_limit_exceeded"
        else:
            code = "server_error" if error.status >= SERVER_ERROR else error.code
        self.response = replace(
            self.response, status="failed", error=ResponseError(code, error.message), output=self.output
        )
        yield ResponseFailed(sequence_number=self.number(), response=self.response)

    def _open(self, item: _Item) -> Iterator[StreamEvent]:
        """Ends the open item and begins another one, unless this one is open."""
        if item is not self._item:
            yield from self._close("completed")
            self._item = item
            yield from item.open()

    def _close(self, status: ItemStatus) -> Iterator[StreamEvent]:
        """Ends the open item, if there is one."""
        item, self._item = self._item, None
        if isinstance(item, _Call) and item.is_empty:
            self._empty_calls.add(item.number)
        if item is not None:
            yield from item.close(status)

    def _finish(self, reason: FinishReason) -> Iterator[StreamEvent]:
        """Ends the last item. An answer without items gets an empty message."""
        self._reason = reason
        if self._item is None and not self.output:
            message = _Message(self)
            yield from self._open(message)
            yield from message.add("", False, ())
        is_cut = reason in INCOMPLETE_REASONS
        if is_cut and isinstance(self._item, _Call) and (is_cut := not self._item.is_whole()):
            self._item.cut()
            self._item = None
        yield from self._close("incomplete" if is_cut else "completed")
        if self._loose_blocks and not is_cut and (self.call.is_sealed or self.response.store):
            reasoning = _Reasoning(self)
            reasoning.blocks += self._loose_blocks
            yield from self._open(reasoning)
            yield from self._close("completed")

    def _end(self, usage: Usage) -> None:
        """Completes the response."""
        cut = INCOMPLETE_REASONS.get(self._reason)
        details = None if cut is None else IncompleteDetails(cut)
        self.response = replace(
            self.response,
            status="completed" if details is None else "incomplete",
            completed_at=int(self._clock.wall()) if details is None else None,
            incomplete_details=details,
            output=self.output,
            usage=build_usage(usage),
        )


class ResponsesStreamEncoder:
    """Encodes one stream."""

    def __init__(self, builder: ResponseBuilder) -> None:
        self._builder = builder

    def encode(self, event: Event) -> bytes:
        """Encodes one event; empty if the caller does not see it."""
        message = self._builder.open_message
        if message is not None and isinstance(event, TextDelta):
            encoded = message.encode_text(event)
            if encoded is not None:
                return encoded
        return b"".join(map(encode_event, self._builder.add(event)))

    def keep_alive(self) -> bytes:
        """Encodes the events of a silence."""
        return b"".join(map(encode_event, self._builder.keep_alive()))

    def end(self) -> bytes:
        """Encodes the end of a complete stream."""
        return encode_event(self._builder.complete()) + DONE

    def encode_error(self, error: AntiphonError) -> bytes:
        """Encodes the end of a broken stream."""
        return b"".join(map(encode_event, self._builder.fail(error)))
