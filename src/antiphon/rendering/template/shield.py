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
from itertools import chain

from antiphon.domain.values import Struct
from antiphon.engines.base import TextPiece
from antiphon.errors import InvalidValue

PRIVATE = re.compile("[\ue000-\uf8ff\U000f0000-\U000ffffd]")
PRIVATE_RANGES = (range(0xE000, 0xF900), range(0xF0000, 0xFFFFE))
JSON_SYNTAX = frozenset('"\\')
"""Characters that are never replaced: a template's JSON filter must see the characters that it escapes."""

SHORT_TEXT = 64
"""For shorter texts, one search for all characters is faster than a search for each character."""

SEARCH_LENGTH = 1 << 16
"""How many characters are searched without a pause. This takes half a millisecond."""

FORMAT_PLACEHOLDER = re.compile(r"%[-#0 +]*[\w(.*]")
"""A placeholder in a literal, where the operator `%` inserts a value."""


class TemplateTexts(Struct, frozen=True):
    """The texts that a template's source contains."""

    literals: tuple[str, ...] = ()
    """Every literal text in the source."""
    searched: tuple[str, ...] = ()
    """Texts that the template may search for in a message."""
    reassembles: bool = False
    """Whether the template inserts texts into other texts, or cuts its own texts."""
    words: frozenset[str] = frozenset()
    """The template's literals, and the attribute names that it reads."""


class Shield:
    """Covers the characters of callers' texts that could form the names of a model's control tokens."""

    def __init__(self, names: Iterable[str], template_texts: "TemplateTexts | None" = None) -> None:
        self._names = frozenset(name for name in names if _collect_replaceable(name))
        self._name_lengths: dict[str, list[int]] = {}
        for name in self._names:
            self._name_lengths.setdefault(name[0], []).append(len(name))
        for first_character, lengths in self._name_lengths.items():
            self._name_lengths[first_character] = sorted(set(lengths), reverse=True)
        self._first_pattern = _match_characters(self._name_lengths)
        template = template_texts or TemplateTexts()
        self._rare_characters = frozenset(chain.from_iterable(map(_collect_rare_characters, self._names)))
        self._template_words = template.words
        self.replaced_characters = tuple(sorted(self._choose_replaced(template)))
        """The characters that are replaced, in a fixed order."""
        self._replaced_pattern = _match_characters(self.replaced_characters)
        self._unreplaced_texts = tuple(text for text in template.searched if self._can_stay(text))
        self._unreplaced_pattern = _match_texts(self._unreplaced_texts)
        self._used_characters = frozenset(PRIVATE.findall("".join(template.literals)))
        self.usual_twins = self.cover(()).twins
        """The twins in nearly all requests: those of texts without private-use characters."""

    def _choose_replaced(self, template: "TemplateTexts") -> frozenset[str]:
        """Chooses the characters to replace: the rare characters of the names, and the first character of
        each name. If the template could complete a name around a caller's text, chooses all letters of the
        names.

        A caller's text cannot contain the first character of a name. So the beginning of a composed name
        comes from the template: a literal ends with it, or contains it where a text is inserted.
        """
        characters = self._rare_characters
        beginnings = {name.lstrip()[:end] for name in self._names for end in range(1, len(name.lstrip()))}
        longest_name = max(map(len, self._names), default=0)
        for literal in template.literals:
            ends = (
                text[-size:] for text in (literal, literal.rstrip()) for size in range(1, longest_name + 1)
            )
            inserts_text = template.reassembles or FORMAT_PLACEHOLDER.search(literal)
            if not beginnings.isdisjoint(ends) or (inserts_text and self._has_name_beginning(literal)):
                return characters | frozenset(chain.from_iterable(map(_collect_replaceable, self._names)))
        return characters

    def _has_name_beginning(self, literal: str) -> bool:
        """Whether a literal contains the first character of a name, outside of complete names."""
        position, text_outside_names = 0, ""
        for begin, end in self.find_names(literal):
            text_outside_names += literal[position:begin]
            position = end
        return any(name.lstrip()[0] in text_outside_names + literal[position:] for name in self._names)

    def _can_stay(self, text: str) -> bool:
        """Whether a text contains replaced characters but needs no twins, because no part of the text can be
        part of a control token's name."""
        if not any(character in text for character in self.replaced_characters):
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
        non_ascii_texts = (text for text in texts if not text.isascii())
        used_characters = self._used_characters.union(
            *(match[0] for text in non_ascii_texts for match in _find_each(PRIVATE, text))
        )
        *twins, end_mark = map(chr, _find_free_block(len(self.replaced_characters) + 1, used_characters))
        return Cover(self, tuple(twins), end_mark)

    def hide(self, text: str, twins: tuple[str, ...]) -> str:
        """Returns the text with its replaced characters as twins, except in the texts that templates search
        for."""
        if (
            len(text) < SHORT_TEXT
            and self._replaced_pattern is not None
            and not self._replaced_pattern.search(text)
        ):
            return text
        # This is faster than a search for the position.
        has_unreplaced = any(unreplaced in text for unreplaced in self._unreplaced_texts)
        parts = (
            self._unreplaced_pattern.split(text)
            if self._unreplaced_pattern is not None and has_unreplaced
            else [text]
        )
        for index in range(0, len(parts), 2):
            parts[index] = _replace_all(parts[index], self.replaced_characters, twins)
        return "".join(parts)

    def is_known_word(self, text: str) -> bool:
        """Whether a text is a word of the template and cannot be part of a control token's name."""
        return text in self._template_words and self._rare_characters.isdisjoint(text)

    def find_names(self, text: str) -> Iterable[tuple[int, int]]:
        """Yields the begin and end of each control token's name in the text, from left to right. If several
        names begin at one position, takes the longest."""
        if self._first_pattern is None:
            return
        end = 0
        for match in _find_each(self._first_pattern, text):
            begin = match.start()
            if begin < end:
                continue
            for length in self._name_lengths[text[begin]]:
                if text[begin : begin + length] in self._names:
                    end = begin + length
                    yield begin, end
                    break


class Cover(Struct, frozen=True):
    """The twins of one rendering."""

    shield: Shield
    twins: tuple[str, ...]
    end_mark: str
    """A character that occurs in no text. It marks the end of a message that the model continues."""

    @property
    def is_usual(self) -> bool:
        """Whether most requests have these twins."""
        return self.twins == self.shield.usual_twins

    def hide(self, text: str) -> str:
        """Returns the text with twins, as the template sees it."""
        return self.shield.hide(text, self.twins)

    def hide_value(self, text: str) -> str:
        """Returns a value with twins. Returns it unchanged if it is a word of the template."""
        return text if self.shield.is_known_word(text) else self.hide(text)

    def split_pieces(self, rendered: str) -> tuple[TextPiece, ...]:
        """Splits the rendered text into the template's control tokens and text."""
        pieces: list[TextPiece] = []
        position = 0
        for begin, end in self.shield.find_names(rendered):
            if begin > position:
                pieces.append(TextPiece(self.restore(rendered[position:begin])))
            pieces.append(TextPiece(rendered[begin:end], control=True))
            position = end
        if position < len(rendered):
            pieces.append(TextPiece(self.restore(rendered[position:])))
        return tuple(pieces)

    def restore(self, text: str) -> str:
        """Replaces the twins in a text by the original characters."""
        return _replace_all(text, self.twins, self.shield.replaced_characters)


_current_cover: ContextVar[Cover] = ContextVar("cover")


@contextmanager
def use_cover(cover: Cover) -> Iterator[None]:
    """Sets the cover for all rendering inside the block."""
    token = _current_cover.set(cover)
    try:
        yield
    finally:
        _current_cover.reset(token)


def apply_uncovered(operation: Callable[[str], str], text: str) -> str:
    """Applies an operation on letters to the original text, because twins have no upper case. Returns the
    result with twins."""
    cover = _current_cover.get(None)
    restored = text if cover is None else cover.restore(text)
    return operation(text) if cover is None or restored == text else cover.hide(operation(restored))


def _find_each(character: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yields the matches of a pattern of one character. It searches piece by piece, so that other threads can
    run in between."""
    for begin in range(0, len(text), SEARCH_LENGTH):
        yield from character.finditer(text, begin, begin + SEARCH_LENGTH)


def _collect_replaceable(name: str) -> frozenset[str]:
    """Returns the characters of a control token's name that can be replaced by twins."""
    return frozenset(letter for letter in name if letter not in JSON_SYNTAX and not letter.isspace())


def _collect_rare_characters(name: str) -> frozenset[str]:
    """Returns the characters of a name that are rare in texts, and the first character of the name."""
    signs = frozenset(letter for letter in _collect_replaceable(name) if not letter.isalnum())
    return (signs or _collect_replaceable(name)) | (_collect_replaceable(name) & {name.lstrip()[:1]})


def _replace_all(text: str, characters: Sequence[str], replacements: Sequence[str]) -> str:
    """Replaces characters one after the other. This is ten times faster than `str.translate`."""
    for old, new in zip(characters, replacements, strict=True):
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


def _find_free_block(size: int, used_characters: frozenset[str]) -> range:
    """Returns the first block of `size` private-use characters that contains none of `used_characters`.
    Raises InvalidValue if there is none."""
    for private_range in PRIVATE_RANGES:
        for begin in range(private_range.start, private_range.stop - size, max(size, 1)):
            block = range(begin, begin + size)
            if used_characters.isdisjoint(map(chr, block)):
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
