"""What can be set of the ledger. `antiphon.settings` has the rest, and reads them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.settings_meta import MIB, describe

LONGEST_SYNC_S = 60


class LedgerSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What each generation took, where keys are on (ledger.md)."""

    spool: Annotated[
        str | None,
        describe(
            "ANTIPHON_SPOOL",
            "Directory in which generations are written down before they are in the database, on a disk of "
            "this machine; none means `spool` in `ANTIPHON_HOME`.",
        ),
    ] = None
    spool_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_SPOOL_BYTES",
            "Bytes that the spool may grow to while the database is away, at least 4 MiB for each HTTP "
            "process; beyond them requests are a 503.",
        ),
        Meta(ge=8 * MIB),
    ] = 64 * MIB
    sync_interval: Annotated[
        float,
        describe(
            "ANTIPHON_SPOOL_SYNC_INTERVAL",
            "Seconds after which the spool is on the disk at the latest: what a power failure may take.",
        ),
        Meta(gt=0, le=LONGEST_SYNC_S),
    ] = 0.2
