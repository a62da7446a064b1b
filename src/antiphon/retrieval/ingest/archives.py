"""Checks the archive of an Office file before a library unpacks it: its size, parts and encryption."""

import io
import zipfile
import zlib

from antiphon.retrieval.ingest.documents import MEBIBYTE, ExtractionLimits, build_refusal

MAX_PARTS = 20_000
"""The most parts of one archive."""

HEAD_BYTES = 1_024
"""How many bytes of each part are searched for a document type."""

DAMAGE_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    SyntaxError,  # the base of both XML parsers' errors
    OSError,
    EOFError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Exceptions that `zipfile` and the libraries raise for damaged files."""

ENCRYPTED = 0x1
"""The flag of an encrypted part."""


def require_safe_archive(data: bytes, file_name: str, limits: ExtractionLimits) -> None:
    """Raises InvalidValue for an archive that is damaged, encrypted or too large when unpacked.

    The sizes in the archive's directory can be trusted: all the libraries use Python's `zipfile`, which reads
    no more of a part than the directory says. No Office file declares entities, so a file with entities is an
    attack.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = archive.infolist()
            if sum(part.file_size for part in parts) > limits.unpacked_bytes or len(parts) > MAX_PARTS:
                limits_text = f"{limits.unpacked_bytes // MEBIBYTE:,} MiB or {MAX_PARTS:,} parts"
                raise build_refusal(file_name, f"unpacks to more than {limits_text}; split it")
            if any(part.flag_bits & ENCRYPTED for part in parts):
                raise build_refusal(file_name, "is encrypted; remove its password and send it again")
            if any(_declares_entities(archive, part) for part in parts):
                raise build_refusal(file_name, "declares entities, which no Office file needs; save it again")
    except DAMAGE_ERRORS:
        raise build_refusal(file_name, "is damaged; open it and save it again") from None


def _declares_entities(archive: zipfile.ZipFile, part: zipfile.ZipInfo) -> bool:
    """Whether an XML part has a document type, the only place where XML can declare entities."""
    if not part.filename.lower().endswith((".xml", ".rels")):
        return False
    with archive.open(part) as part_file:
        beginning = part_file.read(HEAD_BYTES)
    return b"<!DOCTYPE" in beginning.replace(b"\0", b"")  # also in UTF-16
