"""What can be set of keys and of the database that holds them. `antiphon.settings` has the rest, and reads
them."""

from typing import Annotated

import msgspec

from antiphon.settings_meta import describe


class KeysSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Projects, users and their keys (keys.md). Without `enabled` the others are refused at the start."""

    enabled: Annotated[
        bool,
        describe(
            "ANTIPHON_KEYS",
            "Whether callers need a key that this server made; the first start then makes the operator's, in "
            "`admin.key` beside the database.",
        ),
    ] = False
    store: Annotated[
        str | None,
        describe(
            "ANTIPHON_STORE",
            "Database of projects, users and keys, as `sqlite:///PATH` or `postgresql://...`; none means "
            "`antiphon.db` in `ANTIPHON_HOME`, or in the platform's directory for data.",
        ),
    ] = None
    pepper: Annotated[
        str | None,
        describe(
            "ANTIPHON_PEPPER",
            "The secret that keys' digests are made with, at least 64 hexadecimal digits, the same on every "
            "node; none means the one in the file `pepper` in `ANTIPHON_HOME`, made at the first start.",
        ),
    ] = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """The settings without secrets; what `repr` and logs show."""
        return [("enabled", self.enabled), ("store", "***"), ("pepper", "***" if self.pepper else None)]
