"""Fetches one file of a hub repository: asks what it is, resumes what has arrived, checks every byte.

huggingface_hub tells the file's commit, size and checksum, holds the token and names the hub's refusals. The
bytes are streamed here, since the library drops what has arrived when its process ends and compares sizes
only. It is imported when something is fetched and not before.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import antiphon
from antiphon.errors import ModelFetchError
from antiphon.settings.server import is_loopback
from antiphon.weights.cache import DIGEST, Cache, Fetched
from antiphon.weights.reference import COMMIT, ENDING, Reference

if TYPE_CHECKING:
    import httpx2

BLOCK = 1 << 20
"""Bytes that are read at once to be checked."""

PAUSES = (1.0, 3.0, 10.0)
"""Seconds before each further try, when one has brought nothing."""

PARTIAL_CONTENT = 206

DISK = "disk"
"""What an error names that the operator can mend, not who asked."""

AWAY = "hub"
"""What an error names that is to be tried again, with nothing mended."""

MOST_NAMES = 40
"""Names in the sentence about a file that is not there."""

BUSY = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that say nothing about the file."""


class Stage(StrEnum):
    """What is being done with the file."""

    FETCHING = "fetching"
    CHECKING = "checking"


@dataclass(frozen=True, slots=True)
class Progress:
    """How far it is."""

    stage: Stage
    name: str
    done: int
    """Bytes."""
    size: int
    """Bytes."""


Tell = Callable[[Progress], None]
"""Called for each chunk."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the hub says of a file."""

    commit: str
    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class Guest:
    """A caller of the server that something is fetched for."""

    token: str | None
    """The caller's own; the operator's is not used."""
    most: int
    """Bytes of one file that it may have."""


class Hub:
    """The hub, and the cache that its files are kept in."""

    def __init__(
        self,
        cache: Cache,
        *,
        endpoint: str | None = None,
        offline: bool = False,
        pauses: Sequence[float] = PAUSES,
        guest: Guest | None = None,
    ) -> None:
        """`guest`: for whom it is fetched, where that is not the operator."""
        self._cache = cache
        self._guest = guest
        self._said_endpoint = endpoint
        self._offline = offline
        self._pauses = pauses

    def local(self, reference: Reference, tell: Tell) -> Fetched:
        """The file as it was last fetched, without asking anybody; fetched now if it never was."""
        return self._cache.find(reference) or self.pull(reference, tell)

    def pull(self, reference: Reference, tell: Tell) -> Fetched:
        """The file as the hub has it now. Raises ModelFetchError with the remedy."""
        if self._offline:
            raise ModelFetchError(
                f"{reference} was not fetched before, and offline mode is on: fetch it with `antiphon models "
                "pull` where there is a network, or turn ANTIPHON_HUB_OFFLINE off"
            )
        with self._refusals(reference):
            facts = self._facts(reference)
            self._require_small(reference, facts)
            with self._cache.lock(reference, facts.digest):
                place = self._cache.place(reference, facts.digest)
                if place.exists():
                    self._check(place, reference, facts, tell)
                else:
                    partial = self._cache.partial(reference, facts.digest)
                    self._fill(partial, reference, facts, tell)
                    self._check(partial, reference, facts, tell)
                    _move(partial, place)
                return self._cache.keep(reference, facts.commit, facts.digest)

    def names(self, repository: str, revision: str) -> list[str]:
        """The files of a repository. Raises ModelFetchError with the remedy."""
        from huggingface_hub import HfApi

        with self._refusals(Reference(repository, "", revision)):
            api = HfApi(endpoint=self._endpoint, token=self._token)
            return api.list_repo_files(repository, revision=revision)

    @property
    def _token(self) -> str | bool | None:
        """None is that of the operator's environment, False is none."""
        return None if self._guest is None else self._guest.token or False

    @property
    def _endpoint(self) -> str:
        from huggingface_hub import constants

        return (self._said_endpoint or constants.ENDPOINT).rstrip("/")

    @contextmanager
    def _refusals(self, reference: Reference) -> Iterator[None]:
        """Sets the library up, and turns what it and the system raise into one sentence."""
        os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # read when the library is imported
        import httpx2
        from huggingface_hub import close_session

        from antiphon.weights.hub_errors import Attempt, at_fault, refusal

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its warnings show signed addresses
        has_token = "authorization" in self._headers()
        try:
            self._refuse_open_token(has_token)
            yield
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as problem:
            is_here = self._cache.find(reference) is not None
            is_guest = self._guest is not None
            attempt = Attempt(reference, self._endpoint, self._cache.root, has_token, is_here, is_guest)
            raise ModelFetchError(refusal(problem, attempt), param=at_fault(problem, has_token)) from None
        finally:
            close_session()

    def _headers(self) -> dict[str, str]:
        """Who asks, and the token where there is one."""
        from huggingface_hub.utils import build_hf_headers

        return build_hf_headers(
            token=self._token, library_name="antiphon", library_version=antiphon.__version__
        )

    def _refuse_open_token(self, has_token: bool) -> None:
        parts = urlsplit(self._endpoint)
        if has_token and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            raise ModelFetchError(
                f"refusing to send the hub's token to {self._endpoint} in the clear; use an https address, "
                "or set HF_HUB_DISABLE_IMPLICIT_TOKEN=1 to ask without the token"
            )

    def _facts(self, reference: Reference) -> Facts:
        from huggingface_hub import get_hf_file_metadata, hf_hub_url
        from huggingface_hub.errors import RemoteEntryNotFoundError

        url = hf_hub_url(
            reference.repository, reference.file, revision=reference.revision, endpoint=self._endpoint
        )
        try:
            found = get_hf_file_metadata(
                url, token=self._token, endpoint=self._endpoint, headers=self._headers()
            )
        except RemoteEntryNotFoundError:
            raise ModelFetchError(self._missing(reference)) from None
        commit, digest, size = found.commit_hash or "", found.etag or "", found.size
        if not COMMIT.fullmatch(commit) or not DIGEST.fullmatch(digest) or size is None:
            raise ModelFetchError(
                f"{self._endpoint} gives no commit, checksum and size for {reference}, so the file could not "
                "be checked; ANTIPHON_HUB_ENDPOINT or HF_ENDPOINT must name a hub, or a whole mirror"
            )
        return Facts(commit, digest, size)

    def _require_small(self, reference: Reference, facts: Facts) -> None:
        """A caller has bounds, an operator has a disk."""
        if self._guest is not None and facts.size > self._guest.most:
            raise ModelFetchError(
                f"{reference} has {facts.size:,} bytes, and {self._guest.most:,} are taken at most; the "
                "operator may raise lora.max_bytes (ANTIPHON_LORA_MAX_BYTES)"
            )

    def _missing(self, reference: Reference) -> str:
        """What to say of a file that is not in the repository: which ones are."""
        from huggingface_hub import HfApi

        found = HfApi(endpoint=self._endpoint, token=self._token).list_repo_files(
            reference.repository, revision=reference.revision
        )
        names = sorted(name for name in found if name.lower().endswith(ENDING))
        there = f"there is no {reference.file} in {reference.repository}"
        if not names:
            return f"{there}, nor any other GGUF file; look for a GGUF edition of the model"
        more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
        return f"{there}; it has {', '.join(names[:MOST_NAMES])}{more}"

    def _fill(self, partial: Path, reference: Reference, facts: Facts, tell: Tell) -> None:
        """Fetches what is missing of it, and goes on after a cut as long as tries bring something."""
        import httpx2
        from huggingface_hub.errors import HfHubHTTPError

        at = _size(partial)
        if at > facts.size:
            partial.unlink()
            at = 0
        self._check_room(reference, facts.size - at)
        fruitless = 0
        while at < facts.size or not partial.exists():
            try:
                self._append(partial, reference, facts, tell)
            except (httpx2.TransportError, HfHubHTTPError) as problem:
                if isinstance(problem, HfHubHTTPError) and problem.response.status_code not in BUSY:
                    raise
                fruitless = 0 if _size(partial) > at else fruitless + 1
                if fruitless > len(self._pauses):
                    raise
                time.sleep(self._pauses[fruitless - 1] if fruitless else 0)
            at = _size(partial)

    def _append(self, partial: Path, reference: Reference, facts: Facts, tell: Tell) -> None:
        """One request for the rest of the file."""
        at = _size(partial)
        with self._rest(reference, facts, at) as response, partial.open("ab") as file:
            if at and response.status_code != PARTIAL_CONTENT:
                file.truncate(at := 0)
            for chunk in response.iter_bytes():
                at += len(chunk)
                if at > facts.size:
                    file.truncate(0)
                    raise ModelFetchError(
                        f"{self._endpoint} sends more than the {facts.size} bytes that it gives as the size "
                        f"of {reference}; what had arrived was removed"
                    )
                file.write(chunk)
                tell(Progress(Stage.FETCHING, reference.name + ENDING, at, facts.size))

    @contextmanager
    def _rest(self, reference: Reference, facts: Facts, at: int) -> Iterator["httpx2.Response"]:
        """The body from that byte on. Asked of the hub each time, as the addresses that it sends one on to
        expire; the client keeps the token from other hosts."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import hf_raise_for_status

        headers = self._headers() | {"Accept-Encoding": "identity"}
        if at:
            headers["Range"] = f"bytes={at}-"
        url = hf_hub_url(reference.repository, reference.file, revision=facts.commit, endpoint=self._endpoint)
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        with get_session().stream("GET", url, headers=headers, timeout=timeout) as response:
            hf_raise_for_status(response)
            yield response

    def _check_room(self, reference: Reference, needed: int) -> None:
        free, root = self._cache.free(), self._cache.root
        if needed > free and self._guest is not None:
            raise ModelFetchError(f"the server has no room for {reference}", param=DISK)
        if needed > free:
            raise ModelFetchError(
                f"{reference} needs {needed / 1e9:.3f} GB more, and {root} has {free / 1e9:.3f} GB free; "
                "make room (`antiphon models list` shows what is there), or set ANTIPHON_HUB_CACHE "
                "to a directory on a larger disk"
            )

    def _check(self, path: Path, reference: Reference, facts: Facts, tell: Tell) -> None:
        """Compares every byte with the hub's checksum; what differs is removed."""
        digest = _digest(
            path,
            facts,
            lambda done: tell(Progress(Stage.CHECKING, reference.name + ENDING, done, facts.size)),
        )
        if digest != facts.digest:
            path.unlink()
            raise ModelFetchError(
                f"{reference} is not what the hub says it is: its checksum is {digest}, not {facts.digest}; "
                "the file was removed. Fetch it again; if that repeats, something on the way changes it"
            )


def _move(partial: Path, place: Path) -> None:
    """What bears the file's name is on the disk, whatever happens to the power."""
    with partial.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(partial, place)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _digest(path: Path, facts: Facts, told: Callable[[int], None]) -> str:
    """SHA-256 of the file, or what git calls a blob of it, whichever the hub gives."""
    if len(facts.digest) == hashlib.sha256().digest_size * 2:
        digest = hashlib.sha256()
    else:
        digest = hashlib.sha1(f"blob {path.stat().st_size}\0".encode(), usedforsecurity=False)
    done = 0
    with path.open("rb") as file:
        while chunk := file.read(BLOCK):
            digest.update(chunk)
            done += len(chunk)
            told(done)
    return digest.hexdigest()
