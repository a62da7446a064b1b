"""Reads a choice's text while it arrives, and separates visible text from calls. The result does not depend
on how the text is divided.

Text that only resembles a call is shown as text. A call that ends before the function's name is dropped,
because its marks are no content.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from antiphon.rendering.tools.json_call import SPACE, CallArguments, CallName, JsonCall


@dataclass(frozen=True, slots=True)
class VisiblePart:
    """Further text to show; never empty."""

    text: str


@dataclass(frozen=True, slots=True)
class ReasoningPart:
    """Further reasoning; never empty."""

    text: str


OutputPart = VisiblePart | ReasoningPart | CallName | CallArguments

Span = tuple[int, int | None]
"""A span of reasoning in the raw text: the index of its first character, and the index after its last
character. The second is None while the reasoning has not ended."""


def is_inside(spans: Sequence[Span], position: int) -> bool:
    """Whether a character is part of reasoning."""
    return any(begin <= position and (end is None or position < end) for begin, end in spans)


SEPARATORS = SPACE + "[,;]"
"""Characters between the calls of a group."""


class OutputReader(Protocol):
    """Reads one choice."""

    @property
    def spans(self) -> Sequence[Span]:
        """The spans of reasoning in the text so far; none overlap."""

    @property
    def is_complete(self) -> bool:
        """Whether the text has calls and all of them are complete."""

    def add(self, text: str) -> list[OutputPart]:
        """Adds text. Returns the parts that can be identified now."""

    def end(self, required: bool = False) -> list[OutputPart]:
        """Ends the text. Returns the parts that were held back. `required`: whether the choice must be only
        calls; then the rest is not shown as text."""


def find_partial_mark(text: str, mark: str) -> int:
    """Returns the index where the beginning of a mark could start at the end of a text. Returns the text's
    length if there is no such index."""
    for at in range(max(0, len(text) - len(mark) + 1), len(text)):
        if text[at] == mark[0] and mark.startswith(text[at:]):
            return at
    return len(text)


class VisibleText:
    """The text outside calls. Whitespace next to a call belongs to the notation and is not shown."""

    __slots__ = ("_any", "_space", "called")

    def __init__(self) -> None:
        self._any = False
        self._space = ""
        """Whitespace that is shown only if text follows."""
        self.called = False
        """Whether a call was made."""

    def record_call(self) -> None:
        """Records that a call was made at this position of the text."""
        self.called, self._space = True, ""

    def record_cut(self) -> None:
        """Records that an incomplete call began at this position of the text."""
        self._space = ""

    def add(self, text: str) -> list[OutputPart]:
        """Returns the part of the text that can be shown now. Holds back whitespace at the end."""
        text = self._space + text
        body = text.rstrip(SPACE)
        self._space = text[len(body) :]
        if not body:
            return []
        if self.called and not self._any:
            body = body.lstrip(SPACE)
        self._any = True
        return [VisiblePart(body)]

    def end(self) -> list[OutputPart]:
        """Returns the whitespace that was held back, unless a call was made."""
        space, self._space = self._space, ""
        return [VisiblePart(space)] if space and not self.called else []


class PlainReader:
    """Reads a choice without calls."""

    is_complete = False
    spans: tuple[Span, ...] = ()

    def add(self, text: str) -> list[OutputPart]:
        return [VisiblePart(text)] if text else []

    def end(self, required: bool = False) -> list[OutputPart]:
        return []


class EitherReader:
    """Reads a choice that is either only calls or only text."""

    spans: tuple[Span, ...] = ()

    def __init__(self, heads: Sequence[str], calls: OutputReader) -> None:
        """`heads`: the texts with which calls begin. No other text begins with one of them. `calls`: the
        reader of the calls."""
        self._heads = heads
        self._calls = calls
        self._reader: OutputReader | None = None
        """None until the kind of the choice is known."""
        self._buffer = ""

    @property
    def is_complete(self) -> bool:
        return self._reader is not None and self._reader.is_complete

    def add(self, text: str) -> list[OutputPart]:
        """Buffers text until it is known whether the output begins with a call. Then passes all text to one
        reader."""
        if self._reader is None:
            text = self._buffer = self._buffer + text
            if any(map(text.startswith, self._heads)):
                self._reader = self._calls
            elif any(head.startswith(text) for head in self._heads):
                return []
            else:
                self._reader = PlainReader()
        return self._reader.add(text)

    def end(self, required: bool = False) -> list[OutputPart]:
        if self._reader is None:
            return PlainReader().add(self._buffer)
        return self._reader.end(required)


class ObjectReader:
    """Reads calls as JSON objects in a group: `opening`, an object or a list of them, `closing`."""

    spans: tuple[Span, ...] = ()
    _name_first = False

    def __init__(self, opening: str, closing: str) -> None:
        self._open = opening
        self._close = closing
        self._buffer = ""
        """Text whose kind is not known yet."""
        self._visible_text = VisibleText()
        self._read_parts: list[OutputPart] = []
        self._inside = False
        self._object: JsonCall | None = None
        self._raw = ""
        """The group's text since its last call. If it is no call, it is shown as text."""

    @property
    def is_complete(self) -> bool:
        return self._visible_text.called and self._object is None

    def add(self, text: str) -> list[OutputPart]:
        self._buffer += text
        while self._buffer and (self._read_inside() if self._inside else self._read_outside()):
            pass
        return self._pop_parts()

    def end(self, required: bool = False) -> list[OutputPart]:
        if required or (self._inside and self._is_call()):
            self._visible_text.record_cut()
        else:
            self._read_parts += self._visible_text.add(self._raw + self._buffer)
        self._raw = self._buffer = ""
        self._read_parts += self._visible_text.end()
        return self._pop_parts()

    def _is_call(self) -> bool:
        """Whether an unfinished group can only be a call."""
        return True

    def _pop_parts(self) -> list[OutputPart]:
        """Returns the identified parts, and clears them."""
        parts, self._read_parts = self._read_parts, []
        return parts

    # Each step removes text from the buffer, and returns whether another step can follow.

    def _read_outside(self) -> bool:
        """Reads the text before the next group."""
        at = self._buffer.find(self._open)
        has_mark = at >= 0
        end = at if has_mark else find_partial_mark(self._buffer, self._open)
        self._read_parts += self._visible_text.add(self._buffer[:end])
        self._buffer = self._buffer[end:]
        if has_mark:
            self._inside = True
            self._consume(len(self._open))
        return has_mark

    def _read_inside(self) -> bool:
        """Reads one step inside a group: a separator, the begin of a call, or the end of the group."""
        if self._object is not None:
            return self._read_object(self._object)
        rest = self._buffer.lstrip(SEPARATORS)
        self._consume(len(self._buffer) - len(rest))
        if rest.startswith("{"):
            self._object = JsonCall(self._name_first)
        elif self._close and rest.startswith(self._close):
            called = not self._raw.startswith(self._open)
            self._consume(len(self._close))
            self._raw = "" if called else self._raw
            self._end_group()
        elif rest and self._close.startswith(rest):
            return False
        elif rest:
            self._end_group()
        return True

    def _read_object(self, call: JsonCall) -> bool:
        """Reads further into a call. Ends the group if the object is no call."""
        self._consume(call.take(self._buffer, 0))
        if call.parts:
            self._read_parts += call.parts
            call.parts = []
            self._raw = ""
            self._visible_text.record_call()
        if call.is_complete:
            self._object, self._raw = None, ""
        elif call.is_broken:
            self._end_group()
        return call.is_complete or call.is_broken

    def _consume(self, count: int) -> None:
        """Moves the first `count` characters of the buffer to the group's text."""
        self._raw += self._buffer[:count]
        self._buffer = self._buffer[count:]

    def _end_group(self) -> None:
        """Ends a group. Shows the rest of the group that was no call as text."""
        raw, self._raw = self._raw, ""
        self._inside, self._object = False, None
        if raw.strip(SEPARATORS):
            self._read_parts += self._visible_text.add(raw)


class FirstReader(ObjectReader):
    """Reads calls as JSON objects if the text begins with a call, perhaps after a mark. Otherwise everything
    is text."""

    _name_first = True

    def __init__(self, mark: str) -> None:
        super().__init__(mark, "")
        self._began = False
        """Whether the kind of the text is known."""

    def _read_outside(self) -> bool:
        """Decides whether the text begins with a call. After a decision for text, shows all text."""
        if self._began:
            self._read_parts += self._visible_text.add(self._buffer)
            self._buffer = ""
            return False
        rest = self._buffer.lstrip(SPACE)
        if self._open and rest.startswith(self._open):
            rest = rest[len(self._open) :].lstrip(SPACE)
        elif not rest or (self._open and self._open.startswith(rest)):
            return False
        if not rest:
            return False
        self._began = True
        if rest.startswith("{"):
            self._inside = True
            self._consume(len(self._buffer) - len(rest))
        return True

    def _is_call(self) -> bool:
        return self._visible_text.called or (self._object is not None and self._object.is_call)
