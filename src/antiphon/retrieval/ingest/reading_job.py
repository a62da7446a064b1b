"""The sandbox's job that reads one document. A document is hostile data, so the job opens only the file that
it is given, and neither a connection nor another process."""

import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

from antiphon.retrieval.ingest.documents import ExtractionLimits
from antiphon.retrieval.ingest.reading import read_document

FORBIDDEN = frozenset(
    "os.exec os.fork os.forkpty os.posix_spawn os.system subprocess.Popen "
    "socket.__new__ socket.getaddrinfo".split()
)
"""Audit events of Python that reading a document never needs."""


def run_reading(payload: Mapping[str, object]) -> dict[str, object]:
    """Reads the file that the payload names: `path`, `file_name`, `media_type` and `limits`.

    Returns the fields of its ExtractedDocument. Raises InvalidValue or UnsupportedMediaType.
    """
    limits = payload["limits"]
    if not isinstance(limits, dict):
        raise TypeError("the job has no limits")
    most = ExtractionLimits(**limits)
    with Path(str(payload["path"])).open("rb") as file:
        data = file.read(most.size + 1)  # one byte more than allowed is enough to refuse the file
    sys.addaudithook(_forbid)
    name, media_type = str(payload["file_name"]), str(payload["media_type"])
    return asdict(read_document(data, name, media_type, most))


def _forbid(event: str, _: object) -> None:
    """Refuses connections and processes. An audit hook stays until the process ends."""
    if event in FORBIDDEN:
        raise PermissionError(f"a document's reader may not do {event}")
