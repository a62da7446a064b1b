"""A database of the ledger's that tests can take away, and entries to write."""

import threading
import time
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import Entry, UsedAmounts
from antiphon.errors import InvalidValue, StoreUnavailable


class Kept:
    """Entries by id; `added` has every call's ids."""

    def __init__(self) -> None:
        self.rows: dict[str, Entry] = {}
        self.added: list[list[str]] = []
        self.away = False
        self.refuses = ""
        """Whoever's tag has this text in it is refused, as PostgreSQL does with zero characters."""
        self.fails: Exception | None = None
        self.takes = 0.0
        """Seconds of a transaction."""
        self.asked = threading.Event()

    def add(self, entries: Sequence[Entry]) -> None:
        self.asked.set()
        time.sleep(self.takes)
        if self.fails is not None:
            raise self.fails
        if self.away:
            raise StoreUnavailable("the database is away")
        if self.refuses and any(self.refuses in value for each in entries for value in each.tags.values()):
            raise InvalidValue("the database cannot store that text")
        self.added.append([entry.id for entry in entries])
        for entry in entries:
            self.rows.setdefault(entry.id, entry)

    def sum_usage(self, since: int, grain: int, before: int | None = None) -> Iterator[UsedAmounts]:
        raise NotImplementedError


def intent(number: int = 1, **values: object) -> Entry:
    """What is known of a generation when it begins."""
    known = Entry(
        f"{number:032x}",
        f"req-{number}",
        1_700_000_000_000 + number,
        "default",
        "key_1",
        None,
        "openai",
        "/v1/chat/completions",
        "cantor",
        "cantor",
        prompt_tokens=7,
    )
    return replace(known, **values)


def completion(begun: Entry, **values: object) -> Entry:
    """How it ended."""
    ended = replace(
        begun, status="ok", output_tokens=5, source=UsageSource.ENGINE, engine="llama", total_ms=3
    )
    return replace(ended, **values)
