"""Extracts a document's text in the sandbox. So no document can block or end the caller's process, or use up
its memory."""

from dataclasses import asdict
from pathlib import Path

from msgspec import convert

from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.retrieval.ingest.documents import (
    DEFAULT_LIMITS,
    ExtractedDocument,
    ExtractionLimits,
    refuse,
)

JOB = "antiphon.retrieval.ingest.reading:run_reading"
"""The sandbox's job. It is not imported here, because only the sandbox may import the readers."""

ANSWER_BYTES = 12
"""The most bytes of JSON for one character."""

OVERHEAD = 1 << 20
"""Bytes of JSON besides the text."""

REASONS = {
    Stop.TIME: "takes more than {seconds:g} s of computing to read; simplify it or split it",
    Stop.MEMORY: "takes more than {mebibytes:,} MiB of memory to read; simplify it or split it",
    Stop.OUTPUT: "has too much text; split it",
    Stop.CRASH: "is damaged, or takes more than {mebibytes:,} MiB to read; save it again or split it",
}


async def extract(
    path: Path, file_name: str, media_type: str = "", limits: ExtractionLimits = DEFAULT_LIMITS
) -> ExtractedDocument:
    """Returns the text of the document at `path`.

    `file_name`: as the caller names it; its extension names the format. `media_type`: as the caller declares
    it, perhaps with a charset. Raises InvalidValue or UnsupportedMediaType, with one sentence that names the
    file and the remedy; ServerBusy if the machine is too busy.
    """
    payload = {
        "path": str(path),
        "file_name": file_name,
        "media_type": media_type,
        "limits": asdict(limits),
    }
    answer = ANSWER_BYTES * limits.characters + OVERHEAD
    try:
        result = await run_job(JOB, payload, Limits(limits.seconds, limits.patience, limits.memory, answer))
    except JobStopped as stopped:
        stopped.raise_if_waited()
        reason = REASONS[stopped.stop].format(seconds=limits.seconds, mebibytes=limits.memory >> 20)
        raise refuse(file_name, reason) from None
    return convert(result, ExtractedDocument)
