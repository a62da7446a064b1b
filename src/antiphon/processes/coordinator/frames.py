"""What travels between an HTTP process and the coordinator. How it becomes bytes is in `ipc.frames`.

`call` is a number that the process gives, never twice on one connection.
"""

from enum import StrEnum

import msgspec

from antiphon.domain.limits import Amounts, Limit, LimitStatus
from antiphon.errors import ErrorReport
from antiphon.processes.ipc.frames import Hello, Message
from antiphon.telemetry.exposition import Totals


class Topic(StrEnum):
    """What every process is to know before a change of it is answered."""

    ADAPTERS = "adapters"
    DIRECTORY = "directory"


# --- to the coordinator -------------------------------------------------------------------------------------


class Reserve(Message, tag=1):
    """Answered by Stand or Refused."""

    call: int
    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Extend(Message, tag=2):
    """Answered by Stand or Refused."""

    call: int
    claim: str
    limits: tuple[Limit, ...]
    """Those of the claim that still hold, as they are now."""
    amounts: Amounts


class Settle(Message, tag=3):
    """Answered by nothing."""

    claim: str
    amounts: Amounts


class AskLimits(Message, tag=4):
    """How limits stand. Answered by Stand or Refused."""

    call: int
    limits: tuple[Limit, ...]


class Restore(Message, tag=5):
    """A claim that stands, told to a coordinator that began anew. Answered by nothing."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Ended(Message, tag=6):
    """A claim that ended lately, told to a coordinator that began anew. Answered by nothing."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts
    used: Amounts
    at: int | None
    """Unix milliseconds, as the ledger has it; None where the ledger has no entry."""


class Report(Message, tag=7):
    """All that the process counts. Answered by nothing."""

    totals: Totals


class AskTotals(Message, tag=8):
    """Answered by Others."""

    call: int


class Publish(Message, tag=9):
    """Other names of adapters in the place of those of a revision. Answered by Done once every process knows
    them."""

    call: int
    revision: int
    names: bytes


class Announce(Message, tag=10):
    """The directory has a new revision. Answered by Done once every process knows it."""

    call: int
    revision: int


class KnownRevision(Message, tag=11):
    """The process answers by this revision from now on. Answered by nothing."""

    topic: Topic
    revision: int


class Ping(Message, tag=12):
    """Answered by Done."""

    call: int


# --- from the coordinator -----------------------------------------------------------------------------------


class Welcome(Message, tag=1):
    """After Hello."""

    began: int
    """Unix milliseconds; no other coordinator of the server has the same."""


class LimitsReply(Message, tag=2):
    """What was asked for is done, and this is how its limits stand."""

    call: int
    standings: tuple[LimitStatus, ...]


class Refused(Message, tag=3):
    """What was asked for is not done."""

    call: int
    error: ErrorReport
    limit: str | None = None
    standings: tuple[LimitStatus, ...] = ()


class TotalsReply(Message, tag=4):
    """What all other processes count, those that ended included."""

    call: int
    processes: int
    """How many of them live."""
    totals: Totals


class Done(Message, tag=5):
    """Whether it was done; False where another process was faster."""

    call: int
    is_done: bool = True


class Names(Message, tag=6):
    """The names of adapters from now on. Answered by Know."""

    revision: int
    names: bytes


class DirectoryNews(Message, tag=7):
    """There is a new revision of the directory. Answered by Know."""


Question = Reserve | Extend | AskLimits | AskTotals | Publish | Announce | Ping
ToCoordinator = Hello | Question | Settle | Restore | Ended | Report | KnownRevision
Reply = LimitsReply | Refused | TotalsReply | Done
ToProcess = Hello | Welcome | Reply | Names | DirectoryNews

TO_COORDINATOR = msgspec.msgpack.Decoder(tuple[int, list[ToCoordinator]])
TO_PROCESS = msgspec.msgpack.Decoder(tuple[int, list[ToProcess]])
