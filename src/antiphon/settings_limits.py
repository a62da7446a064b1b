"""What can be set of limits and budgets. `antiphon.settings` has the rest, and reads them."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from antiphon.settings_meta import describe


class LimitsSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who counts what is used of limits and budgets, where keys are on (limits.md)."""

    url: Annotated[
        str | None,
        describe(
            "ANTIPHON_LIMITS_URL",
            "Redis or Valkey that counts for several servers, as `redis://[USER:PASSWORD@]HOST:PORT/DB`, "
            "`rediss://...` or `unix:///PATH`; none means that this server counts alone.",
        ),
    ] = None
    prefix: Annotated[
        str,
        describe(
            "ANTIPHON_LIMITS_PREFIX",
            "What the names of keys in Redis begin with; servers that share limits say the same.",
        ),
        Meta(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9:._-]+$"),
    ] = "antiphon"
    unavailable: Annotated[
        Literal["closed", "open"],
        describe(
            "ANTIPHON_LIMITS_UNAVAILABLE",
            "What becomes of limited requests while nobody can say what is used: `closed` refuses them with "
            "503, `open` has each HTTP process count alone.",
        ),
    ] = "closed"
    reserve_tokens: Annotated[
        int,
        describe(
            "ANTIPHON_LIMITS_RESERVE_TOKENS",
            "Output tokens that a request without `max_tokens` takes of its limits before it begins, and "
            "those by which it takes more while it runs.",
        ),
        Meta(ge=1, le=1_000_000),
    ] = 512

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """The settings without the address, which may hold a password; what `repr` and logs show."""
        values = msgspec.structs.asdict(self)
        return [(name, "***" if name == "url" and value else value) for name, value in values.items()]
