"""Adapters that callers deploy by the name of a repository or file: what is asked for, and what is there."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from antiphon.domain.identity import Actor


class AdapterOrigin(StrEnum):
    """Where an adapter comes from."""

    HUB = "hub"
    """A repository of the hub."""
    LOCAL = "local"
    """A file or directory of the server, or what it was started with."""


@dataclass(frozen=True, slots=True)
class DeploymentRequest:
    """An adapter that a caller wants deployed."""

    name: str
    """What callers send as model."""
    model_name: str
    """Of the hub `OWNER/REPO` or `OWNER/REPO:FILE.gguf`; else a path below an allowed directory."""
    source: AdapterOrigin
    revision: str | None = None
    """Of the hub a commit, tag or branch; None is the newest."""
    token: str | None = field(default=None, repr=False)
    """Of the hub; sent to it, and kept nowhere."""
    base: str | None = None
    """The base model's name; None is the only one, or the one that the adapter itself names."""


@dataclass(frozen=True, slots=True)
class FetchedAdapter:
    """An adapter that has arrived from the hub."""

    path: str
    """Below the directory."""
    directory: Path
    """Holds nothing else; gone when the adapter has been kept."""
    commit: str
    base: str | None = None
    """What the adapter itself calls its base model; None where it does not say."""


@dataclass(frozen=True, slots=True)
class DeployedAdapter:
    """An adapter that is served."""

    name: str
    base: str
    model_name: str
    """What was asked for; of one that nobody deployed the digest of its content."""
    source: AdapterOrigin
    created: int
    """Unix time in seconds."""
    revision: str | None = None
    """Of the hub, the commit."""
    creator: Actor | None = None
    """None: it is the operator's, or was loaded by its path."""


@dataclass(frozen=True, slots=True)
class DeployedBase:
    """A base model that is served."""

    name: str
    created: int
    """Unix time in seconds."""
