"""Kept responses in memory, for a server without keys."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence

from antiphon.domain.stored_responses import (
    MAX_LINKS,
    KeptResponse,
    StoredChain,
    StoredResponse,
    split_items,
)

OVERHEAD_BYTES = 2_048
"""What a kept response needs besides its texts. It keeps many small responses within the limit, too."""

ITEM_BYTES = 256
"""What an item needs in the index."""

MEMORY_BYTES = 64 * 1024 * 1024
"""The most memory for responses."""


class ResponseMemory:
    """`store.base.ResponseBackend` in memory."""

    def __init__(self, max_bytes: int = MEMORY_BYTES) -> None:
        """`max_bytes`: of each project."""
        self._max_bytes = max_bytes
        self._responses: defaultdict[str, OrderedDict[str, KeptResponse]] = defaultdict(OrderedDict)
        """The responses of each project by id, the oldest first."""
        self._items: dict[tuple[str, str], list[str]] = {}
        """By project and item id: the ids of the responses that contain the item, the latest last."""
        self._bytes: defaultdict[str, int] = defaultdict(int)

    async def add(self, kept: KeptResponse, now: int) -> bool:
        """Keeps a response. Returns False if it alone needs too much room."""
        if _count_bytes(kept) > self._max_bytes:
            return False
        responses = self._responses[kept.project]
        while responses and next(iter(responses.values())).expires <= now:  # the oldest expires first
            self._remove(kept.project, next(iter(responses)))
        self._remove(kept.project, kept.response.id)
        responses[kept.response.id] = kept
        for item in _list_ids(kept):
            self._items.setdefault((kept.project, item), []).append(kept.response.id)
        self._bytes[kept.project] += _count_bytes(kept)
        while self._bytes[kept.project] > self._max_bytes:
            self._remove(kept.project, next(iter(responses)))
        return True

    async def find(self, project: str, id_: str, now: int) -> StoredResponse | None:
        kept = self._find(project, id_, now)
        return None if kept is None else kept.response

    async def find_chain(self, project: str, id_: str, now: int, max_bytes: int) -> StoredChain:
        links: list[StoredResponse] = []
        total = 0
        next_id: str | None = id_
        while next_id is not None:
            kept = self._find(project, next_id, now)
            if kept is None:
                return StoredChain(missing=next_id)
            response = kept.response
            links.append(response)
            total += len(response.input) + len(response.output)
            if len(links) > MAX_LINKS or total > max_bytes:
                return StoredChain(is_too_long=True)
            next_id = response.previous
        return StoredChain(tuple(array for link in reversed(links) for array in (link.input, link.output)))

    async def find_items(
        self, project: str, ids: Sequence[str], now: int, max_bytes: int
    ) -> Mapping[str, bytes]:
        places: list[tuple[str, str]] = []
        """The id of a response and of an item that it has."""
        for item in ids:
            for id_ in reversed(self._items.get((project, item), ())):
                if self._find(project, id_, now) is not None:
                    places.append((id_, item))
                    break
        found: dict[str, bytes] = {}
        total = 0
        items: dict[str, bytes] = {}
        last_id: str | None = None
        for id_, item in sorted(places):
            if id_ != last_id:  # the items of a response are divided once, however many are wanted
                last_id, response = id_, self._responses[project][id_]
                texts = split_items(response.response.input, response.response.output)
                items = dict(zip(reversed(response.item_ids), reversed(texts), strict=True))
            found[item] = items[item]
            total += len(found[item])
            if total > max_bytes:
                found[item] = b""
                break
        return found

    async def remove(self, project: str, id_: str) -> bool:
        return self._remove(project, id_)

    def _remove(self, project: str, id_: str) -> bool:
        kept = self._responses[project].pop(id_, None)
        if kept is None:
            return False
        self._bytes[project] -= _count_bytes(kept)
        for item in _list_ids(kept):
            owners = self._items[project, item]
            owners.remove(id_)
            if not owners:
                del self._items[project, item]
        return True

    def _find(self, project: str, id_: str, now: int) -> KeptResponse | None:
        kept = self._responses[project].get(id_)
        return None if kept is None or kept.expires <= now else kept


def _list_ids(kept: KeptResponse) -> set[str]:
    """Returns the ids under which the items of a response are found."""
    return set(kept.item_ids) - {""}


def _count_bytes(kept: KeptResponse) -> int:
    """Returns the bytes of memory that a response needs, roughly."""
    return kept.response.size + OVERHEAD_BYTES + ITEM_BYTES * len(kept.item_ids)
