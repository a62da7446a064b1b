"""LoRA adapters as they are served, their names, and their deployment by callers."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from antiphon.domain.identity import Actor

LONGEST_NAME = 200
"""Characters of a name, as of a model's."""

ADAPTER_NAME = re.compile(rf"(?!.*/\.{{0,2}}(?:/|\Z))[A-Za-z0-9][A-Za-z0-9._:/-]{{0,{LONGEST_NAME - 1}}}")
"""Such names need no quotes in a log, a label, an address's path and a terminal. No client or proxy changes
them on the way, as it does `a/../b`."""

ADAPTER_NAME_RULE = (
    f"at most {LONGEST_NAME} letters, digits and characters of ._:/-, begin with a letter or digit, and hold "
    "no empty, . or .. part between slashes"
)
"""The same rule in words, after `must be`."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter that was checked against its base model."""

    digest: str
    """SHA-256 of its GGUF file, in hexadecimal; engines know it by this."""
    path: str
    """The path of that file, for engines only."""
    rank: int
    """The largest rank of its matrices."""
    alpha: float
    size: int
    """Bytes of the file."""


class AdapterOrigin(StrEnum):
    """Where an adapter comes from."""

    HUB = "hub"
    """A repository of the hub."""
    LOCAL = "local"
    """A file or directory of the server, or an adapter of its settings."""


@dataclass(frozen=True, slots=True)
class DeploymentRequest:
    """A caller's request to deploy an adapter."""

    name: str
    """The name for callers to send as model."""
    model_name: str
    """On the hub `OWNER/REPO` or `OWNER/REPO:FILE.gguf`; otherwise a path below an allowed directory."""
    source: AdapterOrigin
    revision: str | None = None
    """On the hub a commit, tag or branch; None is the newest."""
    token: str | None = field(default=None, repr=False)
    """For the hub only; never stored."""
    base: str | None = None
    """The base model's name; None is the only one, or the adapter's own base."""


@dataclass(frozen=True, slots=True)
class FetchedAdapter:
    """An adapter that has arrived from the hub."""

    path: str
    """Below the directory."""
    directory: Path
    """Holds nothing else; it is removed when the adapter is kept."""
    commit: str
    base: str | None = None
    """The adapter's own name of its base model; None where it gives none."""


@dataclass(frozen=True, slots=True)
class DeployedAdapter:
    """An adapter that is served."""

    name: str
    base: str
    model_name: str
    """The name in the deployment; otherwise the digest of its content."""
    source: AdapterOrigin
    created: int
    """Unix time in seconds."""
    revision: str | None = None
    """Of the hub, the commit."""
    creator: Actor | None = None
    """None where it is the operator's, or was loaded by its path."""


@dataclass(frozen=True, slots=True)
class DeployedBase:
    """A base model that is served."""

    name: str
    created: int
    """Unix time in seconds."""
