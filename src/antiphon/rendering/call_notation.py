"""How each family of models writes calls: the marks around names and arguments, and the constraint for them.

A family is one function that returns its `CallNotation`, an entry in `CALL_FAMILIES`, and the texts in a
template that identify it (`CALL_SIGNS`). The readers are in `call_readers`, `header_calls` and
`tagged_calls`.
"""

import json
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
    CallsOrTextReader,
    LeadingCallReader,
    ObjectReader,
    OutputReader,
)
from antiphon.rendering.header_calls import HeaderReader
from antiphon.rendering.literal_calls import LiteralCallReader, LiteralMarks
from antiphon.rendering.tagged_calls import TaggedCallReader, TagMarks, list_tool_types
from antiphon.rendering.template.messages import read_arguments

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

MARKUP_TOKEN = "｜DSML｜"
"""The token in DeepSeek's newer marks. It is a part of each mark, so it is a control token or a text."""

OBJECT_TEXTS = ('{"name": "', '", "arguments": ', "}")
"""A call as a JSON object: the text before the name, between name and arguments, and after the arguments."""


class CallChannel(Struct, frozen=True):
    """A channel that a model writes in: the marks around its text. The final channel has no `close`."""

    open: Marks
    close: Marks | None = None

    def with_ids(self, controls: Mapping[str, int]) -> groups.TextFrame:
        """Returns the channel's marks, with ids in place of the names of control tokens."""
        close = None if self.close is None else to_marks(self.close, controls)
        return groups.TextFrame(to_marks(self.open, controls), close)


class ArgumentTags(Struct, frozen=True):
    """The marks with which a family writes each argument by itself. A text is raw between them, and any other
    value is JSON."""

    before_key: Marks
    before_text: Marks
    """Marks between an argument's name and a text."""
    after_text: Marks
    reading: TagMarks | LiteralMarks
    """The marks that the reader looks for."""
    before_json: Marks | None = None
    """Marks between an argument's name and a value that is no text; None if they are those of a text."""
    after_json: Marks | None = None
    """Marks after a value that is no text; None if they are those of a text."""
    between: Marks = ()
    """Marks between two arguments."""
    has_raw_texts: bool = True
    """Whether texts are raw. If not, all values are JSON, with Python's words."""
    is_nested: bool = False
    """Whether texts in lists and objects have the marks of a text too. Then all keys are sorted, and have no
    quotes."""

    def with_ids(self, controls: Mapping[str, int]) -> groups.ArgumentTags:
        """Returns the marks, with ids in place of the names of control tokens."""
        return groups.ArgumentTags(
            to_marks(self.before_key, controls),
            to_marks(self.before_text, controls),
            to_marks(self.before_text if self.before_json is None else self.before_json, controls),
            to_marks(self.after_text, controls),
            to_marks(self.after_text if self.after_json is None else self.after_json, controls),
            self.reading.before_value,
            self.reading.after_value,
            to_marks(self.between, controls),
            self.has_raw_texts,
            to_marks(self.before_text[1:], controls) if self.is_nested else (),
        )

    def write(self, members: Mapping[str, object]) -> str:
        """Writes arguments."""
        names = sorted(members, key=str.lower) if self.is_nested else members
        return "".join(self.between).join(self._write_argument(name, members[name]) for name in names)

    def _write_argument(self, name: str, value: object) -> str:
        before_json = self.before_text if self.before_json is None else self.before_json
        after_json = self.after_text if self.after_json is None else self.after_json
        if isinstance(value, str) and self.has_raw_texts:
            return "".join((*self.before_key, name, *self.before_text, value, *self.after_text))
        if not self.has_raw_texts and (value is None or isinstance(value, bool)):
            text = str(value)
        else:
            text = self._write_nested(value) if self.is_nested else json.dumps(value, ensure_ascii=False)
        return "".join((*self.before_key, name, *before_json, text, *after_json))

    def _write_nested(self, value: object) -> str:
        """Writes a value whose texts have marks."""
        match value:
            case str():
                return "".join((*self.before_text[1:], value, *self.after_text))
            case list():
                return f"[{','.join(map(self._write_nested, value))}]"
            case dict():
                names = sorted(value, key=str.lower)
                return "{" + ",".join(f"{name}:{self._write_nested(value[name])}" for name in names) + "}"
            case _:
                return json.dumps(value)


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
    build_reader: Callable[[Sequence[Tool]], OutputReader]
    """Makes the reader of one choice for the request's tools."""
    tags: ArgumentTags | None = None
    """The marks around each argument; None for families that write the arguments as a JSON object."""
    between_calls: Marks | None = None
    """Marks before each further call of a group; None if a group has only one call."""
    between_groups: Marks | None = None
    """Marks before each further group; None allows one group, with nothing after it."""
    call_pattern: str | None = None
    """A regular expression that tells a call from text by its beginning, for families whose calls have no
    mark; None for other families. Calls without a mark are only at the beginning of the text."""
    channels: tuple[CallChannel, ...] = ()
    """The model's channels, if it writes in channels."""
    tools_in_system: bool = False
    """Whether the template reads tools from the system message, as text."""
    ends_reasoning: bool = False
    """Whether a call can end the reasoning, for families that begin calls before the mark that closes it.
    Elsewhere a call in the reasoning is only a text."""
    numbers_calls: bool = False
    """Whether the function's name is followed by a colon and the call's number in the conversation, and the
    template reads both in the call's id."""
    short_ids: bool = False
    """Whether the template accepts only ids of nine letters and digits."""
    build_channel_reader: Callable[[Sequence[Tool]], OutputReader] | None = None
    """Makes the reader of a choice whose final channel contains a formatted text; None if the model has no
    channels."""

    def build_calls_or_text_reader(self, tools: Tools) -> OutputReader:
        """Makes the reader of a choice that is only calls or only a text in the requested format."""
        if self.build_channel_reader is not None:
            return self.build_channel_reader(tools.tools)
        return CallsOrTextReader(self._list_openings(tools), self.build_reader(tools.tools))

    def _list_openings(self, tools: Tools) -> Marks:
        """Returns the texts with which calls can begin: the mark of calls, or the beginning of each tool's
        call if calls have no mark."""
        if self.call_pattern is None:
            return self.open[:1]
        return tuple(
            "".join((*self.open, *self.before_name, tool.name, *self.before_arguments))
            for tool in tools.callable
        )

    def _list_forbidden_prefixes(self, tools: Tools) -> Marks:
        """Returns the texts with which a formatted text cannot begin. Two characters of a mark are enough,
        because the compiler looks only one character ahead."""
        if self.build_channel_reader is not None:
            return ()
        if self.call_pattern is None:
            return tuple(mark[:2] for mark in self.open[:1])
        return self._list_openings(tools)

    def _require_separable(self, text_format: Constraint) -> None:
        """Raises UnsupportedParameter for a format that cannot be distinguished from calls without a mark."""
        if self.call_pattern is not None and (
            text_format.kind not in JSON_FORMATS or text_format.whitespace is not None
        ):
            raise UnsupportedParameter(
                f"{text_format.field} is not supported together with tools that may be called: this model "
                "writes calls without a mark before them, so only JSON with the usual whitespace can be "
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
            tags=None if self.tags is None else self.tags.with_ids(controls),
        )
        return Constraint(ConstraintKind.CALLS, group.dump(), field=TOOLS_FIELD)

    def write_call(self, name: str, arguments: str) -> str:
        """Writes one call as text. Arguments that are no JSON object are written as they are."""
        members = None if self.tags is None else read_arguments(arguments)
        if self.tags is not None and members is not None:
            arguments = self.tags.write(members)
        return "".join(
            (
                *self.open,
                *self.before_name,
                f"{name}:0" if self.numbers_calls else name,
                *self.before_arguments,
                arguments,
                *self.after_arguments,
                *self.close,
            )
        )

    def find_early_opening(self, controls: Mapping[str, int]) -> Marks:
        """Returns the marks with which calls end the reasoning: those up to the first control token, which no
        text contains. Without a control token, all marks before a function's name, because a text can mention
        the first one. Empty if calls do not end the reasoning."""
        if not self.ends_reasoning:
            return ()
        opening = split_marks(self.open, controls)
        control = next((index for index, mark in enumerate(opening) if mark in controls), None)
        return (*opening, *self.before_name) if control is None else opening[: control + 1]

    def spell_argument(self, key: str, value: str) -> str:
        """Returns the part of a call by which the text of its only argument can be found."""
        if self.tags is None:
            return json.dumps({key: value}, ensure_ascii=False)
        reading = self.tags.reading
        if isinstance(reading, LiteralMarks):
            return f"{key}{''.join(self.tags.before_text)}"
        return f"{reading.before_value}{reading.padding}{value}"

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
        if self.tags is not None:
            tags = self.tags
            mark_groups += (tags.before_key, tags.before_text, tags.before_json or (), tags.after_text)
            mark_groups += (tags.after_json or (), tags.between)
            mark_groups += ((MARKUP_TOKEN,) if MARKUP_TOKEN in tags.reading.open else (),)
        return tuple(mark for each in mark_groups for mark in each)

    def _build_call(self, tool: Tool, controls: Mapping[str, int]) -> CallFormat:
        """Returns the format of a call of one tool: the marks, and the schema of the arguments."""
        begin = to_marks((*self.before_name, tool.name, *self.before_arguments), controls)
        if self.numbers_calls:
            begin = (
                *to_marks((*self.before_name, f"{tool.name}:"), controls),
                groups.NumberMark(),
                *to_marks(self.before_arguments, controls),
            )
        types = {} if self.tags is None else list_tool_types(tool)
        return CallFormat(
            begin,
            tool.schema,
            to_marks(self.after_arguments, controls),
            tool.field,
            {name: tuple(sorted(each)) for name, each in types.items()},
        )


def split_marks(marks: Iterable[str], controls: Mapping[str, int]) -> Marks:
    """Splits marks at `MARKUP_TOKEN` if it is a control token."""
    if MARKUP_TOKEN not in controls:
        return tuple(marks)
    return tuple(part for mark in marks for part in re.split(f"({MARKUP_TOKEN})", mark) if part)


def to_marks(marks: Iterable[str], controls: Mapping[str, int]) -> tuple[Mark, ...]:
    """Replaces the names of control tokens by their ids. Joins consecutive texts, because one text is
    tokenized as a whole."""
    joined_marks: list[Mark] = []
    for mark in split_marks(marks, controls):
        if mark in controls:
            joined_marks.append(controls[mark])
        elif joined_marks and isinstance(previous_mark := joined_marks[-1], str):
            joined_marks[-1] = previous_mark + mark
        else:
            joined_marks.append(mark)
    return tuple(joined_marks)


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
        build_reader=lambda _tools: ObjectReader("<tool_call>", "</tool_call>"),
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
        build_reader=lambda _tools: LeadingCallReader("<|python_tag|>"),
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
        build_reader=lambda _tools: ObjectReader("[TOOL_CALLS]", ""),
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
        build_reader=lambda _tools: HeaderReader("[TOOL_CALLS]", name),
    )


def deepseek(source: str) -> CallNotation:
    """DeepSeek's control tokens around a name and JSON; in V3 and R1 the JSON is fenced, from V3.1 on it is
    not."""
    fenced = "```json" in source
    begin, separator, end = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
    opening, closing = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
    name = re.compile(rf"\s*+(?:function{separator})?\s*+([\w-]+)\s*+(?:{separator})?\s*+(?:```json)?\s*$")
    return CallNotation(
        open=(opening,),
        before_name=(begin, "function", separator) if fenced else (begin,),
        before_arguments=("\n```json\n",) if fenced else (separator,),
        after_arguments=("\n```", end) if fenced else (end,),
        close=(closing,),
        between_calls=("\n",) if fenced else (),
        build_reader=lambda _tools: HeaderReader(begin, name, (end, opening, closing), "```"),
    )


def harmony(_source: str) -> CallNotation:
    """gpt-oss: a channel for each kind of text; reasoning is in `analysis`."""
    channel, message, end, start = "<|channel|>", "<|message|>", "<|end|>", "<|start|>"
    name = re.compile(
        r"([\w-]+)\s*+(?:<\|channel\|>\w+)?\s*+(?:<\|constrain\|>)?\s*+\w*\s*+<\|message\|>\s*$"
    )
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
        build_reader=lambda _tools: reader(),
        build_channel_reader=lambda _tools: reader(final_mark=final),
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
        build_reader=lambda _tools: ObjectReader("<|tool_call|>", "<|/tool_call|>"),
    )


def qwen_coder(_source: str) -> CallNotation:
    """`<tool_call><function=NAME><parameter=KEY>VALUE</parameter></function></tool_call>`, each on its own
    line: Qwen 3 Coder, Qwen 3.5 and later, Nemotron 3, Step 3.5."""
    reading = TagMarks(
        open="<tool_call>",
        before_name="<function=",
        after_name=">",
        before_key="<parameter=",
        before_value=">",
        after_value="</parameter>",
        after_call="</function>",
        close="</tool_call>",
        padding="\n",
    )
    tags = ArgumentTags(("<parameter=",), (">\n",), ("\n</parameter>\n",), reading)
    return CallNotation(
        open=("<tool_call>",),
        before_name=("\n<function=",),
        before_arguments=(">\n",),
        after_arguments=("</function>\n",),
        close=("</tool_call>",),
        between_groups=("\n",),
        ends_reasoning=True,
        tags=tags,
        build_reader=partial(TaggedCallReader, reading),
    )


def seed(_source: str) -> CallNotation:
    """As Qwen 3 Coder, but values stand in the line of their tags: Seed-OSS."""
    reading = TagMarks(
        open="<seed:tool_call>",
        before_name="<function=",
        after_name=">",
        before_key="<parameter=",
        before_value=">",
        after_value="</parameter>",
        after_call="</function>",
        close="</seed:tool_call>",
    )
    tags = ArgumentTags(("<parameter=",), (">",), ("</parameter>\n",), reading)
    return CallNotation(
        open=("<seed:tool_call>",),
        before_name=("\n<function=",),
        before_arguments=(">\n",),
        after_arguments=("</function>\n",),
        close=("</seed:tool_call>",),
        between_groups=("\n",),
        tags=tags,
        build_reader=partial(TaggedCallReader, reading),
    )


def glm(source: str) -> CallNotation:
    """`<tool_call>NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value></tool_call>`: GLM from 4.5 on. Up to
    4.6 there are line breaks between the tags."""
    line = () if "</arg_key><arg_value>" in source else ("\n",)
    reading = TagMarks(
        open="<tool_call>",
        before_name="",
        after_name="",
        before_key="<arg_key>",
        before_value="<arg_value>",
        after_value="</arg_value>",
        after_call="</tool_call>",
        key=re.compile(r"\s*+(?P<key>.*?)\s*</arg_key>\s*", re.DOTALL),
    )
    tags = ArgumentTags(
        ("<arg_key>",), ("</arg_key>", *line, "<arg_value>"), ("</arg_value>", *line), reading
    )
    return CallNotation(
        open=("<tool_call>",),
        before_name=(),
        before_arguments=line,
        after_arguments=("</tool_call>",),
        close=(),
        between_groups=line,
        tags=tags,
        build_reader=partial(TaggedCallReader, reading),
    )


def minimax(_source: str) -> CallNotation:
    """`<minimax:tool_call><invoke name="NAME"><parameter name="KEY">VALUE</parameter></invoke>...`: MiniMax
    M2."""
    opening, closing = "<minimax:tool_call>", "</minimax:tool_call>"
    reading = TagMarks(
        open=opening,
        before_name='<invoke name="',
        after_name='">',
        before_key='<parameter name="',
        before_value='">',
        after_value="</parameter>",
        after_call="</invoke>",
        close=closing,
    )
    tags = ArgumentTags(('<parameter name="',), ('">',), ("</parameter>\n",), reading)
    return CallNotation(
        open=(opening, "\n"),
        before_name=('<invoke name="',),
        before_arguments=('">\n',),
        after_arguments=("</invoke>\n",),
        close=(closing,),
        between_calls=(),
        tags=tags,
        build_reader=partial(TaggedCallReader, reading),
    )


def deepseek_markup(source: str) -> CallNotation:
    """Tags with the token `｜DSML｜` in them, and for each argument whether it is a text: DeepSeek from V3.2
    on."""
    token = MARKUP_TOKEN
    group = "tool_calls" if "tool_calls>" in source and "function_calls>" not in source else "function_calls"
    reading = TagMarks(
        open=f"<{token}{group}>",
        before_name=f'<{token}invoke name="',
        after_name='">',
        before_key=f'<{token}parameter name="',
        before_value=">",
        after_value=f"</{token}parameter>",
        after_call=f"</{token}invoke>",
        close=f"</{token}{group}>",
        key=re.compile(r'(?P<key>[^"]*)"(?:\s+string="(?P<text>true|false)")?\s*'),
    )
    tags = ArgumentTags(
        before_key=(f'<{token}parameter name="',),
        before_text=('" string="true">',),
        before_json=('" string="false">',),
        after_text=(f"</{token}parameter>\n",),
        reading=reading,
    )
    return CallNotation(
        open=(f"<{token}{group}>", "\n"),
        before_name=(f'<{token}invoke name="',),
        before_arguments=('">\n',),
        after_arguments=(f"</{token}invoke>\n",),
        close=(f"</{token}{group}>",),
        between_calls=(),
        ends_reasoning=True,
        tags=tags,
        build_reader=partial(TaggedCallReader, reading),
    )


def gemma(source: str) -> CallNotation:
    """`<|tool_call>call:NAME{KEY:VALUE,...}<tool_call|>`, with a text between `<|"|>`: Gemma 4. FunctionGemma
    has other names for the same marks."""
    opening, closing, quote = "<|tool_call>", "<tool_call|>", '<|"|>'
    if "<start_function_call>" in source:
        opening, closing, quote = "<start_function_call>", "<end_function_call>", "<escape>"
    reading = LiteralMarks(
        open=opening,
        list_open="",
        before_name="call:",
        after_name="{",
        quotes=(quote,),
        has_escapes=False,
        list_close="",
        close=closing,
        before_value=":",
        after_value=quote,
    )
    tags = ArgumentTags(
        (), (":", quote), (quote,), reading, before_json=(":",), after_json=(), between=(",",), is_nested=True
    )
    return CallNotation(
        open=(opening,),
        before_name=("call:",),
        before_arguments=("{",),
        after_arguments=("}",),
        close=(closing,),
        between_groups=(),
        tags=tags,
        build_reader=lambda _tools: LiteralCallReader(reading),
    )


def python(source: str) -> CallNotation:
    """`[NAME(KEY=VALUE, ...), ...]`: Llama 3.2 and 4 with a template that asks for Python; and LFM 2, with
    marks around it."""
    has_marks = "<|tool_call_start|>" in source
    opening, closing = ("<|tool_call_start|>", "<|tool_call_end|>") if has_marks else ("", "")
    reading = LiteralMarks(
        open=opening,
        list_open="[",
        before_name="",
        after_name="(",
        quotes=("'", '"'),
        has_escapes=True,
        list_close="]",
        close=closing,
        before_value="=",
        after_value="",
    )
    tags = ArgumentTags((), ("=",), (), reading, between=(", ",), has_raw_texts=False)
    return CallNotation(
        open=(opening, "[") if has_marks else ("[",),
        before_name=(),
        before_arguments=("(",),
        after_arguments=(")",),
        close=("]", closing) if has_marks else ("]",),
        between_calls=(", ",),
        call_pattern=None if has_marks else r"[ \t\r\n]*\[[ \t\r\n]*[A-Za-z_][\-.0-9A-Z_a-z]*\(",
        tags=tags,
        build_reader=lambda _tools: LiteralCallReader(reading),
    )


def kimi(_source: str) -> CallNotation:
    """Control tokens around `functions.NAME:NUMBER` and JSON: Kimi K2."""
    begin, arguments, end = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
    opening, closing = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
    name = re.compile(r"\s*(?:functions\.)?([\w.-]+?)(?::\d+)?\s*<\|tool_call_argument_begin\|>\s*$")
    return CallNotation(
        open=(opening,),
        before_name=(begin, "functions."),
        before_arguments=(arguments,),
        after_arguments=(end,),
        close=(closing,),
        between_calls=(),
        ends_reasoning=True,
        numbers_calls=True,
        build_reader=lambda _tools: HeaderReader(begin, name, (end, opening, closing)),
    )


def granite(_source: str) -> CallNotation:
    """`<|tool_call|>[{"name": ..., "arguments": ...}, ...]`: Granite 3."""
    before_name, before_arguments, after_arguments = OBJECT_TEXTS
    return CallNotation(
        open=("<|tool_call|>", "["),
        before_name=(before_name,),
        before_arguments=(before_arguments,),
        after_arguments=(after_arguments,),
        close=("]",),
        between_calls=(", ",),
        build_reader=lambda _tools: ObjectReader("<|tool_call|>", ""),
    )


NotationBuilder = Callable[[str], CallNotation]

CALL_FAMILIES: Mapping[str, NotationBuilder] = MappingProxyType(
    {
        "deepseek": deepseek,
        "deepseek-markup": deepseek_markup,
        "gemma": gemma,
        "glm": glm,
        "granite": granite,
        "harmony": harmony,
        "hermes": hermes,
        "kimi": kimi,
        "llama": llama,
        "minimax": minimax,
        "mistral": mistral,
        "mistral-headed": mistral_headed,
        "phi": phi,
        "python": python,
        "qwen-coder": qwen_coder,
        "seed": seed,
    }
)
"""The families by the name in a model's settings."""

CALL_SIGNS: tuple[tuple[str, NotationBuilder], ...] = (
    ("<|tool_call>call:", gemma),
    ("<start_function_call>", gemma),
    ("<|tool_call_start|>", python),
    ("func_name1(", python),
    ("<seed:tool_call>", seed),
    ("<minimax:tool_call>", minimax),
    ("｜DSML｜", deepseek_markup),
    ("<arg_key>", glm),
    ("<parameter=", qwen_coder),
    ("<tool_call>", hermes),
    ("<|tool_calls_section_begin|>", kimi),
    ("<｜tool▁calls▁begin｜>", deepseek),
    ("[ARGS]", mistral_headed),
    ("[TOOL_CALLS]", mistral),
    ("<|channel|>", harmony),
    ("<|start_of_role|>", granite),
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
