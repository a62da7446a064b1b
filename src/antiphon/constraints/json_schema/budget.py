"""How much may be concluded of one document, so that no schema costs more than a share of a second to
read."""

from dataclasses import dataclass

MAX_STEPS = 60_000
"""Keywords, names and alternatives that are looked at to prove, negate or collect something. What is not
proved by then is not known."""


@dataclass
class Budget:
    """What is left for one document."""

    steps: int = MAX_STEPS

    def spend(self, steps: int) -> bool:
        """Takes so many steps. Whether there were enough."""
        self.steps -= steps
        return self.steps >= 0
