"""Where a client command finds its server, and with which key. Calls nothing."""

import os

from antiphon.cli.asked import Asked

KEY_VARIABLE = "ANTIPHON_API_KEY"

EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what a server listens on, as a client calls it


def where(url: str | None) -> tuple[str, str | None]:
    """Address and key. Without an address they are those of the server that the settings here describe, so
    that its port and key need not be said twice. Raises SettingsError."""
    if url:
        return url, os.environ.get(KEY_VARIABLE) or None
    server = Asked().settings().server
    host = EVERYWHERE.get(server.host, server.host)
    shown = f"[{host}]" if ":" in host and not host.startswith("[") else host
    return f"http://{shown}:{server.port}", server.api_key
