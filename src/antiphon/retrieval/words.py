"""Splits texts and queries into words, in the same way for every index.

For a database, a run of Chinese or Japanese characters is one word, so a search cannot find a part of the
run. Here such runs become overlapping pairs of characters, in texts and in queries. In a text, the last
character of a run is a word too. So a prefix search finds every single character.
"""

import re
import unicodedata
from collections.abc import Iterable, Iterator
from itertools import groupby

from antiphon.domain.values import Struct

SEGMENTATION = 1
"""The version of `segment`. Increase it when `segment` returns other words: tables with an older version are
then indexed again."""

CJK = re.compile(
    "[\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\U00020000-\U0003134f]+"
)
"""Han, Hiragana, Katakana and Hangul. In these scripts, spaces do not separate all words."""

ACCENTS = re.compile("[\u0300-\u036f]+")
"""Combining accents of Latin, Greek and Cyrillic letters."""

ASCII_WORD = re.compile("[a-z0-9]+")
"""A word of a folded text in ASCII."""

LONGEST_QUERY = 20_000
"""The most characters of a query; the rest is ignored."""

MOST_WORDS = 256
"""The most different words of a query; further words are ignored."""


class QueryWord(Struct, frozen=True):
    """A word of a query, in the form of the index."""

    text: str
    is_prefix: bool = False
    """Whether every word that begins with this text matches. It is set for a single Chinese or Japanese
    character."""


def fold(text: str) -> str:
    """Removes differences of case, width and accents. SQLite's tokenizer does this too, but not for `ß` and
    for some Greek letters."""
    if text.isascii():
        return text.lower()
    letters = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", ACCENTS.sub("", letters))


def segment(text: str) -> str:
    """Returns the text in the form of the index: folded, with Chinese, Japanese and Korean runs as pairs."""
    return CJK.sub(lambda run: f" {' '.join(_list_pairs(run[0]))} ", fold(text))


def split_text(text: str) -> list[str]:
    """Returns all words of a text in order, in the form of the index."""
    segmented = segment(text)
    if segmented.isascii():
        return ASCII_WORD.findall(segmented)
    return ["".join(letters) for is_word, letters in groupby(segmented, _is_letter) if is_word]


def _list_pairs(run: str) -> list[str]:
    """Returns all pairs of neighbouring characters, and the last character alone."""
    return [run[start : start + 2] for start in range(len(run))]


def list_words(query: str) -> list[QueryWord]:
    """Returns the different words of a query in order, at most MOST_WORDS."""
    text = fold(query[:LONGEST_QUERY])
    words: dict[QueryWord, None] = {}
    for is_word, letters in groupby(text, _is_letter):
        if is_word:
            words.update(dict.fromkeys(_split_scripts("".join(letters))))
        if len(words) >= MOST_WORDS:
            break
    return list(words)[:MOST_WORDS]


def _is_letter(character: str) -> bool:
    """Whether a character is part of a word: a letter, a digit, or a combining mark."""
    return character.isalnum() or unicodedata.category(character).startswith("M")


def _split_scripts(run: str) -> Iterator[QueryWord]:
    """Yields the words of a run of letters. Chinese, Japanese and Korean parts become pairs; other parts stay
    whole."""
    end = 0
    for match in CJK.finditer(run):
        if match.start() > end:
            yield QueryWord(run[end : match.start()])
        yield from _split_pairs(match[0])
        end = match.end()
    if end < len(run):
        yield QueryWord(run[end:])


def _split_pairs(run: str) -> Iterable[QueryWord]:
    if len(run) == 1:
        return [QueryWord(run, is_prefix=True)]
    return [QueryWord(pair) for pair in _list_pairs(run)[:-1]]
