"""Downloads a file of a hub repository, and in the sandbox an adapter. Resumes downloads, and checks every
byte.

huggingface_hub returns the file's commit, size and checksum, sends the token, and raises the hub's errors.
This module streams the content itself, because the library drops an incomplete download when its process
ends, and compares only sizes. Import it only to download a file.

`fetch_job` is the sandbox's job for adapters: PEFT's two files or one GGUF file, all of the same commit.
"""

import hashlib
import json
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import urlsplit

import antiphon
from antiphon.domain.values import Struct
from antiphon.errors import EngineError, HubUnavailable, InvalidValue, ModelFetchError, SettingsError
from antiphon.settings.server import is_loopback
from antiphon.weights.adapter_import import PEFT_FILES
from antiphon.weights.adapter_store import build_storage_error
from antiphon.weights.hub.cache import DIGEST, CachedFile, HubCache
from antiphon.weights.hub.reference import COMMIT, ENDING, PREFIX, Reference, parse

if TYPE_CHECKING:
    import httpx2


T = TypeVar("T")

READ_BYTES = 1 << 20
"""The most bytes of one read when a file is checked."""

ANSWER_S = 4.0
"""Seconds in which the hub must answer, including the DNS lookup. HF_HUB_ETAG_TIMEOUT overrides it."""

CONNECT_S = 5.0
"""Seconds to connect to the host of the file."""

PAUSES = (1.0, 3.0, 10.0)
"""Seconds before each further attempt."""

PARTIAL_CONTENT = 206

DISK = "disk"
"""The `param` of an error that only the operator can correct."""

UNAVAILABLE = "hub"
"""The `param` of a temporary error of the hub."""

MOST_NAMES = 40
"""The most file names in the error about a missing file."""

TEMPORARY_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses of temporary errors."""

FIELDS = {"revision": "hf_revision", "token": "hf_token"}
"""The request field for each `param` of a hub error. For any other `param` it is `model_name`."""

MAX_LISTED = 8
"""The most file names in an error."""

LARGEST_CONFIG = 1 << 20
"""The most bytes of a configuration in which the name of the base model is looked up."""

UNREACHED = "the hub does not respond, fails, or received too many requests"
"""The cause for the log, without the caller's repository."""


class Stage(StrEnum):
    """The stage of a fetch."""

    FETCHING = "fetching"
    CHECKING = "checking"


class FetchProgress(Struct, frozen=True):
    """The progress of a fetch."""

    stage: Stage
    name: str
    """The name of the file."""
    done: int
    """The bytes that are downloaded or checked."""
    size: int
    """All bytes of the file."""


ReportProgress = Callable[[FetchProgress], None]
"""Receives the progress after each chunk."""


class RemoteFile(Struct, frozen=True):
    """The hub's metadata of a file."""

    commit: str
    digest: str
    size: int


class HubCaller(Struct, frozen=True):
    """A caller of the server for whom a file is downloaded."""

    token: str | None
    """The caller's token. The operator's token is not used."""
    max_file_bytes: int
    """The most bytes of one file."""


class Hub:
    """The hub, and the cache for its files."""

    def __init__(
        self,
        cache: HubCache,
        *,
        endpoint: str | None = None,
        offline: bool = False,
        pauses: Sequence[float] = PAUSES,
        caller: HubCaller | None = None,
    ) -> None:
        """`caller`: the caller of the server for whom the files are downloaded; None means the operator."""
        self._cache = cache
        self._caller = caller
        self._configured_endpoint = endpoint
        self._offline = offline
        self._pauses = pauses

    def find_or_pull(self, reference: Reference, report_progress: ReportProgress) -> CachedFile:
        """Returns the file from the cache without a request to the hub. Downloads the file if it is not in
        the cache."""
        return self._cache.find(reference) or self.pull(reference, report_progress)

    def pull(self, reference: Reference, report_progress: ReportProgress) -> CachedFile:
        """Downloads the current version of the file, unless it is in the cache. Raises ModelFetchError with
        the remedy."""
        if self._offline:
            raise ModelFetchError(
                f"{reference} was not downloaded before, and offline mode is on: download it with "
                "`antiphon models pull` on a machine with a network, or turn ANTIPHON_HUB_OFFLINE off"
            )
        with self._translate_errors(reference):
            remote = self._fetch_metadata(reference)
            self._require_allowed_size(reference, remote)
            with self._cache.lock(reference, remote.digest):
                path = self._cache.build_file_path(reference, remote.digest)
                if path.exists():
                    self._verify(path, reference, remote, report_progress)
                else:
                    partial = self._cache.build_partial_path(reference, remote.digest)
                    self._fetch_missing_bytes(partial, reference, remote, report_progress)
                    self._verify(partial, reference, remote, report_progress)
                    _move(partial, path)
                return self._cache.add_reference(reference, remote.commit, remote.digest)

    def list_files(self, repository: str, revision: str) -> list[str]:
        """Lists the files of a repository. Raises ModelFetchError with the remedy."""
        from huggingface_hub import HfApi

        if self._offline:
            raise ModelFetchError(
                f"the files of {repository} cannot be listed, because offline mode is on: name the file, or "
                "turn ANTIPHON_HUB_OFFLINE off"
            )
        with self._translate_errors(Reference(repository, "", revision)):
            api = HfApi(endpoint=self._endpoint, token=self._token)
            return self._call_hub(lambda: api.list_repo_files(repository, revision=revision))

    @property
    def _token(self) -> str | bool | None:
        """None means the token of the operator's environment, False means no token."""
        return None if self._caller is None else self._caller.token or False

    @property
    def _endpoint(self) -> str:
        from huggingface_hub import constants

        return (self._configured_endpoint or constants.ENDPOINT).rstrip("/")

    @contextmanager
    def _translate_errors(self, reference: Reference) -> Iterator[None]:
        """Configures the library, and translates its errors and the system's to a ModelFetchError."""
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the library is imported
        import httpx2
        from huggingface_hub import close_session

        from antiphon.weights.hub.errors import Attempt, explain, find_cause

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings show signed addresses
        has_token = "authorization" in self._build_headers()
        try:
            self._refuse_plaintext_token(has_token)
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as problem:
            is_cached = self._cache.find(reference) is not None
            is_caller = self._caller is not None
            attempt = Attempt(reference, self._endpoint, self._cache.root, has_token, is_cached, is_caller)
            raise ModelFetchError(explain(problem, attempt), param=find_cause(problem, has_token)) from None
        finally:
            close_session()

    def _build_headers(self) -> dict[str, str]:
        """Returns the request headers: the user agent, and the token if there is one."""
        from huggingface_hub.utils import build_hf_headers

        return build_hf_headers(
            token=self._token, library_name="antiphon", library_version=antiphon.__version__
        )

    def _refuse_plaintext_token(self, has_token: bool) -> None:
        """Raises ModelFetchError if the token would be sent without encryption to another machine."""
        address = urlsplit(self._endpoint)
        if has_token and address.scheme == "http" and not is_loopback(address.hostname or ""):
            raise ModelFetchError(
                f"refusing to send the hub's token to {self._endpoint} in the clear; use an https address, "
                "or set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 to ask without the token"
            )

    def _call_hub(self, call: Callable[[], T]) -> T:
        """Calls the hub, with a time limit for the operator. For a caller of the server only the library's
        timeouts apply: the job's process cannot start threads, and nobody waits at a terminal."""
        return _wait_for_answer(call) if self._caller is None else call()

    def _fetch_metadata(self, reference: Reference) -> RemoteFile:
        """Asks the hub for the file's commit, checksum and size. Raises ModelFetchError."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import RemoteEntryNotFoundError

        url = hf_hub_url(
            reference.repository, reference.file, revision=reference.revision, endpoint=self._endpoint
        )
        try:
            metadata = self._call_hub(
                lambda: get_hf_file_metadata(
                    url, token=self._token, endpoint=self._endpoint, headers=self._build_headers()
                )
            )
        except RemoteEntryNotFoundError:
            raise ModelFetchError(self._describe_missing(reference)) from None
        commit, digest, size = metadata.commit_hash or "", metadata.etag or "", metadata.size
        if not COMMIT.fullmatch(commit) or not DIGEST.fullmatch(digest) or size is None:
            raise ModelFetchError(
                f"{self._endpoint} returns no commit, checksum and size for {reference}, so the "
                "file could not be checked; ANTIPHON_HUB_ENDPOINT or HF_ENDPOINT must name a hub, or a "
                "whole mirror"
            )
        return RemoteFile(commit, digest, size)

    def _require_allowed_size(self, reference: Reference, remote: RemoteFile) -> None:
        """Raises ModelFetchError if the file is larger than the caller's limit."""
        if self._caller is not None and remote.size > self._caller.max_file_bytes:
            raise ModelFetchError(
                f"{reference} has {remote.size:,} bytes, and the limit is {self._caller.max_file_bytes:,}; "
                "the operator can raise lora.max_bytes (ANTIPHON_LORA_MAX_BYTES)"
            )

    def _describe_missing(self, reference: Reference) -> str:
        """Returns the message for a missing file, with the other files of the repository."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self._endpoint, token=self._token)
        files = self._call_hub(lambda: api.list_repo_files(reference.repository, revision=reference.revision))
        names = sorted(name for name in files if name.lower().endswith(ENDING))
        missing = f"there is no {reference.file} in {reference.repository}"
        if not names:
            return f"{missing}, nor any other GGUF file; look for a GGUF edition of the model"
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"{missing}; it has {', '.join(names[:MOST_NAMES])}{more}"

    def _fetch_missing_bytes(
        self, partial: Path, reference: Reference, remote: RemoteFile, report_progress: ReportProgress
    ) -> None:
        """Downloads the missing part of a file. Tries again after a failure, and raises the error after
        several attempts that received no byte."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        position = _get_file_size(partial)
        if position > remote.size:
            partial.unlink()
            position = 0
        self._require_disk_space(reference, remote.size - position)
        failures = 0
        while position < remote.size or not partial.exists():
            try:
                self._fetch_once(partial, reference, remote, report_progress)
            except (httpx2.TransportError, HfHubHTTPError) as problem:
                if (
                    isinstance(problem, HfHubHTTPError)
                    and problem.response.status_code not in TEMPORARY_STATUSES
                ):
                    raise
                failures = 0 if _get_file_size(partial) > position else failures + 1
                if failures > len(self._pauses):
                    raise
                time.sleep(self._pauses[failures - 1] if failures else 0)
            position = _get_file_size(partial)

    def _fetch_once(
        self, partial: Path, reference: Reference, remote: RemoteFile, report_progress: ReportProgress
    ) -> None:
        """Sends one request for the missing part of the file."""
        position = _get_file_size(partial)
        with self._open_from(reference, remote, position) as response, partial.open("ab") as file:
            if position and response.status_code != PARTIAL_CONTENT:
                file.truncate(position := 0)
            for chunk in response.iter_bytes():
                position += len(chunk)
                if position > remote.size:
                    file.truncate(0)
                    raise ModelFetchError(
                        f"{self._endpoint} sends more than the {remote.size} bytes that it states as the "
                        f"size of {reference}; the incomplete file was removed"
                    )
                file.write(chunk)
                report_progress(FetchProgress(Stage.FETCHING, reference.name + ENDING, position, remote.size))

    @contextmanager
    def _open_from(
        self, reference: Reference, remote: RemoteFile, start_byte: int
    ) -> Iterator["httpx2.Response"]:
        """Opens the file's content from `start_byte` on. It asks the hub each time, because redirect
        addresses expire. The client sends the token to no other host."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import hf_raise_for_status

        headers = self._build_headers() | {"Accept-Encoding": "identity"}
        if start_byte:
            headers["Range"] = f"bytes={start_byte}-"
        url = hf_hub_url(
            reference.repository, reference.file, revision=remote.commit, endpoint=self._endpoint
        )
        import httpx2

        timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT, connect=CONNECT_S)
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            yield response

    def _require_disk_space(self, reference: Reference, needed_bytes: int) -> None:
        """Raises ModelFetchError if the disk has too little space for the file."""
        free_bytes, root = self._cache.count_free_bytes(), self._cache.root
        if needed_bytes > free_bytes and self._caller is not None:
            raise ModelFetchError(f"the server has no disk space for {reference}", param=DISK)
        if needed_bytes > free_bytes:
            raise ModelFetchError(
                f"{reference} needs {needed_bytes / 1e9:.3f} GB more, and {root} has "
                f"{free_bytes / 1e9:.3f} GB free; remove files (`antiphon models list` shows them), or set "
                "ANTIPHON_HUB_CACHE to a directory on a larger disk"
            )

    def _verify(
        self, path: Path, reference: Reference, remote: RemoteFile, report_progress: ReportProgress
    ) -> None:
        """Compares the file's digest with the hub's checksum. Removes a file that differs and raises
        ModelFetchError."""
        digest = _compute_digest(
            path,
            remote,
            lambda done: report_progress(
                FetchProgress(Stage.CHECKING, reference.name + ENDING, done, remote.size)
            ),
        )
        if digest != remote.digest:
            path.unlink()
            raise ModelFetchError(
                f"{reference} differs from the hub's file: its checksum is {digest}, not {remote.digest}; "
                "the file was removed. Download it again; if this repeats, a proxy or a disk changes the file"
            )


def _wait_for_answer(call: Callable[[], T]) -> T:
    """Returns the result of a call of the hub, or raises its error. Raises ConnectTimeout if the call takes
    too long.

    The library has a time limit for each address of a name, but none for the DNS lookup. So the call runs in
    a thread. After a timeout the thread ends later, at the latest with the process.
    """
    import httpx2
    from huggingface_hub import constants

    configured = constants.HF_HUB_ETAG_TIMEOUT
    seconds = ANSWER_S if configured == constants.DEFAULT_ETAG_TIMEOUT else configured
    outcomes: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            result = call()
        except BaseException as problem:  # noqa: BLE001 - raised again in the thread that waits
            outcomes.put(partial(_raise, problem))
        else:
            outcomes.put(lambda: result)

    threading.Thread(target=run, name="antiphon-hub", daemon=True).start()
    try:
        return outcomes.get(timeout=seconds)()
    except queue.Empty:
        raise httpx2.ConnectTimeout("no response in time") from None


def _raise(problem: BaseException) -> NoReturn:
    raise problem


def _move(partial: Path, target: Path) -> None:
    """Moves the complete file to its path after all data is on the disk."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)


def _get_file_size(path: Path) -> int:
    """Returns the file's size in bytes; 0 if the file is missing."""
    return path.stat().st_size if path.exists() else 0


def _compute_digest(path: Path, remote: RemoteFile, on_progress: Callable[[int], None]) -> str:
    """Returns the file's SHA-256, or git's blob hash if the hub uses that."""
    if len(remote.digest) == hashlib.sha256().digest_size * 2:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    done_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
            done_bytes += len(chunk)
            on_progress(done_bytes)
    return digest.hexdigest()


def fetch_job(payload: Mapping[str, object]) -> dict[str, object]:
    """Downloads the adapter into the folder `arrived` of the payload's directory `into`. Raises InvalidValue
    about the caller's field, HubUnavailable, and EngineError if the directory cannot be written."""
    repository, revision = str(payload["repository"]), str(payload["revision"])
    token, max_bytes, pauses = payload["token"], payload["most"], payload["pauses"]
    if not isinstance(max_bytes, int) or not isinstance(pauses, list):
        raise TypeError("the job needs a size and pauses")
    staging = Path(str(payload["into"]))
    endpoint = None if payload["endpoint"] is None else str(payload["endpoint"])
    caller = HubCaller(None if token is None else str(token), max_bytes)
    hub = Hub(HubCache(staging / "fetched"), endpoint=endpoint, pauses=pauses, caller=caller)
    try:
        files = choose_files(repository, hub.list_files(repository, revision), str(payload["file"]))
        return _pull_files(
            hub, [Reference(repository, file, revision) for file in files], staging / "arrived"
        )
    except ModelFetchError as error:
        if error.param == DISK:
            reason = error.message.rpartition(": ")[2]
            raise EngineError(error.message, cause=f"an adapter cannot be stored: {reason}") from None
        if error.param == UNAVAILABLE:
            raise HubUnavailable(error.message, cause=UNREACHED) from None
        raise InvalidValue(error.message, param=FIELDS.get(error.param or "", "model_name")) from None
    except OSError as problem:
        raise build_storage_error(problem) from None


def choose_files(repository: str, names: Sequence[str], file: str) -> tuple[str, ...]:
    """Returns the names of the adapter's files in a repository. Raises InvalidValue if there is no adapter,
    or more than one."""
    adapters = [name for name in names if name.lower().endswith(ENDING) and _is_valid_name(repository, name)]
    listing = ", ".join(adapters[:MAX_LISTED])
    if file:
        if file not in adapters:
            raise _build_name_error(
                f"there is no {file} in {repository}; GGUF files of it: {listing or 'none'}"
            )
        return (file,)
    if set(PEFT_FILES) <= set(names):
        return PEFT_FILES
    if len(adapters) > 1:
        raise _build_name_error(
            f"{repository} has several GGUF files ({listing}); name one as {repository}:FILE.gguf"
        )
    if adapters:
        return (adapters[0],)
    if "adapter_model.bin" in names:
        raise _build_name_error(
            f"{repository} has adapter_model.bin, which is never read because it can contain code; "
            "save the adapter as adapter_model.safetensors"
        )
    raise _build_name_error(
        f"{repository} has no adapter: neither {' and '.join(PEFT_FILES)} nor a GGUF file"
    )


def _build_name_error(message: str) -> InvalidValue:
    """Returns the error for a wrong `model_name`."""
    return InvalidValue(message, param="model_name")


def _is_valid_name(repository: str, name: str) -> bool:
    """Whether the hub can have a GGUF file of this name in the repository."""
    try:
        parse(f"{PREFIX}{repository}:{name}")
    except SettingsError:
        return False
    return True


def _pull_files(hub: Hub, references: Sequence[Reference], directory: Path) -> dict[str, object]:
    """Downloads all files at the commit of the first file, into the directory that the import job reads."""
    first_file = hub.pull(references[0], _ignore_progress)
    name = references[0].repository.partition("/")[2]
    target = directory / name if len(references) > 1 else directory
    target.mkdir(parents=True)
    os.replace(first_file.path, target / first_file.path.name)
    for reference in references[1:]:
        file = hub.pull(Reference(reference.repository, reference.file, first_file.commit), _ignore_progress)
        os.replace(file.path, target / file.path.name)
    is_peft = len(references) > 1
    return {
        "path": name if is_peft else first_file.path.name,
        "commit": first_file.commit,
        "base": _read_base(target / PEFT_FILES[0]) if is_peft else None,
    }


def _read_base(config: Path) -> str | None:
    """Returns the base model's name in the configuration; None if there is none. The converter checks the
    other keys."""
    if config.stat().st_size > LARGEST_CONFIG:
        return None
    try:
        parsed = json.loads(config.read_bytes())
    except (ValueError, RecursionError):
        return None
    base = parsed.get("base_model_name_or_path") if isinstance(parsed, dict) else None
    return base if isinstance(base, str) else None


def _ignore_progress(_: FetchProgress) -> None:
    """Ignores progress, because the job has no terminal."""
