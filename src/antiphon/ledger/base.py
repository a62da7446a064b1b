"""The interfaces of the ledger, which records each generation when it begins and again when it ends."""

from enum import StrEnum
from typing import Protocol, runtime_checkable

from antiphon.domain.ledger import Entry


class Ledger(Protocol):
    """Records one entry for each generation, even if this process dies.

    Both methods return when the kernel has the entry, before it is on the disk. So a killed process loses no
    entry, and no method waits for a disk or a database.
    """

    def begin(self, intent: Entry) -> None:
        """Writes the intent before the engine is called, and reserves the space of the completion. If the
        process dies, the intent becomes the entry. Raises LedgerFull if there is no space, and InvalidValue
        if tags and names are too long for a record."""

    def complete(self, entry: Entry) -> None:
        """Writes the end of a generation. Call it once for each intent, before the last bytes go to the
        caller. The entry has the id of the intent. Raises LedgerFull if the entry cannot be written."""


class LedgerState(StrEnum):
    """Whether the ledger accepts entries."""

    WELL = "well"
    """Entries are inserted into the database."""
    WAITING = "waiting"
    """The database is unavailable. Entries wait in local files."""
    FULL = "full"
    """No generation can begin until the database or the disk accepts entries again."""


@runtime_checkable
class MonitoredLedger(Protocol):
    """A ledger that reports its state."""

    @property
    def state(self) -> LedgerState:
        """The current state."""


class Recorder(Protocol):
    """Records the texts of requests and answers, for projects that turned recording on. It never delays or
    fails a request."""

    def is_recorded(self, project: str) -> bool:
        """Whether the requests of a project are recorded."""

    def record(self, id_: str, project: str, started_ms: int, request: str, answer: str) -> None:
        """Records a request and its answer. `id_`: the id of its ledger entry. `started_ms`: the start of the
        request in Unix milliseconds."""
