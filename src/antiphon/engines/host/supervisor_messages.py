"""The lines that the supervisor writes to an HTTP process while it runs: the states of engine hosts, the
steps of a reload, and the deaths of processes."""

from enum import StrEnum

from antiphon.domain.values import Struct
from antiphon.engines.host.control import EngineStateNotice
from antiphon.errors import ErrorReport
from antiphon.settings.changes import ReloadReport


class ReloadStep(StrEnum):
    """The steps of a reload. Every process prepares before any process applies, so a refusal changes
    nothing."""

    PREPARE = "prepare"
    """Build everything that the settings name, without serving it yet."""
    APPLY = "apply"
    """Serve by the settings from now on."""
    DROP = "drop"
    """Discard everything that PREPARE has built."""


class ReloadOrder(Struct, frozen=True):
    """One step of a reload. An HTTP process replies with a report of the same number."""

    number: int
    step: ReloadStep
    settings: str
    """All settings, encoded."""
    sockets: dict[str, str]
    """The path of each engine host's socket, by the host's name."""
    removed_models: tuple[str, ...] = ()
    """The removed models whose metrics stay."""


class ReloadReply(Struct, frozen=True):
    """The result of a reload that an HTTP process has requested."""

    number: int
    """The number of the ASKS_RELOAD report."""
    report: ReloadReport | None = None
    error: ErrorReport | None = None
    """Why the reload was refused; the settings have not changed. None if it was done."""


class DeathCount(Struct, frozen=True):
    """How often processes of one kind have ended unasked since the server started."""

    process: str
    """`http`, `engine`, `coordinator` or `knowledge`."""
    model: str
    """The name of the engine's host; empty for other processes."""
    count: int


class SupervisorMessage(Struct, frozen=True):
    """One line from the supervisor to an HTTP process. Exactly one of its fields is set."""

    engine: EngineStateNotice | None = None
    order: ReloadOrder | None = None
    reply: ReloadReply | None = None
    deaths: tuple[DeathCount, ...] | None = None
    """The count of every kind of process, also if it is 0."""
