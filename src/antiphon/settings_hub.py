"""What can be set of models that are fetched from a hub. `antiphon.settings` has the rest, and reads them."""

from typing import Annotated

import msgspec
from msgspec import Meta

from antiphon.settings_meta import describe


class HubSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Models that are fetched: `--model hf:OWNER/REPO:FILE.gguf`."""

    cache: Annotated[
        str | None,
        describe(
            "ANTIPHON_HUB_CACHE",
            "Directory that fetched models are kept in; none means `models` in `ANTIPHON_HOME`, or the "
            "platform's cache directory.",
        ),
    ] = None
    endpoint: Annotated[
        Annotated[str, Meta(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")] | None,
        describe(
            "ANTIPHON_HUB_ENDPOINT",
            "Address of the hub; none means `HF_ENDPOINT`, or the public hub.",
            example="https://hub.example.org",
        ),
    ] = None
    offline: Annotated[
        bool,
        describe("ANTIPHON_HUB_OFFLINE", "Ask no hub: only models that were fetched before are served."),
    ] = False
