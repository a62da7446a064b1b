"""Where only a key could follow that its object has already: tokens that lead there are found by going on.

It happens only where keys are held to patterns which few texts match, or few that begin like a known key. The
tokens to look behind are few: those after which the open key begins like a known one, or a next key is due.
"""

from dataclasses import dataclass

from llguidance import LLMatcher

from antiphon.constraints.json_finder import Found
from antiphon.constraints.key_guard import KeyGuard, without

MOST = 64
"""Places that are looked at for the same keys. A dead end beyond them ends the text with an error."""


@dataclass(frozen=True, slots=True)
class Road:
    """Where a text stands, for the compiler and by its keys. Looking ahead moves neither."""

    matcher: LLMatcher
    keys: KeyGuard
    known: dict[Found, bool]
    """Whether the text can go on from where it may stand soon."""

    def dead_ends(self, mask: bytes) -> list[int]:
        """Tokens of a mask after which the text cannot go on."""
        return [token for token in self.keys.narrowing(mask) if not self._goes_on(token)]

    def _goes_on(self, token: int) -> bool:
        place = self.keys.after(token)
        if place is None or place in self.known or len(self.known) >= MOST:
            return place is not None and self.known.get(place, True)
        ahead = Road(self.matcher.deep_copy(), self.keys.copy(), self.known)
        ahead.matcher.consume_token(token)
        ahead.keys.consume([token])
        mask = ahead.keys.restrict(ahead.matcher.compute_bitmask())
        if ahead.matcher.is_error():
            return True  # a limit was passed: no word on where it leads
        narrowing = ahead.keys.narrowing(mask)
        is_wide = bool(without(mask, narrowing).strip(b"\0"))
        self.known[place] = is_wide or any(ahead._goes_on(each) for each in narrowing)
        return self.known[place]
