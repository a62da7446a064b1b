"""Stores the adapters that callers name. A sandboxed process copies, converts, checks and hashes the files.
Only an adapter that passes the checks gets into the registry.

The registry is a directory of GGUF files, each named by the SHA-256 of its content. This module removes no
file from it, because other servers can share the registry.
"""

import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from antiphon.domain.models import Adapter
from antiphon.domain.values import Struct
from antiphon.errors import EngineError, InvalidValue, PermissionDenied
from antiphon.processes.sandbox import NOTHING, JobRunner, JobStopped, Limits, run_job

REMEDY = (
    "adapters are loaded by their paths at run time only if the operator allows directories: "
    "set lora.directories (ANTIPHON_LORA_DIRECTORIES) and restart the server, or name the "
    "adapter at its start with --lora NAME=PATH"
)

JOB = "antiphon.weights.adapters.import_job:import_job"
"""The sandbox's job. It is not imported here, because it needs modules that HTTP processes do not load."""

SECONDS = 120.0
"""CPU seconds for one adapter. The conversion of one GiB takes about ten seconds."""

GGUF_SUFFIX, PEFT_SUFFIX = ".gguf", ".safetensors"
"""Endings of the stored files, for llama.cpp and for vLLM. The name before the ending is the digest."""

COPIES = 6
"""Memory for the conversion to float32, in multiples of the adapter's size."""

OWN_MEMORY = 1 << 30
"""Bytes of address space for the interpreter and numpy."""

GROWTH = 4
"""The largest size of a converted adapter, in multiples of its size: a one-byte number becomes four bytes."""

SHARED_FILE, SHARED_DIRECTORY = 0o644, 0o755
"""Modes with which an engine that runs as another user can read the files."""

MAX_SHOWN_PATH = 200
"""The most characters of a caller's path in an error."""


def get_default_registry(environ: Mapping[str, str], home: Path, platform: str = sys.platform) -> Path:
    """Returns `adapters` in ANTIPHON_HOME, or in the platform's data directory."""
    if path := environ.get("ANTIPHON_HOME"):
        return Path(path) / "adapters"
    data = home / ("Library/Application Support" if platform == "darwin" else ".local/share")
    if platform != "darwin" and os.path.isabs(xdg := environ.get("XDG_DATA_HOME", "")):
        data = Path(xdg)
    return data / "antiphon" / "adapters"


class AdapterStore(Struct, frozen=True):
    """Imports adapters from allowed directories into the registry."""

    registry: Path
    directories: Sequence[Path]
    max_file_bytes: int
    """The most bytes of one file."""
    is_shared: bool = False
    """Whether processes of other users read the registry."""
    run: JobRunner = run_job
    """Runs the import job."""

    async def store(self, path: str, only_directory: Path | None = None, *, base: str) -> Adapter:
        """Checks the adapter at a caller's path for the model at `base`, and stores it. `only_directory`: the
        only allowed directory, instead of the operator's. Raises InvalidValue, PermissionDenied if no
        directory is allowed, and EngineError if the registry cannot be written."""
        directories = self.directories if only_directory is None else (only_directory,)
        if not directories:
            raise PermissionDenied(REMEDY)
        staging = create_staging_directory(self.registry)
        payload = {
            "path": path,
            "directories": [str(directory) for directory in directories],
            "base": base,
            "into": str(staging),
            "most": self.max_file_bytes,
        }
        try:
            result = await self.run(JOB, payload, self._build_limits(base), NOTHING)
            return self._store(staging, result)
        except JobStopped as error:
            error.raise_if_machine_was_busy()
            raise InvalidValue(f"{sanitize(path)} cannot be used: {error}", param="lora_path") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _build_limits(self, base: str) -> Limits:
        """Returns the limits of the import job."""
        memory_bytes = OWN_MEMORY + COPIES * self.max_file_bytes + _count_mapped_bytes(base)
        return Limits(SECONDS, 2 * SECONDS, memory_bytes, writes=GROWTH * self.max_file_bytes + OWN_MEMORY)

    def _store(self, staging: Path, result: object) -> Adapter:
        """Moves the checked file from the job's directory into the registry. Raises EngineError."""
        if not isinstance(result, dict):
            raise TypeError("the job returned no object")
        name = result["file"]
        try:
            (staging / "kept" / name).replace(self.registry / name)
            if self.is_shared:
                make_readable(self.registry / name)
        except OSError as problem:
            raise build_storage_error(problem) from None
        return Adapter(
            result["digest"], str(self.registry / name), result["rank"], result["alpha"], result["size"]
        )


def create_staging_directory(registry: Path) -> Path:
    """Creates a temporary directory in the registry, so that its files can be moved atomically. Raises
    EngineError."""
    try:
        registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(dir=registry, prefix=".loading-"))
    except OSError as problem:
        raise build_storage_error(problem) from None


def build_storage_error(problem: OSError) -> EngineError:
    """Returns the error for a registry that cannot be written. The operator can repair it."""
    return EngineError(
        "the adapter cannot be stored: the registry (ANTIPHON_LORA_REGISTRY) cannot be written: "
        f"{problem.strerror or problem}"
    )


def make_readable(path: Path) -> None:
    """Makes a stored adapter readable for an engine that runs as another user."""
    path.chmod(SHARED_FILE)
    path.parent.chmod(SHARED_DIRECTORY)


def _count_mapped_bytes(base: str) -> int:
    """Returns the size of all GGUF files next to the model's file, or of all weights in its folder. The job
    maps the model's files into memory to read their headers."""
    path = Path(base)
    files = path.glob("*.safetensors") if path.is_dir() else path.parent.glob("*.gguf")
    try:
        return sum(file.stat().st_size for file in files) if path.exists() else 0
    except OSError:
        return 0


def sanitize(path: str) -> str:
    """Returns a caller's path for an error: printable and short."""
    plain = "".join(character if character.isprintable() else "?" for character in path[:MAX_SHOWN_PATH])
    return plain if len(path) <= MAX_SHOWN_PATH else plain + "..."
