"""The items of a request of the Responses API, with those to which it refers."""

from collections.abc import Iterator

from antiphon.dialects.base import Request
from antiphon.dialects.common.endpoints import LARGE_BODY
from antiphon.dialects.responses.wire_types import StoredItem
from antiphon.domain.values import Struct


class LoadedInput(Struct, frozen=True):
    """The items of a request."""

    earlier: tuple[StoredItem, ...] = ()
    """The items of the responses that the request continues."""
    own: tuple[StoredItem, ...] = ()
    """The request's own items. References are replaced by their items."""
    stored_bytes: int = 0
    """The bytes of the items that were stored, as JSON."""

    def is_large(self, request: Request) -> bool:
        """Whether a thread must read and write the items of the request, so that others do not wait."""
        return len(request.body) + self.stored_bytes > LARGE_BODY

    def list_places(self) -> Iterator[tuple[int, StoredItem, str]]:
        """Yields all items with their indexes and with the names of their places for errors."""
        for index, item in enumerate(self.earlier):
            yield index, item, "previous_response_id"
        for index, item in enumerate(self.own):
            yield len(self.earlier) + index, item, f"input[{index}]"
