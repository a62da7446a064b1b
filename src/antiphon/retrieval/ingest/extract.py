"""Extracts a document's text in the sandbox, another process. So no document can block or end the caller's
process, or use up its memory."""

from pathlib import Path

from msgspec import convert

from antiphon.domain.values import asdict
from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.retrieval.ingest.documents import (
    DEFAULT_LIMITS,
    ExtractedDocument,
    ExtractionLimits,
    build_refusal,
)

JOB = "antiphon.retrieval.ingest.reading:run_reading"
"""The sandbox's job. It is not imported here, because only the sandbox may import the readers."""

BYTES_PER_CHARACTER = 12
"""The most bytes of JSON for one character."""

OVERHEAD_BYTES = 1 << 20
"""The most bytes of JSON besides the text."""

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

    `file_name`: the caller's name of the file; its extension names the format. `media_type`: what the caller
    declares, perhaps with a charset. Raises InvalidValue or UnsupportedMediaType, with one sentence that
    names the file and the remedy; ServerBusy if the machine is too busy.
    """
    payload = {
        "path": str(path),
        "file_name": file_name,
        "media_type": media_type,
        "limits": asdict(limits),
    }
    max_result_bytes = BYTES_PER_CHARACTER * limits.characters + OVERHEAD_BYTES
    job_limits = Limits(limits.cpu_seconds, limits.wall_seconds, limits.memory_bytes, max_result_bytes)
    try:
        result = await run_job(JOB, payload, job_limits)
    except JobStopped as stopped:
        stopped.raise_if_machine_was_busy()
        reason = REASONS[stopped.stop].format(seconds=limits.cpu_seconds, mebibytes=limits.memory_bytes >> 20)
        raise build_refusal(file_name, reason) from None
    return convert(result, ExtractedDocument)
