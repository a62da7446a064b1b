"""The interface of what keeps summaries, so that a conversation that grows pays for each only once."""

from collections.abc import Mapping, Sequence
from typing import Protocol


class SummaryCache(Protocol):
    """Summaries of all projects, found by project and digest. It never fails a request: what cannot be read
    is written anew."""

    async def find(self, project: str, digests: Sequence[str]) -> Mapping[str, str]:
        """Returns the texts of those digests that are kept for the project."""

    async def keep(self, project: str, digest: str, text: str, at: int) -> None:
        """Keeps a text. `at`: Unix milliseconds when the request began that had it written."""
