"""Settings of memory strategies."""

from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.settings.server import describe


class MemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Summaries that the memory strategy `summary` has written (memory.md)."""

    summaries: Annotated[
        int,
        describe(
            "ANTIPHON_MEMORY_SUMMARIES",
            "Summaries that are kept for each project. 0 keeps none, and each request then "
            "writes its own. Without keys, each HTTP process keeps them in memory.",
        ),
        Meta(ge=0, le=1_000_000),
    ] = 1_000
    summary_days: Annotated[
        int,
        describe("ANTIPHON_MEMORY_SUMMARY_DAYS", "Days for which a summary is kept."),
        Meta(ge=1, le=3_650),
    ] = 30
