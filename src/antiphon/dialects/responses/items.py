"""The items of a request of the Responses API, with those to which it refers."""

from collections.abc import Iterator, Mapping, Sequence

from antiphon.dialects.responses.wire_types import StoredItem
from antiphon.domain.values import Struct


class StoredInput(Struct, frozen=True):
    """The stored items to which a request refers, as JSON."""

    arrays: Sequence[bytes]
    """The items of the responses that the request continues."""
    items: Mapping[str, bytes]
    """By their ids: the items that the request repeats."""
    is_large: bool
    """Whether a thread must read and write the items of the request, so that others do not wait."""


class LoadedInput(Struct, frozen=True):
    """The items of a request."""

    earlier: tuple[StoredItem, ...] = ()
    """The items of the responses that the request continues."""
    own: tuple[StoredItem, ...] = ()
    """The request's own items. References are replaced by their items."""

    def list_places(self) -> Iterator[tuple[int, StoredItem, str]]:
        """Yields all items with their indexes and with the names of their places for errors."""
        for index, item in enumerate(self.earlier):
            yield index, item, "previous_response_id"
        for index, item in enumerate(self.own):
            yield len(self.earlier) + index, item, f"input[{index}]"
