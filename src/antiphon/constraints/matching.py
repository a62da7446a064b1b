"""The compiler with explicit limits: a grammar that is followed token by token, and every failure an error.

The compiler's own matcher raises nothing. After an error its mask allows the end token, so a broken grammar
would end a cut text as if it were whole. Here each call looks for the error.

Where keys are held to patterns, a token may lead to a place where only a repeated key could follow. Such dead
ends are found by going on from the few tokens after which the open key begins like a known one, or a next key
is due.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from antiphon.constraints.grammar import Grammar
from antiphon.constraints.json_text import FoundValues
from antiphon.constraints.key_guard import KeyGuard, KeyTables, remove_tokens
from antiphon.errors import AntiphonError, EngineError, InvalidValue

MOST = 64
"""Places that are looked at for the same keys. A dead end beyond them ends the text with an error."""


@dataclass(frozen=True, slots=True)
class DeadEndSearch:
    """The place of a text for the compiler and for its keys. Looking ahead moves neither."""

    matcher: LLMatcher
    keys: KeyGuard
    known: dict[FoundValues, bool]
    """Whether the text can go on from where it may stand soon."""

    def find_dead_ends(self, mask: bytes) -> list[int]:
        """Tokens of a mask after which the text cannot go on."""
        return [token for token in self.keys.find_narrowing(mask) if not self._can_continue(token)]

    def _can_continue(self, token: int) -> bool:
        place = self.keys.read_token(token)
        if place is None or place in self.known or len(self.known) >= MOST:
            return place is not None and self.known.get(place, True)
        ahead = DeadEndSearch(self.matcher.deep_copy(), self.keys.copy(), self.known)
        ahead.matcher.consume_token(token)
        ahead.keys.consume([token])
        mask = ahead.keys.restrict(ahead.matcher.compute_bitmask())
        if ahead.matcher.is_error():
            return True  # a limit was passed: no word on where it leads
        narrowing = ahead.keys.find_narrowing(mask)
        is_wide = bool(remove_tokens(mask, narrowing).strip(b"\0"))
        self.known[place] = is_wide or any(ahead._can_continue(each) for each in narrowing)
        return self.known[place]


MAX_SHOWN = 300
"""Characters of the compiler's sentences that an error repeats."""

SPECIAL = b"\xff"
"""Marks tokens that stand for no text; no text holds this byte."""

LIMIT_PASSED = re.compile(
    r"(lexer error|parser error): too many|parser error: current row has", re.IGNORECASE
)
"""How the compiler's sentences begin that say which of its limits was passed; they hold nothing of a text."""

BEYOND = "the constraint passed a limit: "
DEAD_END = "the model has no token that the constraint allows"
STOPPED = "the constraint's matcher stopped: "
"""How causes begin of errors along a text. The first two lie in what the caller asked for."""


@dataclass(frozen=True, slots=True)
class TokenTable:
    """A vocabulary as the compiler needs it."""

    pieces: tuple[bytes, ...]
    """What each id adds to the text; empty for ids that no text may hold."""
    ends: tuple[int, ...]
    """End tokens: allowed where the grammar is complete."""


class CompilerVocabulary:
    """A vocabulary that masks are made for. Takes half a second for 131,072 ids."""

    def __init__(self, tokens: TokenTable, tokenize: Callable[[bytes], list[int]] | None = None) -> None:
        """`tokenize` splits forced text as the model's tokenizer does. Where it gives nothing, the longest
        pieces are taken."""
        self.tokens = tokens
        self.size = len(tokens.pieces)
        self.limits = LLParserLimits(
            max_items_in_row=1000,
            initial_lexer_fuel=400_000,
            step_lexer_fuel=100_000,
            step_max_items=25_000,
            max_lexer_states=20_000,
            max_grammar_size=200_000,
            verbose_errors=False,
        )
        self._source = _TokenizerSource(tokens, tokenize)
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(self._source),
            eos_token=list(tokens.ends),
            slices=LLTokenizer.general_slices(),
        )

    @cached_property
    def key_tables(self) -> KeyTables:
        """What its tokens may do to the keys of JSON."""
        return KeyTables(self._source.tokens)

    def spell(self, text: str) -> list[int]:
        """Tokens that make up a text, the longest first."""
        return self._source.split_longest(text.encode())


class _TokenizerSource:
    """What the compiler asks of a tokenizer, under its names."""

    def __init__(self, tokens: TokenTable, tokenize: Callable[[bytes], list[int]] | None) -> None:
        self.tokens = [piece or SPECIAL + b"<%d>" % token for token, piece in enumerate(tokens.pieces)]
        for end in tokens.ends:
            self.tokens[end] = SPECIAL + b"<end%d>" % end
        self.special_token_ids = [
            token for token, piece in enumerate(self.tokens) if piece.startswith(SPECIAL)
        ]
        self.eos_token_id = tokens.ends[0]
        self.bos_token_id = None
        self._tokenize = tokenize or self.split_longest
        self._ids = {piece: token for token, piece in reversed(list(enumerate(tokens.pieces))) if piece}
        self._most = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenize(text) or self.split_longest(text)

    def split_longest(self, text: bytes) -> list[int]:
        """The text by longest pieces, as far as there are some."""
        found: list[int] = []
        at = 0
        while at < len(text):
            size = next(
                (n for n in range(min(self._most, len(text) - at), 0, -1) if text[at : at + n] in self._ids),
                0,
            )
            if not size:
                return found
            found.append(self._ids[text[at : at + size]])
            at += size
        return found


class Matcher:
    """One text on its way through a grammar. Not for two threads at once."""

    def __init__(self, grammar: Grammar, vocabulary: CompilerVocabulary) -> None:
        """Raises EngineError when the grammar does not compile."""
        self._vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.tokenizer, grammar.text, log_level=0, limits=vocabulary.limits)
        places = grammar.places
        self._keys = None if places is None else KeyGuard(places, vocabulary.key_tables)
        self._require_sound()

    def copy(self) -> "Matcher":
        """An independent copy at the same place of the text."""
        other = object.__new__(Matcher)
        other._vocabulary = self._vocabulary
        other._matcher = self._matcher.deep_copy()
        other._keys = None if self._keys is None else self._keys.copy()
        return other

    def compute_mask(self) -> bytes:
        """One bit for each id, the lowest first, in little-endian words of 32. Raises EngineError."""
        mask = self._matcher.compute_bitmask()
        self._require_sound()
        if self._keys is None:
            return mask
        mask = self._keys.restrict(mask)
        if not self._keys.run_out:
            return mask
        return remove_tokens(
            mask, DeadEndSearch(self._matcher, self._keys, self._keys.known).find_dead_ends(mask)
        )

    def find_forced(self) -> list[int]:
        """Tokens that must come next, whatever the model thinks; an end token when nothing else may. Raises
        EngineError."""
        if self._matcher.is_stopped():
            self._require_sound()
            return [self._vocabulary.tokens.ends[0]]
        tokens = self._matcher.compute_ff_tokens()
        self._require_sound()
        return tokens if self._keys is None else self._keys.cut_to_allowed(tokens)

    def consume(self, tokens: Sequence[int]) -> None:
        """Takes tokens. Raises EngineError for one that the grammar does not allow."""
        taken = self._matcher.consume_tokens(list(tokens))
        self._require_sound()
        if not taken:
            raise EngineError("a token came that the constraint does not allow")
        if self._keys is not None:
            self._keys.consume(tokens)

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def _require_sound(self) -> None:
        if problem := self._matcher.get_error():
            raise EngineError(
                f"the constraint cannot be followed any further: {extract_first_line(problem)}",
                cause=BEYOND + extract_first_line(problem)
                if LIMIT_PASSED.match(problem)
                else STOPPED + self._get_reason(),
            )

    def _get_reason(self) -> str:
        """The reason why it stopped, without the token."""
        return str(self._matcher.stop_reason())


def is_callers_fault(error: AntiphonError) -> bool:
    """Whether an error along a text comes from the constraint and not from us."""
    return (error.cause or "").startswith((BEYOND, DEAD_END))


def require_compiles(grammar: Grammar, vocabulary: CompilerVocabulary, field: str) -> None:
    """Raises InvalidValue with what the compiler says against a grammar; its warnings count."""
    _, problems = LLMatcher.validate_grammar_with_warnings(
        grammar.text, vocabulary.tokenizer, limits=vocabulary.limits
    )
    if problems:
        raise InvalidValue(f"{field} cannot be compiled: {extract_first_line(problems[0])}", param=field)


def extract_first_line(problem: str) -> str:
    """The first line of the compiler's message; its state follows."""
    return problem.strip().partition("\n")[0][:MAX_SHOWN]
