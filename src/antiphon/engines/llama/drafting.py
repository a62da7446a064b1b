"""Drafts: tokens that a sequence probably draws next, computed beside its last token in one decode.

A draft is only a guess. The decode loop draws each token from its row as it would without drafts, until one
differs from the draft; the rows behind it are dropped. So drafts never change an answer, except that rows
computed together may be rounded in another way than a row alone. Exact mode therefore has no drafts.

A `Drafter` knows one sequence and looks at nothing else: first at the caller's prediction, then, if the model
looks up, at the sequence's own tokens. `DraftPolicy` chooses the number of drafts by the measured time of a
decode and by the share of the sequence's earlier drafts that were right.
"""

from array import array
from collections.abc import Sequence
from enum import StrEnum
from math import inf

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.values import Struct
from antiphon.engines.base import DraftMode

MAX_DRAFTS = 15
"""The most drafts of one sequence in one decode."""

ALWAYS_DRAFTS = 7
"""The drafts of one sequence in one decode if their cost does not count."""

NEAR = 8
"""After a miss, the prediction is searched for the latest token alone only within this many tokens, because
most edits replace or insert a few tokens."""

LOOKUP_TOKENS = 4
"""The number of latest tokens that must occur earlier in the sequence. Shorter matches are wrong more often
than they are worth."""

PREDICTION_PRIOR, LOOKUP_PRIOR = 0.85, 0.6
"""The expected share of right drafts before any was verified."""

MEMORY = 0.1
"""The weight of one verified draft in the share of right drafts."""

RECOVERY = 0.02
"""How far the share returns to its prior in a step that could draft and does not, so that a sequence tries
again some time after bad guesses."""

MIN_GAIN = 1.05
"""The least factor of expected speed for which drafts are computed. Below, errors of the estimate weigh
more than the gain."""

MAX_DELAY = 1.25
"""The most that drafts may lengthen a step in which other sequences draw tokens, as a factor."""


class DraftSource(StrEnum):
    """Where drafts come from."""

    PREDICTION = "prediction"
    """The caller's prediction."""
    LOOKUP = "lookup"
    """Earlier tokens of the same sequence."""


class DraftPolicy(Struct, frozen=True):
    """How many drafts a sequence gets. Fixed when the model is loaded."""

    mode: DraftMode = DraftMode.OFF
    row_seconds: tuple[float, ...] = ()
    """The seconds of a decode of 1, 2, 3... rows. With an empty tuple there are no drafts at all."""
    max_rows: int = MAX_DRAFTS
    """The most drafts of all sequences in one decode."""

    @property
    def is_possible(self) -> bool:
        """Whether any sequence may get drafts."""
        return bool(self.row_seconds)

    def choose_count(self, available: int, acceptance: float, other_rows: int, draft_rows: int) -> int:
        """Returns the number of drafts that a sequence should get.

        `available`: the number of drafts that it has and that fit. `acceptance`: the expected share of right
        drafts. `other_rows`: the rows of the other sequences in the step. `draft_rows`: the drafts of other
        sequences that are already chosen; they are part of `other_rows`.
        """
        most = min(available, self.max_rows - draft_rows)
        if self.mode is DraftMode.ALWAYS:
            return max(0, min(most, ALWAYS_DRAFTS))
        others = other_rows - draft_rows
        longest_seconds = MAX_DELAY * self.get_seconds(others + 1) if others else inf
        best_count, best_speed = 0, MIN_GAIN * (others + 1) / self.get_seconds(other_rows + 1)
        for count in range(1, most + 1):
            seconds = self.get_seconds(other_rows + 1 + count)
            if seconds > longest_seconds:
                break
            expected_tokens = (
                count + 1 if acceptance >= 1 else (1 - acceptance ** (count + 1)) / (1 - acceptance)
            )
            speed = (others + expected_tokens) / seconds
            if speed > best_speed:
                best_count, best_speed = count, speed
        return best_count

    def get_seconds(self, rows: int) -> float:
        """The seconds of a decode of so many rows. More rows than were measured follow the last slope,
        or the mean one if it is steeper."""
        measured = len(self.row_seconds)
        if rows <= measured:
            return self.row_seconds[rows - 1]
        slope = self.row_seconds[0]
        if measured > 1:
            mean_slope = (self.row_seconds[-1] - self.row_seconds[0]) / (measured - 1)
            slope = max(mean_slope, self.row_seconds[-1] - self.row_seconds[-2])
        return self.row_seconds[-1] + slope * (rows - measured)


class Drafter:
    """Proposes drafts for one sequence."""

    __slots__ = (
        "_acceptances",
        "_confirmed",
        "_lookup_index",
        "_matched",
        "_pointer",
        "_prediction",
        "_seen",
        "_uses_lookup",
    )

    def __init__(self, prediction: Sequence[int], uses_lookup: bool, prompt_length: int) -> None:
        self._prediction: NDArray[np.int32] = np.array(prediction, np.int32)
        self._uses_lookup = uses_lookup
        self._seen = prompt_length
        """The number of the sequence's tokens that were compared with the prediction."""
        self._pointer: int | None = 0 if len(prediction) else None
        """The index in the prediction of the expected next token; None after a miss and after its end."""
        self._matched = 0
        """The number of tokens that have followed the prediction since the last anchor."""
        self._confirmed = 0
        """The last index in the prediction that the output has surely reached."""
        self._lookup_index: int | None = None
        """The index in the sequence of the expected next token, while the sequence repeats itself."""
        self._acceptances = {
            DraftSource.PREDICTION: PREDICTION_PRIOR,
            DraftSource.LOOKUP: LOOKUP_PRIOR,
        }

    def propose(self, tokens: "array[int]", limit: int) -> tuple[DraftSource, "array[int]"]:
        """Returns at most `limit` tokens that probably follow `tokens`, the tokens of the sequence. They are
        none if nothing is known."""
        self._follow(tokens)
        if self._pointer is not None:
            drafts = array("i", self._prediction[self._pointer : self._pointer + limit].tolist())
            return DraftSource.PREDICTION, drafts
        if self._uses_lookup and self._lookup_index is None:
            self._lookup_index = find_repetition(tokens)
        if self._lookup_index is None:
            return DraftSource.LOOKUP, array("i")
        drafts = tokens[self._lookup_index : self._lookup_index + limit]
        while len(drafts) < limit:  # the sequence repeats its last few tokens
            drafts += drafts[: limit - len(drafts)]
        while drafts and min(drafts) < 0:  # a cell of a medium, which nothing draws
            drafts.pop()
        return DraftSource.LOOKUP, drafts

    def has_drafts(self, tokens: "array[int]") -> bool:
        """Whether anything is known of what follows `tokens`."""
        return bool(self.propose(tokens, 1)[1])

    def get_acceptance(self, source: DraftSource) -> float:
        """The expected share of right drafts of a source."""
        return self._acceptances[source]

    def note_verified(self, source: DraftSource, accepted: int, has_mismatch: bool) -> None:
        """Learns from drafts: of `accepted` right ones, and of the wrong one after them if there was one. The
        drafts behind a wrong one say nothing."""
        share = self._acceptances[source]
        for _ in range(accepted):
            share += MEMORY * (1.0 - share)
        if has_mismatch:
            share -= MEMORY * share
        self._acceptances[source] = share

    def note_unused(self, source: DraftSource) -> None:
        """Learns that a step has computed no drafts although there were some."""
        prior = PREDICTION_PRIOR if source is DraftSource.PREDICTION else LOOKUP_PRIOR
        self._acceptances[source] += RECOVERY * max(0.0, prior - self._acceptances[source])

    def _follow(self, tokens: "array[int]") -> None:
        """Moves the pointers over the tokens that the sequence has got since the last call."""
        for index in range(self._seen, len(tokens)):
            token = tokens[index]
            if self._lookup_index is not None:
                self._lookup_index = self._lookup_index + 1 if tokens[self._lookup_index] == token else None
            if self._pointer is not None and self._prediction[self._pointer] == token:
                self._pointer += 1
                self._matched += 1
                if self._matched > 1:
                    self._confirmed = self._pointer
                if self._pointer == len(self._prediction):
                    self._pointer = None  # an earlier part can follow, as in a text in another order
            elif len(self._prediction):
                self._pointer, self._matched = self._find_anchor(tokens, index), 0
        self._seen = len(tokens)

    def _find_anchor(self, tokens: "array[int]", index: int) -> int | None:
        """Returns the place in the prediction that follows the token at `index`: first by two tokens
        anywhere, with the third before them if possible, then by this token alone near the last sure place.
        Each search is one pass without a table, because making a table would delay all sequences."""
        prediction, token = self._prediction, tokens[index]
        places = (prediction[1:-1] == token).nonzero()[0] + 2
        if index:
            places = places[prediction[places - 2] == tokens[index - 1]]
            if index > 1:
                after_three = places[(places > 2) & (prediction[places - 3] == tokens[index - 2])]
                places = after_three if len(after_three) else places
            if len(places):
                later = int(places.searchsorted(self._confirmed, side="right"))
                return int(places[min(later, len(places) - 1)])
        near = prediction[self._confirmed : -1][:NEAR]
        found = (near == token).nonzero()[0]
        return self._confirmed + int(found[0]) + 1 if len(found) else None


def find_repetition(tokens: "array[int]") -> int | None:
    """Returns the index after the latest earlier occurrence of the last LOOKUP_TOKENS tokens; None if there
    is none."""
    count = len(tokens)
    if count <= LOOKUP_TOKENS:
        return None
    view = np.frombuffer(tokens, np.int32)
    # The last occurrence is the end of the sequence itself, so the search stops one token before.
    is_match = view[LOOKUP_TOKENS - 1 : count - 1] == view[count - 1]
    for back in range(1, LOOKUP_TOKENS):
        is_match &= view[LOOKUP_TOKENS - 1 - back : count - 1 - back] == view[count - 1 - back]
    places = is_match.nonzero()[0]
    return int(places[-1]) + LOOKUP_TOKENS if len(places) else None
