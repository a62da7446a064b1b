"""The checks of `antiphon doctor` that follow from what the probe saw of the library. Opens nothing."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.cli.checks import Sized
from antiphon.cli.findings import Finding, Standing, fine, found, refused
from antiphon.cli.inspection import Inspection
from antiphon.cli.processor import DECISIVE, MEASURED_GAIN
from antiphon.errors import LibraryError


def check_library(seen: Inspection) -> Iterator[Finding]:
    """Which library the engine takes and why, and what is wrong with those before it."""
    if seen.version:
        for refusal in seen.refusals:
            said = f"{refusal.what} comes first and is passed over: {refusal.message}"
            yield found("library-passed-over", said, Standing.ADVICE)
        why = "the first that was found" if not seen.refusals else "the first that can be used"
        if seen.opening.startswith("the library setting"):
            why = "the setting names it"
        yield fine("library", f"{seen.version}, from {seen.opening} ({why}); its binary interface is known")
    elif seen.death:
        yield _died(seen)
    elif seen.refusals:
        yield refused("library-unusable", LibraryError(seen.refusals[-1].message))
    else:
        yield found("library-missing", "no llama.cpp library is installed")


def _died(seen: Inspection) -> Finding:
    """The probe ended before a library was open: by the library, or before it came to one."""
    if seen.opening:
        return found("library-crashes", f"opening the library of {seen.opening} ends with {seen.death}")
    said = f"the engine's Python cannot run Antiphon ({seen.death})"
    return found("interpreter-unusable", f"{said}: {seen.last_words}" if seen.last_words else said)


def check_processor(seen: Inspection, has: Sequence[str]) -> Iterator[Finding]:
    """What of the processor the library uses, and what it leaves."""
    if not seen.version:
        return
    uses = " ".join(feature for feature in seen.features if feature in has) or "nothing special"
    left = [feature for feature in has if feature not in seen.features]
    if not left:
        yield fine("cpu", f"the library uses {uses}")
        return
    said = f"the library uses {uses} of this processor, not {' '.join(left)}{_gain(left)}"
    yield found("cpu-features-unused", said, Standing.ADVICE)


def _gain(left: Sequence[str]) -> str:
    """What using these would bring: what was measured, or what is well known, or nothing."""
    if DECISIVE & set(left):
        return "; without these it is several times slower"
    return f"; {MEASURED_GAIN}" if "AVX512" in left else ""


def check_threads(seen: Inspection, asked: Sequence[int | None]) -> Iterator[Finding]:
    """The threads of each model against the processors."""
    if not seen.processors:
        return
    most = max((threads or seen.threads for threads in asked), default=seen.threads)
    said = f"{most} threads on {seen.processors} processors"
    if most > seen.processors:
        yield found("threads-too-many", said, Standing.ADVICE)
    else:
        yield fine("threads", said)


def check_loading(seen: Inspection, models: Sequence[Sized]) -> Iterator[Finding]:
    """How the trial went, for each model that was to be loaded."""
    if not seen.version or not models:
        return
    for path in seen.loaded:
        yield fine("loading", f"{Path(path).name} loads")
    for refusal in seen.not_loaded:
        yield refused("model-not-loadable", LibraryError(refusal.message))
    if seen.death:
        yield found("model-not-loadable", f"loading {seen.loading} ends with {seen.death}")
