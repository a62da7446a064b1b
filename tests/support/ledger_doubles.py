"""A ledger database that tests can shut down, and entries to write."""

import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.domain.events import UsageSource
from antiphon.domain.ledger import Entry, UsedAmounts
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, StoreUnavailable


class StoreDouble:
    """`rows` has the entries by id, `added` the ids of each call."""

    def __init__(self) -> None:
        self.rows: dict[str, Entry] = {}
        self.added: list[list[str]] = []
        self.is_down = False
        self.refused_text = ""
        """Entries with this text in a tag are refused, as PostgreSQL refuses NUL characters."""
        self.error: Exception | None = None
        self.delay_s = 0.0
        """Duration of a transaction."""
        self.was_called = threading.Event()

    def add(self, entries: Sequence[Entry]) -> None:
        self.was_called.set()
        time.sleep(self.delay_s)
        if self.error is not None:
            raise self.error
        if self.is_down:
            raise StoreUnavailable("the database is away")
        if self.refused_text and any(
            self.refused_text in value for entry in entries for value in entry.tags.values()
        ):
            raise InvalidValue("the database cannot store that text")
        self.added.append([entry.id for entry in entries])
        for entry in entries:
            self.rows.setdefault(entry.id, entry)

    def sum_usage(self, since: int, bucket_ms: int, before: int | None = None) -> Iterator[UsedAmounts]:
        raise NotImplementedError


def build_intent(number: int = 1, **values: Any) -> Entry:
    """Builds the entry of a generation that begins."""
    entry = Entry(
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
    return replace(entry, **values)


def build_completion(intent: Entry, **values: Any) -> Entry:
    """Builds the entry of the same generation at its end."""
    entry = replace(
        intent, status="ok", output_tokens=5, source=UsageSource.ENGINE, engine="llama", total_ms=3
    )
    return replace(entry, **values)


ENTRY = Entry(
    "e1",
    "req-1",
    1_790_000_000_000,
    "default",
    "key-1",
    "ann",
    "openai",
    "/v1/chat/completions",
    "gpt-4o",
    "cantor",
    "sha256:ab",
    "llama",
    2,
    100,
    40,
    20,
    5,
    UsageSource.ENGINE,
    "price-1",
    10**15,
    "USD",
    "ok",
    3,
    0,
    900,
    "ännchen",
    "e0",
    {"team": "größe", "": "\u2028"},
    '[{"route":"x/y","error":null,"ms":7}]',
)
