"""The messages between an HTTP process and the coordinator. `processes.ipc` encodes them.

`call` is a number that the process chooses. It is unique on one connection.
"""

from enum import StrEnum

import msgspec

from antiphon.domain.limits import Amounts, Limit, LimitStatus
from antiphon.domain.stored_responses import KeptResponse, StoredChain, StoredResponse
from antiphon.errors import (
    ErrorReport,
)
from antiphon.processes.ipc import Frame, Hello
from antiphon.telemetry.exposition import Totals


class Topic(StrEnum):
    """A kind of state that all processes share. A change is acknowledged when every process has read it."""

    ADAPTERS = "adapters"
    DIRECTORY = "directory"


class Reserve(Frame, tag=1):
    """Reserves amounts for a new claim. Answered by LimitsReply or Refused."""

    call: int
    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Extend(Frame, tag=2):
    """Reserves further amounts for a claim. Answered by LimitsReply or Refused."""

    call: int
    claim: str
    limits: tuple[Limit, ...]
    """The current limits of the claim."""
    amounts: Amounts


class Settle(Frame, tag=3):
    """Ends a claim: the used amounts replace the reserved ones. Has no answer."""

    claim: str
    amounts: Amounts


class AskLimits(Frame, tag=4):
    """Asks for the status of limits. Answered by LimitsReply or Refused."""

    call: int
    limits: tuple[Limit, ...]


class Restore(Frame, tag=5):
    """Repeats an open claim to a new coordinator. Has no answer."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Ended(Frame, tag=6):
    """Repeats a recently settled claim to a new coordinator. Has no answer."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts
    """The reserved amounts."""
    used: Amounts
    ended_ms: int | None
    """Unix milliseconds of the end in the ledger; None if the ledger has no entry."""


class Report(Frame, tag=7):
    """All metrics of the process. Has no answer."""

    totals: Totals


class AskTotals(Frame, tag=8):
    """Asks for the sum of the other processes' metrics. Answered by TotalsReply."""

    call: int


class Publish(Frame, tag=9):
    """Replaces the adapter names of a revision. Answered by CompletedReply when every process has read
    them."""

    call: int
    revision: int
    names: bytes
    change: bytes = b""
    """The encoded NameChange to store for the next start, if there is one."""


class Announce(Frame, tag=10):
    """The directory has a new revision. Answered by CompletedReply when every process has read it."""

    call: int
    revision: int


class KnownRevision(Frame, tag=11):
    """The process uses this revision from now on. Has no answer."""

    topic: Topic
    revision: int


class Ping(Frame, tag=12):
    """Asks whether the coordinator runs. Answered by CompletedReply. Its `is_done` is False if the usage of a
    limit cannot be read."""

    call: int


class ReleasePlace(Frame, tag=13):
    """Ends what a claim counts in limits of concurrent requests. Has no answer."""

    claim: str


class KeepResponse(Frame, tag=14):
    """Keeps a response in the coordinator's memory. Answered by CompletedReply, whose `is_done` is False if
    the response is not kept."""

    call: int
    kept: KeptResponse
    now: int


class FindResponse(Frame, tag=15):
    """Asks for one response. Answered by ResponseReply."""

    call: int
    project: str
    id: str
    now: int


class FindChain(Frame, tag=16):
    """Asks for the items of a chain of responses. Answered by ChainReply."""

    call: int
    project: str
    id: str
    now: int
    max_bytes: int


class FindItems(Frame, tag=17):
    """Asks for items by id. Answered by ItemsReply."""

    call: int
    project: str
    ids: tuple[str, ...]
    now: int
    max_bytes: int


class RemoveResponse(Frame, tag=18):
    """Removes a response. Answered by CompletedReply, whose `is_done` is False if there is none."""

    call: int
    project: str
    id: str


class Welcome(Frame, tag=1):
    """The answer to Hello."""

    started_ms: int
    """The coordinator's start in Unix milliseconds. It identifies the coordinator."""


class LimitsReply(Frame, tag=2):
    """A request about limits was done. Contains the status of each limit."""

    call: int
    statuses: tuple[LimitStatus, ...]


class Refused(Frame, tag=3):
    """A request was refused with an error."""

    call: int
    error: ErrorReport
    limit: str | None = None
    """The id of the limit that refused it, if a limit did."""
    statuses: tuple[LimitStatus, ...] = ()


class TotalsReply(Frame, tag=4):
    """The sum of the metrics of all other processes, including ended ones."""

    call: int
    processes: int
    """The number of other running processes."""
    totals: Totals


class CompletedReply(Frame, tag=5):
    """A request without a result is done. `is_done` is False if it changed nothing, for example because
    another process published names first."""

    call: int
    is_done: bool = True


class Names(Frame, tag=6):
    """The current adapter names. Answered by KnownRevision."""

    revision: int
    names: bytes


class DirectoryChanged(Frame, tag=7):
    """The directory has a new revision. Answered by KnownRevision."""


class ResponseReply(Frame, tag=8):
    """A kept response; None if there is none."""

    call: int
    response: StoredResponse | None


class ChainReply(Frame, tag=9):
    """The items of a chain."""

    call: int
    chain: StoredChain


class ItemsReply(Frame, tag=10):
    """The items that exist, by id."""

    call: int
    items: dict[str, bytes]


ResponseQuestion = KeepResponse | FindResponse | FindChain | FindItems | RemoveResponse

Question = Reserve | Extend | AskLimits | AskTotals | Publish | Announce | Ping | ResponseQuestion

ToCoordinator = Hello | Question | Settle | ReleasePlace | Restore | Ended | Report | KnownRevision

Reply = LimitsReply | Refused | TotalsReply | CompletedReply | ResponseReply | ChainReply | ItemsReply

ToProcess = Hello | Welcome | Reply | Names | DirectoryChanged

TO_COORDINATOR = msgspec.msgpack.Decoder(tuple[int, list[ToCoordinator]])

TO_PROCESS = msgspec.msgpack.Decoder(tuple[int, list[ToProcess]])
