"""Prevents callers' texts from being read as structure: a user's `<|im_end|>` stays ten characters of text.

Before rendering, each character in the callers' texts that could form a control token is replaced by a
private-use character, its twin. Lengths, trimming and slicing in a template still work. So every name of a
control token in the rendered text comes from the template. Afterwards the twins are replaced by their
original characters.

Some templates search messages for a text (`'</think>' in content`). Such a text keeps its characters if no
part of it can be part of a name.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import chain

from antiphon.engines.base import TextPiece
from antiphon.errors import InvalidValue

PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd]")
PRIVATE_RANGES = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))
JSON_SYNTAX = frozenset('"\\')
"""Characters that are never replaced: a template's JSON filter must see the characters that it escapes."""


SHORT = 64
"""For shorter texts, one search for all characters is faster than a search for each character."""

PIECE = 1 << 16
"""How many characters are searched without a pause. This takes half a millisecond."""

FILLED_IN = re.compile(r"%[-#0 +]*[\w(.*]")
"""A place in a literal where the operator `%` inserts something."""


@dataclass(frozen=True, slots=True)
class TemplateTexts:
    """The texts of a template itself."""

    literals: tuple[str, ...] = ()
    """Every literal text in it."""
    sought: tuple[str, ...] = ()
    """Texts that the template may search for in a message."""
    reassembles: bool = False
    """Whether the template inserts texts into other texts, or cuts its own texts."""
    known: frozenset[str] = frozenset()
    """The template's own words: its literals, and the names that it looks up."""


class Shield:
    """Covers the characters of callers' texts that could form the names of a model's control tokens."""

    def __init__(self, names: Iterable[str], written: "TemplateTexts | None" = None) -> None:
        self._names = frozenset(name for name in names if _collect_letters(name))
        self._lengths: dict[str, list[int]] = {}
        for name in self._names:
            self._lengths.setdefault(name[0], []).append(len(name))
        for first, lengths in self._lengths.items():
            self._lengths[first] = sorted(set(lengths), reverse=True)
        self._starts = _match_characters(self._lengths)
        template = written or TemplateTexts()
        self._signs = frozenset(chain.from_iterable(map(_collect_signs, self._names)))
        self._known = template.known
        self.marks = tuple(sorted(self._choose_marks(template)))
        """The characters that are replaced, in a fixed order."""
        self._marked = _match_characters(self.marks)
        self._stays = tuple(text for text in template.sought if self._may_stay(text))
        self._bare = _match_texts(self._stays)
        self._used_characters = frozenset(PRIVATE.findall("".join(template.literals)))

    def _choose_marks(self, template: "TemplateTexts") -> frozenset[str]:
        """Chooses the characters to replace: the rare characters of the names, and the first character of
        each name. If the template could complete a name around a caller's text, chooses all letters of the
        names.

        A caller's text cannot contain the first character of a name. So the beginning of a composed name
        comes from the template: a literal ends with it, or contains it where a text is inserted.
        """
        marks = self._signs
        beginnings = {name.lstrip()[:end] for name in self._names for end in range(1, len(name.lstrip()))}
        longest = max(map(len, self._names), default=0)
        for literal in template.literals:
            ends = (text[-size:] for text in (literal, literal.rstrip()) for size in range(1, longest + 1))
            filled = template.reassembles or FILLED_IN.search(literal)
            if not beginnings.isdisjoint(ends) or (filled and self._begins(literal)):
                return marks | frozenset(chain.from_iterable(map(_collect_letters, self._names)))
        return marks

    def _begins(self, literal: str) -> bool:
        """Whether a literal contains the beginning of a name outside of whole names."""
        at, rest = 0, ""
        for begin, end in self.find_names(literal):
            rest += literal[at:begin]
            at = end
        return any(name.lstrip()[0] in rest + literal[at:] for name in self._names)

    def _may_stay(self, text: str) -> bool:
        """Whether a text can stay without twins, because no part of it can be part of a name."""
        if not any(mark in text for mark in self.marks):
            return False
        for name in self._names:
            overlaps = any(
                text.endswith(name[:size]) or text.startswith(name[-size:]) for size in range(1, len(name))
            )
            if overlaps or name in text or text in name:
                return False
        return True

    def cover(self, texts: Sequence[str]) -> "Cover":
        """Chooses twins that occur in none of these texts and not in the template. Raises InvalidValue if
        there are too few."""
        strange = (text for text in texts if not text.isascii())
        used_characters = self._used_characters.union(
            *(match[0] for text in strange for match in _find_each(PRIVATE, text))
        )
        *twins, mark = map(chr, _find_free_block(len(self.marks) + 1, used_characters))
        return Cover(self, tuple(twins), mark)

    def hide(self, text: str, twins: tuple[str, ...]) -> str:
        """Returns the text with twins, except in the parts that may stay."""
        if len(text) < SHORT and self._marked is not None and not self._marked.search(text):
            return text
        there = any(stays in text for stays in self._stays)  # faster than a search for the position
        parts = self._bare.split(text) if self._bare is not None and there else [text]
        for index in range(0, len(parts), 2):
            parts[index] = _replace_all(parts[index], self.marks, twins)
        return "".join(parts)

    def is_known_word(self, text: str) -> bool:
        """Whether a text is a word of the template and cannot be part of a control token's name."""
        return text in self._known and self._signs.isdisjoint(text)

    def find_names(self, text: str) -> Iterable[tuple[int, int]]:
        """Yields the begin and end of each control token's name in the text, from left to right. If several
        names begin at one position, takes the longest."""
        if self._starts is None:
            return
        end = 0
        for match in _find_each(self._starts, text):
            begin = match.start()
            if begin < end:
                continue
            for length in self._lengths[text[begin]]:
                if text[begin : begin + length] in self._names:
                    end = begin + length
                    yield begin, end
                    break


@dataclass(frozen=True, slots=True)
class Cover:
    """The twins of one rendering."""

    shield: Shield
    twins: tuple[str, ...]
    mark: str
    """A character that occurs nowhere else in the texts. It marks the end of a message."""

    def hide(self, text: str) -> str:
        """Returns the text with twins, as the template sees it."""
        return self.shield.hide(text, self.twins)

    def hide_value(self, text: str) -> str:
        """Returns a value with twins. Returns it unchanged if it is a word of the template."""
        return text if self.shield.is_known_word(text) else self.hide(text)

    def split_pieces(self, rendered: str) -> tuple[TextPiece, ...]:
        """Splits the rendered text into the template's control tokens and text."""
        pieces: list[TextPiece] = []
        at = 0
        for begin, end in self.shield.find_names(rendered):
            if begin > at:
                pieces.append(TextPiece(self.restore(rendered[at:begin])))
            pieces.append(TextPiece(rendered[begin:end], control=True))
            at = end
        if at < len(rendered):
            pieces.append(TextPiece(self.restore(rendered[at:])))
        return tuple(pieces)

    def restore(self, text: str) -> str:
        """Replaces the twins in a text by their characters."""
        return _replace_all(text, self.twins, self.shield.marks)


_current: ContextVar[Cover] = ContextVar("cover")


@contextmanager
def use_cover(cover: Cover) -> Iterator[None]:
    """Sets the cover for all rendering inside the block."""
    token = _current.set(cover)
    try:
        yield
    finally:
        _current.reset(token)


def apply_uncovered(operation: Callable[[str], str], text: str) -> str:
    """Applies an operation on letters to the original text, because twins have no upper case. Returns the
    result with twins."""
    cover = _current.get(None)
    restored = text if cover is None else cover.restore(text)
    return operation(text) if cover is None or restored == text else cover.hide(operation(restored))


def _find_each(character: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yields the matches of a pattern of one character. It searches piece by piece, so that other threads can
    run in between."""
    for begin in range(0, len(text), PIECE):
        yield from character.finditer(text, begin, begin + PIECE)


def _collect_letters(name: str) -> frozenset[str]:
    """Returns the characters of a name that may be replaced."""
    return frozenset(letter for letter in name if letter not in JSON_SYNTAX and not letter.isspace())


def _collect_signs(name: str) -> frozenset[str]:
    """Returns the characters of a name that are rare in texts, and the first character of the name."""
    signs = frozenset(letter for letter in _collect_letters(name) if not letter.isalnum())
    return (signs or _collect_letters(name)) | (_collect_letters(name) & {name.lstrip()[:1]})


def _replace_all(text: str, before: Sequence[str], after: Sequence[str]) -> str:
    """Replaces characters one after the other. This is ten times faster than `str.translate`."""
    for old, new in zip(before, after, strict=True):
        text = text.replace(old, new)
    return text


def _match_characters(characters: Iterable[str]) -> re.Pattern[str] | None:
    """Returns a pattern for any of the characters; None for no characters."""
    escaped = "".join(map(re.escape, characters))
    return re.compile(f"[{escaped}]") if escaped else None


def _match_texts(texts: Iterable[str]) -> re.Pattern[str] | None:
    """Returns a pattern for any of the texts, the longest first; None for no texts."""
    longest_first = sorted(set(texts), key=len, reverse=True)
    return re.compile("(" + "|".join(map(re.escape, longest_first)) + ")") if longest_first else None


def _find_free_block(size: int, used: frozenset[str]) -> range:
    """Returns the first block of `size` private-use characters that contains none of `used`. Raises
    InvalidValue if there is none."""
    for place in PRIVATE_RANGES:
        for begin in range(place.start, place.stop - size, max(size, 1)):
            block = range(begin, begin + size)
            if used.isdisjoint(map(chr, block)):
                return block
    raise InvalidValue(
        "the messages use nearly every private-use character; remove some of them", param="messages"
    )


def is_valid_unicode(text: str) -> bool:
    """Whether the text contains no half of a surrogate pair. JSON and templates can write such a half; UTF-8
    and tokenizers cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def escape_surrogates(text: str) -> str:
    """Returns the text with halves of surrogate pairs escaped, for an error message."""
    return text.encode(errors="backslashreplace").decode()
