"""What travels between an HTTP process and the keeper. How it becomes bytes is in `ipc.frames`."""

import msgspec

from antiphon.domain.limits import Amounts, Limit, Standing
from antiphon.error_reports import ErrorReport
from antiphon.ipc.frames import Hello, Message
from antiphon.limits.estate import Estate

# --- to the keeper; `call` is a number that the worker gives, never twice on one connection -----------------


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


class Ask(Message, tag=4):
    """How limits stand. Answered by Stand or Refused."""

    call: int
    limits: tuple[Limit, ...]


class Restore(Message, tag=5):
    """A claim that stands already, told to a keeper that began anew. Answered by nothing."""

    claim: str
    limits: tuple[Limit, ...]
    amounts: Amounts


class Left(Message, tag=6):
    """After Leave: the last thing that is said; nothing that was said before is on its way any more."""


# --- from the keeper ----------------------------------------------------------------------------------------


class Since(Message, tag=1):
    """After Hello: what was settled before this is known from the ledger."""

    at: float
    """Unix seconds."""


class Stand(Message, tag=2):
    """What was asked for is done, and this is how its limits stand."""

    call: int
    standings: tuple[Standing, ...]


class Refused(Message, tag=3):
    """What was asked for is not done."""

    call: int
    error: ErrorReport
    limit: str | None = None
    standings: tuple[Standing, ...] = ()


class Leave(Message, tag=4):
    """The keeper ends, and another process counts from then on: say nothing more but Left."""


class Bequest(Message, tag=5):
    """What the keeper has counted, in parts, for the one of its workers that counts from then on."""

    estate: Estate
    is_last: bool = False


Asking = Reserve | Extend | Ask
ToKeeper = Hello | Settle | Restore | Asking | Left
Reply = Stand | Refused
Farewell = Leave | Bequest
ToWorker = Hello | Since | Reply | Farewell

TO_KEEPER = msgspec.msgpack.Decoder(tuple[int, list[ToKeeper]])
TO_WORKER = msgspec.msgpack.Decoder(tuple[int, list[ToWorker]])
