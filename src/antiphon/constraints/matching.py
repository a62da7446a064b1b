"""Follows a grammar token by token with the compiler's matcher, with limits. Every failure becomes an error.

The compiler's matcher raises nothing. After an error, its mask allows the end token. So an incomplete text
would end as if it were complete. Therefore each call here checks whether the matcher has an error.

If keys must match patterns, a token can lead to a dead end: only a repeated key could follow. To find dead
ends, the search looks ahead after few tokens: tokens after which the open key begins like an existing key, or
an object needs another key.
"""

import re
from collections.abc import Callable, Sequence
from functools import cached_property

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from antiphon.constraints.grammar_types import Grammar
from antiphon.constraints.json_text import TextState
from antiphon.constraints.key_guard import KeyGuard, KeyTables, remove_tokens
from antiphon.domain.values import Struct
from antiphon.errors import AntiphonError, EngineError, InvalidValue

MAX_STATES = 64
"""The most states that are examined for the same keys. If a dead end is not found, the text ends with an
error."""

MAX_LEXER_STATES = 130_000
"""The most states of one text's automaton: some 0.5 KB each. A character of a counted text takes at most 13
of them, if each byte is a token. So `schemas.MAX_COUNTED_LENGTH` characters fit, and patterns have the
rest."""

MAX_ROW_ITEMS = 4_000
"""The most items of one row of the compiler's parser, of 16 bytes each. A published schema needs 1,100."""

_PLAIN = r'[^"\\\x00-\x1F\x7F\u2028\u2029]'
SLICES = [r"[\x20\x0A\x0D\x09]+", *(_PLAIN + repetition for repetition in ("{1,10}", "{1,30}", "+"))]
"""Sets of tokens that the compiler allows or refuses together where it can: those of plain text. They are the
compiler's own sets without the line ends that no `.` of ECMA-262 matches; otherwise a mask in a pattern with
a `.` would take ten times as long."""

MAX_SHOWN = 300
"""The most characters of a compiler message in an error."""

SPECIAL = b"\xff"
"""The first byte in the name of a token without text. It occurs in no text."""

LIMIT_PASSED = re.compile(
    r"(lexer error|parser error): too many|parser error: current row has", re.IGNORECASE
)
"""Compiler messages about exceeded limits. They contain no text of a caller."""

NO_TOKEN = "NoExtensionBias"
"""The compiler's message if a mask would be empty."""

LIMIT_CAUSE = "the constraint passed a limit: "
DEAD_END = "the model has no token that the constraint allows"
STOP_CAUSE = "the constraint's matcher stopped: "
"""The causes of errors while a grammar is followed. The first two are caused by the constraint."""

NOT_FOLLOWED = "the constraint cannot be followed any further: "
NO_TOKEN_ALLOWED = "no token of this model can satisfy the constraint here"


class DeadEndSearch(Struct, frozen=True):
    """Looks ahead from the current state of a text, and does not change the state."""

    matcher: LLMatcher
    key_guard: KeyGuard
    can_continue_by_state: dict[TextState, bool]
    """Whether the text can continue, for each examined state."""

    def find_dead_ends(self, mask: bytes) -> list[int]:
        """Returns the tokens of a mask after which the text cannot continue."""
        return [token for token in self.key_guard.find_risky_tokens(mask) if not self._can_continue(token)]

    def _can_continue(self, token: int) -> bool:
        """Whether the text can continue after the token. Caches the result for the state after the token."""
        state = self.key_guard.read_token(token)
        if state is None:
            return False
        if state in self.can_continue_by_state or len(self.can_continue_by_state) >= MAX_STATES:
            return self.can_continue_by_state.get(state, True)
        ahead = DeadEndSearch(self.matcher.deep_copy(), self.key_guard.copy(), self.can_continue_by_state)
        ahead.matcher.consume_token(token)
        ahead.key_guard.consume([token])
        mask = ahead.key_guard.restrict(ahead.matcher.compute_bitmask())
        if ahead.matcher.is_error():
            return True  # a limit was exceeded, so the result is unknown
        risky_tokens = ahead.key_guard.find_risky_tokens(mask)
        has_other_tokens = bool(remove_tokens(mask, risky_tokens).strip(b"\0"))
        can_continue = has_other_tokens or any(ahead._can_continue(each) for each in risky_tokens)
        self.can_continue_by_state[state] = can_continue
        return can_continue


class TokenTable(Struct, frozen=True):
    """A vocabulary in the compiler's form."""

    pieces: tuple[bytes, ...]
    """The bytes that each id adds to the text; empty for ids that must not occur in a text."""
    ends: tuple[int, ...]
    """The end tokens, which are allowed when the grammar is complete."""


class CompilerVocabulary:
    """A vocabulary for which masks are made. Building it takes half a second for 131,072 ids."""

    def __init__(self, tokens: TokenTable, tokenize: Callable[[bytes], list[int]] | None = None) -> None:
        """`tokenize`: splits forced text as the model's tokenizer does. If it returns no tokens, the text is
        split into the longest pieces."""
        self.tokens = tokens
        self.size = len(tokens.pieces)
        self.limits = LLParserLimits(
            max_items_in_row=MAX_ROW_ITEMS,
            initial_lexer_fuel=400_000,
            step_lexer_fuel=400_000,  # some 40 ms, for the first mask in a part of a text only
            step_max_items=100_000,  # some 10 ms
            max_lexer_states=MAX_LEXER_STATES,
            max_grammar_size=200_000,
            verbose_errors=False,
        )
        self._source = _TokenizerSource(tokens, tokenize)
        self.tokenizer = LLTokenizer(
            TokenizerWrapper(self._source),
            eos_token=list(tokens.ends),
            slices=SLICES,
        )

    @cached_property
    def key_tables(self) -> KeyTables:
        """The tables of tokens that can affect JSON keys."""
        return KeyTables(self._source.tokens)

    def spell(self, text: str) -> list[int]:
        """Splits a text into the longest tokens."""
        return self._source.split_longest(text.encode())


class _TokenizerSource:
    """The tokenizer, with the attributes that the compiler requires."""

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
        self._longest_piece = max(map(len, self._ids), default=1)

    def __call__(self, text: bytes) -> list[int]:
        return self._tokenize(text) or self.split_longest(text)

    def split_longest(self, text: bytes) -> list[int]:
        """Splits a text into the longest pieces. Stops where no piece matches."""
        tokens: list[int] = []
        index = 0
        while index < len(text):
            size = min(self._longest_piece, len(text) - index)
            while size and text[index : index + size] not in self._ids:
                size -= 1
            if not size:
                return tokens
            tokens.append(self._ids[text[index : index + size]])
            index += size
        return tokens


class Matcher:
    """One text and its position in a grammar. It is not thread safe."""

    def __init__(self, grammar: Grammar, vocabulary: CompilerVocabulary) -> None:
        """Raises EngineError if the grammar does not compile."""
        self._vocabulary = vocabulary
        self._matcher = LLMatcher(vocabulary.tokenizer, grammar.text, log_level=0, limits=vocabulary.limits)
        # A copy shares the automaton, so it reports an error of the automaton that a later call hides.
        self._automaton = self._matcher.deep_copy()
        places = grammar.places
        self._key_guard = None if places is None else KeyGuard(places, vocabulary.key_tables)
        self._require_no_error()

    def copy(self) -> "Matcher":
        """Returns an independent copy with the same text."""
        new_matcher = object.__new__(Matcher)
        new_matcher._vocabulary = self._vocabulary
        new_matcher._matcher = self._matcher.deep_copy()
        new_matcher._automaton = self._automaton
        new_matcher._key_guard = None if self._key_guard is None else self._key_guard.copy()
        return new_matcher

    def compute_mask(self) -> bytes:
        """Computes the mask: one bit for each id, the lowest first, in little-endian words of 32 bits. Raises
        EngineError."""
        mask = self._matcher.compute_bitmask()
        self._require_no_error()
        if self._key_guard is None:
            return mask
        mask = self._key_guard.restrict(mask)
        if not self._key_guard.keys_can_run_out:
            return mask
        search = DeadEndSearch(self._matcher, self._key_guard, self._key_guard.can_continue_by_state)
        return remove_tokens(mask, search.find_dead_ends(mask))

    def find_forced(self) -> list[int]:
        """Returns the tokens that must come next, because each of them is the only possible one. Returns an
        end token if the text must end. Raises EngineError."""
        if self._matcher.is_stopped():
            self._require_no_error()
            return [self._vocabulary.tokens.ends[0]]
        tokens = self._matcher.compute_ff_tokens()
        self._require_no_error()
        return tokens if self._key_guard is None else self._key_guard.cut_to_allowed(tokens)

    def consume(self, tokens: Sequence[int]) -> None:
        """Appends tokens. Raises EngineError for a token that the grammar does not allow."""
        is_accepted = self._matcher.consume_tokens(list(tokens))
        self._require_no_error()
        if not is_accepted:
            raise EngineError("the text got a token that the constraint does not allow")
        if self._key_guard is not None:
            self._key_guard.consume(tokens)

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        return bool(self._matcher.is_accepting())

    def require_within_limits(self) -> None:
        """Raises EngineError if the automaton has passed a limit, whatever the last call reported."""
        self._automaton.compute_bitmask()
        problem = extract_first_line(self._automaton.get_error())
        if LIMIT_PASSED.match(problem):
            raise EngineError(NOT_FOLLOWED + problem, cause=LIMIT_CAUSE + problem)

    def _require_no_error(self) -> None:
        """Raises EngineError if the compiler's matcher has reported an error."""
        if not (problem := extract_first_line(self._matcher.get_error())):
            return
        if LIMIT_PASSED.match(problem):
            raise EngineError(NOT_FOLLOWED + problem, cause=LIMIT_CAUSE + problem)
        self.require_within_limits()
        if problem == NO_TOKEN:
            raise EngineError(NO_TOKEN_ALLOWED, cause=DEAD_END)
        raise EngineError(NOT_FOLLOWED + problem, cause=STOP_CAUSE + self._get_reason())

    def _get_reason(self) -> str:
        """Returns why the matcher stopped, without text of the caller."""
        return str(self._matcher.stop_reason())


def is_caused_by_constraint(error: AntiphonError) -> bool:
    """Whether the constraint, and not the server, caused an error along a text."""
    return (error.cause or "").startswith((LIMIT_CAUSE, DEAD_END))


def require_compiles(grammar: Grammar, vocabulary: CompilerVocabulary, field: str) -> None:
    """Raises InvalidValue with the compiler's message if a grammar does not compile. Warnings count as
    errors."""
    _, problems = LLMatcher.validate_grammar_with_warnings(
        grammar.text, vocabulary.tokenizer, limits=vocabulary.limits
    )
    if problems:
        raise InvalidValue(f"{field} cannot be compiled: {extract_first_line(problems[0])}", param=field)


def extract_first_line(problem: str) -> str:
    """Returns the first line of the compiler's message. The later lines describe the compiler's state."""
    return problem.strip().partition("\n")[0][:MAX_SHOWN]
