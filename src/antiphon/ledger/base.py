"""The seam of the ledger: the two moments at which a generation is written down."""

from enum import StrEnum
from typing import Protocol, runtime_checkable

from antiphon.domain.ledger import Entry


class Ledger(Protocol):
    """Keeps one entry of each generation, whatever happens to this process afterwards.

    Both methods return when the kernel has the record, so that a process that is killed loses nothing; they
    wait for no disk and no database.
    """

    def begin(self, intent: Entry) -> None:
        """Before the engine is asked. The entry is what the ledger holds if nothing more is heard. Room for
        its end is set aside now. Raises LedgerFull where there is none, and InvalidValue for tags and names
        that are longer than a record may be."""

    def complete(self, entry: Entry) -> None:
        """How it ended; once for each intent, by its id, before the last bytes go to the caller. Raises
        LedgerFull where it cannot be written."""


class LedgerState(StrEnum):
    """How a ledger stands."""

    WELL = "well"
    WAITING = "waiting"
    """The database takes nothing now; what ends is written down and waits."""
    FULL = "full"
    """Nothing can be begun until the database, or the disk, takes something again."""


@runtime_checkable
class MonitoredLedger(Protocol):
    """A ledger that says how it stands."""

    @property
    def state(self) -> LedgerState:
        """As of now."""


class Recorder(Protocol):
    """Keeps the words of requests, of projects that want it. No request waits or fails for it."""

    def wants(self, project: str) -> bool:
        """Whether a project keeps its requests."""

    def keep(self, id_: str, project: str, at: int, request: str, answer: str) -> None:
        """Takes a request with its answer. `id_`: of its entry; `at`: Unix milliseconds."""
