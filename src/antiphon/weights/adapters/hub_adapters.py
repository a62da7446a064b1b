"""Adapters that callers name on the hub: which ones the operator allows, and fetching them in a process that
can be killed. That process knows the hub (`fetch_job`); this one does not.

Fetched files are in a directory of their own until the registry has kept the adapter.
"""

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from antiphon.domain.models import DeploymentRequest, FetchedAdapter
from antiphon.errors import HubUnavailable, InvalidValue, PermissionDenied, SettingsError
from antiphon.processes.sandbox import JobRunner, JobStopped, Limits, Stop, run_job
from antiphon.weights.adapters.registry import OWN_MEMORY, staging_directory
from antiphon.weights.hub.reference import COMMIT, DEFAULT_REVISION, ENDING, PREFIX, Reference, parse

JOB = "antiphon.weights.adapters.fetch_job:fetch_job"
"""The sandbox's job. It is named, not imported, since a serving process loads no hub library."""

PATIENCE = 1800.0
"""Seconds that one adapter may take to arrive: a gibibyte at 5 Mbit/s."""

SECONDS = 60.0
SECONDS_PER_BYTE = 3 / (1 << 26)
"""CPU seconds: for the start, and for fetching, decrypting, checking and writing at 20 MiB/s."""

NETWORK_VARIABLES = frozenset(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy "
    "SSL_CERT_FILE SSL_CERT_DIR "
    "HF_ENDPOINT HF_HUB_OFFLINE HF_HUB_ETAG_TIMEOUT HF_HUB_DOWNLOAD_TIMEOUT".split()
)
"""Environment variables that a process needs to reach a hub; none is a credential."""

NOBODY = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Keeps the library from using the operator's token for callers."""

ANY_FILE = "any" + ENDING
"""Replaces the file that a caller does not name, while the rest of the name is checked."""


@dataclass(frozen=True, slots=True)
class HubAdapters:
    """The adapters of a hub that callers may have."""

    repositories: Sequence[str]
    """`OWNER/REPO`, `OWNER/*` or `*`."""
    registry: Path
    most: int
    """Largest size of one file, in bytes."""
    endpoint: str | None = None
    offline: bool = False
    pauses: tuple[float, ...] = (1.0, 3.0, 10.0)
    """Seconds before each further try after a fruitless one."""
    run: JobRunner = run_job
    """Runs the job that fetches the files."""

    def require_allowed(self, deployment: DeploymentRequest) -> None:
        """Raises PermissionDenied for an adapter that the operator does not allow, and InvalidValue for a
        malformed name."""
        repository = self._reference(deployment).repository
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
    async def fetch(self, deployment: DeploymentRequest) -> AsyncIterator[FetchedAdapter]:
        """Fetches the adapter. Its files exist until the block ends. Raises a RequestError that names the
        wrong field, HubUnavailable, and EngineError if the registry cannot be written."""
        self.require_allowed(deployment)
        reference = self._reference(deployment)
        staging = staging_directory(self.registry)
        try:
            payload = {
                "repository": reference.repository,
                "revision": reference.revision,
                "file": "" if reference.file == ANY_FILE else reference.file,
                "token": deployment.token,
                "endpoint": self.endpoint,
                "most": self.most,
                "pauses": list(self.pauses),
                "into": str(staging),
            }
            result = await self.run(JOB, payload, self._limits(), _network_variables())
            yield _read_delivery(staging, result)
        except JobStopped as stopped:
            message = f"{reference.repository} cannot be fetched: {stopped}"
            if stopped.stop is Stop.WAIT:
                raise HubUnavailable(message, cause=str(stopped)) from None
            raise InvalidValue(message, param="model_name") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _limits(self) -> Limits:
        """Returns the limits of the job that fetches an adapter."""
        return Limits(SECONDS + self.most * SECONDS_PER_BYTE, PATIENCE, OWN_MEMORY, writes=self.most)

    def _reference(self, deployment: DeploymentRequest) -> Reference:
        """Returns the reference of the requested adapter. Raises InvalidValue for malformed names."""
        name = (
            deployment.model_name if ":" in deployment.model_name else f"{deployment.model_name}:{ANY_FILE}"
        )
        if "@" in name or not _is_reference(name):
            raise InvalidValue(
                "model_name must be a repository of the hub, OWNER/REPO or OWNER/REPO:FILE.gguf",
                param="model_name",
            )
        revision = deployment.revision or DEFAULT_REVISION
        if not _is_reference(name.replace(":", f"@{revision}:", 1)):
            raise InvalidValue("hf_revision must be a commit, a tag or a branch", param="hf_revision")
        return parse(PREFIX + name.replace(":", f"@{revision}:", 1))


def _is_reference(text: str) -> bool:
    """Whether the text is a valid reference on the hub."""
    try:
        parse(PREFIX + text)
    except SettingsError:
        return False
    return True


def _network_variables() -> dict[str, str]:
    """Returns the environment variables for the job, without any credential."""
    return {name: value for name, value in os.environ.items() if name in NETWORK_VARIABLES} | NOBODY


def _read_delivery(staging: Path, delivery: object) -> FetchedAdapter:
    """Converts the job's result. Raises TypeError for a result of another form."""
    if not isinstance(delivery, dict) or not COMMIT.fullmatch(str(delivery["commit"])):
        raise TypeError("the job answered with no commit")
    return FetchedAdapter(delivery["path"], staging / "arrived", delivery["commit"], delivery["base"])
