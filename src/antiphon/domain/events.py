"""What happens while generating. A stream is one Started, deltas and one Finished for each choice, and
Usage last; between them PromptScored of each prompt whose scores were asked for.

Started comes with the first token, not before, so a failure before it is still an ordinary error; where no
token is made (`max_tokens` 0) it comes when the first choice is complete. Errors are raised, not yielded.
"""

from dataclasses import dataclass, field
from enum import StrEnum

from antiphon.domain.scores import Scores
from antiphon.domain.usage import Usage
from antiphon.domain.values import Value


class FinishReason(StrEnum):
    """Why a choice ended."""

    STOP = "stop"
    """The model's end of turn, a stop string, or a stop token."""
    LENGTH = "length"
    """max_tokens, or the end of the context."""
    TOOL_CALLS = "tool_calls"
    """The model's end of turn, after one or several whole calls."""


@dataclass(frozen=True, slots=True)
class Started:
    """The first token of any choice is there."""

    prompt_tokens: int
    """Tokens of all prompts together."""
    cached_tokens: int = 0
    prompts: tuple[tuple[int, ...], ...] = ()
    """The ids of each prompt, when token ids were asked for."""
    queued: float | None = field(default=None, compare=False)
    """Seconds until the first choice was in the engine's batch, where the engine says so."""


class PromptScored(Value, frozen=True):
    """One prompt's tokens are scored, when that was asked for; one for each prompt, after Started."""

    prompt: int
    scores: Scores
    """Of all its tokens, with their ranks."""


class TextDelta(Value, frozen=True):
    """More text of one choice; never empty, never half a character. With `echo` the first of a choice is its
    prompt; with `logprobs` too, a long one comes in several."""

    choice: int
    text: str
    tokens: int = 0
    """Completion tokens since this choice's last event. Summed over its events they are its part of the
    usage, so that a
    stream which is cut can be billed for what was made."""
    scores: Scores = ()
    """Of the tokens whose text begins in this delta, and of those before them that show none, when they were
    asked for."""
    ids: tuple[int, ...] = ()
    """Of the tokens that `scores` are of, when token ids were asked for. Joined over its events they are all
    of a choice's tokens, the one that ended it among them, but for those that a stop text cut off whole."""


class ReasoningDelta(Value, frozen=True):
    """More of what one choice thinks before its text; never empty."""

    choice: int
    text: str
    tokens: int = 0
    """As of a TextDelta."""
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class ToolCallStarted(Value, frozen=True):
    """The next call of one choice; its arguments follow in deltas."""

    choice: int
    index: int
    """Which of the choice's calls, from 0."""
    id: str
    name: str
    tokens: int = 0
    """As of a TextDelta."""
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class ToolCallDelta(Value, frozen=True):
    """More of a call's arguments; never empty."""

    choice: int
    index: int
    arguments: str
    tokens: int = 0
    scores: Scores = ()
    ids: tuple[int, ...] = ()


class Finished(Value, frozen=True):
    """One choice is complete; exactly one for each choice."""

    choice: int
    reason: FinishReason
    tokens: int = 0
    """Completion tokens since this choice's last delta: those that showed no text."""
    scores: Scores | None = None
    """Of the tokens since this choice's last delta that showed no text, the one that ended it among them;
    None when they were not asked for."""
    ids: tuple[int, ...] = ()
    """Of these tokens, when token ids were asked for."""


class DiscardedTokens(Value, frozen=True):
    """Tokens of candidates were made, of which some choose the best. They are part of the usage, and not
    told again by the deltas of those that are given."""

    tokens: int


Delta = TextDelta | ReasoningDelta | ToolCallStarted | ToolCallDelta
"""What a choice says."""

Event = Started | PromptScored | Delta | Finished | DiscardedTokens | Usage
