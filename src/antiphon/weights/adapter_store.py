"""Stores the adapters that callers name, and keeps their names over a restart.

A sandboxed process (`import_job`) copies, converts, checks and hashes the files. Only an adapter that passes
the checks gets into the registry. The registry is a directory of GGUF files, each named by the SHA-256 of its
content. No file is removed from it while a name refers to the file, because other servers can share the
registry.

The servers share the names too. Each change reads the file of names under a lock, changes one name, and
replaces the file. A name contains a fingerprint of the base model, because an adapter is useless with other
weights of the same shapes.
"""

import asyncio
import errno
import fcntl
import glob
import hashlib
import logging
import os
import re
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path

from antiphon.domain.models import Adapter, KeptName, NameChange
from antiphon.domain.values import Struct, replace
from antiphon.errors import EngineError, InvalidValue, PermissionDenied
from antiphon.processes.ipc import FrameError, from_line, to_line
from antiphon.processes.sandbox import NOTHING, JobRunner, JobStopped, Limits, run_job
from antiphon.telemetry.logs import record

REMEDY = (
    "adapters are loaded by their paths at run time only if the operator allows directories: "
    "set lora.directories (ANTIPHON_LORA_DIRECTORIES) and restart the server, or name the "
    "adapter at its start with --lora NAME=PATH"
)

JOB = "antiphon.weights.adapter_import:import_job"
"""The sandbox's job. It is not imported here, because it needs modules that HTTP processes do not load."""

SECONDS = 120.0
"""CPU seconds for one adapter. The conversion of one GiB takes about ten seconds."""

GGUF_SUFFIX, PEFT_SUFFIX = ".gguf", ".safetensors"
"""Endings of the stored files, for llama.cpp and for vLLM. The name before the ending is the digest."""

COPIES = 6
"""Memory for the conversion to float32, in multiples of the adapter's size."""

INTERPRETER_BYTES = 1 << 30
"""Bytes of address space for the interpreter and numpy."""

GROWTH = 4
"""The largest size of a converted adapter, in multiples of its size: a one-byte number becomes four bytes."""

SHARED_FILE, SHARED_DIRECTORY = 0o644, 0o755
"""Modes with which an engine that runs as another user can read the files."""

MAX_SHOWN_PATH = 200
"""The most characters of a caller's path in an error."""


NAMES, LOCK, DAMAGED = "names.json", "names.lock", "names.damaged"
CHANGES_LOCK = "changes.lock"
"""Files of the registry. `names.lock` is locked while `names.json` or an adapter's file changes,
`changes.lock` during a whole load or unload."""

LOCK_PAUSE_S = 0.02
"""Seconds between attempts to lock `changes.lock`. The attempts do not block, so that a waiting caller can be
cancelled."""

SAMPLES = 16
SAMPLE_BYTES = 1 << 16
"""The number and size of the samples of a model's file for its fingerprint. Further training of a model
changes them."""

SPLIT = re.compile(r"(.+)-\d{5}-of-(\d{5})\.gguf")
"""The name of one part of a split model."""


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
        memory_bytes = INTERPRETER_BYTES + COPIES * self.max_file_bytes + _count_mapped_bytes(base)
        return Limits(
            SECONDS, 2 * SECONDS, memory_bytes, writes=GROWTH * self.max_file_bytes + INTERPRETER_BYTES
        )

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


class KeptNamesFile(Struct, frozen=True):
    """The stored names of a registry. Every method blocks, except `hold_changes`."""

    registry: Path
    stores_names: bool = True
    """Whether names are stored. If not, only files are removed."""

    def read(self) -> tuple[KeptName, ...]:
        """Returns the names, the oldest first. Logs a file that cannot be read, and returns no names."""
        try:
            return self._load() if self.stores_names else ()
        except (OSError, FrameError) as problem:
            record("adapter_names_unreadable", logging.WARNING, problem=str(problem))
            return ()

    def _load(self) -> tuple[KeptName, ...]:
        """Returns the names. Raises OSError and FrameError."""
        try:
            content = (self.registry / NAMES).read_bytes()
        except FileNotFoundError:
            return ()
        return from_line(content, tuple[KeptName, ...])

    def apply(self, change: NameChange) -> None:
        """Adds or removes one name. Replaces a names file that cannot be decoded, and renames the old one.
        Raises OSError, also if the adapter's file is missing."""
        with self._hold_lock():
            if change.kept is not None and not self._build_file_path(change.kept.entry.adapter).exists():
                raise FileNotFoundError(errno.ENOENT, "the adapter's file is gone; load it again")
            if not self.stores_names:
                return
            path = self.registry / NAMES
            try:
                names = self._load()
            except FrameError:
                path.replace(self.registry / DAMAGED)
                names = ()
            names_by_key = {name.entry.key: name for name in names}
            names_by_key.pop(change.key, None)
            if change.kept is not None:
                names_by_key[change.key] = change.kept
            elif len(names_by_key) == len(names):
                return
            _replace_file(path, to_line(tuple(names_by_key.values())))

    def find_obstacle(self, adapter: Adapter) -> str | None:
        """Returns why the adapter's file cannot be used; None if it can be used."""
        path = self._build_file_path(adapter)
        try:
            size = path.stat().st_size
        except OSError as problem:
            return f"its file {path.name} is not in the registry: {problem.strerror}"
        if size != adapter.size:
            return f"its file {path.name} in the registry has {size:,} bytes instead of {adapter.size:,}"
        return None

    def locate(self, adapter: Adapter) -> Adapter:
        """Returns the adapter with the path of its file in this registry. The registry can have moved since
        the name was stored."""
        return replace(adapter, path=str(self._build_file_path(adapter)))

    def remove_file(self, digest: str) -> None:
        """Removes an adapter's file unless a stored name refers to it. Names of other servers count even if
        this server stores none. The lock prevents other servers from adding a name meanwhile."""
        with suppress(OSError, FrameError), self._hold_lock():
            if all(kept_name.entry.adapter.digest != digest for kept_name in self._load()):
                for suffix in (GGUF_SUFFIX, PEFT_SUFFIX):
                    (self.registry / f"{digest}{suffix}").unlink(missing_ok=True)

    def _build_file_path(self, adapter: Adapter) -> Path:
        suffix = PEFT_SUFFIX if adapter.path.endswith(PEFT_SUFFIX) else GGUF_SUFFIX
        return self.registry / f"{adapter.digest}{suffix}"

    @asynccontextmanager
    async def hold_changes(self) -> AsyncIterator[None]:
        """Prevents changes by other processes of the registry until the block ends. The system releases the
        lock of a process that dies. Raises OSError."""
        lock = self._open_lock(CHANGES_LOCK)
        try:
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                await asyncio.sleep(LOCK_PAUSE_S)
            yield
        finally:
            os.close(lock)

    @contextmanager
    def _hold_lock(self) -> Iterator[None]:
        """Prevents changes of the names and files by other servers until the block ends. Raises OSError."""
        lock = self._open_lock(LOCK)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _open_lock(self, name: str) -> int:
        """Opens a lock file of the registry. Raises OSError."""
        self.registry.mkdir(mode=0o700, parents=True, exist_ok=True)
        return os.open(self.registry / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)


def _replace_file(path: Path, content: bytes) -> None:
    """Replaces a file atomically, and waits until it is on the disk. Raises OSError."""
    new_file = path.with_suffix(".new")
    with os.fdopen(os.open(new_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    new_file.replace(path)


def compute_fingerprint(path: Path) -> str:
    """Returns a digest of a model: of the size and samples of each of its files. A model is a file, all parts
    of a split file, or all files of a directory. Returns an empty string if a file cannot be read."""
    digest = hashlib.sha256()
    try:
        for file in _list_files(path):
            _add_samples(file, digest)
    except OSError:
        return ""
    return digest.hexdigest()


def _list_files(path: Path) -> list[Path]:
    """Returns the files of a model. Raises OSError."""
    if path.is_dir():
        return sorted(file for file in path.iterdir() if file.is_file())
    if (split := SPLIT.fullmatch(path.name)) is None:
        return [path]
    return sorted(path.parent.glob(f"{glob.escape(split[1])}-?????-of-{split[2]}.gguf"))


def _add_samples(path: Path, digest: "hashlib._Hash") -> None:
    """Adds the size and samples of a file to the digest. Raises OSError."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        digest.update(b"%d" % size)
        for sample in range(SAMPLES):
            file.seek(max(0, size - SAMPLE_BYTES) * sample // (SAMPLES - 1))
            digest.update(file.read(SAMPLE_BYTES))
