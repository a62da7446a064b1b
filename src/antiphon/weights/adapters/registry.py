"""Keeps the adapters that callers name, while requests run. A sandboxed process copies, converts, checks and
hashes the files. Only an adapter that passes gets into the registry.

The registry is a directory of GGUF files, each named by the SHA-256 of its content. This module removes no
file from it, since other servers may share the registry.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.domain.models import Adapter
from antiphon.errors import EngineError, InvalidValue, PermissionDenied
from antiphon.processes.sandbox import NOTHING, JobRunner, JobStopped, Limits, run_job

REMEDY = (
    "adapters are loaded by their paths at run time only where the operator names the directories that they "
    "may come from: set lora.directories (ANTIPHON_LORA_DIRECTORIES) and restart the server, or name the "
    "adapter at its start with --lora NAME=PATH"
)

JOB = "antiphon.weights.adapters.import_job:keep_job"
"""The sandbox's job. It is named, not imported, since it needs modules that a serving process does not."""

SECONDS = 120.0
"""CPU seconds for one adapter: one of a gibibyte takes about ten to convert."""

GGUF_SUFFIX, PEFT_SUFFIX = ".gguf", ".safetensors"
"""Endings of the kept files: of adapters for llama.cpp, and for vLLM. The rest of the name is the digest."""

COPIES = 6
"""Memory for converting an adapter to float32, in multiples of its size."""

OWN_MEMORY = 1 << 30
"""Bytes of address space for the interpreter and numpy."""

GROWTH = 4
"""The largest size of a converted adapter, in multiples of its own: from one byte a number to four."""

SHARED_FILE, SHARED_DIRECTORY = 0o644, 0o755
"""Modes of files that an engine of another user reads."""

LONGEST_SHOWN = 200
"""Characters of a caller's path that an error repeats."""


def default_registry(environ: Mapping[str, str], home: Path, platform: str = sys.platform) -> Path:
    """Returns `adapters` in ANTIPHON_HOME, or in the platform's data directory."""
    if path := environ.get("ANTIPHON_HOME"):
        return Path(path) / "adapters"
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
    """Largest size of one file, in bytes."""
    shared: bool = False
    """Whether processes of other users read the registry."""
    run: JobRunner = run_job
    """Runs the job that reads the files."""

    async def keep(self, path: str, among: Path | None = None, *, base: str) -> Adapter:
        """Checks the adapter at a caller's path for the model at `base`, and keeps it. `among`: the only
        allowed directory, instead of the operator's. Raises InvalidValue, PermissionDenied if no directory is
        allowed, and EngineError if the registry cannot be written."""
        directories = self.directories if among is None else (among,)
        if not directories:
            raise PermissionDenied(REMEDY)
        staging = staging_directory(self.registry)
        payload = {
            "path": path,
            "directories": [str(directory) for directory in directories],
            "base": base,
            "into": str(staging),
            "most": self.most,
        }
        try:
            result = await self.run(JOB, payload, self._limits(base), NOTHING)
            return self._store(staging, result)
        except JobStopped as stopped:
            stopped.raise_if_waited()
            raise InvalidValue(f"{sanitize(path)} cannot be taken: {stopped}", param="lora_path") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _limits(self, base: str) -> Limits:
        """Returns the limits of the job that imports an adapter."""
        memory_bytes = OWN_MEMORY + COPIES * self.most + _count_mapped_bytes(base)
        return Limits(SECONDS, 2 * SECONDS, memory_bytes, writes=GROWTH * self.most + OWN_MEMORY)

    def _store(self, staging: Path, result: object) -> Adapter:
        """Moves the checked file from the job's directory into the registry. Raises EngineError."""
        if not isinstance(result, dict):
            raise TypeError("the job answered with no object")
        name = result["file"]
        try:
            (staging / "kept" / name).replace(self.registry / name)
            if self.shared:
                share(self.registry / name)
        except OSError as problem:
            raise storage_error(problem) from None
        return Adapter(
            result["digest"], str(self.registry / name), result["rank"], result["alpha"], result["size"]
        )


def staging_directory(registry: Path) -> Path:
    """Makes a new directory in the registry, so that its files can be moved there. Raises EngineError."""
    try:
        registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=registry, prefix=".loading-"))
    except OSError as problem:
        raise storage_error(problem) from None


def storage_error(problem: OSError) -> EngineError:
    """Makes the error for a registry that cannot be written. The operator can repair that."""
    return EngineError(
        "the adapter cannot be kept: the registry (ANTIPHON_LORA_REGISTRY) cannot be written: "
        f"{problem.strerror or problem}"
    )


def share(path: Path) -> None:
    """Lets an engine of another user read a kept adapter."""
    path.chmod(SHARED_FILE)
    path.parent.chmod(SHARED_DIRECTORY)


def _count_mapped_bytes(base: str) -> int:
    """Returns the bytes of the model's file and of all other GGUF files beside it, or of the weights in a
    folder. The job maps the model's files into memory to read the header."""
    path = Path(base)
    parts = path.glob("*.safetensors") if path.is_dir() else path.parent.glob("*.gguf")
    try:
        return sum(part.stat().st_size for part in parts) if path.exists() else 0
    except OSError:
        return 0


def sanitize(path: str) -> str:
    """Returns a caller's path as an error may repeat it: printable and short."""
    plain = "".join(character if character.isprintable() else "?" for character in path[:LONGEST_SHOWN])
    return plain if len(path) <= LONGEST_SHOWN else plain + "..."
