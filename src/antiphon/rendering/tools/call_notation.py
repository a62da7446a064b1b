"""How each family of models writes calls: the marks around names and arguments, and the constraint for them.
The readers are in `call_readers` and `header_reader`."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType

from antiphon.constraints import grammar_types as groups
from antiphon.constraints.grammar_types import CallFormat, CallGroup, Mark, TextAround
from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.tools.call_readers import EitherReader, FirstReader, ObjectReader, OutputReader
from antiphon.rendering.tools.header_reader import HeaderReader

AROUND = MappingProxyType(
    {
        ToolChoice.AUTO: TextAround.TEXT,
        ToolChoice.REQUIRED: TextAround.NOTHING,
        ToolChoice.NONE: TextAround.TEXT_ALONE,
    }
)

JSON = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})

TOOLS_FIELD = "tools"
"""The caller's name of the field, for errors."""

Marks = tuple[str, ...]
"""Texts, or names of control tokens, in order."""


@dataclass(frozen=True, slots=True)
class CallChannel:
    """A channel of the model: the marks around its text. The last channel has no `close`."""

    open: Marks
    close: Marks | None = None

    def with_ids(self, controls: Mapping[str, int]) -> groups.TextFrame:
        """Returns the marks with ids instead of the names of control tokens."""
        close = None if self.close is None else to_marks(self.close, controls)
        return groups.TextFrame(to_marks(self.open, controls), close)


@dataclass(frozen=True, slots=True)
class CallNotation:
    """How one family writes calls. A group is `open`, a call, more calls with `between` before each, and
    `close`."""

    open: Marks
    before: Marks
    """Marks between the beginning of a call and the function's name."""
    after: Marks
    """Marks between the name and the arguments."""
    end: Marks
    """Marks after the arguments."""
    close: Marks
    build_reader: Callable[[], OutputReader]
    """Makes the reader of one choice."""
    between: Marks | None = None
    """Marks before each further call of a group; None if a group has only one call."""
    again: Marks | None = None
    """Marks before each further group; None allows one group, with nothing after it."""
    sign: str | None = None
    """A regular expression for the beginning of a text that is a call, for families whose calls have no mark.
    Such calls are only at the beginning of the text, and `open` is empty."""
    channels: tuple[CallChannel, ...] = ()
    """The model's channels, if it writes in channels."""
    in_system: bool = False
    """Whether the template reads tools from the system message, as text."""
    short_ids: bool = False
    """Whether the template accepts only ids of nine letters and digits."""
    build_channel_reader: Callable[[], OutputReader] | None = None
    """Makes the reader of a choice whose last channel contains a formatted text. None if the model has no
    channels."""

    def build_either_reader(self, tools: Tools) -> OutputReader:
        """Makes the reader of a choice that is either calls or a text of a format."""
        if self.build_channel_reader is not None:
            return self.build_channel_reader()
        return EitherReader(self._list_openings(tools), self.build_reader())

    def _list_openings(self, tools: Tools) -> Marks:
        """Returns the texts with which a choice with calls can begin: the mark of calls. If calls have no
        mark, returns the beginning of each tool's call."""
        if self.open:
            return self.open[:1]
        return tuple("".join((*self.before, tool.name, *self.after)) for tool in tools.callable)

    def _list_forbidden_prefixes(self, tools: Tools) -> Marks:
        """Returns the texts with which a formatted text cannot begin. Two characters of a mark are enough,
        because the compiler looks only one character ahead."""
        if self.build_channel_reader is not None:
            return ()
        return tuple(mark[:2] for mark in self.open[:1]) or self._list_openings(tools)

    def _require_separable(self, form: Constraint) -> None:
        """Raises UnsupportedParameter for a format that cannot be distinguished from calls without a mark."""
        if self.sign is not None and (form.kind not in JSON or form.whitespace is not None):
            raise UnsupportedParameter(
                f"{form.field} is not supported together with tools that may be called: this model writes "
                "calls as JSON objects without a mark, so only JSON with the usual whitespace is told from "
                'them; leave one of them out, or send tool_choice "none"',
                param=form.field,
            )

    def build_constraint(
        self, tools: Tools, controls: Mapping[str, int], form: Constraint | None = None
    ) -> Constraint:
        """Builds the constraint of a choice. `controls`: ids of control tokens by name. `form`: the format of
        the choice's text. Raises UnsupportedParameter for a format that cannot be distinguished from
        calls."""
        if form is not None and tools.choice is ToolChoice.AUTO:
            self._require_separable(form)
        group = CallGroup(
            around=AROUND[tools.choice],
            open=to_marks(self.open, controls),
            calls=tuple(self._build_call(tool, controls) for tool in tools.callable),
            close=to_marks(self.close, controls),
            between=None if self.between is None or not tools.parallel else to_marks(self.between, controls),
            again=None if self.again is None or not tools.parallel else to_marks(self.again, controls),
            sign=self.sign,
            frames=tuple(frame.with_ids(controls) for frame in self.channels),
            format=form,
            heads=() if form is None else self._list_forbidden_prefixes(tools),
        )
        return Constraint(ConstraintKind.CALLS, group.dump(), field=TOOLS_FIELD)

    def write_call(self, name: str, arguments: str) -> str:
        """Writes one call as text."""
        return "".join((*self.open, *self.before, name, *self.after, arguments, *self.end, *self.close))

    @property
    def marks(self) -> Marks:
        """The marks that a reader must see in the text, including names of control tokens."""
        all_of: tuple[Marks, ...] = (
            *(frame.open + (frame.close or ()) for frame in self.channels),
            self.open,
            self.before,
            self.after,
            self.end,
            self.close,
            self.between or (),
            self.again or (),
        )
        return tuple(mark for each in all_of for mark in each)

    def _build_call(self, tool: Tool, controls: Mapping[str, int]) -> CallFormat:
        """Returns the format of a call of one tool: the marks, and the schema of the arguments."""
        begin = (*self.before, tool.name, *self.after)
        return CallFormat(to_marks(begin, controls), tool.schema, to_marks(self.end, controls), tool.field)


def to_marks(marks: Iterable[str], controls: Mapping[str, int]) -> tuple[Mark, ...]:
    """Replaces the names of control tokens by their ids. Joins consecutive texts, because one text is
    tokenized as a whole."""
    made: list[Mark] = []
    for mark in marks:
        if mark in controls:
            made.append(controls[mark])
        elif made and isinstance(last := made[-1], str):
            made[-1] = last + mark
        else:
            made.append(mark)
    return tuple(made)


OBJECT = ('{"name": "', '", "arguments": ', "}")
"""A call as an object: the text before the name, before the arguments, and after them."""


def hermes(source: str) -> CallNotation:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen, cantor. There is a line break
    between the tags and the object, unless the template writes none."""
    line = "" if "<tool_call>{" in source else "\n"
    before, after, end = OBJECT
    return CallNotation(
        open=("<tool_call>",),
        before=(line + before,),
        after=(after,),
        end=(end + line,),
        close=("</tool_call>",),
        again=("\n",),
        build_reader=lambda: ObjectReader("<tool_call>", "</tool_call>"),
    )


def llama(_source: str) -> CallNotation:
    """`{"name": ..., "parameters": ...}` and nothing else, several with semicolons: Llama 3, and Gemma, which
    is asked to write so."""
    before, _, end = OBJECT
    return CallNotation(
        open=(),
        before=(before,),
        after=('", "parameters": ',),
        end=(end,),
        close=(),
        between=("; ",),
        sign=r'[ \t\r\n]*\{[ \t\r\n]*"name"',
        build_reader=lambda: FirstReader("<|python_tag|>"),
    )


def mistral(source: str) -> CallNotation:
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]`: Mistral up to tokenizer 7."""
    before, after, end = OBJECT
    return CallNotation(
        open=("[TOOL_CALLS]", " [" if "[TOOL_CALLS] [" in source else "["),
        before=(before,),
        after=(after,),
        end=(end,),
        close=("]",),
        between=(", ",),
        short_ids=True,
        build_reader=lambda: ObjectReader("[TOOL_CALLS]", ""),
    )


def mistral_headed(_source: str) -> CallNotation:
    """`[TOOL_CALLS]NAME[ARGS]{...}`, one after the other: Mistral from tokenizer 11 on."""
    name = re.compile(r"\s*([\w-]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*$")
    return CallNotation(
        open=("[TOOL_CALLS]",),
        before=(),
        after=("[ARGS]",),
        end=(),
        close=(),
        again=(),
        short_ids=True,
        build_reader=lambda: HeaderReader("[TOOL_CALLS]", name),
    )


def deepseek(source: str) -> CallNotation:
    """DeepSeek's control tokens around a name and JSON; in V3 and R1 the JSON is fenced, from V3.1 on it is
    not."""
    fenced = "```json" in source
    begin, separator, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    name = re.compile(rf"\s*(?:function{separator})?\s*([\w-]+)\s*(?:{separator})?\s*(?:```json)?\s*$")
    return CallNotation(
        open=(opening,),
        before=(begin, "function", separator) if fenced else (begin,),
        after=("\n```json\n",) if fenced else (separator,),
        end=("\n```", end) if fenced else (end,),
        close=(closing,),
        between=("\n",) if fenced else (),
        build_reader=lambda: HeaderReader(begin, name, (end, opening, closing), "```"),
    )


def harmony(_source: str) -> CallNotation:
    """gpt-oss: a channel for each kind of text; reasoning is in `analysis`."""
    channel, message, end, start = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
    name = re.compile(r"([\w-]+)\s*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*\w*\s*<\|message\|>\s*$")
    again = (end, start, "assistant")
    final = f"{channel}final{message}"
    noise = (final, f"{channel}commentary{message}", f"{end}{start}assistant")
    thought = (f"{channel}analysis{message}", end)
    reader = partial(HeaderReader, f"{channel}commentary to=functions.", name, noise, thought=thought)
    return CallNotation(
        open=(channel,),
        before=("commentary to=functions.",),
        after=(" ", "<|constrain|>", "json", message),
        end=(),
        close=(),
        channels=(
            CallChannel((channel, "analysis", message), again),
            CallChannel((channel, "commentary", message), again),
            CallChannel((channel, "final", message)),
        ),
        build_reader=reader,
        build_channel_reader=partial(reader, last=final),
    )


def phi(source: str) -> CallNotation:
    """`<|tool_call|>[{"name": ..., "arguments": ...}, ...]<|/tool_call|>`: Phi 4 mini."""
    before, after, end = OBJECT
    return CallNotation(
        open=("<|tool_call|>", "["),
        before=(before,),
        after=(after,),
        end=(end,),
        close=("]", "<|/tool_call|>"),
        between=(", ",),
        in_system="message['tools']" in source or "message.tools" in source,
        build_reader=lambda: ObjectReader("<|tool_call|>", "<|/tool_call|>"),
    )


NotationBuilder = Callable[[str], CallNotation]

CALL_FAMILIES: Mapping[str, NotationBuilder] = MappingProxyType(
    {
        "deepseek": deepseek,
        "harmony": harmony,
        "hermes": hermes,
        "llama": llama,
        "mistral": mistral,
        "mistral-headed": mistral_headed,
        "phi": phi,
    }
)
"""The families by the name in a model's settings."""

CALL_SIGNS: tuple[tuple[str, NotationBuilder], ...] = (
    ("<tool_call>", hermes),
    ("<｜tool▁calls▁begin｜>", deepseek),
    ("[ARGS]", mistral_headed),
    ("[TOOL_CALLS]", mistral),
    ("<|channel|>", harmony),
    ("<|tool_call|>", phi),
    ("<|tool|>", phi),
    ("<|python_tag|>", llama),
    ('"parameters": ', llama),
    ("<start_of_turn>", llama),
)
"""Texts in a template's source that identify the family. The most reliable text is first."""


def detect_notation(source: str, family: str | None = None) -> CallNotation:
    """Returns the notation of the named family. Without a name, finds the family in the template; if the
    template has no calls, returns Hermes' notation."""
    if family is not None:
        return CALL_FAMILIES[family](source)
    build_notation = next((build_notation for sign, build_notation in CALL_SIGNS if sign in source), hermes)
    return build_notation(source)
