"""Keeps the keys of JSON objects unique, because a grammar cannot do this.

A guard follows the JSON of one text token by token. It removes from each mask the tokens that would repeat or
misspell a key. A key is misspelled if it is not in the one spelling that `json_text` allows, because another
spelling could hide a repetition. The guard must be fast, so it does not read every token of the vocabulary.
Tables have the effect of every token on keys, for each state of a text. A state is the expected next part,
and whether an object is open. Most tokens have no effect on a key. All other tokens are in three groups:
tokens that are always refused, tokens that are refused for some keys of the open object, and tokens that must
be read."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import copy
from functools import cached_property
from typing import NamedTuple

from antiphon.constraints.grammar_types import JsonPlaces
from antiphon.constraints.json_text import (
    BACKSLASH,
    ESCAPES,
    PARTIAL_ESCAPES,
    QUOTE,
    JsonFinder,
    JsonMode,
    JsonText,
    TextState,
)
from antiphon.errors import EngineError

Bit = tuple[int, int]
"""Removes ids from a mask: the index of a byte of the mask, and the bits that stay in this byte."""

UNKNOWN = b"\xff"
"""Stands for the unknown text of an open key. It occurs in no text."""

LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
NAMED = ("properties", "patternProperties", "$defs", "definitions")
SINGLE = ("items", "additionalProperties")

COMPLETE_KEYWORDS = frozenset({"const", "enum", "$ref", "anyOf", "oneOf", "allOf"})
"""Keywords that restrict the values of a schema completely: by listing them, or by other schemas."""


class SuspectTokens(NamedTuple):
    """Tokens that can repeat or misspell a key in one state of a text."""

    refused: Sequence[Bit]
    """Tokens that repeat or misspell a key after any text in this state."""
    by_key: Mapping[bytes, Sequence[int]]
    """Tokens that complete a key of the open object, when no part of the key is written yet."""
    keys: frozenset[bytes]
    """The keys of `by_key`."""
    undecided: Sequence[int]
    """Tokens that must be read to decide."""


class KeyTables:
    """Tables of the tokens of one vocabulary, by their effect on keys. Any thread may use it."""

    def __init__(self, spellings: Sequence[bytes]) -> None:
        """`spellings`: the bytes that each id adds to a text. An id without text has a name that occurs in no
        text."""
        self.spellings = spellings
        closing = sorted((piece, token) for token, piece in enumerate(spellings) if QUOTE in piece)
        self._closing_pieces = [piece for piece, _ in closing]
        self._closing_ids = [token for _, token in closing]
        self._string_starters = [
            token for piece, token in closing if piece.count(QUOTE) > 1 or BACKSLASH in piece
        ]
        """Tokens that can begin a string and complete or misspell it."""
        self.tokens_with_value = [
            token for token in self._string_starters if self._contains_refused_value(token)
        ]
        """Tokens that contain the beginning of a value, and repeat or misspell a key in it."""
        self._key_openers: dict[tuple[JsonMode, bool], Sequence[int]] = {}
        self._suspects: dict[tuple[JsonMode, bool, bytes], SuspectTokens] = {}

    def find_completing_tokens(self, rest: bytes) -> Sequence[int]:
        """Returns tokens that begin with the rest of a key and its closing quote."""
        rest += QUOTE
        begin = end = bisect_left(self._closing_pieces, rest)
        while end < len(self._closing_pieces) and self._closing_pieces[end].startswith(rest):
            end += 1
        return self._closing_ids[begin:end]

    @cached_property
    def _ids(self) -> Mapping[bytes, Sequence[int]]:
        """The ids of the tokens with each spelling."""
        ids: dict[bytes, tuple[int, ...]] = {}
        for token, piece in enumerate(self.spellings):
            ids[piece] = (*ids.get(piece, ()), token)
        return ids

    def find_beginning_tokens(self, rest: bytes) -> Iterator[int]:
        """Yields tokens that are the rest of a key, without its quote, or a beginning of the rest."""
        for size in range(1, len(rest) + 1):
            yield from self._ids.get(rest[:size], ())

    def find_key_openers(self, text: JsonText) -> Sequence[int]:
        """Returns tokens after which an object needs another key, for a text that is not inside a key."""
        in_object = bool(text.levels) and text.levels[-1] is not None
        state = (text.mode, in_object)
        if state not in self._key_openers:
            empty = JsonText(text.mode, (frozenset() if in_object else None,))
            self._key_openers[state] = [
                token for token, piece in enumerate(self.spellings) if _opens_key(empty, piece)
            ]
        return self._key_openers[state]

    def get_suspects(self, text: JsonText) -> SuspectTokens:
        """Returns the tokens that can repeat or misspell a key in the current state of a text."""
        in_object = bool(text.levels) and text.levels[-1] is not None
        state = (text.mode, in_object, text.escape)
        suspects = self._suspects.get(state)
        if suspects is None:
            suspects = self._suspects[state] = self._find_suspects(*state)
        return suspects

    def _find_suspects(self, mode: JsonMode, in_object: bool, escape: bytes) -> SuspectTokens:
        """Finds the tokens that can repeat or misspell a key. The state of the text is the mode, whether an
        object is open, and the incomplete escape."""
        key_start = UNKNOWN if mode is JsonMode.KEY else b""
        start = JsonText(mode, (frozenset() if in_object else None,), key_start, escape)
        refused, tokens = (
            self._classify_in_key(escape) if mode is JsonMode.KEY else ([], self._string_starters)
        )
        undecided = list[int]()
        by_key: dict[bytes, list[int]] = defaultdict(list)
        for token in tokens:
            piece = self.spellings[token]
            text, end = start.read(piece)
            keys = (text.levels and text.levels[0]) or ()
            if text.mode is JsonMode.REFUSED:
                refused.append(token)
            else:
                has_string_after = QUOTE in piece[end:] and text.mode is JsonMode.DONE
                has_second_key = mode is JsonMode.KEY and len(keys) > 1
                if has_string_after or has_second_key:
                    undecided.append(token)
            for key in keys:
                by_key[key.removeprefix(UNKNOWN)].append(token)
        return SuspectTokens(_build_bits(refused), by_key, frozenset(by_key), undecided)

    def _classify_in_key(self, escape: bytes) -> tuple[list[int], list[int]]:
        """Finds the tokens that matter inside a key, after this incomplete escape. Returns the tokens whose
        first byte misspells the key, and the tokens that can complete or misspell it."""
        refused, tokens = list[int](), list[int]()
        for token, piece in enumerate(self.spellings):
            longer_escape = escape + piece[:1]
            is_complete = not escape or longer_escape in ESCAPES
            if not is_complete and longer_escape not in PARTIAL_ESCAPES:
                refused.append(token)
            elif not is_complete or QUOTE in piece or BACKSLASH in piece:
                tokens.append(token)
        return refused, tokens

    def _contains_refused_value(self, token: int) -> bool:
        """Whether the token contains the beginning of a JSON value, and repeats or misspells a key in it."""
        piece = self.spellings[token]
        starts = (index for index, sign in enumerate(piece) if sign in b"{[")
        return any(JsonText().read(piece, start)[0].mode is JsonMode.REFUSED for start in starts)


def _opens_key(text: JsonText, piece: bytes) -> bool:
    """Whether a key can be needed or open after a token."""
    if QUOTE not in piece and b"," not in piece and not piece.isspace():
        return False
    next_text, end = text.read(piece)
    return next_text.mode in (JsonMode.KEY, JsonMode.NEXT_KEY) or b"," in piece[end:]


def _build_bits(tokens: Iterable[int]) -> Sequence[Bit]:
    """Converts token ids to the bits that remove these ids from a mask."""
    masks: dict[int, int] = defaultdict(lambda: 0xFF)
    for token in tokens:
        masks[token >> 3] &= ~(1 << (token & 7))
    return tuple(masks.items())


class KeySearch(NamedTuple):
    """The latest search for keys of an object that begin like its open key."""

    keys: frozenset[bytes]
    key_start: bytes
    """The written part of the open key."""
    matches: list[bytes]


class KeyGuard:
    """Keeps the keys of one text unique. It is not thread safe."""

    def __init__(self, places: JsonPlaces, tables: KeyTables) -> None:
        self._tables = tables
        self._finder = JsonFinder(places, tables.spellings.__getitem__)
        self._text_state = self._finder.start
        self._last_search = KeySearch(frozenset(), b"", [])
        self.keys_can_run_out = places.keys_can_run_out
        """Whether the text can reach a state in which no new key is possible."""
        self.can_continue_by_state: dict[TextState, bool] = {}
        """Results of the search for dead ends in `matching`: whether any text can follow, by the state after
        a possible next token. Cleared when the open objects or their keys change."""

    def copy(self) -> "KeyGuard":
        """Returns an independent copy with the same text."""
        return copy(self)

    def consume(self, tokens: Iterable[int]) -> None:
        """Appends tokens. Raises EngineError for a token that repeats or misspells a key."""
        for token in tokens:
            text_state = self._read(self._text_state, token)
            if text_state is None:
                raise EngineError("the text got a token that repeats or misspells a key")
            if not _are_alike(text_state, self._text_state):
                self.can_continue_by_state = {}
            self._text_state = text_state

    def read_token(self, token: int) -> TextState | None:
        """Returns the state of the text after a token; None if the token is refused."""
        return self._read(self._text_state, token)

    def cut_to_allowed(self, tokens: list[int]) -> list[int]:
        """Returns the tokens before the first token that repeats or misspells a key."""
        text_state: TextState | None = self._text_state
        for index, token in enumerate(tokens):
            if text_state is None or (text_state := self._read(text_state, token)) is None:
                return tokens[:index]
        return tokens

    def restrict(self, mask: bytes) -> bytes:
        """Returns the mask without tokens that repeat or misspell a key."""
        bits, refused = list[Bit](), list[int]()
        suspected = [] if self._finder.is_single_value else [*self._tables.tokens_with_value]
        for state in self._text_state.states:
            suspects = self._tables.get_suspects(state)
            bits += suspects.refused
            suspected += suspects.undecided
            if keys := state.levels and state.levels[-1]:
                refused += self._find_completing_tokens(state, keys, suspects)
        refused += [
            token for token in suspected if _is_allowed(mask, token) and self.read_token(token) is None
        ]
        return remove_tokens(mask, refused, bits) if bits or refused else mask

    def find_risky_tokens(self, mask: bytes) -> list[int]:
        """Returns the allowed tokens after which the open key begins like an existing key, or an object needs
        another key. Such a token can lead to a dead end, because perhaps only existing keys are possible."""
        tokens = list[int]()
        for state in self._text_state.states:
            if state.mode is not JsonMode.KEY:
                tokens += self._tables.find_key_openers(state)
            elif keys := state.levels[-1]:
                key_start = state.key + state.escape
                for key in self._find_keys_with_start(keys, key_start):
                    tokens += self._tables.find_beginning_tokens(key[len(key_start) :])
        return [token for token in {*tokens} if _is_allowed(mask, token) and self._is_risky_token(token)]

    def _is_risky_token(self, token: int) -> bool:
        """Whether a key is needed after the token, and perhaps only existing keys are possible."""
        text_state = self.read_token(token)
        return text_state is not None and any(map(_is_risky_state, text_state.states))

    def _find_completing_tokens(
        self, state: JsonText, keys: frozenset[bytes], suspects: SuspectTokens
    ) -> Iterator[int]:
        """Yields the tokens that complete one of the keys."""
        key_start = state.key + state.escape
        if state.mode is not JsonMode.KEY or not key_start:
            for key in keys & suspects.keys:
                yield from suspects.by_key[key]
        else:
            for key in self._find_keys_with_start(keys, key_start):
                yield from self._tables.find_completing_tokens(key[len(key_start) :])

    def _find_keys_with_start(self, keys: frozenset[bytes], key_start: bytes) -> list[bytes]:
        """Returns the keys that begin like the open key. While the same key is open, it searches only the
        result of the last call."""
        last_search = self._last_search
        candidates = (
            last_search.matches
            if last_search.keys is keys and key_start.startswith(last_search.key_start)
            else keys
        )
        matches = [key for key in candidates if key.startswith(key_start)]
        self._last_search = KeySearch(keys, key_start, matches)
        return matches

    def _read(self, text_state: TextState, token: int) -> TextState | None:
        """Returns the state of the text after a token; None if the token repeats or misspells a key."""
        return self._finder.read(text_state, self._tables.spellings[token])


def _is_allowed(mask: bytes, token: int) -> bool:
    """Whether the mask contains the token."""
    return bool(mask[token >> 3] >> (token & 7) & 1)


def _is_risky_state(state: JsonText) -> bool:
    """Whether a key is needed, and perhaps only existing keys are possible."""
    keys = state.levels[-1] if state.levels else None
    if not keys or state.mode is JsonMode.NEXT_KEY:
        return bool(keys)
    key_start = state.key + state.escape
    return state.mode is JsonMode.KEY and any(key.startswith(key_start) for key in keys)


def _are_alike(left: TextState, right: TextState) -> bool:
    """Whether the same objects are open, with the same keys."""
    pairs = zip(left.states, right.states, strict=False)
    return len(left.states) == len(right.states) and all(a.levels is b.levels for a, b in pairs)


def remove_tokens(mask: bytes, tokens: Iterable[int], bits: Iterable[Bit] = ()) -> bytes:
    """Clears tokens in a mask of one bit per token. `bits`: masks of single bytes, applied first."""
    allowed = bytearray(mask)
    for index, kept_bits in bits:
        allowed[index] &= kept_bits
    for token in tokens:
        allowed[token >> 3] &= ~(1 << (token & 7))
    return bytes(allowed)


def has_open_objects(schema: object) -> bool:
    """Whether a compiled schema, or any schema in it, may accept keys that it does not list. The result False
    is certain."""
    if not isinstance(schema, dict):
        return schema is not False
    return _is_open(schema) or any(map(has_open_objects, _list_schemas(schema)))


def has_key_patterns(schema: object) -> bool:
    """Whether the keys of any object must match a pattern with an end. Such an object may have few possible
    keys."""
    if not isinstance(schema, dict):
        return False
    patterns = schema.get("patternProperties")
    has_anchored_pattern = isinstance(patterns, dict) and any("$" in pattern for pattern in patterns)
    return has_anchored_pattern or any(map(has_key_patterns, _list_schemas(schema)))


def _is_open(schema: dict[str, object]) -> bool:
    """Whether the schema itself accepts keys that it does not list, in an object or in the items of an
    array."""
    if not schema.keys().isdisjoint(COMPLETE_KEYWORDS):
        return False
    if "type" not in schema:
        return True
    allowed_type = schema["type"]
    types = allowed_type if isinstance(allowed_type, list) else [allowed_type]
    has_all_keys = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return ("object" in types and not has_all_keys) or ("array" in types and "items" not in schema)


def _list_schemas(schema: dict[str, object]) -> Iterator[object]:
    """Yields the values of the keywords that contain schemas."""
    for name in SINGLE:
        if name in schema:
            yield schema[name]
    for name in LISTS:
        if isinstance(several := schema.get(name), list):
            yield from several
    for name in NAMED:
        if isinstance(by_name := schema.get(name), dict):
            yield from by_name.values()
