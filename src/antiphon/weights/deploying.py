"""Adapters that callers name on the hub: which of them the operator allows, and their fetching, which happens
in a process that can be killed. That process knows the hub (`weights.deploy_job`); this one does not.

Nothing stays: what was fetched lies in a directory of its own until it has been kept under its digest.
"""

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from antiphon.domain.deployment import Delivered, Deployment
from antiphon.errors import HubUnavailable, InvalidValue, PermissionDenied, SettingsError
from antiphon.processes.sandbox import JobStopped, Limits, Stop, run_job
from antiphon.weights.adapter_store import OWN_MEMORY, staging_directory
from antiphon.weights.reference import COMMIT, DEFAULT_REVISION, ENDING, PREFIX, Reference, parse

JOB = "antiphon.weights.deploy_job:fetch_job"
"""Named, not imported: what serves knows no hub."""

PATIENCE = 1800.0
"""Seconds that one adapter may take to arrive: a gibibyte at 5 Mbit/s."""

SECONDS = 60.0
SECONDS_PER_BYTE = 3 / (1 << 26)
"""Of CPU: a start, and what is fetched, decrypted, checked and written at 20 MiB/s."""

NETWORK_VARIABLES = frozenset(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy "
    "SSL_CERT_FILE SSL_CERT_DIR "
    "HF_ENDPOINT HF_HUB_OFFLINE HF_HUB_ETAG_TIMEOUT HF_HUB_DOWNLOAD_TIMEOUT".split()
)
"""What it takes to reach a hub; no credential is among it."""

NOBODY = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""The operator's token, wherever the library would find it, is not lent to callers."""

ANY_FILE = "any" + ENDING
"""Stands for the file that a caller does not name, while the rest of the name is checked."""


@dataclass(frozen=True, slots=True)
class HubAdapters:
    """The adapters of a hub, as far as callers may have them."""

    repositories: Sequence[str]
    """`OWNER/REPO`, `OWNER/*` or `*`."""
    registry: Path
    most: int
    """Bytes of one file."""
    endpoint: str | None = None
    offline: bool = False
    pauses: tuple[float, ...] = (1.0, 3.0, 10.0)
    """Seconds before each further try, when one has brought nothing."""

    def require_allowed(self, wanted: Deployment) -> None:
        """Raises PermissionDenied for what the operator does not allow, InvalidValue for what is no name."""
        repository = self._reference(wanted).repository
        if not self.repositories:
            raise PermissionDenied(
                "adapters are deployed from the hub only where the operator names the repositories that they "
                "may come from: set lora.repositories (ANTIPHON_LORA_REPOSITORIES) and restart the server",
                param="model_name",
            )
        if not any(fnmatchcase(repository, allowed) for allowed in self.repositories):
            raise PermissionDenied(
                f"{repository} is none of the repositories that adapters may be deployed from; the operator "
                "may add it to lora.repositories (ANTIPHON_LORA_REPOSITORIES)",
                param="model_name",
            )
        if self.offline:
            raise PermissionDenied("no hub is asked here: ANTIPHON_HUB_OFFLINE is set", param="model_source")

    @asynccontextmanager
    async def fetched(self, wanted: Deployment) -> AsyncIterator[Delivered]:
        """The adapter, while the context lasts. Raises a RequestError that names the field at fault,
        HubUnavailable, and EngineError when the registry cannot be written."""
        self.require_allowed(wanted)
        reference = self._reference(wanted)
        staging = staging_directory(self.registry)
        try:
            payload = {
                "repository": reference.repository,
                "revision": reference.revision,
                "file": "" if reference.file == ANY_FILE else reference.file,
                "token": wanted.token,
                "endpoint": self.endpoint,
                "most": self.most,
                "pauses": list(self.pauses),
                "into": str(staging),
            }
            yield _read_delivery(staging, await run_job(JOB, payload, self._limits(), _variables()))
        except JobStopped as stopped:
            message = f"{reference.repository} cannot be fetched: {stopped}"
            if stopped.stop is Stop.WAIT:
                raise HubUnavailable(message, cause=str(stopped)) from None
            raise InvalidValue(message, param="model_name") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _limits(self) -> Limits:
        return Limits(SECONDS + self.most * SECONDS_PER_BYTE, PATIENCE, OWN_MEMORY, writes=self.most)

    def _reference(self, wanted: Deployment) -> Reference:
        """What the names say. Raises InvalidValue."""
        name = wanted.model_name if ":" in wanted.model_name else f"{wanted.model_name}:{ANY_FILE}"
        if "@" in name or not _is_reference(name):
            raise InvalidValue(
                "model_name must be a repository of the hub, OWNER/REPO or OWNER/REPO:FILE.gguf",
                param="model_name",
            )
        revision = wanted.revision or DEFAULT_REVISION
        if not _is_reference(name.replace(":", f"@{revision}:", 1)):
            raise InvalidValue("hf_revision must be a commit, a tag or a branch", param="hf_revision")
        return parse(PREFIX + name.replace(":", f"@{revision}:", 1))


def _is_reference(text: str) -> bool:
    try:
        parse(PREFIX + text)
    except SettingsError:
        return False
    return True


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name in NETWORK_VARIABLES} | NOBODY


def _read_delivery(staging: Path, found: object) -> Delivered:
    if not isinstance(found, dict) or not COMMIT.fullmatch(str(found["commit"])):
        raise TypeError("the job answered with no commit")
    return Delivered(found["path"], staging / "arrived", found["commit"], found["base"])
