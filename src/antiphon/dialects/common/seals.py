"""Opens the sealed reasoning of one request."""

import msgspec

from antiphon.dialects.http_types import Request
from antiphon.dialects.services import Services
from antiphon.domain.stored_responses import SealedReasoning
from antiphon.errors import InvalidValue

MOST_BYTES = 16 << 20
"""The most bytes of reasoning that the seals of one request can carry. A seal is compressed, so a small body
could otherwise fill the memory with copies of one long seal. No model has a context of so many bytes."""


class SealReader:
    """Opens seals, and counts what they carry."""

    def __init__(self, field: str, request: Request, services: Services) -> None:
        """`field`: the field with the seals, for errors."""
        self._field = field
        self._actor = request.actor
        self._services = services
        self._bytes = 0

    def open(self, text: str) -> SealedReasoning | None:
        """Returns the reasoning of a seal. Returns None for any other text. Raises InvalidValue if the
        request's seals carry too much."""
        sealed = self._services.unseal(text, self._actor)
        if sealed is None:
            return None
        self._bytes += len(sealed.text) + len(msgspec.json.encode(sealed.blocks))
        if self._bytes > MOST_BYTES:
            raise InvalidValue(
                f"{self._field}: the sealed reasoning has more than {MOST_BYTES:,} bytes; leave out that of "
                "old turns",
                param=self._field,
            )
        return sealed
