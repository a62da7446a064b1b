"""Words that no choice may hold, as the sequences of tokens that they are: how a word is written where a text
begins, and after a space. The same letters by other tokens are another sequence, and not looked for."""

import asyncio
from collections.abc import Sequence

from antiphon.engines.base import TextPiece, TokenEngine
from antiphon.errors import InvalidValue
from antiphon.rendering.model_info import ModelInfo

LEADS = ("\n", ".")
"""Stand before a word that no space precedes, where the tokenizer puts one before every text. The first that
does not melt into one token with the word is taken off again."""


async def tokenize_banned_words(
    engine: TokenEngine, facts: ModelInfo, words: Sequence[str]
) -> tuple[tuple[int, ...], ...]:
    """The sequences of all words, each once. Raises InvalidValue for a word of spaces alone."""
    bare = [word.lstrip(" ") for word in words]
    for place, word in enumerate(bare):
        if not word:
            field = f"bad_words[{place}]"
            raise InvalidValue(f"{field} has nothing but spaces; give a word", param=field)
    if not bare:
        return ()
    prefixed = facts.vocabulary.space_prefix
    spaced = await _tokens(engine, [word if prefixed else f" {word}" for word in bare])
    begun = await (_after_leads(engine, bare) if prefixed else _tokens(engine, bare))
    return tuple(tokens for tokens in dict.fromkeys((*spaced, *begun)) if tokens)


async def _after_leads(engine: TokenEngine, words: Sequence[str]) -> list[tuple[int, ...]]:
    """Tokens of words that no space precedes; none of a word that melts into every lead."""
    leads = await _tokens(engine, LEADS)
    columns = [await _tokens(engine, [lead + word for word in words]) for lead in LEADS]
    return [
        next(
            (tokens[len(lead) :] for lead, tokens in zip(leads, row, strict=True) if _begins(tokens, lead)),
            (),
        )
        for row in zip(*columns, strict=True)
    ]


def _begins(tokens: tuple[int, ...], lead: tuple[int, ...]) -> bool:
    return tokens[: len(lead)] == lead


async def _tokens(engine: TokenEngine, texts: Sequence[str]) -> list[tuple[int, ...]]:
    return await asyncio.gather(*(engine.tokenize([TextPiece(text)], False) for text in texts))
