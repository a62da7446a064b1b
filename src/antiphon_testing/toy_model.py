"""A toy language model without weights: its vocabulary and tokenizer, its distribution, its sampler, its
adapters.

The distribution is a hash of the last tokens. It makes no sense, but it has true log-probabilities and
sometimes ends its turn. The vocabulary has bytes, some words, pieces that cut characters in half, and the
control tokens of common chat templates. The sampler is slow and simple: masks, bias and penalties,
temperature, then min-p, top-k, top-p, typical-p, or Mirostat (version 2 only) instead of them.
Log-probabilities serve as logits. Each draw depends on seed, choice and position alone. An adapter changes
the toy model, so its tokens show which adapter computed them.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from hashlib import blake2b
from pathlib import Path

from antiphon.domain.request import Mirostat, Sampling
from antiphon.engines.base import TextPiece, TokenKind, Vocabulary
from antiphon.errors import InvalidValue

CONTEXT_TOKENS = 3
"""The number of past tokens on which the next token depends."""
CANDIDATES = 6
"""The number of likely tokens at each place."""

Weighted = list[tuple[float, int]]
"""Probabilities with their ids, the likeliest first. They need not add up to 1."""

CONTROLS = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "[INST]",
    "[/INST]",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
)
END_CONTROLS = ("</s>", "<|im_end|>", "<|eot_id|>", "<end_of_turn>")
SPACED_WORDS = " the a an and cat dog sat on mat once upon time Hello world is of to in"
UNSPACED_WORDS = "Hello,Once,The,user,assistant,system,model,st,op,END,é,日本,語,ing,er"
PARTIAL_CHARACTERS = (
    b"\xf0\x9f",  # the first half of many emoji, as byte-level tokenizers cut them
    b"\x98\x80",  # the second half of such a character
    b" \xe6",  # a space and the first byte of a three-byte character
)
WORDS: tuple[bytes, ...] = (
    *(b" " + word for word in SPACED_WORDS.encode().split()),
    *UNSPACED_WORDS.encode().split(b","),
    b"  ",
    b"\n\n",
    *PARTIAL_CHARACTERS,
)


class ToyModel:
    """Raw log-probabilities of the next token."""

    def __init__(self, vocabulary: Vocabulary, adapter: str = "") -> None:
        """`adapter` selects another distribution unless it is empty."""
        self._salt = adapter.encode()
        kinds = vocabulary.kinds
        self._speakable = [index for index, kind in enumerate(kinds) if kind is TokenKind.NORMAL]
        self._size = len(kinds)
        self._eos = vocabulary.eos_id
        self._get_distribution = lru_cache(maxsize=4096)(self._compute_distribution)

    def logprobs(self, past_tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Returns the log-probability of each id after these tokens. The probabilities add up to 1."""
        return self._get_distribution(past_tokens[-CONTEXT_TOKENS:])

    def _compute_distribution(self, past_tokens: tuple[int, ...]) -> tuple[float, ...]:
        """Computes the log-probability of each id from a hash of the last tokens."""
        noise = blake2b(self._salt + repr(past_tokens).encode(), digest_size=64).digest()
        logits = [noise[index % 64] / 256 + (index * 37 % 101) / 101 for index in range(self._size)]
        for place in range(CANDIDATES):
            pick = int.from_bytes(noise[place * 4 : place * 4 + 4], "little")
            logits[self._speakable[pick % len(self._speakable)]] += 5.0 + pick % 997 / 500
        if self._eos is not None and noise[63] < 24:
            logits[self._eos] += 6.0
        total = math.log(math.fsum(map(math.exp, logits)))
        return tuple(logit - total for logit in logits)


def find_rank(row: tuple[float, ...], token: int) -> int:
    """Returns the rank of a token in a row of log-probabilities: 1 for the likeliest token."""
    return 1 + sum(value > row[token] for value in row)


def list_best(row: tuple[float, ...], count: int) -> tuple[tuple[int, float], ...]:
    """Returns the likeliest tokens, the best first."""
    best_tokens = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:count]
    return tuple((token, row[token]) for token in best_tokens)


def draw_number(seed: int, choice: int, position: int) -> float:
    """Returns a number in [0, 1) that depends only on these arguments."""
    key = b"".join((value & (2**64 - 1)).to_bytes(8, "little") for value in (seed, choice, position))
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "little") / 2**64


class ToySampler:
    """The draws of one sequence."""

    def __init__(self, sampling: Sampling, choice: int, prompt: Sequence[int], ends: frozenset[int]) -> None:
        """`ends`: tokens that end the sequence, which are forbidden for the first `min_tokens`."""
        if sampling.mirostat is not None and sampling.mirostat.version != Mirostat().version:
            raise InvalidValue("the toy knows version 2 of Mirostat only")
        self._sampling = sampling
        self._choice = choice
        self._ends = ends
        self._prompt = frozenset(prompt)
        self._token_counts: Counter[int] = Counter()
        self._output: list[int] = []
        self._bias = dict(sampling.logit_bias)
        self._allowed = None if sampling.allowed_token_ids is None else frozenset(sampling.allowed_token_ids)
        self._threshold = 2 * sampling.mirostat.target if sampling.mirostat is not None else 0.0

    def draw_next(self, raw_logprobs: Sequence[float]) -> int:
        """Draws the next token from the log-probabilities of all ids."""
        position = self._token_counts.total()
        logits = list(raw_logprobs)
        penalized_prompt = self._prompt if self._sampling.repetition_penalty != 1 else ()
        for token in {*self._bias, *self._token_counts, *penalized_prompt}:
            if 0 <= token < len(logits):
                logits[token] = self._compute_logit(token, raw_logprobs[token])
        excluded = self._list_excluded()
        tokens = [
            token
            for token in range(len(logits))
            if token not in excluded and (self._allowed is None or token in self._allowed)
        ]
        # Of equal tokens the lowest comes first.
        if self._sampling.temperature == 0:
            token = max(tokens, key=logits.__getitem__)
        else:
            ranked = sorted(tokens, key=logits.__getitem__, reverse=True)
            token = self._draw([(logits[token], token) for token in ranked], position)
        self._token_counts[token] += 1
        self._output.append(token)
        return token

    def _list_excluded(self) -> set[int]:
        """Lists the tokens that would be an early end or complete a banned sequence."""
        output = tuple(self._output)
        excluded = {
            banned[-1]
            for banned in self._sampling.banned
            if output[len(output) - len(banned) + 1 :] == banned[:-1]
        }
        return excluded | self._ends if len(output) < self._sampling.min_tokens else excluded

    def _compute_logit(self, token: int, value: float) -> float:
        """Returns a token's log-probability after bias and penalties."""
        sampling, count = self._sampling, self._token_counts[token]
        value += self._bias.get(token, 0.0)
        if count or token in self._prompt:
            factor = sampling.repetition_penalty
            value = value / factor if value > 0 else value * factor
        return value - sampling.frequency_penalty * count - sampling.presence_penalty * bool(count)

    def _draw(self, ranked: Weighted, position: int) -> int:
        """Draws a token from the ranked tokens."""
        sampling = self._sampling
        best = ranked[0][0]
        weights = [(math.exp((value - best) / sampling.temperature), token) for value, token in ranked]
        number = draw_number(sampling.seed, self._choice, position)
        if sampling.mirostat is None:
            return _pick(_truncate(weights, sampling), number)
        return self._draw_mirostat(_normalize(weights), number, sampling.mirostat)

    def _draw_mirostat(self, shares: Weighted, number: float, mirostat: Mirostat) -> int:
        """Draws a token by Mirostat, and moves the threshold."""
        likely_pairs = [pair for pair in shares if pair[0] > 0 and -math.log2(pair[0]) <= self._threshold]
        candidates = _normalize(likely_pairs or shares[:1])
        token = _pick(candidates, number)
        surprise = -math.log2(next(share for share, other in candidates if other == token))
        self._threshold -= mirostat.rate * (surprise - mirostat.target)
        return token


def _normalize(weights: Weighted) -> Weighted:
    """Scales the weights so that they sum to one."""
    total = math.fsum(weight for weight, _ in weights)
    return [(weight / total, token) for weight, token in weights]


def _pick(weights: Weighted, number: float) -> int:
    """Returns the token at which the running sum of the weights exceeds `number` times their sum."""
    target = number * math.fsum(weight for weight, _ in weights)
    for weight, token in weights:
        target -= weight
        if target < 0:
            return token
    return weights[-1][1]


def _truncate(weights: Weighted, sampling: Sampling) -> Weighted:
    """Applies min-p, top-k, top-p and typical-p, in this order."""
    weights = [pair for pair in weights if pair[0] >= sampling.min_p]
    if sampling.top_k > 0:
        weights = weights[: sampling.top_k]
    weights = _take_share(weights, sampling.top_p)
    return weights if sampling.typical_p >= 1 else _apply_typical(weights, sampling.typical_p)


def _take_share(weights: Weighted, share: float) -> Weighted:
    """Returns the fewest entries from the start that together have this share of the sum, at least one
    entry."""
    taken: Weighted = []
    remaining_weight = share * math.fsum(weight for weight, _ in weights)
    for pair in weights:
        taken.append(pair)
        remaining_weight -= pair[0]
        if remaining_weight <= 0:
            break
    return taken


def _apply_typical(weights: Weighted, share: float) -> Weighted:
    """Returns the tokens whose surprise is nearest to the entropy, until they have this share."""
    shares = [pair for pair in _normalize(weights) if pair[0] > 0]
    entropy = -math.fsum(weight * math.log(weight) for weight, _ in shares)
    by_typicality = sorted(shares, key=lambda pair: abs(-math.log(pair[0]) - entropy))
    return sorted(_take_share(by_typicality, share), reverse=True)


def build_vocabulary(
    words: Sequence[bytes] = WORDS, bos: str | None = "<s>", add_bos: bool = True, space_prefix: bool = False
) -> Vocabulary:
    """Builds the vocabulary. Its ids are, in order: unknown, the control tokens, the 256 bytes, the words,
    and one unused id."""
    pieces = [b"", *(b"" for _ in CONTROLS), *(bytes((value,)) for value in range(256)), *words, b""]
    kinds = [TokenKind.UNKNOWN, *(TokenKind.CONTROL for _ in CONTROLS), *(TokenKind.BYTE for _ in range(256))]
    kinds += [TokenKind.NORMAL for _ in words] + [TokenKind.UNUSED]
    ids = {name: index for index, name in enumerate(CONTROLS, start=1)}
    return Vocabulary(
        pieces=tuple(pieces),
        kinds=tuple(kinds),
        names={index: name for name, index in ids.items()},
        end_ids=tuple(ids[name] for name in END_CONTROLS),
        bos_id=None if bos is None else ids[bos],
        eos_id=ids["</s>"],
        add_bos=add_bos,
        space_prefix=space_prefix,
    )


@dataclass(frozen=True)
class ToyTokenizer:
    """Splits texts into the longest pieces, from the left. The vocabulary must contain every byte."""

    vocabulary: Vocabulary

    @cached_property
    def _ids(self) -> dict[bytes, int]:
        """The id of each token that plain text may use, by its bytes."""
        usable = (TokenKind.BYTE, TokenKind.NORMAL)
        table = zip(self.vocabulary.pieces, self.vocabulary.kinds, strict=True)
        return {piece: index for index, (piece, kind) in enumerate(table) if kind in usable}

    @cached_property
    def _max_piece_bytes(self) -> int:
        """The number of bytes of the longest piece."""
        return max(map(len, self._ids))

    @cached_property
    def controls(self) -> dict[str, int]:
        """Id of each control token, by its text."""
        return {name: index for index, name in self.vocabulary.names.items()}

    @cached_property
    def _control_pattern(self) -> re.Pattern[str]:
        """A pattern that matches any control token."""
        return re.compile("(" + "|".join(map(re.escape, sorted(self.controls, key=len, reverse=True))) + ")")

    def encode_plain(self, text: str | bytes) -> tuple[int, ...]:
        """Returns the ids of a text without control tokens. Adds no space before the text."""
        data = text.encode() if isinstance(text, str) else text
        return tuple(self._match_longest(data))

    def _match_longest(self, data: bytes) -> Iterator[int]:
        """Yields the ids of the longest matching pieces, from the left."""
        index = 0
        while index < len(data):
            for size in range(min(self._max_piece_bytes, len(data) - index), 0, -1):
                token = self._ids.get(data[index : index + size])
                if token is not None:
                    yield token
                    index += size
                    break

    def encode(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        """Returns the ids of the joined pieces. Plain text on both sides of an edge between two pieces is
        tokenized as one text."""
        ids: list[int] = []
        if add_bos and self.vocabulary.bos_id is not None:
            ids.append(self.vocabulary.bos_id)
        for index, part in enumerate(self._split_at_controls(pieces)):
            if isinstance(part, int):
                ids.append(part)
            else:
                prefix = " " if index == 0 and self.vocabulary.space_prefix else ""
                ids.extend(self.encode_plain(prefix + part))
        return tuple(ids)

    def _split_at_controls(self, pieces: Sequence[TextPiece]) -> Iterator[str | int]:
        """Yields the plain texts and the ids of the control tokens between them, in order."""
        text = ""
        for piece in pieces:
            for part in self._control_pattern.split(piece.text) if piece.control else (piece.text,):
                token = self.controls.get(part) if piece.control else None
                if token is None:
                    text += part
                    continue
                if text:
                    yield text
                text = ""
                yield token
        if text:
            yield text


class ScriptedAdapters:
    """The known adapters, their users, and the toy model with each adapter."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.paths: dict[str, str] = {}
        """The paths, by digest, of adapters that new sequences may use."""
        self.unfit: set[str] = set()
        """Digests that are refused, as a library refuses a file."""
        self.running: Counter[str] = Counter()
        """The number of running sequences by digest, including those of removed adapters."""
        self._vocabulary = vocabulary
        self._toys: dict[str | None, ToyModel] = {}

    def add(self, digest: str, path: str) -> None:
        """Adds an adapter. Raises InvalidValue if its digest is in `unfit`, or if its file is missing."""
        if digest in self.unfit:
            raise InvalidValue("the library refuses the adapter", param="adapter")
        if not Path(path).is_file():
            raise InvalidValue(f"the adapter {Path(path).name} cannot be read", param="adapter")
        self.paths[digest] = path

    def remove(self, digest: str) -> None:
        self.paths.pop(digest, None)

    @contextmanager
    def use(self, digest: str | None) -> Iterator[None]:
        """Counts a sequence as running with the adapter until the block ends. Raises InvalidValue for an
        unknown adapter."""
        if digest is None:
            yield
            return
        if digest not in self.paths:
            raise InvalidValue(f"the engine has no adapter {digest!r}", param="adapter")
        self.running[digest] += 1
        try:
            yield
        finally:
            self.running[digest] -= 1

    def get_model(self, digest: str | None) -> ToyModel:
        """Returns the toy model with an adapter."""
        if digest not in self._toys:
            self._toys[digest] = ToyModel(self._vocabulary, digest or "")
        return self._toys[digest]
