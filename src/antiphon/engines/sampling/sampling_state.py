"""The state on which the draws of one sequence depend: its bans, penalties, Mirostat threshold and random
numbers.

A state is made once for a sequence and changes only when the sequence draws a token, so it is still valid
after a preemption. It never iterates over the whole vocabulary.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import InitVar, dataclass, field
from hashlib import blake2b
from math import exp, isnan, log

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.request import Mirostat, Sampling
from antiphon.errors import InvalidValue

Floats = NDArray[np.float32]
Ids = NDArray[np.intp]

TOP_COUNT, LONG_TOP_COUNT = 64, 256
"""The number of a row's largest logits that are examined first. LONG_TOP_COUNT applies if top-k is above
TOP_COUNT."""

ESTIMATION_TOKENS = 100
"""The number of the likeliest tokens from which version 1 of Mirostat estimates the exponent of Zipf's
law."""

VERSIONS = (1, 2)

MAX_GREEDY_TEMPERATURE = 1e-5
"""At this temperature and below, the likeliest token is taken. Division by a lower temperature would
overflow, and a draw would give the same token."""

MAX_LOGIT = np.float32(1e30)
"""No bias or penalty raises a logit above this. Otherwise a difference of two logits could be NaN."""

FIRST_CAPACITY = 64
"""The number of output tokens for which the first arrays of TokenPenalties have room. The arrays double when
they are full."""

STRIDE = np.uint64(0x9E3779B97F4A7C15)
FIRST_FACTOR, SECOND_FACTOR = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
S27, S30, S31, S11 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(11)

WORD = 2**64 - 1
"""Keeps the low 64 bits of a sum or product."""


class MirostatThreshold:
    """Mirostat's threshold of one sequence: the largest surprise in bits that a token may have. It begins at
    twice the target."""

    __slots__ = ("_rate", "_target", "threshold", "version")

    def __init__(self, options: Mirostat) -> None:
        if options.version not in VERSIONS:
            raise InvalidValue("Mirostat has the versions 1 and 2", param="mirostat_mode")
        if not 0 < options.target < float("inf"):
            raise InvalidValue(
                "mirostat_target is the surprise to keep, in bits; it must be above 0",
                param="mirostat_target",
            )
        if not 0 <= options.rate <= 1:
            raise InvalidValue("mirostat_lr must be from 0 to 1", param="mirostat_lr")
        self.version = options.version
        self._target = options.target
        self._rate = options.rate
        self.threshold = 2.0 * options.target

    def find_min_weight(self, mass: float) -> float:
        """For version 2: returns the smallest weight whose surprise does not exceed the threshold. `mass`:
        the sum of the weights."""
        return float(mass * 2.0 ** -max(self.threshold, 0.0))

    def count_kept(self, top_weights: NDArray[np.float64], vocabulary_size: int) -> int:
        """For version 1: returns the number of the likeliest tokens to keep, by Zipf's law. `top_weights`:
        the largest weights, in descending order."""
        top_weights = top_weights[:ESTIMATION_TOKENS][top_weights[:ESTIMATION_TOKENS] > 0]
        if len(top_weights) < 2:
            return 1
        ranks = np.arange(1, len(top_weights) + 1, dtype=np.float64)
        rank_steps, weight_steps = np.log(ranks[1:] / ranks[:-1]), np.log(top_weights[:-1] / top_weights[1:])
        exponent = float((rank_steps * weight_steps).sum() / (rank_steps * rank_steps).sum())
        nats = max(self.threshold, 0.0) * log(2.0)
        if exponent <= 0:
            return vocabulary_size  # all weights are equal, so there is no tail to cut
        excess = exponent - 1.0
        # By logarithms: (excess * 2^threshold / (1 - vocabulary^-excess)) ^ (1 / exponent). For an excess of
        # 0, this is the mathematical limit.
        scale = log(vocabulary_size) if abs(excess) < 1e-9 else (1.0 - vocabulary_size**-excess) / excess
        log_size = (nats - log(scale)) / exponent
        return vocabulary_size if log_size > log(vocabulary_size) else max(1, round(exp(log_size)))

    def observe(self, surprise: float) -> None:
        """Moves the threshold after a token with this surprise in bits."""
        self.threshold -= self._rate * (surprise - self._target)


class BannedSequences:
    """Token sequences that one output must not contain. `find_banned` compares only the sequences whose last
    token but one equals the latest token of the output."""

    def __init__(self, sequences: Iterable[tuple[int, ...]]) -> None:
        """Each sequence has at least one token."""
        always_banned: set[int] = set()
        self._banned_after: dict[int, list[tuple[tuple[int, ...], int]]] = {}
        longest = 0
        for *prefix, last_token in sequences:
            if prefix:
                self._banned_after.setdefault(prefix[-1], []).append((tuple(prefix), last_token))
                longest = max(longest, len(prefix))
            else:
                always_banned.add(last_token)
        self._always_banned: Ids = np.array(sorted(always_banned), dtype=np.intp)
        self._output: deque[int] = deque(maxlen=longest)

    def add(self, token: int) -> None:
        """Extends the output by a token."""
        self._output.append(token)

    def find_banned(self) -> Ids:
        """Returns the tokens that would complete a banned sequence as the next token. A token can occur
        twice."""
        candidates = self._banned_after.get(self._output[-1], ()) if self._output else ()
        if not candidates:
            return self._always_banned
        output = tuple(self._output)
        completing_tokens = [
            last_token for prefix, last_token in candidates if output[-len(prefix) :] == prefix
        ]
        return (
            np.concatenate((self._always_banned, np.array(completing_tokens, dtype=np.intp)))
            if completing_tokens
            else self._always_banned
        )


class TokenPenalties:
    """The penalties of the tokens in prompt and output. The logits of other tokens do not change."""

    def __init__(self, sampling: Sampling, prompt: Iterable[int]) -> None:
        prompt_tokens = sorted(set(prompt)) if sampling.repetition_penalty != 1 else []
        self._indices = {token: index for index, token in enumerate(prompt_tokens)}
        self._ids: Ids = np.array([*prompt_tokens, *[0] * FIRST_CAPACITY], dtype=np.intp)
        self._costs: Floats = np.zeros(len(self._ids), dtype=np.float32)
        """The presence and frequency penalties of the token at the same index."""
        self._presence = sampling.presence_penalty
        self._frequency = sampling.frequency_penalty
        self._counts: dict[int, int] = {}
        """The occurrences of each token in the output."""
        self._factor_above_0 = np.float32(1.0 / sampling.repetition_penalty)
        self._factor_below_0 = np.float32(sampling.repetition_penalty)

    def add(self, token: int) -> None:
        """Counts one more token of the output."""
        index = self._indices.setdefault(token, len(self._indices))
        if index == len(self._ids):
            self._ids = np.concatenate((self._ids, np.zeros_like(self._ids)))
            self._costs = np.concatenate((self._costs, np.zeros_like(self._costs)))
        count = self._counts[token] = self._counts.get(token, 0) + 1
        self._ids[index] = token
        self._costs[index] = self._presence + self._frequency * count

    def penalise(self, row: Floats) -> None:
        """Applies the penalties to a row of logits, in place."""
        ids = self._ids[: len(self._indices)]
        values = row[ids]
        if self._factor_below_0 != 1:
            values *= np.where(values > 0, self._factor_above_0, self._factor_below_0)
        values -= self._costs[: len(ids)]
        row[ids] = np.minimum(values, MAX_LOGIT)


@dataclass(slots=True, eq=False)
class SamplingState:
    """The state on which the draws of one sequence depend. Raises InvalidValue for parameters that are
    invalid for this vocabulary."""

    sampling: Sampling
    choice: int
    logprobs: int | None
    """The number of the likeliest tokens that are reported with their log-probabilities, besides the drawn
    token. None reports no log-probabilities."""
    prompt: InitVar[Sequence[int]]
    end_tokens: InitVar[Iterable[int]]
    """The model's end-of-generation tokens."""
    stop_tokens: InitVar[Iterable[int]]
    """Tokens that also end this sequence."""
    vocabulary_size: InitVar[int]
    listed_tokens: tuple[int, ...] = ()
    """Tokens whose log-probabilities are reported instead of the k likeliest."""

    position: int = field(init=False, default=0)
    """The number of drawn tokens, which is the position of the next draw."""
    key: int = field(init=False, default=0)
    """A 64-bit hash of seed and choice."""
    is_greedy: bool = field(init=False, default=False)
    mirostat: MirostatThreshold | None = field(init=False, default=None)
    """Mirostat's threshold, if it is on."""
    mask: NDArray[np.bool_] | None = field(init=False, default=None)
    """The tokens that a constraint allows in the next draw, one flag for each id; set before each draw."""
    is_forced: bool = field(init=False, default=False)
    """Whether the mask allows only one token."""
    is_simple: bool = field(init=False, default=False)
    """Whether only temperature, min-p, top-k and top-p decide the draws while `mask` is None: see
    `simple_rows`."""
    has_filter: bool = field(init=False, default=False)
    """Whether min-p, top-k or top-p applies. False for a greedy sequence."""
    inverse_temperature: np.float32 = field(init=False, default=np.float32(1.0))
    """1 / temperature; 1 for a greedy sequence."""
    _penalties: TokenPenalties | None = field(init=False, default=None)
    _bias: tuple[Ids, Floats] | None = field(init=False, default=None)
    _allowed_ids: Ids | None = field(init=False, default=None)
    _bans: BannedSequences | None = field(init=False, default=None)
    _changes_every_draw: bool = field(init=False, default=False)
    """Whether logit bias, penalties, or allowed or banned tokens apply to every draw."""
    _banned_early: Ids | None = field(init=False, default=None)
    """Tokens that must not be drawn before `min_tokens`."""

    def __post_init__(
        self,
        prompt: Sequence[int],
        end_tokens: Iterable[int],
        stop_tokens: Iterable[int],
        vocabulary_size: int,
    ) -> None:
        sampling = self.sampling
        require_valid_sampling(sampling, vocabulary_size)
        require_token_ids("logprob_token_ids", self.listed_tokens, vocabulary_size)
        self.key = hash_seed(sampling.seed, self.choice)
        self.is_greedy = sampling.temperature <= MAX_GREEDY_TEMPERATURE or (
            sampling.top_k == 1 and sampling.mirostat is None
        )
        if not self.is_greedy and sampling.mirostat is not None:
            self.mirostat = MirostatThreshold(sampling.mirostat)
        if sampling.repetition_penalty != 1 or sampling.presence_penalty or sampling.frequency_penalty:
            self._penalties = TokenPenalties(sampling, prompt)
        if sampling.logit_bias:
            self._bias = sum_biases(sampling.logit_bias)
        if sampling.allowed_token_ids is not None:
            self._allowed_ids = np.unique(np.array(sampling.allowed_token_ids, dtype=np.intp))
        if sampling.banned:
            self._bans = BannedSequences(sampling.banned)
        changes = (self._penalties, self._bias, self._allowed_ids, self._bans)
        self._changes_every_draw = any(change is not None for change in changes)
        if sampling.min_tokens > 0:
            banned_early = {*stop_tokens} if sampling.ignore_eos else {*stop_tokens, *end_tokens}
            tokens = [token for token in sorted(banned_early) if 0 <= token < vocabulary_size]
            self._banned_early = np.array(tokens, dtype=np.intp)
        has_simple_filters = self.mirostat is None and sampling.typical_p >= 1 and sampling.top_k <= TOP_COUNT
        self.is_simple = (
            self.logprobs is None
            and not self._changes_every_draw
            and self._banned_early is None
            and (self.is_greedy or has_simple_filters)
        )
        if not self.is_greedy:
            self.inverse_temperature = np.float32(1.0 / sampling.temperature)
            self.has_filter = sampling.min_p > 0 or sampling.top_k > 0 or sampling.top_p < 1

    @property
    def changes_logits(self) -> bool:
        """Whether the next draw changes the model's logits."""
        if self._banned_early is not None and self.position >= self.sampling.min_tokens:
            self._banned_early = None
        return self._changes_every_draw or self._banned_early is not None or self.mask is not None

    def may_forbid(self, tokens: Sequence[int]) -> bool:
        """Whether the settings can forbid one of these next tokens. If they can, the tokens must be drawn one
        by one, even if a constraint forces them."""
        if self._bans is not None or self._allowed_ids is not None:
            return True
        if self._banned_early is None:
            return False
        tokens_before_minimum = tokens[: max(self.sampling.min_tokens - self.position, 0)]
        return bool(np.isin(tokens_before_minimum, self._banned_early).any())

    @property
    def needs_only_argmax(self) -> bool:
        """Whether the next draw is the model's likeliest token, without log-probabilities."""
        return self.is_greedy and self.logprobs is None and not self.changes_logits

    def apply_to(self, row: Floats) -> None:
        """Applies logit bias, penalties and masks to a row, in place. Masks come last, because they set
        logits to -infinity, to which nothing must be added."""
        if self._bias is not None:
            ids, values = self._bias
            row[ids] += values
        if self._penalties is not None:
            self._penalties.penalise(row)
        if self._allowed_ids is not None:
            allowed_logits = row[self._allowed_ids]
            row.fill(-np.inf)
            row[self._allowed_ids] = allowed_logits
        if self._bans is not None:
            row[self._bans.find_banned()] = -np.inf
        if self._banned_early is not None:
            row[self._banned_early] = -np.inf
        if self.mask is not None:
            row[~self.mask] = -np.inf

    def accept(self, token: int, surprise: float | None = None) -> None:
        """Records the drawn token. `surprise`: in bits, if Mirostat is on."""
        self.position += 1
        if self._penalties is not None:
            self._penalties.add(token)
        if self._bans is not None:
            self._bans.add(token)
        if self.mirostat is not None and surprise is not None:
            self.mirostat.observe(surprise)


def require_valid_sampling(sampling: Sampling, vocabulary_size: int) -> None:
    """Raises InvalidValue for a value outside its valid range. A dialect may allow a smaller range."""
    invalid = {
        "temperature": not 0 <= sampling.temperature < float("inf"),
        "top_p": not 0 <= sampling.top_p <= 1,
        "typical_p": not 0 <= sampling.typical_p <= 1,
        "min_p": not 0 <= sampling.min_p <= 1,
        "top_k": sampling.top_k < 0,
        "repetition_penalty": not 0 < sampling.repetition_penalty < float("inf"),
        "presence_penalty": not abs(sampling.presence_penalty) < float("inf"),
        "frequency_penalty": not abs(sampling.frequency_penalty) < float("inf"),
        "logit_bias": any(isnan(value) for _, value in sampling.logit_bias),
        "allowed_token_ids": sampling.allowed_token_ids is not None and not sampling.allowed_token_ids,
        "banned": not all(sampling.banned),
    }
    for name, is_invalid in invalid.items():
        if is_invalid:
            raise InvalidValue(f"{name} is {getattr(sampling, name)!r}, which has no meaning", param=name)
    biased = [token for token, _ in sampling.logit_bias]
    banned = [token for tokens in sampling.banned for token in tokens]
    named_values = (
        ("logit_bias", biased),
        ("allowed_token_ids", sampling.allowed_token_ids or ()),
        ("banned", banned),
    )
    for name, tokens in named_values:
        require_token_ids(name, tokens, vocabulary_size)


def require_token_ids(name: str, tokens: Iterable[int], vocabulary_size: int) -> None:
    """Raises InvalidValue for an id outside the vocabulary."""
    for token in tokens:
        if not 0 <= token < vocabulary_size:
            raise InvalidValue(
                f"{name} holds {token}, no token id of this model; "
                f"its ids go from 0 to {vocabulary_size - 1}",
                param=name,
            )


def sum_biases(biases: Iterable[tuple[int, float]]) -> tuple[Ids, Floats]:
    """Returns token ids and their biases. Several biases of one token are added."""
    sums: dict[int, float] = {}
    for token, value in biases:
        sums[token] = sums.get(token, 0.0) + value
    with np.errstate(over="ignore"):  # a bias too large for float32 bans the token
        values = np.array(list(sums.values()), dtype=np.float64).clip(max=float(MAX_LOGIT)).astype(np.float32)
    return np.array(list(sums), dtype=np.intp), values


# --- randomness


def hash_seed(seed: int, choice: int) -> int:
    """Hashes seed and choice to 64 bits."""
    packed = (seed % 2**64).to_bytes(8, "little") + choice.to_bytes(8, "little")
    return int.from_bytes(blake2b(packed, digest_size=8).digest(), "little")


def draw_one_uniform(key: int, position: int) -> float:
    """Returns what `draw_uniform` returns for one key. Arrays of one number take ten times as long."""
    state = (key + (position + 1) * int(STRIDE)) & WORD
    state = (state ^ (state >> 30)) * int(FIRST_FACTOR) & WORD
    state = (state ^ (state >> 27)) * int(SECOND_FACTOR) & WORD
    return float(((state ^ (state >> 31)) >> 11) * 2.0**-53)


def draw_uniform(keys: Sequence[int] | NDArray[np.uint64], positions: Sequence[int]) -> NDArray[np.float64]:
    """Returns random numbers in [0, 1), one for each key. Each number depends only on its key and position.
    The generator is SplitMix64 (Steele and others, 2014), started at the key."""
    state = np.array(keys, dtype=np.uint64) + np.array(positions, dtype=np.uint64) * STRIDE + STRIDE
    state = (state ^ (state >> S30)) * FIRST_FACTOR
    state = (state ^ (state >> S27)) * SECOND_FACTOR
    return ((state ^ (state >> S31)) >> S11).astype(np.float64) * 2.0**-53
