"""What tools and reasoning make of a request: the constraint that its choices follow, and who reads what they
say."""

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace

from antiphon.domain.constraint import ConstraintKind
from antiphon.domain.context import Clock
from antiphon.domain.events import Event
from antiphon.domain.request import Conversation, GenerationRequest, Reasoning
from antiphon.domain.tools import ToolChoice, Tools
from antiphon.domain.values import changed
from antiphon.rendering.choice_decoder import ChoiceDecoder
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.reasoning.counting import ReasoningCounter
from antiphon.rendering.reasoning.effort import require_reasoning
from antiphon.rendering.reasoning.notation import Begin
from antiphon.rendering.reasoning.thinking import ReasoningReader
from antiphon.rendering.template_messages import make_short_id
from antiphon.rendering.toolcalls.choice_parser import ChoiceParser
from antiphon.rendering.toolcalls.layout import CallNotation
from antiphon.rendering.toolcalls.reading import PlainReader, OutputReader

ID_PREFIX = "call_"


def constrain_calls(request: GenerationRequest, facts: ModelInfo) -> GenerationRequest:
    """The same request, with its choices constrained as its tools want it. Raises UnsupportedParameter."""
    tools, constraint = _tools(request), request.output.constraint
    if facts.template is not None:
        require_reasoning(_reasoning(request), facts.template.reasoning_notation)
    if tools is None or facts.template is None:
        return request
    if constraint is not None and tools.choice is ToolChoice.NONE:
        return request
    constraint = facts.template.call_notation.constraint(tools, facts.controls, constraint)
    return changed(request, output=changed(request.output, constraint=constraint))


def is_either(request: GenerationRequest) -> bool:
    """Whether the choices of a request, as it was asked, are calls or a text of a format."""
    tools = _tools(request)
    is_auto = tools is not None and tools.choice is ToolChoice.AUTO
    return is_auto and request.output.constraint is not None


class OutputParser:
    """Reads what the choices of one request say."""

    def __init__(
        self, original: GenerationRequest, request: GenerationRequest, facts: ModelInfo, clock: Clock
    ) -> None:
        """`original`: the request before `constrain_calls`."""
        self._either = is_either(original)
        self._request = request
        self._facts = facts
        self._tools = _tools(request)
        self._clock = clock
        self._calls = _calls_are_read(request, facts)

    @property
    def facts(self) -> ModelInfo:
        """The model as its text is read: control tokens that the readers have to see are seen."""
        template = self._facts.template
        if template is None:
            return self._facts
        marks = template.call_notation.marks if self._calls or self._in_channels else ()
        if template.reasoning_notation is not None and _is_chat(self._request):
            marks += template.reasoning_notation.marks
        return replace(self._facts, pieces=self._facts.pieces_showing(marks))

    def parse(
        self, voice: ChoiceDecoder, begin: Begin | None, events: AsyncGenerator[Event, None]
    ) -> AsyncGenerator[Event, None]:
        """The events of one choice, with calls and reasoning told apart from text. `begin`: where it begins;
        None where no reasoning is looked for."""
        reader = self._reader(begin)
        if reader is None or self._facts.template is None:
            return events
        if begin is not None:
            voice.thoughts = ReasoningCounter(reader.spans)
        required = self._tools is not None and self._tools.choice is ToolChoice.REQUIRED
        ids = _ids(self._clock, self._facts.template.call_notation.short_ids)
        shown = _reasoning(self._request).shown
        return ChoiceParser(voice.choice, reader, ids, required, shown).parse(events)

    def _reader(self, begin: Begin | None) -> OutputReader | None:
        template = self._facts.template
        if template is None:
            return None
        inner = self._answer_reader(template.call_notation)
        if begin is None or template.reasoning_notation is None or begin is Begin.AFTER or self._in_channels:
            return inner if self._calls or self._in_channels else None
        return ReasoningReader(
            template.reasoning_notation, begin, inner, kept=self._request.output.constraint is not None
        )

    def _answer_reader(self, layout: CallNotation) -> OutputReader:
        """Reads what follows reasoning."""
        if self._calls and self._either and self._tools is not None:
            return layout.either_reader(self._tools)
        return layout.reader() if self._calls or self._in_channels else PlainReader()

    @property
    def _in_channels(self) -> bool:
        """Whether the model says everything in channels, which have to be read whatever is asked for."""
        template = self._facts.template
        if template is None or template.reasoning_notation is None or not _is_chat(self._request):
            return False
        return template.reasoning_notation.channels


def _calls_are_read(request: GenerationRequest, facts: ModelInfo) -> bool:
    """Whether the text is read for calls; of a model with channels also where none may be made."""
    tools, constraint = _tools(request), request.output.constraint
    if tools is None or facts.template is None:
        return False
    if constraint is None or constraint.kind is not ConstraintKind.CALLS:
        return False
    return tools.choice is not ToolChoice.NONE or bool(facts.template.call_notation.frames)


def _is_chat(request: GenerationRequest) -> bool:
    return isinstance(request.prompts[0], Conversation)


def _tools(request: GenerationRequest) -> Tools | None:
    """All conversations of a request have the same tools."""
    prompt = request.prompts[0]
    return prompt.tools if isinstance(prompt, Conversation) else None


def _reasoning(request: GenerationRequest) -> Reasoning:
    prompt = request.prompts[0]
    return prompt.reasoning if isinstance(prompt, Conversation) else Reasoning()


def _ids(clock: Clock, short: bool) -> Callable[[], str]:
    return lambda: make_short_id(clock.unique()) if short else ID_PREFIX + clock.unique()
