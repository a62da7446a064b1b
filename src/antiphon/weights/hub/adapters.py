"""Adapters on the hub that callers name: checks whether the operator allows them, and downloads them in a
sandbox. This process does not import the hub's library; `fetch_job` does.

The downloaded files stay in a temporary directory until the registry has stored the adapter.
"""

import os
import shutil
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path

from antiphon.domain.models import DeploymentRequest, FetchedAdapter
from antiphon.domain.values import Struct
from antiphon.errors import HubUnavailable, InvalidValue, PermissionDenied, SettingsError
from antiphon.processes.sandbox import JobRunner, JobStopped, Limits, Stop, run_job
from antiphon.weights.adapter_store import INTERPRETER_BYTES, create_staging_directory
from antiphon.weights.hub.reference import COMMIT, DEFAULT_REVISION, ENDING, PREFIX, Reference, parse

FETCH_JOB = "antiphon.weights.hub.download:fetch_job"
"""The sandbox's job. It is not imported here, because HTTP processes do not load the hub's library."""

TIME_LIMIT_S = 1800.0
"""The time limit for the download of one adapter, in seconds: one GiB at 5 Mbit/s."""

FETCH_SECONDS = 60.0

SECONDS_PER_BYTE = 3 / (1 << 26)
"""CPU seconds of the job: for its start, and for each byte that it downloads, decrypts, checks and writes (20
MiB/s)."""

NETWORK_VARIABLES = frozenset(
    "HTTP_PROXY HTTPS_PROXY ALL_PROXY NO_PROXY http_proxy https_proxy all_proxy no_proxy "
    "SSL_CERT_FILE SSL_CERT_DIR "
    "HF_ENDPOINT HF_HUB_OFFLINE HF_HUB_ETAG_TIMEOUT HF_HUB_DOWNLOAD_TIMEOUT".split()
)
"""Environment variables that a process needs to reach a hub; none is a credential."""

NO_TOKEN = {"HF_HUB_DISABLE_IMPLICIT_TOKEN": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Variables that prevent the library from using the operator's token for callers."""

ANY_FILE = "any" + ENDING
"""A placeholder for a missing file name, so that the other parts of the name can be checked."""


class HubAdapters(Struct, frozen=True):
    """The adapters of a hub that callers can deploy."""

    repositories: Sequence[str]
    """`OWNER/REPO`, `OWNER/*` or `*`."""
    registry: Path
    max_file_bytes: int
    """The most bytes of one file."""
    endpoint: str | None = None
    offline: bool = False
    pauses: tuple[float, ...] = (1.0, 3.0, 10.0)
    """Seconds before each further attempt."""
    run: JobRunner = run_job
    """Runs the job that downloads the files."""

    def require_allowed(self, deployment: DeploymentRequest) -> None:
        """Raises PermissionDenied for an adapter that the operator does not allow, or if the hub is off.
        Raises InvalidValue for a malformed name."""
        repository = self._parse_reference(deployment).repository
        if not self.repositories:
            raise PermissionDenied(
                "adapters are deployed from the hub only if the operator allows repositories: "
                "set lora.repositories (ANTIPHON_LORA_REPOSITORIES) and restart the server",
                param="model_name",
            )
        if not any(fnmatchcase(repository, allowed) for allowed in self.repositories):
            raise PermissionDenied(
                f"{repository} is not a repository from which adapters can be deployed; the operator "
                "can add it to lora.repositories (ANTIPHON_LORA_REPOSITORIES)",
                param="model_name",
            )
        if self.offline:
            raise PermissionDenied(
                "this server does not use the hub: ANTIPHON_HUB_OFFLINE is set", param="model_source"
            )

    @asynccontextmanager
    async def fetch(self, deployment: DeploymentRequest) -> AsyncIterator[FetchedAdapter]:
        """Downloads the adapter. Its files exist until the block ends. Raises a RequestError about the wrong
        field, HubUnavailable, and EngineError if the registry cannot be written."""
        self.require_allowed(deployment)
        reference = self._parse_reference(deployment)
        staging = create_staging_directory(self.registry)
        try:
            payload = {
                "repository": reference.repository,
                "revision": reference.revision,
                "file": "" if reference.file == ANY_FILE else reference.file,
                "token": deployment.token,
                "endpoint": self.endpoint,
                "most": self.max_file_bytes,
                "pauses": list(self.pauses),
                "into": str(staging),
            }
            result = await self.run(FETCH_JOB, payload, self._build_limits(), _select_network_variables())
            yield _read_result(staging, result)
        except JobStopped as error:
            message = f"{reference.repository} cannot be fetched: {error}"
            if error.stop is Stop.WAIT:
                raise HubUnavailable(message, cause=str(error)) from None
            raise InvalidValue(message, param="model_name") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)

    def _build_limits(self) -> Limits:
        """Returns the limits of the download job."""
        return Limits(
            FETCH_SECONDS + self.max_file_bytes * SECONDS_PER_BYTE,
            TIME_LIMIT_S,
            INTERPRETER_BYTES,
            writes=self.max_file_bytes,
        )

    def _parse_reference(self, deployment: DeploymentRequest) -> Reference:
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


def _select_network_variables() -> dict[str, str]:
    """Returns the environment variables for the job, without any credential."""
    return {name: value for name, value in os.environ.items() if name in NETWORK_VARIABLES} | NO_TOKEN


def _read_result(staging: Path, result: object) -> FetchedAdapter:
    """Converts the job's result. Raises TypeError if it is malformed."""
    if not isinstance(result, dict) or not COMMIT.fullmatch(str(result["commit"])):
        raise TypeError("the job returned no commit")
    return FetchedAdapter(result["path"], staging / "arrived", result["commit"], result["base"])
