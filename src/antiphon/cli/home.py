"""Where a server with keys keeps what is its own."""

from collections.abc import Mapping
from pathlib import Path

from antiphon.weights.keeping import default_registry

ADMIN_FILE = "admin.key"
"""The operator's key, as the first start made it."""


def home_of(environ: Mapping[str, str], home: Path) -> Path:
    """ANTIPHON_HOME, or the platform's directory for data."""
    return default_registry(environ, home).parent
