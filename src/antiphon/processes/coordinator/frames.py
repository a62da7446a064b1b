"""The messages between an HTTP process and the coordinator. `processes.ipc` encodes them.

`call` is a number from the process, unique on one connection.
"""

from enum import StrEnum

import msgspec

from antiphon.domain.limits import Amounts, Limit, LimitStatus
from antiphon.errors import ErrorReport
from antiphon.processes.ipc import Frame, Hello
from antiphon.telemetry.exposition import Totals


class Topic(StrEnum):
    """State that every process must know before a change of it is answered."""

    ADAPTERS = "adapters"
    DIRECTORY = "directory"


# --- to the coordinator -------------------------------------------------------------------------------------


class Reserve(Frame, tag=1):
    """Answered by LimitsReply or Refused."""

    call: int
    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Extend(Frame, tag=2):
    """Answered by LimitsReply or Refused."""

    call: int
    claim: str
    limits: tuple[Limit, ...]
    """The current limits of the claim."""
    amounts: Amounts


class Settle(Frame, tag=3):
    """Answered by nothing."""

    claim: str
    amounts: Amounts


class AskLimits(Frame, tag=4):
    """Asks for the status of limits. Answered by LimitsReply or Refused."""

    call: int
    limits: tuple[Limit, ...]


class Restore(Frame, tag=5):
    """An open claim, restated to a new coordinator. Answered by nothing."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Ended(Frame, tag=6):
    """A recently ended claim, restated to a new coordinator. Answered by nothing."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts
    used: Amounts
    at: int | None
    """Unix milliseconds, as the ledger has it; None where the ledger has no entry."""


class Report(Frame, tag=7):
    """All metrics of the process. Answered by nothing."""

    totals: Totals


class AskTotals(Frame, tag=8):
    """Asks for totals of other processes. Answered by TotalsReply."""

    call: int


class Publish(Frame, tag=9):
    """Replaces the adapter names of a revision. Answered by Done once every process knows them."""

    call: int
    revision: int
    names: bytes
    change: bytes = b""
    """The NameChange to keep over a restart, if any."""


class Announce(Frame, tag=10):
    """The directory has a new revision. Answered by Done once every process knows it."""

    call: int
    revision: int


class KnownRevision(Frame, tag=11):
    """The process answers by this revision from now on. Answered by nothing."""

    topic: Topic
    revision: int


class Ping(Frame, tag=12):
    """Answered by Done."""

    call: int


# --- from the coordinator -----------------------------------------------------------------------------------


class Welcome(Frame, tag=1):
    """After Hello."""

    began: int
    """Unix milliseconds; no other coordinator of the server has the same."""


class LimitsReply(Frame, tag=2):
    """The request is done; the status of its limits."""

    call: int
    standings: tuple[LimitStatus, ...]


class Refused(Frame, tag=3):
    """The request is refused."""

    call: int
    error: ErrorReport
    limit: str | None = None
    standings: tuple[LimitStatus, ...] = ()


class TotalsReply(Frame, tag=4):
    """Totals of all other processes, including ended ones."""

    call: int
    processes: int
    """How many of them are running."""
    totals: Totals


class CompletedReply(Frame, tag=5):
    """Whether the request was done; False where another process was faster."""

    call: int
    is_done: bool = True


class Names(Frame, tag=6):
    """The current adapter names. Answered by KnownRevision."""

    revision: int
    names: bytes


class DirectoryNews(Frame, tag=7):
    """The directory has a new revision. Answered by KnownRevision."""


Question = Reserve | Extend | AskLimits | AskTotals | Publish | Announce | Ping
ToCoordinator = Hello | Question | Settle | Restore | Ended | Report | KnownRevision
Reply = LimitsReply | Refused | TotalsReply | CompletedReply
ToProcess = Hello | Welcome | Reply | Names | DirectoryNews

TO_COORDINATOR = msgspec.msgpack.Decoder(tuple[int, list[ToCoordinator]])
TO_PROCESS = msgspec.msgpack.Decoder(tuple[int, list[ToProcess]])
