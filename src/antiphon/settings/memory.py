"""Settings of memory strategies."""

from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.settings.server import describe


class MemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Summaries of the memory strategy `summary` (memory.md)."""

    summaries: Annotated[
        int,
        describe(
            "ANTIPHON_MEMORY_SUMMARIES",
            "Summaries that are kept for each project. With 0, none is kept, and each request writes "
            "a new one. Without keys, each HTTP process keeps them in memory.",
        ),
        Meta(ge=0, le=1_000_000),
    ] = 1_000
    summary_days: Annotated[
        int,
        describe("ANTIPHON_MEMORY_SUMMARY_DAYS", "Days for which a summary is kept."),
        Meta(ge=1, le=3_650),
    ] = 30
