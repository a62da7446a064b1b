"""Writes queries in the language of SQLite's MATCH."""

from collections.abc import Sequence

from antiphon.retrieval.words import QueryWord


def build_match(words: Sequence[QueryWord], documents: Sequence[int]) -> str:
    """Returns the MATCH expression that finds any of the words, in documents of these numbers; no numbers
    means all."""
    match = f"{{title body}} : ({' OR '.join(write_word(word) for word in words)})"
    if not documents:
        return match
    within = " OR ".join(f'"{name_document(number)}"' for number in documents)
    return f"{match} AND doc : ({within})"


def name_document(number: int) -> str:
    """Returns the word by which the index knows a document's chunks."""
    return f"d{number}"


def write_word(word: QueryWord) -> str:
    """Returns a word in the language of MATCH."""
    return f'"{word.text}"*' if word.is_prefix else f'"{word.text}"'
