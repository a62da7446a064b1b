"""Models as callers see them: aliases, profiles, LoRA adapters and their deployment. Also the load of engines
and routes."""

import dataclasses
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path

from antiphon.domain.identity import Actor
from antiphon.domain.request import EmbeddingFacts, SamplingOptions
from antiphon.domain.values import Struct, field

STAR = "*"

LONGEST_NAME = 200
"""The most characters of a name of a model or adapter."""

ADAPTER_NAME = re.compile(rf"(?!.*/\.{{0,2}}(?:/|\Z))[A-Za-z0-9][A-Za-z0-9._:/-]{{0,{LONGEST_NAME - 1}}}")
"""Such names need no quotes in a log, a label, a URL's path and a terminal. No client or proxy rewrites them,
as it would rewrite `a/../b`."""

ADAPTER_NAME_RULE = (
    f"at most {LONGEST_NAME} letters, digits and characters of ._:/-, begin with a letter or digit, and hold "
    "no empty, . or .. part between slashes"
)
"""The same rule in words, after `must be`."""

AdapterKey = tuple[str | None, str]
"""A project, None for the operator, and the name of an adapter in it."""

LATENCY_BOUNDS: tuple[float, ...] = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper bounds of a Histogram's buckets, in seconds; the last bucket has none."""

GAP_BOUNDS: tuple[float, ...] = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1)
"""The same for the time between two decodes, which is less than a millisecond for small models."""


class Aliases:
    """Rules that map callers' names to models. The first rule that matches is used. Names without `*` come
    first. Patterns with more fixed characters come before patterns with fewer."""

    def __init__(self, *rule_sets: Mapping[str, str]) -> None:
        """All rules of one set come before the rules of the next set."""
        self._rules = [
            (_compile_pattern(name), target)
            for rule_set in rule_sets
            for name, target in sorted(rule_set.items(), key=lambda rule: _get_precedence(rule[0]))
        ]

    def find_target(self, name: str) -> str | None:
        """Returns the model's name for a name that a caller sent; None if no rule matches."""
        for pattern, target in self._rules:
            if match := pattern.fullmatch(name):
                return target.replace(STAR, match[1]) if STAR in target else target
        return None

    def is_reserved(self, name: str) -> bool:
        """Whether a rule matches this name, so that no adapter can have this name. The rule `*` reserves no
        name."""
        return any(pattern.fullmatch(name) for pattern, _ in self._rules if pattern != ANYTHING)


def _get_precedence(name: str) -> tuple[bool, int]:
    """Returns the sort key of a rule: names come before patterns, and longer ones before shorter ones."""
    return STAR in name, -len(name)


def _compile_pattern(name: str) -> re.Pattern[str]:
    """Returns a regular expression for a name in which `*` matches any characters except `#`."""
    return re.compile(re.escape(name).replace(re.escape(STAR), "([^#]+)"), re.DOTALL)


ANYTHING = _compile_pattern(STAR)
"""The pattern of the rule `*`, which matches every name."""


class DeviceLayers(Struct, frozen=True):
    """A device that computes layers of a model, besides the processor."""

    device: str
    """The engine library's name: `CUDA0`, `Vulkan1`."""
    description: str
    """The product's name."""
    layers: int
    """The number of layers on this device."""
    total_layers: int
    """The number of all layers of the model. The output counts as one."""


class ProfileSource(StrEnum):
    """Where the facts of a profile come from."""

    WEIGHTS = "weights"
    """The model's own file."""
    TABLE = "table"
    """The table that ships with this release."""
    SETTINGS = "settings"
    """The operator's settings."""
    DEFAULTS = "provider defaults"
    """No table knows the model, so these are the provider's defaults."""


class Profile(Struct, frozen=True):
    """Facts of one model as it is served now. None means unknown, or that only local weights have this
    fact."""

    architecture: str | None
    """The architecture in the weights: `llama`, `qwen2`."""
    parameters: int | None
    """Number of weights."""
    size: int | None
    """Bytes of the weights."""
    quantization: str | None
    """`Q8_0`, `F16`, ..."""
    context_length: int | None
    """Tokens of the prompt and completion of one choice together."""
    vocabulary: int | None
    """Number of token ids."""
    chat: bool
    """Whether the model takes conversations. For a local model this requires that its chat template passed
    the tests at load."""
    exact: bool
    """Whether a sequence is bit-equal alone and in a batch."""
    sequences: int | None
    """Choices that run at once; others wait."""
    engine: str
    """The engine, with the library's version. For a vendor's model it is the wire format."""
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    """Defaults for fields that a request leaves out."""
    modalities: tuple[str, ...] = ("text",)
    """The kinds of content in messages: `text`, `image`, `audio`."""
    output_modalities: tuple[str, ...] = ("text",)
    """The kinds of content in answers: `text`, `audio`."""
    reasoning: bool | None = False
    """Whether the model can reason before it answers. The reasoning is then separate from the text."""
    infill: bool | None = False
    """Whether the model fills in the middle of a text (`suffix`). None is unknown."""
    embedding: EmbeddingFacts | None = None
    """For an embedding model; None for one that generates."""
    max_output: int | None = None
    """The most output tokens, reasoning included; None if only the context limits them."""
    refused: tuple[str, ...] = ()
    """Parameters that this model does not take and others do, in alphabetical order."""
    source: ProfileSource = ProfileSource.WEIGHTS
    """Where these facts come from."""
    provider: str | None = None
    """The operator's name of the vendor; None for a local model."""
    license: str | None = None
    """The licence of the weights, as their file names it."""
    organization: str | None = None
    """Who made the weights, as their file names it."""
    portable_seeds: bool | None = None
    """Whether equal seeds give equal tokens on every local engine with the same weights. False: only on this
    engine. None: the vendor decides."""
    devices: tuple[DeviceLayers, ...] = ()
    """The devices that compute layers; the processor computes the others, or all."""


class TokenizerInfo(Struct, frozen=True):
    """A model's tokenizer, for clients that tokenize with this server."""

    context_length: int
    controls: Mapping[int, str]
    """Control tokens by id."""
    bos: str | None = None
    """The begin token as text; None if the model has none."""
    eos: str | None = None
    """The end token."""
    add_bos: bool = False
    """Whether a raw prompt gets the begin token."""
    chat_template: str | None = None
    """The source of the model's chat template."""


class Adapter(Struct, frozen=True):
    """One adapter that was checked against its base model."""

    digest: str
    """SHA-256 of its file, in hexadecimal; engines know it by this."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class DeploymentRequest:
    """A caller's request to deploy an adapter."""

    name: str
    """The name for callers to send as model."""
    model_name: str
    """On the hub `OWNER/REPO` or `OWNER/REPO:FILE.gguf`; otherwise a path below an allowed directory."""
    source: AdapterOrigin
    revision: str | None = None
    """On the hub a commit, tag or branch; None is the newest."""
    token: str | None = dataclasses.field(default=None, repr=False)
    """For the hub only; never stored."""
    base: str | None = None
    """The base model's name; None is the only one, or the adapter's own base."""


class FetchedAdapter(Struct, frozen=True):
    """An adapter that was downloaded from the hub."""

    path: str
    """The path of the adapter below `directory`."""
    directory: Path
    """A directory that contains only this adapter. It is removed after the adapter is stored."""
    commit: str
    base: str | None = None
    """The name of the base model in the adapter's own files; None if they contain none."""


class DeployedAdapter(Struct, frozen=True):
    """An adapter that the server offers as a model."""

    name: str
    base: str
    model_name: str
    """The name in the deployment request; for an adapter without one, the digest of its content."""
    source: AdapterOrigin
    created: int
    """Unix time in seconds."""
    revision: str | None = None
    """The commit, for an adapter from the hub."""
    creator: Actor | None = None
    """Who deployed the adapter; None if the operator configured it, or if it was loaded by its path."""


class AdapterName(Struct, frozen=True):
    """A name of an adapter, as processes exchange it."""

    name: str
    base: str
    adapter: Adapter
    created: int
    """Unix time in seconds."""
    deployed: DeployedAdapter | None = None
    project: str | None = None
    """The project that the adapter belongs to; None for the operator's, which all projects use."""
    is_kept: bool = False
    """Whether the name was given while the server ran, and lasts over a restart."""

    @property
    def key(self) -> "AdapterKey":
        """The project and the name: two projects can use one name."""
        return self.project, self.name


class KeptName(Struct, frozen=True):
    """An adapter's name that the next start restores, if the base model is still the same."""

    entry: AdapterName
    fingerprint: str
    """The fingerprint of the base model's file."""


class NameChange(Struct, frozen=True):
    """A change of a name that lasts over a restart."""

    project: str | None
    name: str
    kept: KeptName | None
    """None removes the name."""

    @property
    def key(self) -> AdapterKey:
        """The changed name, with its project."""
        return self.project, self.name


class DeployedBase(Struct, frozen=True):
    """A base model that is served."""

    name: str
    created: int
    """Unix time in seconds."""


class Histogram(Struct, frozen=True):
    """Counts of times in buckets; the counts only grow."""

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS) + 1)
    """One for each bound, not cumulative, and one above all bounds. The bounds are LATENCY_BOUNDS unless
    GAP_BOUNDS are named."""
    total: float = 0.0
    """Sum of all times, in seconds."""


class Timer:
    """A histogram that grows. One thread adds times, and any thread can read it."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: tuple[float, ...] = LATENCY_BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._total = 0.0

    def add(self, seconds: float) -> None:
        """Adds a time."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._total += seconds

    def add_several(self, seconds: float, times: int) -> None:
        """Adds the same time several times."""
        self._counts[bisect_left(self._bounds, seconds)] += times
        self._total += seconds * times

    def build_histogram(self) -> Histogram:
        """Returns the histogram so far."""
        return Histogram(tuple(self._counts), self._total)


class AdapterLoad(Struct, frozen=True):
    """The current load of one adapter."""

    adapter: str
    """Digest of its content."""
    running: int = 0
    queued: int = 0
    decoded_tokens: int = 0


class DeviceMemory(Struct, frozen=True):
    """The memory of a device, and the part that all programs use now."""

    device: str
    """The library's name of the device."""
    layers: int
    """The number of the model's layers on it."""
    total: int
    """Bytes."""
    used: int | None
    """Bytes; None if the driver does not report it."""


class Load(Struct, frozen=True):
    """The load of one engine now. The fields that count something `so far` only grow. The others rise and
    fall."""

    running: int = 0
    queued: int = 0
    free_sequences: int = 0
    cells_used: int = 0
    prefill_tokens: int = 0
    """Prompt tokens computed so far."""
    decoded_tokens: int = 0
    """Completion tokens made so far."""
    steps: int = 0
    """Calls of the library's decode so far."""
    drafts: int = 0
    """Tokens computed ahead of their sequence so far."""
    accepted_drafts: int = 0
    """Tokens computed ahead that their sequence then had, so far."""
    cells: int = 0
    """Number of all cells."""
    cells_cached: int = 0
    """Cells without a running sequence that are kept for requests with the same beginning. They become free
    when they are needed."""
    cached_tokens: int = 0
    """Prompt tokens taken from cached or running prefixes so far."""
    admitted: int = 0
    """Sequences admitted to the batch so far."""
    prefix_hits: int = 0
    """Number of admitted sequences that shared a prefix."""
    preemptions: int = 0
    """Sequences put back into the queue because cells ran out, so far."""
    refused: int = 0
    """Sequences refused because the queue was full, so far."""
    queue_seconds: Histogram = Histogram()
    """Times from the request to its admission."""
    first_token_seconds: Histogram = Histogram()
    """Times from the request to its first token."""
    inter_token_seconds: Histogram = Histogram()
    """Times between two tokens of one sequence."""
    step_gap_seconds: Histogram = Histogram((0,) * (len(GAP_BOUNDS) + 1))
    """Times between two decodes while there is work; of llama.cpp only. The bounds are GAP_BOUNDS."""
    adapters: tuple[AdapterLoad, ...] = ()
    """The load of each adapter that was used and is still loaded."""
    devices: tuple[DeviceMemory, ...] = ()
    """The memory of each device that has layers of the model."""


class RouteCounts:
    """The counts of one route in one process. All names of a pattern are counted together."""

    __slots__ = ("first_events", "in_flight", "outcomes", "rests")

    def __init__(self) -> None:
        self.in_flight = 0
        """Requests that run on the route, streams included."""
        self.outcomes: Counter[str] = Counter()
        """Attempts that ended: `ok`, `cancelled` by the caller, or the code of their error."""
        self.rests = 0
        """Rests after failures."""
        self.first_events = Timer()
        """Times from an attempt to its first event."""
