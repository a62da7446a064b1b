"""Handles tools and reasoning in a request: builds its constraint, and separates calls and reasoning from the
text.

Tools become a constraint of calls. A choice begins before, in or after its reasoning; its constraint is
extended by the reasoning before the answer.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing

from antiphon.constraints import grammar_types as groups
from antiphon.constraints.grammar_types import Marks, Prelude, TextFrame
from antiphon.domain.context import Clock
from antiphon.domain.events import (
    Event,
    EventGroup,
    Finished,
    FinishReason,
    ReasoningDelta,
    Scores,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    join_scores,
)
from antiphon.domain.messages import ToolChoice, Tools
from antiphon.domain.request import (
    Constraint,
    ConstraintKind,
    Conversation,
    GenerationRequest,
    Prompt,
    Reasoning,
)
from antiphon.domain.values import replace
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.call_notation import CallNotation, to_marks
from antiphon.rendering.call_readers import (
    CallName,
    OutputPart,
    OutputReader,
    PlainReader,
    ReasoningPart,
    VisiblePart,
)
from antiphon.rendering.choice_decoder import ChoiceDecoder
from antiphon.rendering.context_window import FittedPrompt
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning import (
    ReasoningCounter,
    ReasoningPosition,
    ReasoningReader,
    require_reasoning,
)
from antiphon.rendering.template.messages import make_short_id

TAIL = 64
"""How many tokens at a prompt's end are searched for the opening mark of reasoning, which has at most six
tokens."""

ANYTHING = "start: TEXT?\nTEXT: /(.|\\n)*/"
"""The grammar of any text."""


def find_begin(prompt: Prompt, tokens: tuple[int, ...], model_info: ModelInfo) -> ReasoningPosition | None:
    """Returns where the choices of a prompt begin; None for raw prompts and for models that do not reason."""
    if model_info.template is None or not isinstance(prompt, Conversation):
        return None
    notation = model_info.template.reasoning_notation
    if notation is None:
        return None
    answer_start = prompt.messages[-1].text if prompt.continues else ""
    is_text = notation.close not in model_info.controls
    return notation.find_begin(model_info.named_pieces.text(tokens[-TAIL:]), answer_start, is_text)


def constrain_prompt(
    prompt: Prompt, fitted_prompt: FittedPrompt, constraint: Constraint | None, model_info: ModelInfo
) -> FittedPrompt:
    """Adds to the prompt where its choices begin, and their constraint. Raises UnsupportedParameter."""
    begin = find_begin(prompt, fitted_prompt.tokens, model_info)
    return replace(
        fitted_prompt, begin=begin, constraint=constrain_answer(constraint, prompt, begin, model_info)
    )


def constrain_answer(
    constraint: Constraint | None, prompt: Prompt, begin: ReasoningPosition | None, model_info: ModelInfo
) -> Constraint | None:
    """Extends the constraint by the reasoning that comes before the answer. Makes one if only a budget is
    set. Raises UnsupportedParameter for a budget that cannot end the reasoning."""
    template = model_info.template
    if template is None or template.reasoning_notation is None or not isinstance(prompt, Conversation):
        return constraint
    notation, budget = template.reasoning_notation, prompt.reasoning.budget
    if begin is None or begin is ReasoningPosition.AFTER or (constraint is None and budget is None):
        return constraint
    if notation.channels:
        return _constrain_channels(constraint, template.call_notation, prompt.reasoning, model_info)
    budget_field = prompt.reasoning.field_names.budget
    token_ids = {**model_info.find_single_tokens(notation.marks), **model_info.controls}
    if budget is not None and notation.close not in token_ids:
        raise UnsupportedParameter(
            f"{budget_field} is not supported: this model writes the end of its reasoning in several tokens, "
            "so no budget can end it; leave it out",
            param=budget_field,
        )
    opening = () if begin is ReasoningPosition.INSIDE else notation.open
    ending = (notation.close, *notation.gap)
    prelude = Prelude(
        frames=(TextFrame(to_marks(opening, token_ids), to_marks(ending, token_ids)),),
        optional=begin is ReasoningPosition.BEFORE,
        budget=budget,
        forbidden_text=notation.close if notation.close in token_ids else "",
        call_opening=_find_call_opening(constraint, model_info),
    )
    answer_constraint = constraint or Constraint(ConstraintKind.LARK, ANYTHING, field=budget_field)
    return replace(answer_constraint, prelude=prelude.dump())


def _find_call_opening(constraint: Constraint | None, model_info: ModelInfo) -> Marks:
    """Returns the marks with which calls can end the reasoning; empty if there can be no calls."""
    if constraint is None or constraint.kind is not ConstraintKind.CALLS or model_info.template is None:
        return ()
    if groups.load_group(constraint.source).around is groups.TextAround.TEXT_ALONE:
        return ()
    opening = model_info.template.call_notation.find_early_opening(model_info.controls)
    return to_marks(opening, model_info.controls)


def _constrain_channels(
    constraint: Constraint | None, call_notation: CallNotation, reasoning: Reasoning, model_info: ModelInfo
) -> Constraint | None:
    """Builds the constraint for a model with channels. The grammar of calls already contains the channels."""
    budget, budget_field = reasoning.budget, reasoning.field_names.budget
    reasoning_frame, *other_frames = (
        frame.with_ids(model_info.controls) for frame in call_notation.channels if frame.close is not None
    )
    final_frame = next(
        frame.with_ids(model_info.controls) for frame in call_notation.channels if frame.close is None
    )
    has_calls = constraint is not None and constraint.kind is ConstraintKind.CALLS
    if budget is None:
        if constraint is None or has_calls:
            return constraint
        prelude = Prelude(
            (reasoning_frame, *other_frames), optional=True, allows_several=True, answer=final_frame.open
        )
        return replace(constraint, prelude=prelude.dump())
    if constraint is None:
        group = groups.CallGroup(
            groups.TextAround.TEXT_ALONE, final_frame.open, (), (), frames=(*other_frames, final_frame)
        )
        constraint, has_calls = Constraint(ConstraintKind.CALLS, group.dump(), field=budget_field), True
    elif has_calls:
        group = groups.load_group(constraint.source)
        frames = tuple(frame for frame in group.frames if frame.open != reasoning_frame.open)
        constraint = replace(constraint, source=replace(group, frames=frames).dump())
    answer_opening = () if has_calls else final_frame.open
    prelude = Prelude((reasoning_frame,), optional=True, budget=budget, answer=answer_opening)
    return replace(constraint, prelude=prelude.dump())


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
    return replace(request, output=replace(request.output, constraint=constraint))


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
        self._is_calls_or_format = is_calls_or_format(original)
        self._request = request
        self._model_info = model_info
        self._tools = _get_tools(request)
        self._clock = clock
        self._reads_calls = _must_read_calls(request, model_info)

    @property
    def shown_model_info(self) -> ModelInfo:
        """The model's information for decoding: the control tokens that the readers must see have their names
        as text."""
        template = self._model_info.template
        if template is None:
            return self._model_info
        marks = template.call_notation.marks if self._reads_calls or self._writes_channels else ()
        if template.reasoning_notation is not None and _is_chat(self._request):
            marks += template.reasoning_notation.marks
        return replace(self._model_info, pieces=self._model_info.pieces_showing(marks))

    def parse(
        self,
        decoder: ChoiceDecoder,
        begin: ReasoningPosition | None,
        events: AsyncGenerator[EventGroup, None],
    ) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of one choice, with calls and reasoning separated from text. `begin`: where the
        choice begins; None if no reasoning is separated."""
        reader = self._build_reader(begin)
        if reader is None or self._model_info.template is None:
            return events
        if begin is not None:
            decoder.reasoning_counter = ReasoningCounter(reader.spans)
        calls_required = self._tools is not None and self._tools.choice is ToolChoice.REQUIRED
        make_call_id = _make_id_source(self._clock, self._model_info.template.call_notation.short_ids)
        shows_reasoning = _get_reasoning(self._request).shown
        return ChoiceParser(decoder.choice, reader, make_call_id, calls_required, shows_reasoning).parse(
            events
        )

    def _build_reader(self, begin: ReasoningPosition | None) -> OutputReader | None:
        """Makes the reader of one choice; None if the choice is plain text."""
        template = self._model_info.template
        if template is None:
            return None
        answer_reader = self._build_answer_reader(template.call_notation)
        if (
            begin is None
            or template.reasoning_notation is None
            or begin is ReasoningPosition.AFTER
            or self._writes_channels
        ):
            return answer_reader if self._reads_calls or self._writes_channels else None
        return ReasoningReader(
            template.reasoning_notation,
            begin,
            answer_reader,
            keeps_whitespace=self._request.output.constraint is not None,
            call_opening="".join(template.call_notation.find_early_opening(self._model_info.controls))
            if self._reads_calls
            else "",
        )

    def _build_answer_reader(self, call_notation: CallNotation) -> OutputReader:
        """Makes the reader of the text after reasoning."""
        if self._reads_calls and self._is_calls_or_format and self._tools is not None:
            return call_notation.build_calls_or_text_reader(self._tools)
        if not (self._reads_calls or self._writes_channels):
            return PlainReader()
        return call_notation.build_reader(() if self._tools is None else self._tools.tools)

    @property
    def _writes_channels(self) -> bool:
        """Whether the model writes text, calls and reasoning in channels, so that every choice needs a
        reader."""
        template = self._model_info.template
        if template is None or template.reasoning_notation is None or not _is_chat(self._request):
            return False
        return template.reasoning_notation.channels


def _must_read_calls(request: GenerationRequest, model_info: ModelInfo) -> bool:
    """Whether the readers must find calls in the text. For a model with channels they do so even if the
    request forbids calls, because the same reader separates the channels."""
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


def _make_id_source(clock: Clock, is_short: bool) -> Callable[[], str]:
    """Returns a function that makes ids of calls. `is_short`: whether the template accepts only ids of nine
    characters."""
    return lambda: make_short_id(clock.unique()) if is_short else ID_PREFIX + clock.unique()


class ChoiceParser:
    """Parses the events of one choice.

    A part is a piece of text, reasoning or a call. Tokens, ids and scores are reported with the first part
    that they complete. Marks and hidden reasoning are no parts, so their tokens are reported with the next
    part.
    """

    __slots__ = (
        "_call_count",
        "_calls_required",
        "_choice",
        "_make_call_id",
        "_reader",
        "_shows_reasoning",
        "_unreported_ids",
        "_unreported_scores",
        "_unreported_tokens",
    )

    def __init__(
        self,
        choice: int,
        reader: OutputReader,
        make_call_id: Callable[[], str],
        calls_required: bool = False,
        shows_reasoning: bool = True,
    ) -> None:
        """`make_call_id`: returns a new id for a call. `calls_required`: whether the choice must be calls
        without text. `shows_reasoning`: whether the answer contains the reasoning."""
        self._choice = choice
        self._reader = reader
        self._make_call_id = make_call_id
        self._calls_required = calls_required
        self._shows_reasoning = shows_reasoning
        self._call_count = 0
        self._unreported_tokens = 0
        self._unreported_scores: list[Scores] = []
        self._unreported_ids: tuple[int, ...] = ()

    async def parse(self, events: AsyncGenerator[EventGroup, None]) -> AsyncGenerator[EventGroup, None]:
        """Yields the events of the choice, with events for reasoning and calls in place of their text."""
        async with aclosing(events):
            async for group in events:
                if parsed_events := [parsed for event in group for parsed in self._parse_event(event)]:
                    yield parsed_events

    def _parse_event(self, event: Event) -> Iterator[Event]:
        """Yields the events that replace one event of the choice."""
        if isinstance(event, TextDelta):
            self._unreported_tokens += event.tokens
            self._unreported_ids += event.ids
            if event.scores:
                self._unreported_scores.append(event.scores)
            yield from self._convert_parts(self._reader.add(event.text))
        elif isinstance(event, Finished):
            yield from self._finish(event)
        else:
            yield event

    def _finish(self, event: Finished) -> Iterator[Event]:
        """Yields the last parts and the event that ends the choice."""
        yield from self._convert_parts(self._reader.end(self._calls_required))
        has_calls = event.reason is FinishReason.STOP and self._reader.has_complete_calls
        reason = FinishReason.TOOL_CALLS if has_calls else event.reason
        tokens, scores, ids = self._take_unreported()
        joined_scores = None if event.scores is None else join_scores([scores, event.scores])
        yield Finished(
            event.choice, reason, tokens + event.tokens, joined_scores, ids + event.ids, event.stop
        )

    def _convert_parts(self, parts: Iterable[OutputPart]) -> Iterator[Event]:
        for part in parts:
            if isinstance(part, ReasoningPart):
                if self._shows_reasoning:
                    yield ReasoningDelta(self._choice, part.text, *self._take_unreported())
            elif isinstance(part, VisiblePart):
                yield TextDelta(self._choice, part.text, *self._take_unreported())
            elif isinstance(part, CallName):
                self._call_count += 1
                index, id_ = self._call_count - 1, self._make_call_id()
                yield ToolCallStarted(self._choice, index, id_, part.name, *self._take_unreported())
            else:
                yield ToolCallDelta(self._choice, self._call_count - 1, part.text, *self._take_unreported())

    def _take_unreported(self) -> tuple[int, Scores, tuple[int, ...]]:
        """Returns the count, scores and ids of tokens that no event has reported yet, and clears them."""
        tokens, self._unreported_tokens = self._unreported_tokens, 0
        scores, self._unreported_scores = join_scores(self._unreported_scores), []
        ids, self._unreported_ids = self._unreported_ids, ()
        return tokens, scores, ids
