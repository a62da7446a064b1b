"""How each family of models writes calls: the marks around names and arguments, and the constraint for them.
The readers are in `call_readers` and `header_reader`."""

import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from types import MappingProxyType

from antiphon.constraints import grammar_types as groups
from antiphon.constraints.grammar_types import CallFormat, CallGroup, Mark, TextAround
from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.values import Struct
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.tools.call_readers import (
    CallsOrTextReader,
    LeadingCallReader,
    ObjectReader,
    OutputReader,
)
from antiphon.rendering.tools.header_reader import HeaderReader

TEXT_AROUND_CALLS = MappingProxyType(
    {
        ToolChoice.AUTO: TextAround.TEXT,
        ToolChoice.REQUIRED: TextAround.NOTHING,
        ToolChoice.NONE: TextAround.TEXT_ALONE,
    }
)

JSON_FORMATS = frozenset({ConstraintKind.JSON_OBJECT, ConstraintKind.JSON_SCHEMA})

TOOLS_FIELD = "tools"
"""The caller's name of the field, for errors."""

Marks = tuple[str, ...]
"""Texts, or names of control tokens, in order."""


class CallChannel(Struct, frozen=True):
    """A channel that a model writes in: the marks around its text. The final channel has no `close`."""

    open: Marks
    close: Marks | None = None

    def with_ids(self, controls: Mapping[str, int]) -> groups.TextFrame:
        """Returns the channel's marks, with ids in place of the names of control tokens."""
        close = None if self.close is None else to_marks(self.close, controls)
        return groups.TextFrame(to_marks(self.open, controls), close)


class CallNotation(Struct, frozen=True):
    """How one family writes calls. A group of calls is `open`, a call, further calls with `between_calls`
    before each, and `close`."""

    open: Marks
    before_name: Marks
    """Marks between the beginning of a call and the function's name."""
    before_arguments: Marks
    """Marks between the name and the arguments."""
    after_arguments: Marks
    """Marks after the arguments."""
    close: Marks
    build_reader: Callable[[], OutputReader]
    """Makes the reader of one choice."""
    between_calls: Marks | None = None
    """Marks before each further call of a group; None if a group has only one call."""
    between_groups: Marks | None = None
    """Marks before each further group; None allows one group, with nothing after it."""
    call_pattern: str | None = None
    """A regular expression that tells a call from text by its beginning, for families whose calls have no
    mark; None for other families. Calls without a mark are only at the beginning of the text, and their
    `open` is empty."""
    channels: tuple[CallChannel, ...] = ()
    """The model's channels, if it writes in channels."""
    tools_in_system: bool = False
    """Whether the template reads tools from the system message, as text."""
    short_ids: bool = False
    """Whether the template accepts only ids of nine letters and digits."""
    build_channel_reader: Callable[[], OutputReader] | None = None
    """Makes the reader of a choice whose final channel contains a formatted text; None if the model has no
    channels."""

    def build_calls_or_text_reader(self, tools: Tools) -> OutputReader:
        """Makes the reader of a choice that is only calls or only a text in the requested format."""
        if self.build_channel_reader is not None:
            return self.build_channel_reader()
        return CallsOrTextReader(self._list_openings(tools), self.build_reader())

    def _list_openings(self, tools: Tools) -> Marks:
        """Returns the texts with which calls can begin: the mark of calls, or the beginning of each tool's
        call if calls have no mark."""
        if self.open:
            return self.open[:1]
        return tuple(
            "".join((*self.before_name, tool.name, *self.before_arguments)) for tool in tools.callable
        )

    def _list_forbidden_prefixes(self, tools: Tools) -> Marks:
        """Returns the texts with which a formatted text cannot begin. Two characters of a mark are enough,
        because the compiler looks only one character ahead."""
        if self.build_channel_reader is not None:
            return ()
        return tuple(mark[:2] for mark in self.open[:1]) or self._list_openings(tools)

    def _require_separable(self, text_format: Constraint) -> None:
        """Raises UnsupportedParameter for a format that cannot be distinguished from calls without a mark."""
        if self.call_pattern is not None and (
            text_format.kind not in JSON_FORMATS or text_format.whitespace is not None
        ):
            raise UnsupportedParameter(
                f"{text_format.field} is not supported together with tools that may be called: this model "
                "writes calls as JSON objects without a mark, so only JSON with the usual whitespace can be "
                f'told from calls; leave out {text_format.field} or tools, or send tool_choice "none"',
                param=text_format.field,
            )

    def build_constraint(
        self, tools: Tools, controls: Mapping[str, int], text_format: Constraint | None = None
    ) -> Constraint:
        """Builds the constraint of one output. `controls`: ids of control tokens by name. `text_format`: the
        format of an output without calls. Raises UnsupportedParameter for a format that cannot be
        distinguished from calls."""
        if text_format is not None and tools.choice is ToolChoice.AUTO:
            self._require_separable(text_format)
        group = CallGroup(
            around=TEXT_AROUND_CALLS[tools.choice],
            open=to_marks(self.open, controls),
            calls=tuple(self._build_call(tool, controls) for tool in tools.callable),
            close=to_marks(self.close, controls),
            between=None
            if self.between_calls is None or not tools.parallel
            else to_marks(self.between_calls, controls),
            between_groups=None
            if self.between_groups is None or not tools.parallel
            else to_marks(self.between_groups, controls),
            call_pattern=self.call_pattern,
            frames=tuple(frame.with_ids(controls) for frame in self.channels),
            format=text_format,
            forbidden_prefixes=() if text_format is None else self._list_forbidden_prefixes(tools),
        )
        return Constraint(ConstraintKind.CALLS, group.dump(), field=TOOLS_FIELD)

    def write_call(self, name: str, arguments: str) -> str:
        """Writes one call as text."""
        return "".join(
            (
                *self.open,
                *self.before_name,
                name,
                *self.before_arguments,
                arguments,
                *self.after_arguments,
                *self.close,
            )
        )

    @property
    def marks(self) -> Marks:
        """The marks that a reader must see in the text, including names of control tokens."""
        mark_groups: tuple[Marks, ...] = (
            *(frame.open + (frame.close or ()) for frame in self.channels),
            self.open,
            self.before_name,
            self.before_arguments,
            self.after_arguments,
            self.close,
            self.between_calls or (),
            self.between_groups or (),
        )
        return tuple(mark for each in mark_groups for mark in each)

    def _build_call(self, tool: Tool, controls: Mapping[str, int]) -> CallFormat:
        """Returns the format of a call of one tool: the marks, and the schema of the arguments."""
        begin = (*self.before_name, tool.name, *self.before_arguments)
        return CallFormat(
            to_marks(begin, controls), tool.schema, to_marks(self.after_arguments, controls), tool.field
        )


def to_marks(marks: Iterable[str], controls: Mapping[str, int]) -> tuple[Mark, ...]:
    """Replaces the names of control tokens by their ids. Joins consecutive texts, because one text is
    tokenized as a whole."""
    joined_marks: list[Mark] = []
    for mark in marks:
        if mark in controls:
            joined_marks.append(controls[mark])
        elif joined_marks and isinstance(previous_mark := joined_marks[-1], str):
            joined_marks[-1] = previous_mark + mark
        else:
            joined_marks.append(mark)
    return tuple(joined_marks)


OBJECT_TEXTS = ('{"name": "', '", "arguments": ', "}")
"""A call as a JSON object: the text before the name, between name and arguments, and after the arguments."""


def hermes(source: str) -> CallNotation:
    """`<tool_call>{"name": ..., "arguments": ...}</tool_call>`: Hermes, Qwen, cantor. There is a line break
    between the tags and the object, unless the template writes none."""
    line = "" if "<tool_call>{" in source else "\n"
    before, after, end = OBJECT_TEXTS
    return CallNotation(
        open=("<tool_call>",),
        before_name=(line + before,),
        before_arguments=(after,),
        after_arguments=(end + line,),
        close=("</tool_call>",),
        between_groups=("\n",),
        build_reader=lambda: ObjectReader("<tool_call>", "</tool_call>"),
    )


def llama(_source: str) -> CallNotation:
    """`{"name": ..., "parameters": ...}` and nothing else, several with semicolons: Llama 3, and Gemma, which
    is asked to write so."""
    before, _, end = OBJECT_TEXTS
    return CallNotation(
        open=(),
        before_name=(before,),
        before_arguments=('", "parameters": ',),
        after_arguments=(end,),
        close=(),
        between_calls=("; ",),
        call_pattern=r'[ \t\r\n]*\{[ \t\r\n]*"name"',
        build_reader=lambda: LeadingCallReader("<|python_tag|>"),
    )


def mistral(source: str) -> CallNotation:
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]`: Mistral up to tokenizer 7."""
    before, after, end = OBJECT_TEXTS
    return CallNotation(
        open=("[TOOL_CALLS]", " [" if "[TOOL_CALLS] [" in source else "["),
        before_name=(before,),
        before_arguments=(after,),
        after_arguments=(end,),
        close=("]",),
        between_calls=(", ",),
        short_ids=True,
        build_reader=lambda: ObjectReader("[TOOL_CALLS]", ""),
    )


def mistral_headed(_source: str) -> CallNotation:
    """`[TOOL_CALLS]NAME[ARGS]{...}`, one after the other: Mistral from tokenizer 11 on."""
    name = re.compile(r"\s*([\w-]+)\s*(?:\[CALL_ID\][^\[]*)?\[ARGS\]\s*$")
    return CallNotation(
        open=("[TOOL_CALLS]",),
        before_name=(),
        before_arguments=("[ARGS]",),
        after_arguments=(),
        close=(),
        between_groups=(),
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
        before_name=(begin, "function", separator) if fenced else (begin,),
        before_arguments=("\n```json\n",) if fenced else (separator,),
        after_arguments=("\n```", end) if fenced else (end,),
        close=(closing,),
        between_calls=("\n",) if fenced else (),
        build_reader=lambda: HeaderReader(begin, name, (end, opening, closing), "```"),
    )


def harmony(_source: str) -> CallNotation:
    """gpt-oss: a channel for each kind of text; reasoning is in `analysis`."""
    channel, message, end, start = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
    name = re.compile(r"([\w-]+)\s*(?:<\|channel\|>\w+)?\s*(?:<\|constrain\|>)?\s*\w*\s*<\|message\|>\s*$")
    message_end = (end, start, "assistant")
    final = f"{channel}final{message}"
    hidden_marks = (final, f"{channel}commentary{message}", f"{end}{start}assistant")
    reasoning_marks = (f"{channel}analysis{message}", end)
    reader = partial(
        HeaderReader,
        f"{channel}commentary to=functions.",
        name,
        hidden_marks,
        reasoning_marks=reasoning_marks,
    )
    return CallNotation(
        open=(channel,),
        before_name=("commentary to=functions.",),
        before_arguments=(" ", "<|constrain|>", "json", message),
        after_arguments=(),
        close=(),
        channels=(
            CallChannel((channel, "analysis", message), message_end),
            CallChannel((channel, "commentary", message), message_end),
            CallChannel((channel, "final", message)),
        ),
        build_reader=reader,
        build_channel_reader=partial(reader, final_mark=final),
    )


def phi(source: str) -> CallNotation:
    """`<|tool_call|>[{"name": ..., "arguments": ...}, ...]<|/tool_call|>`: Phi 4 mini."""
    before, after, end = OBJECT_TEXTS
    return CallNotation(
        open=("<|tool_call|>", "["),
        before_name=(before,),
        before_arguments=(after,),
        after_arguments=(end,),
        close=("]", "<|/tool_call|>"),
        between_calls=(", ",),
        tools_in_system="message['tools']" in source or "message.tools" in source,
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
