"""How a family of models writes calls: the texts and control tokens around names and arguments, and the
constraint that they make. What reads it back is in `reading`."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from antiphon.constraints import groups
from antiphon.constraints.groups import Around, Call, Group, Mark
from antiphon.domain.constraint import Constraint, ConstraintKind
from antiphon.domain.tools import Tool, ToolChoice, Tools
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.toolcalls.reading import EitherReader, OutputReader

AROUND = MappingProxyType(
    {
        ToolChoice.AUTO: Around.TEXT,
        ToolChoice.REQUIRED: Around.NOTHING,
        ToolChoice.NONE: Around.TEXT_ALONE,
    }
)

JSON = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})

TOOLS_FIELD = "tools"
"""What the callers call it; errors name it."""

Marks = tuple[str, ...]
"""Texts, or names of control tokens, in order."""


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel of the model's: what stands around its text; without `close` it is the last."""

    open: Marks
    close: Marks | None = None

    def with_ids(self, controls: Mapping[str, int]) -> groups.Frame:
        """With ids for control tokens."""
        close = None if self.close is None else to_marks(self.close, controls)
        return groups.Frame(to_marks(self.open, controls), close)


@dataclass(frozen=True, slots=True)
class CallNotation:
    """One family's notation. A group is `open`, a call, more of them with `between` before each, and
    `close`."""

    open: Marks
    before: Marks
    """Between the beginning of a call and the function's name."""
    after: Marks
    """Between the name and the arguments."""
    end: Marks
    """After the arguments."""
    close: Marks
    reader: Callable[[], OutputReader]
    """Makes what reads one choice's text."""
    between: Marks | None = None
    """None: one call in a group."""
    again: Marks | None = None
    """Before each further group; None: there is one group, and nothing after it."""
    sign: str | None = None
    """Calls stand at the beginning of the text alone; a regular expression of how it then begins. `open` is
    empty."""
    frames: tuple[Channel, ...] = ()
    """Channels of a model that has some."""
    in_system: bool = False
    """Whether the template reads tools from the system message, as a text."""
    short_ids: bool = False
    """Whether the template takes only ids of nine letters and digits."""
    framed_reader: Callable[[], OutputReader] | None = None
    """Makes what reads one choice whose last frame holds a text of a format; None: text has no frames."""

    def either_reader(self, tools: Tools) -> OutputReader:
        """Reads one choice that is calls or a text of a format, whatever that text looks like."""
        if self.framed_reader is not None:
            return self.framed_reader()
        return EitherReader(self._heads(tools), self.reader())

    def _heads(self, tools: Tools) -> Marks:
        """How a choice begins that is calls: with their mark, or without one with the call of any tool."""
        if self.open:
            return self.open[:1]
        return tuple("".join((*self.before, tool.name, *self.after)) for tool in tools.callable)

    def _list_forbidden_prefixes(self, tools: Tools) -> Marks:
        """How no text of a format may begin. Of a mark two characters decide: the compiler follows a mark and
        a text only as long as it looks one character ahead."""
        if self.framed_reader is not None:
            return ()
        return tuple(mark[:2] for mark in self.open[:1]) or self._heads(tools)

    def _require_separable(self, form: Constraint) -> None:
        """Raises UnsupportedParameter for a format that is no JSON as calls are, where those have no mark."""
        if self.sign is not None and (form.kind not in JSON or form.whitespace is not None):
            raise UnsupportedParameter(
                f"{form.field} is not supported together with tools that may be called: this model writes "
                "calls as JSON objects without a mark, so only JSON with the usual whitespace is told from "
                'them; leave one of them out, or send tool_choice "none"',
                param=form.field,
            )

    def constraint(
        self, tools: Tools, controls: Mapping[str, int], form: Constraint | None = None
    ) -> Constraint:
        """What a choice has to be. `controls`: ids of control tokens by name. `form`: what its text has to
        be. Raises UnsupportedParameter for a format that could not be told from calls."""
        if form is not None and tools.choice is ToolChoice.AUTO:
            self._require_separable(form)
        group = Group(
            around=AROUND[tools.choice],
            open=to_marks(self.open, controls),
            calls=tuple(self._call(tool, controls) for tool in tools.callable),
            close=to_marks(self.close, controls),
            between=None if self.between is None or not tools.parallel else to_marks(self.between, controls),
            again=None if self.again is None or not tools.parallel else to_marks(self.again, controls),
            sign=self.sign,
            frames=tuple(frame.with_ids(controls) for frame in self.frames),
            format=form,
            heads=() if form is None else self._list_forbidden_prefixes(tools),
        )
        return Constraint(ConstraintKind.CALLS, group.dump(), field=TOOLS_FIELD)

    def write_call(self, name: str, arguments: str) -> str:
        """One call as text."""
        return "".join((*self.open, *self.before, name, *self.after, arguments, *self.end, *self.close))

    @property
    def marks(self) -> Marks:
        """What a reader has to see, control tokens among it."""
        all_of: tuple[Marks, ...] = (
            *(frame.open + (frame.close or ()) for frame in self.frames),
            self.open,
            self.before,
            self.after,
            self.end,
            self.close,
            self.between or (),
            self.again or (),
        )
        return tuple(mark for each in all_of for mark in each)

    def _call(self, tool: Tool, controls: Mapping[str, int]) -> Call:
        begin = (*self.before, tool.name, *self.after)
        return Call(to_marks(begin, controls), tool.schema, to_marks(self.end, controls), tool.field)


def to_marks(marks: Iterable[str], controls: Mapping[str, int]) -> tuple[Mark, ...]:
    """With ids for what is a token of its own, and texts that follow each other joined: what is one text is
    tokenized as one."""
    made: list[Mark] = []
    for mark in marks:
        if mark in controls:
            made.append(controls[mark])
        elif made and isinstance(last := made[-1], str):
            made[-1] = last + mark
        else:
            made.append(mark)
    return tuple(made)
