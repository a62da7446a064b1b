"""Models as callers see them: aliases, profiles, LoRA adapters, and adapters that callers deploy."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from antiphon.domain.identity import Actor
from antiphon.domain.request import EmbeddingFacts
from antiphon.domain.sampling import SamplingOptions

STAR = "*"


class Aliases:
    """Rules in order of precedence: names before patterns, patterns with more fixed characters before others.
    The first match decides."""

    def __init__(self, *rules: Mapping[str, str]) -> None:
        """`rules`: sets of rules; all of one set come before those of the next."""
        self._rules = [
            (_pattern(name), target)
            for each in rules
            for name, target in sorted(each.items(), key=lambda rule: _precedence(rule[0]))
        ]

    def target(self, name: str) -> str | None:
        """Returns the model's name for a caller's name; None where no rule matches."""
        for pattern, target in self._rules:
            if fits := pattern.fullmatch(name):
                return target.replace(STAR, fits[1]) if STAR in target else target
        return None

    def is_taken(self, name: str) -> bool:
        """Whether a rule matches such a name, so that no caller's adapter may have it. A lone `*` takes no
        name."""
        return any(pattern.fullmatch(name) for pattern, _ in self._rules if pattern != ANYTHING)


def _precedence(name: str) -> tuple[bool, int]:
    return STAR in name, -len(name)


def _pattern(name: str) -> re.Pattern[str]:
    return re.compile(re.escape(name).replace(re.escape(STAR), "([^#]+)"), re.DOTALL)


ANYTHING = _pattern(STAR)


@dataclass(frozen=True, slots=True)
class Profile:
    """Facts of one model as it is served now."""

    architecture: str
    """The architecture in the weights: `llama`, `qwen2`."""
    parameters: int
    """Number of weights."""
    size: int
    """Bytes of the weights."""
    quantization: str
    """`Q8_0`, `F16`, ..."""
    context_length: int
    """Tokens of the prompt and completion of one choice together."""
    vocabulary: int
    """Number of token ids."""
    chat: bool
    """Whether the model has a chat template that passed its proof."""
    exact: bool
    """Whether a sequence is bit-equal alone and in a batch."""
    sequences: int
    """Choices that run at once; others wait."""
    engine: str
    """Its engine, with the library's version."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Defaults for fields that a request leaves out."""
    modalities: tuple[str, ...] = ("text",)
    reasoning: bool = False
    """Whether the chat template marks reasoning, which then comes apart from the text."""
    embedding: EmbeddingFacts | None = None
    """For an embedding model; None for one that generates."""


@dataclass(frozen=True, slots=True)
class TokenizerInfo:
    """A model's tokenizer, for clients that tokenize with this server."""

    context_length: int
    controls: Mapping[int, str]
    """Control tokens by id."""
    bos: str | None = None
    """The begin token as text; None where the model has none."""
    eos: str | None = None
    """The end token."""
    add_bos: bool = False
    """Whether a raw prompt gets the begin token."""
    chat_template: str | None = None
    """The source of the model's chat template."""


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
