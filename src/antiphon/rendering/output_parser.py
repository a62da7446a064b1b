"""The effects of tools and reasoning on a request: the constraint of its choices, and the readers that
separate calls and reasoning from text."""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import replace

from antiphon.domain.context import Clock
from antiphon.domain.events import (
    Event,
    Finished,
    FinishReason,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from antiphon.domain.logprobs import Scores, join_scores
from antiphon.domain.messages import ToolChoice, Tools
from antiphon.domain.request import ConstraintKind, Conversation, GenerationRequest, Reasoning
from antiphon.domain.values import changed
from antiphon.rendering.decode.choice_decoder import ChoiceDecoder
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning.notation import Begin, require_reasoning
from antiphon.rendering.reasoning.reader import ReasoningCounter, ReasoningReader
from antiphon.rendering.template.messages import make_short_id
from antiphon.rendering.tools.call_notation import CallNotation
from antiphon.rendering.tools.call_readers import (
    OutputPart,
    OutputReader,
    PlainReader,
    ReasoningPart,
    VisiblePart,
)
from antiphon.rendering.tools.json_call import CallName

ID_PREFIX = "call_"


def constrain_calls(request: GenerationRequest, model_info: ModelInfo) -> GenerationRequest:
    """Returns the request with the constraint that its tools add. Raises UnsupportedParameter."""
    tools, constraint = _get_tools(request), request.output.constraint
    if model_info.template is not None:
        require_reasoning(_get_reasoning(request), model_info.template.reasoning_notation)
    if tools is None or model_info.template is None:
        return request
    if constraint is not None and tools.choice is ToolChoice.NONE:
        return request
    constraint = model_info.template.call_notation.build_constraint(tools, model_info.controls, constraint)
    return changed(request, output=changed(request.output, constraint=constraint))


def is_calls_or_format(request: GenerationRequest) -> bool:
    """Whether each choice is either calls or a text in the requested format."""
    tools = _get_tools(request)
    is_auto = tools is not None and tools.choice is ToolChoice.AUTO
    return is_auto and request.output.constraint is not None


class OutputParser:
    """Parses the choices of one request."""

    def __init__(
        self, original: GenerationRequest, request: GenerationRequest, model_info: ModelInfo, clock: Clock
    ) -> None:
        """`original`: the request before `constrain_calls`."""
        self._either = is_calls_or_format(original)
        self._request = request
        self._facts = model_info
        self._tools = _get_tools(request)
        self._clock = clock
        self._calls = _reads_calls(request, model_info)

    @property
    def facts(self) -> ModelInfo:
        """The model's facts, with pieces that show the control tokens that the readers need."""
        template = self._facts.template
        if template is None:
            return self._facts
        marks = template.call_notation.marks if self._calls or self._in_channels else ()
        if template.reasoning_notation is not None and _is_chat(self._request):
            marks += template.reasoning_notation.marks
        return replace(self._facts, pieces=self._facts.pieces_showing(marks))

    def parse(
        self, decoder: ChoiceDecoder, begin: Begin | None, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        """Yields the events of one choice, with calls and reasoning apart from text. `begin`: where the
        choice begins; with None no reasoning is read."""
        reader = self._build_reader(begin)
        if reader is None or self._facts.template is None:
            return events
        if begin is not None:
            decoder.reasoning_counter = ReasoningCounter(reader.spans)
        required = self._tools is not None and self._tools.choice is ToolChoice.REQUIRED
        ids = _make_id_source(self._clock, self._facts.template.call_notation.short_ids)
        show_reasoning = _get_reasoning(self._request).shown
        return ChoiceParser(decoder.choice, reader, ids, required, show_reasoning).parse(events)

    def _build_reader(self, begin: Begin | None) -> OutputReader | None:
        """Makes the reader of one choice; None if the choice is plain text."""
        template = self._facts.template
        if template is None:
            return None
        inner = self._build_answer_reader(template.call_notation)
        if begin is None or template.reasoning_notation is None or begin is Begin.AFTER or self._in_channels:
            return inner if self._calls or self._in_channels else None
        return ReasoningReader(
            template.reasoning_notation, begin, inner, kept=self._request.output.constraint is not None
        )

    def _build_answer_reader(self, layout: CallNotation) -> OutputReader:
        """Makes the reader of the text after reasoning."""
        if self._calls and self._either and self._tools is not None:
            return layout.build_either_reader(self._tools)
        return layout.build_reader() if self._calls or self._in_channels else PlainReader()

    @property
    def _in_channels(self) -> bool:
        """Whether the model writes everything in channels, so that every choice needs a reader."""
        template = self._facts.template
        if template is None or template.reasoning_notation is None or not _is_chat(self._request):
            return False
        return template.reasoning_notation.channels


def _reads_calls(request: GenerationRequest, model_info: ModelInfo) -> bool:
    """Whether the text is read for calls. The text of a model with channels is read even if the request
    forbids calls."""
    tools, constraint = _get_tools(request), request.output.constraint
    if tools is None or model_info.template is None:
        return False
    if constraint is None or constraint.kind is not ConstraintKind.CALLS:
        return False
    return tools.choice is not ToolChoice.NONE or bool(model_info.template.call_notation.channels)


def _is_chat(request: GenerationRequest) -> bool:
    """Whether the request's prompts are conversations."""
    return isinstance(request.prompts[0], Conversation)


def _get_tools(request: GenerationRequest) -> Tools | None:
    """Returns the request's tools, which all its conversations share."""
    prompt = request.prompts[0]
    return prompt.tools if isinstance(prompt, Conversation) else None


def _get_reasoning(request: GenerationRequest) -> Reasoning:
    prompt = request.prompts[0]
    return prompt.reasoning if isinstance(prompt, Conversation) else Reasoning()


def _make_id_source(clock: Clock, short: bool) -> Callable[[], str]:
    """Returns a function that makes ids of calls. `short`: whether the template needs short ids."""
    return lambda: make_short_id(clock.unique()) if short else ID_PREFIX + clock.unique()


class ChoiceParser:
    """Parses the events of one choice.

    Tokens, ids and scores belong to the first part that they make certain. Marks and reasoning that is not
    shown make no part, so their tokens count with the next part.
    """

    __slots__ = (
        "_calls",
        "_choice",
        "_ids",
        "_reader",
        "_required",
        "_scores",
        "_shown",
        "_token_ids",
        "_tokens",
    )

    def __init__(
        self,
        choice: int,
        reader: OutputReader,
        ids: Callable[[], str],
        required: bool = False,
        show_reasoning: bool = True,
    ) -> None:
        """`ids`: makes the id of a call. `required`: the choice must be calls without text.
        `show_reasoning`: whether the answer contains the reasoning."""
        self._choice = choice
        self._reader = reader
        self._ids = ids
        self._required = required
        self._shown = show_reasoning
        self._calls = 0
        self._tokens = 0
        self._scores: list[Scores] = []
        self._token_ids: tuple[int, ...] = ()

    async def parse(self, events: AsyncGenerator[Event, None]) -> AsyncGenerator[Event, None]:
        """Yields the events of the choice. Reasoning and calls replace the text that they were read from."""
        async with aclosing(events):
            async for event in events:
                for parsed in self._parse_event(event):
                    yield parsed

    def _parse_event(self, event: Event) -> Iterator[Event]:
        """Yields the events that replace one event of the choice."""
        if isinstance(event, TextDelta):
            self._note(event)
            yield from self._convert_parts(self._reader.add(event.text))
        elif isinstance(event, Finished):
            yield from self._end_events(event)
        else:
            yield event

    def _note(self, event: TextDelta) -> None:
        """Keeps the tokens, ids and scores of a delta for the next part."""
        self._tokens += event.tokens
        self._token_ids += event.ids
        if event.scores:
            self._scores.append(event.scores)

    def _end_events(self, event: Finished) -> Iterator[Event]:
        """Yields the last parts and the event that ends the choice."""
        yield from self._convert_parts(self._reader.end(self._required))
        called = event.reason is FinishReason.STOP and self._reader.is_complete
        reason = FinishReason.TOOL_CALLS if called else event.reason
        tokens, scores, ids = self._take_due()
        joined_scores = None if event.scores is None else join_scores([scores, event.scores])
        yield Finished(event.choice, reason, tokens + event.tokens, joined_scores, ids + event.ids)

    def _convert_parts(self, all_said: Iterable[OutputPart]) -> Iterator[Event]:
        for part in all_said:
            if not isinstance(part, ReasoningPart):
                yield self._convert_part(part)
            elif self._shown:
                yield ReasoningDelta(self._choice, part.text, *self._take_due())

    def _convert_part(self, part: OutputPart) -> Event:
        due = self._take_due()
        if isinstance(part, VisiblePart):
            return TextDelta(self._choice, part.text, *due)
        if isinstance(part, CallName):
            self._calls += 1
            return ToolCallStarted(self._choice, self._calls - 1, self._ids(), part.name, *due)
        return ToolCallDelta(self._choice, self._calls - 1, part.text, *due)

    def _take_due(self) -> tuple[int, Scores, tuple[int, ...]]:
        """Returns the count, scores and ids of tokens that no event contains yet, and clears them."""
        tokens, self._tokens = self._tokens, 0
        scores, self._scores = join_scores(self._scores), []
        ids, self._token_ids = self._token_ids, ()
        return tokens, scores, ids
