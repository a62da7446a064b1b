"""The lines that the supervisor writes to an HTTP process while it runs: the states of engine hosts, and the
steps of a reload."""

from dataclasses import dataclass
from enum import StrEnum

from antiphon.engines.host.control import EngineNews
from antiphon.errors import ErrorReport
from antiphon.settings.changes import ReloadReport


class ReloadStep(StrEnum):
    """The steps of a reload. Every process prepares before any process applies, so a refusal changes
    nothing."""

    PREPARE = "prepare"
    """Build everything that the settings name, and keep it apart."""
    APPLY = "apply"
    """Serve by the settings from now on."""
    DROP = "drop"
    """Forget what was prepared."""


@dataclass(frozen=True, slots=True)
class ReloadOrder:
    """One step of a reload. An HTTP process answers it with a report of the same number."""

    number: int
    step: ReloadStep
    settings: str
    """All settings, encoded."""
    sockets: dict[str, str]
    """The path of each engine host's socket, by the host's name."""


@dataclass(frozen=True, slots=True)
class ReloadReply:
    """The end of a reload that an HTTP process asked for."""

    number: int
    """The number of the question."""
    report: ReloadReport | None = None
    error: ErrorReport | None = None
    """The refusal; the settings are as before."""


@dataclass(frozen=True, slots=True)
class News:
    """One line from the supervisor to an HTTP process. One of its fields is set."""

    engine: EngineNews | None = None
    order: ReloadOrder | None = None
    reply: ReloadReply | None = None
