"""Responses that the server keeps, so that later requests of the same project can refer to them, and
reasoning that clients carry in sealed form."""

from collections.abc import Mapping

import msgspec

from antiphon.domain.values import Struct, Value

MAX_LINKS = 1_000
"""The most responses of one chain."""

LONGEST_ID = 128
"""An item with a longer id is kept, but cannot be found by its id. Products' ids have up to 64 characters."""


class StoredResponse(Value, frozen=True):
    """One response with the request's own items. Texts are JSON as the dialect encoded it."""

    id: str
    """The id with its prefix, such as `resp_`."""
    created: int
    """Unix seconds at which the request began."""
    previous: str | None
    """The id of the response that this one continues."""
    input: bytes
    """A JSON array of the request's own items. Each has an id."""
    output: bytes
    """A JSON array of the items of the answer."""
    body: bytes
    """The final response as a JSON object, without its `output`."""

    @property
    def size(self) -> int:
        """The bytes that limits count."""
        return len(self.input) + len(self.output) + len(self.body)


class KeptResponse(Value, frozen=True):
    """A response with the facts that the store adds."""

    response: StoredResponse
    project: str
    expires: int
    """Unix seconds when it is removed."""
    item_ids: tuple[str, ...]
    """The ids of the items of `input` and then of `output`. An item with an empty id cannot be found."""


class StoredChain(Value, frozen=True):
    """The items of a chain of responses, as far as they were found within the limits."""

    arrays: tuple[bytes, ...] = ()
    """JSON arrays, the oldest first: `input`, `output`, `input`, `output`."""
    missing: str | None = None
    """The id of the first response that was not found."""
    is_too_long: bool = False


def split_items(*arrays: bytes) -> list[bytes]:
    """Returns the items of JSON arrays as JSON, in order."""
    return [bytes(item) for array in arrays for item in msgspec.json.decode(array, type=list[msgspec.Raw])]


class ItemId(Struct, frozen=True):
    """The id of an item."""

    id: str | None = None


def list_item_ids(array: bytes) -> list[str]:
    """Lists the ids of the items of a JSON array, with an empty text for an item without a usable one."""
    ids = [item.id or "" for item in msgspec.json.decode(array, type=list[ItemId])]
    return [id_ if is_plain(id_) else "" for id_ in ids]


def is_plain(id_: str) -> bool:
    """Whether an id can be one of a kept response or item. Databases refuse some other texts."""
    return len(id_) <= LONGEST_ID and id_.isprintable() and id_.isascii()


class SealedReasoning(Value, frozen=True):
    """The reasoning of one answer, as a client carries it to the next request."""

    text: str = ""
    """The reasoning of a local model, or a vendor's readable reasoning."""
    model: str = ""
    """The model's name as the caller wrote it."""
    vendor: str = ""
    """The vendor of the blocks; empty for a local model."""
    blocks: tuple[Mapping[str, object], ...] = ()
    """The vendor's blocks, in its own form, each with its place: see `domain.events.ThinkingBlock`."""
