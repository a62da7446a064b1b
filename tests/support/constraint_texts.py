"""A small vocabulary, and texts that a constraint allows: random walks over its masks, with no model."""

from random import Random

from antiphon.constraints.checking_process import check_constraint, pick_allowed
from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.matching import CompilerVocabulary, Matcher, TokenTable
from antiphon.domain.request import Constraint, ConstraintKind

MORE = [
    "he",
    '", "',
    '": "',
    '": ',
    ", ",
    "hello",
    "0.",
    "12",
    "é",
    "\\u00",
    "true",
    '{"',
    '"}',
    "-0",
    "e+",
    "😀",
    "  ",
]
END = 256
TOKENS = TokenTable((*(bytes([byte]) for byte in range(256)), b"", *(text.encode() for text in MORE)), (END,))

CLOSING = 60
"""Tokens after which a walk prefers those that end soonest."""


def vocabulary() -> CompilerVocabulary:
    return CompilerVocabulary(TOKENS)


def walked(grammar: Grammar, words: CompilerVocabulary, seed: int, most: int = 2000) -> str | None:
    """A text of the grammar's, ended by itself; None when `most` tokens did not end it."""
    chosen = Random(seed)
    matcher = Matcher(grammar, words)
    made: list[int] = []
    ends = frozenset(words.tokens.ends)
    closing = [ord(sign) for sign in '"]}']
    while len(made) < most:
        forced = matcher.find_forced()
        if ends & set(forced):
            break
        matcher.consume(forced)
        made += forced
        mask = matcher.compute_mask()
        if matcher.is_complete and chosen.random() < (0.2 if len(made) < CLOSING else 0.9):
            assert mask[END // 8] >> END % 8 & 1, "complete, and the end is not allowed"
            break
        assert matcher.is_complete == bool(mask[END // 8] >> END % 8 & 1), (
            "the end is allowed and it is not complete"
        )
        soon = [token for token in closing if mask[token // 8] >> token % 8 & 1]
        if len(made) > CLOSING and soon and chosen.random() < 0.5:
            token = soon[0]
        else:
            found = pick_allowed(mask, chosen, words.size, ends)
            if found is None:
                break
            token = found
        matcher.consume([token])
        made.append(token)
    else:
        return None
    return b"".join(words.tokens.pieces[token] for token in made).decode()


def sampled(
    kind: ConstraintKind, source: str, words: CompilerVocabulary, count: int, whitespace: str | None = None
) -> list[str]:
    """Texts of a constraint that is taken."""
    grammar = check_constraint(Constraint(kind, source, whitespace), words)
    texts = (walked(grammar, words, seed) for seed in range(count))
    return [text for text in texts if text is not None]
