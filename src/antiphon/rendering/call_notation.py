"""How each family of models writes calls: the marks around names and arguments, and the constraint for them.

`HeaderReader` reads calls whose header with the function's name is before the arguments: the newer notation
of Mistral, and those of DeepSeek and harmony. The other readers are in `call_readers`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from antiphon.constraints import grammar_types as groups
from antiphon.constraints.grammar_types import CallFormat, CallGroup, Mark, TextAround
from antiphon.domain.messages import Tool, ToolChoice, Tools
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.domain.values import Struct
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.call_readers import (
    SPACE,
    CallArguments,
    CallName,
    CallsOrTextReader,
    JsonValue,
    LeadingCallReader,
    ObjectReader,
    OutputPart,
    OutputReader,
    ReasoningPart,
    Span,
    VisibleText,
    find_partial_mark,
)

LONGEST_HEADER = 400
"""The most characters of a header. A longer header is text."""

CHANNEL_MARK = re.compile(r"<\|\w+\|>")
"""A control token of a model with channels. Such a token is never part of a visible text."""


class HeaderReader:
    """Reads calls that are a mark (`head`), the function's name (`name`) and a JSON object. The marks in
    `hidden_marks` are not shown."""

    def __init__(
        self,
        head: str,
        name: re.Pattern[str],
        hidden_marks: Sequence[str] = (),
        tail: str = "",
        reasoning_marks: tuple[str, str] | None = None,
        final_mark: str = "",
    ) -> None:
        """No mark begins with another mark. `name`: a pattern that matches after the head; its first group is
        the function's name. `tail`: a mark that may follow the arguments; elsewhere it is text.
        `reasoning_marks`: the marks before and after reasoning. `final_mark`: the mark in `hidden_marks`
        after which everything is text."""
        self._head = head
        self._name = name
        self._reasoning_marks = reasoning_marks
        self._marks = (head, *hidden_marks, *(reasoning_marks[:1] if reasoning_marks is not None else ()))
        self._tail = tail
        self._buffer = ""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._is_in_header = False
        """Whether the buffer begins with a header."""
        self._is_after_arguments = False
        """Whether the buffer follows a call's arguments."""
        self._final_mark = final_mark
        self._is_final_text = False
        """Whether the final mark was read, so that the rest is text."""
        self._is_in_reasoning = False
        self._starts_new_line = False
        """Whether the next reasoning must be separated from the reasoning before it."""
        self._arguments: JsonValue | None = None
        self._added_length = 0
        """Number of characters that were added so far."""
        self.spans: list[Span] = []

    @property
    def has_complete_calls(self) -> bool:
        return self._visible_text.has_calls and self._arguments is None

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        self._added_length += len(text)
        while self._buffer and self._advance():
            pass
        return self._pop_parts()

    def end(self, calls_required: bool = False) -> list[OutputPart]:
        if self._is_in_reasoning:
            self._add_reasoning(self._buffer)
        elif self._is_notation(calls_required):
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._buffer)
        self._buffer = ""
        self._read_parts += self._visible_text.end()
        return self._pop_parts()

    def _is_notation(self, calls_required: bool) -> bool:
        """Whether the buffer at the end of the text contains marks instead of text. A model with channels can
        write text even if calls are required."""
        if self._reasoning_marks is not None and CHANNEL_MARK.match(self._buffer):
            return True
        is_in_call = self._arguments is not None or self._is_in_header or self._is_after_arguments
        return is_in_call or (calls_required and self._reasoning_marks is None)

    def _pop_parts(self) -> list[OutputPart]:
        """Returns the identified parts, and clears them."""
        parts, self._read_parts = self._read_parts, []
        return parts

    # Each step removes text from the buffer, and returns whether another step can follow.

    def _advance(self) -> bool:
        """Reads the next step: arguments, reasoning, a header, or text."""
        if self._arguments is not None:
            return self._read_arguments(self._arguments)
        if self._is_in_reasoning and self._reasoning_marks is not None:
            return self._read_reasoning(self._reasoning_marks[1])
        if self._is_final_text:
            self._show(len(self._buffer))
            return False
        return self._read_header() if self._is_in_header else self._read_outside()

    def _read_outside(self) -> bool:
        """Shows the text before the next mark, and handles that mark."""
        if self._is_after_arguments and not self._skip_tail():
            return False
        marks_found = [(index, mark) for mark in self._marks if (index := self._buffer.find(mark)) >= 0]
        if not marks_found:
            self._show(min(find_partial_mark(self._buffer, mark) for mark in self._marks))
            return False
        index, mark = min(marks_found)
        self._show(index)
        if mark == self._head:
            self._is_in_header = True
            return True
        self._is_final_text = mark == self._final_mark
        self._is_in_reasoning = self._reasoning_marks is not None and mark == self._reasoning_marks[0]
        if self._is_in_reasoning:
            self.spans.append((self._added_length - len(self._buffer), None))
            self._starts_new_line = len(self.spans) > 1
        self._buffer = self._buffer[len(mark) :]
        return True

    def _read_reasoning(self, end: str) -> bool:
        """Reads reasoning up to the mark `end`."""
        at = self._buffer.find(end)
        count = find_partial_mark(self._buffer, end) if at < 0 else at
        self._add_reasoning(self._buffer[:count])
        self._buffer = self._buffer[count:]
        if at >= 0:
            self._is_in_reasoning = False
            self.spans[-1] = (self.spans[-1][0], self._added_length - len(self._buffer) + len(end))
        return at >= 0

    def _add_reasoning(self, text: str) -> None:
        """Adds reasoning. The reasoning of each message begins on a new line."""
        if text:
            self._read_parts.append(ReasoningPart("\n" + text if self._starts_new_line else text))
            self._starts_new_line = False

    def _skip_tail(self) -> bool:
        """Removes the mark after a call's arguments, if there is one. Returns whether enough text has arrived
        to know."""
        rest = self._buffer.lstrip(SPACE)
        if self._tail and rest != self._tail and self._tail.startswith(rest):
            return False
        if self._tail and rest.startswith(self._tail):
            self._buffer = rest[len(self._tail) :]
        self._is_after_arguments = False
        return True

    def _show(self, count: int) -> None:
        """Shows the first `count` characters of the buffer as text."""
        self._read_parts += self._visible_text.add(self._buffer[:count])
        self._buffer = self._buffer[count:]

    def _read_header(self) -> bool:
        """Reads a header, and adds the call that it names. Shows a header without a name as text."""
        brace_index = self._buffer.find("{", len(self._head))
        if brace_index < 0:
            next_head = self._buffer.find(self._head, len(self._head))
            if next_head < 0 and len(self._buffer) <= LONGEST_HEADER:
                return False
            return self._reject_header(next_head if next_head >= 0 else len(self._buffer))
        match = self._name.match(self._buffer[len(self._head) : brace_index])
        if match is None:
            return self._reject_header(brace_index)
        self._read_parts.append(CallName(match[1]))
        self._visible_text.record_call()
        self._arguments, self._is_in_header = JsonValue(), False
        self._buffer = self._buffer[brace_index:]
        return True

    def _reject_header(self, end: int) -> bool:
        """Shows a header that names no function as text, up to `end`."""
        self._is_in_header = False
        self._show(end)
        return True

    def _read_arguments(self, arguments: JsonValue) -> bool:
        """Reads further text of a call's arguments."""
        at = arguments.take(self._buffer, 0)
        self._read_parts += [CallArguments(self._buffer[:at])] if at else []
        self._buffer = self._buffer[at:]
        if arguments.is_complete:
            self._arguments, self._is_after_arguments = None, True
        return arguments.is_complete


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
    before_name, before_arguments, after_arguments = OBJECT_TEXTS
    return CallNotation(
        open=("<tool_call>",),
        before_name=(line + before_name,),
        before_arguments=(before_arguments,),
        after_arguments=(after_arguments + line,),
        close=("</tool_call>",),
        between_groups=("\n",),
        build_reader=lambda: ObjectReader("<tool_call>", "</tool_call>"),
    )


def llama(_source: str) -> CallNotation:
    """`{"name": ..., "parameters": ...}` and nothing else, several with semicolons: Llama 3, and Gemma, which
    is asked to write so."""
    before_name, _, after_arguments = OBJECT_TEXTS
    return CallNotation(
        open=(),
        before_name=(before_name,),
        before_arguments=('", "parameters": ',),
        after_arguments=(after_arguments,),
        close=(),
        between_calls=("; ",),
        call_pattern=r'[ \t\r\n]*\{[ \t\r\n]*"name"',
        build_reader=lambda: LeadingCallReader("<|python_tag|>"),
    )


def mistral(source: str) -> CallNotation:
    """`[TOOL_CALLS] [{"name": ..., "arguments": ...}, ...]`: Mistral up to tokenizer 7."""
    before_name, before_arguments, after_arguments = OBJECT_TEXTS
    return CallNotation(
        open=("[TOOL_CALLS]", " [" if "[TOOL_CALLS] [" in source else "["),
        before_name=(before_name,),
        before_arguments=(before_arguments,),
        after_arguments=(after_arguments,),
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
    before_name, before_arguments, after_arguments = OBJECT_TEXTS
    return CallNotation(
        open=("<|tool_call|>", "["),
        before_name=(before_name,),
        before_arguments=(before_arguments,),
        after_arguments=(after_arguments,),
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
