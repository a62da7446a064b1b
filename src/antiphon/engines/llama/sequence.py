"""One sequence as the scheduler and the decode loop see it: which tokens it has, and how many of them are
computed. Values only; who runs when is the scheduler's to decide."""

from collections.abc import Sequence as Tokens
from enum import StrEnum

from antiphon.engines.base import StopCause, TokenRequest


class Phase(StrEnum):
    """Where a sequence stands."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """It has a slot, and more than one of its tokens is not computed yet."""
    DECODE = "decode"
    """All of its tokens but the last are computed: the next step gives it a token."""
    OVER = "over"
    """Finished, failed or closed; it holds nothing."""


class Sequence:
    """Owned by the decode thread once it is submitted."""

    __slots__ = (
        "_over",
        "computed",
        "group",
        "limit",
        "prompt",
        "request",
        "shared",
        "slot",
        "stops",
        "tokens",
    )

    def __init__(self, request: TokenRequest, prompt: Tokens[int], context: int) -> None:
        self.request = request
        self.prompt = tuple(prompt)
        self.group = (request.group, self.prompt) if request.group is not None else None
        """Siblings share a prefill when their prompts are equal too, whatever the caller says."""
        self.tokens = list(prompt)
        self.limit = min(len(prompt) + request.max_tokens, context)
        """Most tokens that it may have, the prompt included."""
        self.stops = frozenset(request.stop_token_ids)
        self.slot: int | None = None
        """Its place in the KV cache."""
        self.computed = 0
        """Tokens whose keys and values are in the cache."""
        self.shared = 0
        """Prompt tokens that were taken over from a sibling."""
        self._over = False

    def __repr__(self) -> str:
        return f"<Sequence {self.phase} slot={self.slot} {self.computed}/{len(self.tokens)}>"

    @property
    def phase(self) -> Phase:
        if self._over:
            return Phase.OVER
        if self.slot is None:
            return Phase.QUEUED
        return Phase.DECODE if self.computed == len(self.tokens) - 1 else Phase.PREFILL

    @property
    def made(self) -> int:
        """Completion tokens so far; the position of the next draw."""
        return len(self.tokens) - len(self.prompt)

    def end(self) -> None:
        """Says that it takes part no more."""
        self._over = True

    def accept(self, token: int, ends: frozenset[int]) -> StopCause | None:
        """Appends a drawn token; why the sequence ends with it, if it does."""
        self.tokens.append(token)
        if token in ends:
            return StopCause.END
        if token in self.stops:
            return StopCause.STOP_TOKEN
        return StopCause.LENGTH if len(self.tokens) >= self.limit else None
