"""Keeps adapters that callers name, while requests run: copying, converting, checking and hashing happen in a
process that can be killed, and only what passed is put into the registry.

The registry is a directory of GGUF files, each under the SHA-256 of its content. Nothing is ever removed from
it here: other servers may share it.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.domain.adapter import Adapter
from antiphon.errors import EngineError, InvalidValue, PermissionDenied
from antiphon.processes.sandbox import JobStopped, Limits, run_job
from antiphon.weights.allowed import sanitize

REMEDY = (
    "adapters are loaded by their paths at run time only where the operator names the directories that they "
    "may come from: set lora.directories (ANTIPHON_LORA_DIRECTORIES) and restart the server, or name the "
    "adapter at its start with --lora NAME=PATH"
)

JOB = "antiphon.weights.adapters:keep_job"
"""The sandbox's job; named, not imported, since it needs what a serving process does not."""

SECONDS = 120.0
"""Of CPU for one adapter: one of a gibibyte takes about ten to convert."""

COPIES = 6
"""Times its own size that an adapter takes while it is converted to float32."""

OWN_MEMORY = 1 << 30
"""Bytes of address space for the interpreter and numpy."""

GROWTH = 4
"""Times its own size that a converted adapter may have: from one byte a number to four."""

SHARED_FILE, SHARED_DIRECTORY = 0o644, 0o755
"""Rights of what an engine of another user reads."""


def default_registry(environ: Mapping[str, str], home: Path, platform: str = sys.platform) -> Path:
    """`adapters` in ANTIPHON_HOME, or in the platform's directory for data."""
    if said := environ.get("ANTIPHON_HOME"):
        return Path(said) / "adapters"
    data = home / ("Library/Application Support" if platform == "darwin" else ".local/share")
    if platform != "darwin" and os.path.isabs(xdg := environ.get("XDG_DATA_HOME", "")):
        data = Path(xdg)
    return data / "antiphon" / "adapters"


@dataclass(frozen=True, slots=True)
class AdapterStore:
    """Where adapters may come from, and where they are kept."""

    registry: Path
    directories: Sequence[Path]
    most: int
    """Bytes of one file that is taken."""
    shared: bool = False
    """Whether users other than this process's read the registry."""

    async def keep(self, said: str, among: Path | None = None, *, base: str) -> Adapter:
        """The adapter at a caller's path, checked for the model at `base` and kept. `among`: the one
        directory that it comes from, instead of the operator's. Raises InvalidValue, PermissionDenied where
        there is no directory, and EngineError when the registry cannot be written."""
        directories = self.directories if among is None else (among,)
        if not directories:
            raise PermissionDenied(REMEDY)
        staging = staging_directory(self.registry)
        payload = {
            "path": said,
            "directories": [str(directory) for directory in directories],
            "base": base,
            "into": str(staging),
            "most": self.most,
        }
        try:
            found = await run_job(JOB, payload, self._limits(base))
            return self._store(staging, found)
        except JobStopped as stopped:
            stopped.raise_if_waited()
            raise InvalidValue(f"{sanitize(said)} cannot be taken: {stopped}", param="lora_path") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _limits(self, base: str) -> Limits:
        room = OWN_MEMORY + COPIES * self.most + _count_mapped_bytes(base)
        return Limits(SECONDS, 2 * SECONDS, room, writes=GROWTH * self.most + OWN_MEMORY)

    def _store(self, staging: Path, found: object) -> Adapter:
        if not isinstance(found, dict):
            raise TypeError("the job answered with no object")
        name = f"{found['digest']}.gguf"
        try:
            (staging / "kept" / name).replace(self.registry / name)
            if self.shared:
                share(self.registry / name)
        except OSError as problem:
            raise storage_error(problem) from None
        return Adapter(
            found["digest"], str(self.registry / name), found["rank"], found["alpha"], found["size"]
        )


def staging_directory(registry: Path) -> Path:
    """A new directory in the registry, so that what is in it can be moved there as it is. Raises
    EngineError."""
    try:
        registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=registry, prefix=".loading-"))
    except OSError as problem:
        raise storage_error(problem) from None


def storage_error(problem: OSError) -> EngineError:
    """What a caller is told when the registry cannot be written; the operator can mend it."""
    return EngineError(
        "the adapter cannot be kept: the registry (ANTIPHON_LORA_REGISTRY) cannot be written: "
        f"{problem.strerror or problem}"
    )


def share(path: Path) -> None:
    """Lets an engine of another user read a kept adapter."""
    path.chmod(SHARED_FILE)
    path.parent.chmod(SHARED_DIRECTORY)


def _count_mapped_bytes(base: str) -> int:
    """Bytes of the model's file, which the job maps to read its header; of all parts, of one in several."""
    path = Path(base)
    try:
        return sum(part.stat().st_size for part in path.parent.glob("*.gguf")) if path.is_file() else 0
    except OSError:
        return 0
