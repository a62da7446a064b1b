"""Fetches one file of a hub repository: asks for its facts, resumes a partial download, and checks every
byte.

huggingface_hub returns the file's commit, size and checksum, sends the token, and raises the hub's errors.
This module streams the bytes itself, since the library drops a partial download when its process ends, and
compares only sizes. It is imported only to fetch a file.
"""

import hashlib
import logging
import os
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar
from urllib.parse import urlsplit

import antiphon
from antiphon.errors import ModelFetchError
from antiphon.settings.server import is_loopback
from antiphon.weights.hub.cache import DIGEST, CachedFile, HubCache
from antiphon.weights.hub.reference import COMMIT, ENDING, Reference

if TYPE_CHECKING:
    import httpx2

T = TypeVar("T")

BLOCK = 1 << 20
"""Bytes that one read takes for checking."""

ANSWER_S = 4.0
"""Seconds in which the hub must answer a question, with the look-up of its name and all of its addresses. The
variable HF_HUB_ETAG_TIMEOUT gives it another time."""

CONNECT_S = 5.0
"""Seconds for a connection to the host of the file."""

PAUSES = (1.0, 3.0, 10.0)
"""Seconds before each further try after a fruitless one."""

PARTIAL_CONTENT = 206

DISK = "disk"
"""The `param` of an error that the operator can mend, not the caller."""

AWAY = "hub"
"""The `param` of an error that may be gone at a later try."""

MOST_NAMES = 40
"""Names in the sentence about a missing file."""

BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that say nothing about the file."""


class Stage(StrEnum):
    """What happens with the file."""

    FETCHING = "fetching"
    CHECKING = "checking"


@dataclass(frozen=True, slots=True)
class FetchProgress:
    """The progress of a fetch."""

    stage: Stage
    name: str
    done: int
    """Bytes."""
    size: int
    """Bytes."""


Tell = Callable[[FetchProgress], None]
"""Called for each chunk."""


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """The hub's facts of a file."""

    commit: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class HubCaller:
    """A caller of the server, for whom a file is fetched."""

    token: str | None
    """The caller's own token; the operator's is not used."""
    most: int
    """Largest size of one file, in bytes."""


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
        """`caller`: the caller of the server for whom the files are fetched; None means the operator."""
        self._cache = cache
        self._caller = caller
        self._configured_endpoint = endpoint
        self._offline = offline
        self._pauses = pauses

    def local(self, reference: Reference, tell: Tell) -> CachedFile:
        """Returns the file as it was last fetched, without asking the hub. Fetches the file if it was never
        fetched."""
        return self._cache.find(reference) or self.pull(reference, tell)

    def pull(self, reference: Reference, tell: Tell) -> CachedFile:
        """Fetches the file in the hub's current version. Raises ModelFetchError with the remedy."""
        if self._offline:
            raise ModelFetchError(
                f"{reference} was not fetched before, and offline mode is on: fetch it with `antiphon models "
                "pull` where there is a network, or turn ANTIPHON_HUB_OFFLINE off"
            )
        with self._translate_errors(reference):
            remote = self._ask_hub(reference)
            self._require_allowed_size(reference, remote)
            with self._cache.lock(reference, remote.digest):
                path = self._cache.place(reference, remote.digest)
                if path.exists():
                    self._verify(path, reference, remote, tell)
                else:
                    partial = self._cache.partial(reference, remote.digest)
                    self._fetch_rest(partial, reference, remote, tell)
                    self._verify(partial, reference, remote, tell)
                    _move(partial, path)
                return self._cache.keep(reference, remote.commit, remote.digest)

    def list_files(self, repository: str, revision: str) -> list[str]:
        """Lists the files of a repository. Raises ModelFetchError with the remedy."""
        from huggingface_hub import HfApi

        with self._translate_errors(Reference(repository, "", revision)):
            api = HfApi(endpoint=self._endpoint, token=self._token)
            return self._ask(lambda: api.list_repo_files(repository, revision=revision))

    @property
    def _token(self) -> str | bool | None:
        """None uses the token of the operator's environment, False uses none."""
        return None if self._caller is None else self._caller.token or False

    @property
    def _endpoint(self) -> str:
        from huggingface_hub import constants

        return (self._configured_endpoint or constants.ENDPOINT).rstrip("/")

    @contextmanager
    def _translate_errors(self, reference: Reference) -> Iterator[None]:
        """Prepares the library for the block, and turns the errors of the library and the system into a
        ModelFetchError."""
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the library is imported
        import httpx2
        from huggingface_hub import close_session

        from antiphon.weights.hub.errors import Attempt, explain, find_blame

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings show signed addresses
        has_token = "authorization" in self._headers()
        try:
            self._refuse_plaintext_token(has_token)
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as problem:
            is_here = self._cache.find(reference) is not None
            is_caller = self._caller is not None
            attempt = Attempt(reference, self._endpoint, self._cache.root, has_token, is_here, is_caller)
            raise ModelFetchError(explain(problem, attempt), param=find_blame(problem, has_token)) from None
        finally:
            close_session()

    def _headers(self) -> dict[str, str]:
        """Returns the request headers: the user agent, and the token if there is one."""
        from huggingface_hub.utils import build_hf_headers

        return build_hf_headers(
            token=self._token, library_name="antiphon", library_version=antiphon.__version__
        )

    def _refuse_plaintext_token(self, has_token: bool) -> None:
        """Raises ModelFetchError if the token would be sent without encryption to another machine."""
        parts = urlsplit(self._endpoint)
        if has_token and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ModelFetchError(
                f"refusing to send the hub's token to {self._endpoint} in the clear; use an https address, "
                "or set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 to ask without the token"
            )

    def _ask(self, ask: Callable[[], T]) -> T:
        """Asks the hub within the time for an answer. For a caller of the server it only has the library's
        times: such a process can start no thread, and nobody waits at a terminal."""
        return _wait_for_answer(ask) if self._caller is None else ask()

    def _ask_hub(self, reference: Reference) -> RemoteFile:
        """Asks the hub for the file's commit, checksum and size. Raises ModelFetchError."""
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import RemoteEntryNotFoundError

        url = hf_hub_url(
            reference.repository, reference.file, revision=reference.revision, endpoint=self._endpoint
        )
        try:
            metadata = self._ask(
                lambda: get_hf_file_metadata(
                    url, token=self._token, endpoint=self._endpoint, headers=self._headers()
                )
            )
        except RemoteEntryNotFoundError:
            raise ModelFetchError(self._describe_missing(reference)) from None
        commit, digest, size = metadata.commit_hash or "", metadata.etag or "", metadata.size
        if not COMMIT.fullmatch(commit) or not DIGEST.fullmatch(digest) or size is None:
            raise ModelFetchError(
                f"{self._endpoint} gives no commit, checksum and size for {reference}, so the file could not "
                "be checked; ANTIPHON_HUB_ENDPOINT or HF_ENDPOINT must name a hub, or a whole mirror"
            )
        return RemoteFile(commit, digest, size)

    def _require_allowed_size(self, reference: Reference, remote: RemoteFile) -> None:
        """Raises ModelFetchError for a file that is larger than the caller may fetch."""
        if self._caller is not None and remote.size > self._caller.most:
            raise ModelFetchError(
                f"{reference} has {remote.size:,} bytes, and {self._caller.most:,} are taken at most; the "
                "operator may raise lora.max_bytes (ANTIPHON_LORA_MAX_BYTES)"
            )

    def _describe_missing(self, reference: Reference) -> str:
        """Explains that a file is missing, and lists the repository's others."""
        from huggingface_hub import HfApi

        api = HfApi(endpoint=self._endpoint, token=self._token)
        names_found = self._ask(
            lambda: api.list_repo_files(reference.repository, revision=reference.revision)
        )
        names = sorted(name for name in names_found if name.lower().endswith(ENDING))
        there = f"there is no {reference.file} in {reference.repository}"
        if not names:
            return f"{there}, nor any other GGUF file; look for a GGUF edition of the model"
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"{there}; it has {', '.join(names[:MOST_NAMES])}{more}"

    def _fetch_rest(self, partial: Path, reference: Reference, remote: RemoteFile, tell: Tell) -> None:
        """Fetches the missing part of a file. After a failure it tries again; it gives up after several tries
        that bring no byte."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        at = _file_size(partial)
        if at > remote.size:
            partial.unlink()
            at = 0
        self._require_room(reference, remote.size - at)
        fruitless = 0
        while at < remote.size or not partial.exists():
            try:
                self._fetch_part(partial, reference, remote, tell)
            except (httpx2.TransportError, HfHubHTTPError) as problem:
                if isinstance(problem, HfHubHTTPError) and problem.response.status_code not in BUSY:
                    raise
                fruitless = 0 if _file_size(partial) > at else fruitless + 1
                if fruitless > len(self._pauses):
                    raise
                time.sleep(self._pauses[fruitless - 1] if fruitless else 0)
            at = _file_size(partial)

    def _fetch_part(self, partial: Path, reference: Reference, remote: RemoteFile, tell: Tell) -> None:
        """Makes one request for the rest of the file."""
        at = _file_size(partial)
        with self._open_rest(reference, remote, at) as response, partial.open("ab") as file:
            if at and response.status_code != PARTIAL_CONTENT:
                file.truncate(at := 0)
            for chunk in response.iter_bytes():
                at += len(chunk)
                if at > remote.size:
                    file.truncate(0)
                    raise ModelFetchError(
                        f"{self._endpoint} sends more than the {remote.size} bytes that it gives as the size "
                        f"of {reference}; what had arrived was removed"
                    )
                file.write(chunk)
                tell(FetchProgress(Stage.FETCHING, reference.name + ENDING, at, remote.size))

    @contextmanager
    def _open_rest(self, reference: Reference, remote: RemoteFile, at: int) -> Iterator["httpx2.Response"]:
        """Opens the file's content from byte `at` on. It asks the hub each time, since redirect addresses
        expire. The client sends the token to no other host."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import hf_raise_for_status

        headers = self._headers() | {"Accept-Encoding": "identity"}
        if at:
            headers["Range"] = f"bytes={at}-"
        url = hf_hub_url(
            reference.repository, reference.file, revision=remote.commit, endpoint=self._endpoint
        )
        import httpx2

        timeout = httpx2.Timeout(constants.HF_HUB_DOWNLOAD_TIMEOUT, connect=CONNECT_S)
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            yield response

    def _require_room(self, reference: Reference, needed: int) -> None:
        """Raises ModelFetchError if the disk has no room for the file."""
        free, root = self._cache.free(), self._cache.root
        if needed > free and self._caller is not None:
            raise ModelFetchError(f"the server has no room for {reference}", param=DISK)
        if needed > free:
            raise ModelFetchError(
                f"{reference} needs {needed / 1e9:.3f} GB more, and {root} has {free / 1e9:.3f} GB free; "
                "make room (`antiphon models list` shows what is there), or set ANTIPHON_HUB_CACHE "
                "to a directory on a larger disk"
            )

    def _verify(self, path: Path, reference: Reference, remote: RemoteFile, tell: Tell) -> None:
        """Compares every byte with the hub's checksum, and removes a file that differs."""
        digest = _compute_digest(
            path,
            remote,
            lambda done: tell(FetchProgress(Stage.CHECKING, reference.name + ENDING, done, remote.size)),
        )
        if digest != remote.digest:
            path.unlink()
            raise ModelFetchError(
                f"{reference} is not what the hub says it is: its checksum is {digest}, not {remote.digest}; "
                "the file was removed. Fetch it again; if that repeats, something on the way changes it"
            )


def _wait_for_answer(ask: Callable[[], T]) -> T:
    """Returns the hub's answer. Raises its error, or ConnectTimeout if it takes too long.

    The library has a time limit for each address of a name, and none for the look-up of the name. So it asks
    in a thread, which ends by itself later, at the latest with the process.
    """
    import httpx2
    from huggingface_hub import constants

    configured = constants.HF_HUB_ETAG_TIMEOUT
    seconds = ANSWER_S if configured == constants.DEFAULT_ETAG_TIMEOUT else configured
    answers: queue.SimpleQueue[Callable[[], T]] = queue.SimpleQueue()

    def run() -> None:
        try:
            answer = ask()
        except BaseException as problem:  # noqa: BLE001 - raised again in the thread that waits
            answers.put(partial(_raise, problem))
        else:
            answers.put(lambda: answer)

    threading.Thread(target=run, name="antiphon-hub", daemon=True).start()
    try:
        return answers.get(timeout=seconds)()
    except queue.Empty:
        raise httpx2.ConnectTimeout("no answer in time") from None


def _raise(problem: BaseException) -> NoReturn:
    raise problem


def _move(partial: Path, target: Path) -> None:
    """Moves the complete file to its place, after it is on the disk."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, target)


def _file_size(path: Path) -> int:
    """Returns the file's size in bytes; 0 if the file is missing."""
    return path.stat().st_size if path.exists() else 0


def _compute_digest(path: Path, remote: RemoteFile, on_progress: Callable[[int], None]) -> str:
    """Returns the SHA-256 of the file, or git's blob hash, whichever the hub gives."""
    if len(remote.digest) == hashlib.sha256().digest_size * 2:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            digest.update(chunk)
            done += len(chunk)
            on_progress(done)
    return digest.hexdigest()
