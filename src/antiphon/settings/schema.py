"""The tree of all settings, with the settings of a Ray cluster, and functions that copy and compare trees.

The machines of a cluster run the replicas of local models. A comparison tells what a reload changes, and what
only a restart changes. This module reads only the file of a cluster's token.
"""

import re
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from antiphon.domain.values import Struct
from antiphon.errors import SettingsError
from antiphon.settings.models import (
    AdapterSettings,
    AliasSettings,
    HubSettings,
    LoraSettings,
    ModelSettings,
    assign_models,
)
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings
from antiphon.settings.server import (
    AT_LEAST_ZERO,
    KnowledgeSettings,
    LogSettings,
    ServerSettings,
    TracingSettings,
    describe,
)
from antiphon.settings.tenancy import KeysSettings, LedgerSettings, LimitsSettings, OidcSettings

LOCAL = "local"
"""The value of `address` that starts a new cluster on this machine."""

ADDRESS = re.compile(r"[^\s/:@\[\]]+:\d{1,5}|\[[0-9a-fA-F:.]+\]:\d{1,5}")
MIN_TOKEN_LENGTH = 16

RAY_TOKEN, RAY_TOKEN_FILE = "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"
"""Ray's own variables for its token. KubeRay sets the first one in its pods."""

CLUSTER_ONLY = ("replicas", "max_replicas", "replica_cpus", "replica_gpus", "replica_resources")
"""Settings of a model that have an effect only in a cluster."""


class ClusterSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A Ray cluster that runs local models (ray.md). It needs the extra `ray`."""

    address: Annotated[
        str | None,
        describe(
            "ANTIPHON_CLUSTER",
            "The Ray cluster that runs the models: `local` starts one on this machine, HOST:PORT "
            "joins one. None runs models in processes of this server.",
            example="ray-head:6379",
        ),
    ] = None
    token: Annotated[
        str | None,
        describe(
            "ANTIPHON_CLUSTER_TOKEN",
            "The token of the Ray cluster. None takes Ray's own variables RAY_AUTH_TOKEN and "
            "RAY_AUTH_TOKEN_PATH. A local cluster without a token gets a new one.",
        ),
    ] = None
    interpreter: Annotated[
        str | None,
        describe(
            "ANTIPHON_CLUSTER_INTERPRETER",
            "Python that runs replicas, at the same path on all machines. None means the one that "
            "runs Ray there. The interpreter of a model comes first.",
        ),
    ] = None
    cpus: Annotated[
        Annotated[int, Meta(ge=1, le=1024)] | None,
        describe(
            "ANTIPHON_CLUSTER_CPUS",
            "CPUs that replicas of a local cluster can take together. None means all.",
        ),
    ] = None
    grows: Annotated[
        bool,
        describe(
            "ANTIPHON_CLUSTER_GROWS",
            "Whether the cluster can add machines. If not, the server does not start with a model "
            "that no machine can run.",
        ),
    ] = False
    upscale_delay: Annotated[
        float,
        describe(
            "ANTIPHON_CLUSTER_UPSCALE_DELAY",
            "A replica is added after there were more sequences than places for this many seconds.",
        ),
        AT_LEAST_ZERO,
    ] = 10.0
    downscale_delay: Annotated[
        float,
        describe(
            "ANTIPHON_CLUSTER_DOWNSCALE_DELAY",
            "A replica is removed after fewer were enough for this many seconds.",
        ),
        AT_LEAST_ZERO,
    ] = 300.0
    drain_timeout: Annotated[
        float,
        describe(
            "ANTIPHON_CLUSTER_DRAIN_TIMEOUT",
            "Seconds in which the sequences of a removed replica can finish.",
        ),
        AT_LEAST_ZERO,
    ] = 600.0

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        """Returns the settings without the token. `repr` and logs show this form."""
        values = msgspec.structs.asdict(self)
        return [(name, "***" if name == "token" and value else value) for name, value in values.items()]

    def __repr__(self) -> str:
        return f"ClusterSettings({', '.join(f'{name}={value!r}' for name, value in self.__rich_repr__())})"


def is_in_cluster(model: ModelSettings, cluster: ClusterSettings) -> bool:
    """Whether a model runs in the cluster, and not on this machine."""
    return cluster.address is not None and model.cluster


def require_cluster(cluster: ClusterSettings, models: tuple[ModelSettings, ...]) -> None:
    """Raises SettingsError for settings of the cluster that would have no effect."""
    if cluster.address is None:
        unused = [name for name, value in msgspec.structs.asdict(cluster).items() if value != DEFAULTS[name]]
        if unused:
            raise SettingsError(
                f"{unused[0]} of the cluster has no effect without a cluster: name a cluster with --cluster "
                f"(ANTIPHON_CLUSTER), or leave {unused[0]} out"
            )
    elif cluster.address != LOCAL and not ADDRESS.fullmatch(cluster.address):
        raise SettingsError(
            f"--cluster takes {LOCAL}, or HOST:PORT of a Ray cluster's head, not {cluster.address!r}"
        )
    if cluster.cpus is not None and cluster.address != LOCAL:
        raise SettingsError(
            f"cluster.cpus acts only with --cluster {LOCAL}; for other machines, give the CPUs to `ray start`"
        )
    for model in models:
        _require_replicas(model, cluster)


def _require_replicas(model: ModelSettings, cluster: ClusterSettings) -> None:
    """Raises SettingsError for settings of a model's replicas that would have no effect."""
    if not is_in_cluster(model, cluster):
        changed = [name for name in CLUSTER_ONLY if getattr(model, name) != getattr(DEFAULT_MODEL, name)]
        if changed:
            raise SettingsError(
                f"{changed[0]} of the model {model.name} acts only in a cluster: "
                f"name a cluster with --cluster, or leave {changed[0]} out"
            )
        return
    if model.hosts > 1:
        raise SettingsError(
            f"hosts of the model {model.name} acts only on this machine, and the model runs in the cluster; "
            "set replicas instead of hosts, or keep the model here with cluster = false"
        )
    if model.max_replicas is not None and model.max_replicas < model.replicas:
        raise SettingsError(
            f"max_replicas of the model {model.name} is {model.max_replicas}, less than its "
            f"{model.replicas} replicas; raise max_replicas, or leave it out"
        )
    if model.engine == "vllm" and model.devices:
        raise SettingsError(
            f"devices of the model {model.name} does not act in the cluster, where Ray gives each replica of "
            "vLLM its GPUs; set replica_gpus instead"
        )
    if model.tensor_parallel > 1 and model.replica_gpus != model.tensor_parallel:
        raise SettingsError(
            f"tensor_parallel of the model {model.name} is {model.tensor_parallel}: set its replica_gpus to "
            "the same number, so that each replica gets the devices"
        )
    if model.load == "request":
        raise SettingsError(
            f'the model {model.name} runs in the cluster, where load = "request" does not act; leave load '
            "out, or keep the model on this machine with cluster = false"
        )


DEFAULTS = msgspec.structs.asdict(ClusterSettings())
DEFAULT_MODEL = ModelSettings(name="-", path="-")


def find_token(cluster: ClusterSettings, environ: Mapping[str, str]) -> str | None:
    """Returns the token of the cluster; None if a local cluster needs a new one. Raises SettingsError if the
    token is missing or unusable."""
    token = cluster.token or environ.get(RAY_TOKEN) or _read_token(environ.get(RAY_TOKEN_FILE))
    if token is None:
        if cluster.address == LOCAL:
            return None
        raise SettingsError(
            f"the cluster at {cluster.address} can only be joined with its token: set ANTIPHON_CLUSTER_TOKEN "
            "to the token that its machines were started with (RAY_AUTH_TOKEN)"
        )
    if len(token) < MIN_TOKEN_LENGTH or not token.isascii() or not token.isprintable() or " " in token:
        raise SettingsError(
            f"the token of the cluster must be at least {MIN_TOKEN_LENGTH} printable "
            "characters without spaces; make one with: openssl rand -hex 32"
        )
    return token


def _read_token(path: str | None) -> str | None:
    """Reads the token from a file. Raises SettingsError."""
    if not path:
        return None
    try:
        with open(path, encoding="ascii") as file:
            return file.read().strip() or None
    except (OSError, UnicodeDecodeError) as problem:
        raise SettingsError(f"the token of the cluster in {path} cannot be read: {problem}") from None


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedded engine and its processes."""

    interpreter: Annotated[
        str | None,
        describe("ANTIPHON_ENGINE_INTERPRETER", "Python that runs engines. None means the server's own."),
    ] = None
    library: Annotated[
        str | None,
        describe("ANTIPHON_ENGINE_LIBRARY", "Path of the llama.cpp library. None searches the usual places."),
    ] = None
    user: Annotated[
        str | None,
        describe(
            "ANTIPHON_ENGINE_USER",
            "User that runs engines when root starts the server. None keeps the server's user.",
        ),
    ] = None
    wait_policy: Annotated[
        Literal["passive", "active"],
        describe(
            "ANTIPHON_ENGINE_WAIT_POLICY",
            "How idle threads wait: passive on shared machines, active if nothing else uses the cores.",
        ),
    ] = "passive"
    restart_patience: Annotated[
        float,
        describe(
            "ANTIPHON_ENGINE_RESTART_PATIENCE",
            "Seconds that a request waits for an engine that restarts.",
        ),
        AT_LEAST_ZERO,
    ] = 15.0
    memory_budget: Annotated[
        Annotated[int, Meta(ge=1)] | None,
        describe(
            "ANTIPHON_ENGINE_MEMORY_BUDGET",
            'Bytes of weights and KV caches of all loaded models with load = "request". None means '
            "the free memory.",
        ),
    ] = None
    prefix_sharing: Annotated[
        Literal["project", "server"],
        describe(
            "ANTIPHON_ENGINE_PREFIX_SHARING",
            "Whether requests share computed prompts only within their project, or all requests "
            "without a salt do.",
        ),
    ] = "project"


class MemorySettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Summaries that the memory strategy `summary` writes (memory.md)."""

    summaries: Annotated[
        int,
        describe(
            "ANTIPHON_MEMORY_SUMMARIES",
            "Summaries that are kept for each project. 0 keeps none, and each request then "
            "writes its own. Without keys, each HTTP process keeps them in memory.",
        ),
        Meta(ge=0, le=1_000_000),
    ] = 1_000
    summary_days: Annotated[
        int,
        describe("ANTIPHON_MEMORY_SUMMARY_DAYS", "Days for which a summary is kept."),
        Meta(ge=1, le=3_650),
    ] = 30


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a server."""

    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    cluster: ClusterSettings = ClusterSettings()
    hub: HubSettings = HubSettings()
    lora: LoraSettings = LoraSettings()
    keys: KeysSettings = KeysSettings()
    limits: LimitsSettings = LimitsSettings()
    ledger: LedgerSettings = LedgerSettings()
    oidc: OidcSettings = OidcSettings()
    memory: MemorySettings = MemorySettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    log: LogSettings = LogSettings()
    tracing: TracingSettings = TracingSettings()
    models: tuple[ModelSettings, ...] = ()
    adapters: tuple[AdapterSettings, ...] = ()
    aliases: tuple[AliasSettings, ...] = ()
    providers: dict[str, ProviderSettings] = {}
    routed_models: tuple[RoutedModelSettings, ...] = ()
    """The `[[models]]` tables that have routes. `models` has only local models."""


SECTIONS: tuple[str, ...] = (
    "server",
    "engine",
    "cluster",
    "hub",
    "lora",
    "keys",
    "limits",
    "ledger",
    "oidc",
    "memory",
    "knowledge",
    "log",
    "tracing",
)


def list_settings(section: str) -> Iterator[tuple[str, str, str, object]]:
    """Yields name, environment variable, documentation and default of each setting of a section."""
    cls = get_type_hints(Settings)[section]
    hints = get_type_hints(cls, include_extras=True)
    for field in msgspec.structs.fields(cls):
        meta = next(item for item in get_args(hints[field.name]) if isinstance(item, Meta) and item.extra)
        yield field.name, (meta.extra or {})["env"], meta.description or "", field.default


def replace_models(settings: Settings, models: Iterable[ModelSettings]) -> Settings:
    """Returns the settings with other models."""
    return msgspec.structs.replace(settings, models=tuple(models))


def replace_reloaded(settings: Settings, new_settings: Settings) -> Settings:
    """Returns the settings with the providers, models and aliases of `new_settings`, and without the adapters
    of models that `new_settings` do not have."""
    model_names = {model.name for model in new_settings.models}
    return msgspec.structs.replace(
        settings,
        models=new_settings.models,
        adapters=tuple(adapter for adapter in settings.adapters if adapter.model in model_names),
        aliases=new_settings.aliases,
        providers=new_settings.providers,
        routed_models=new_settings.routed_models,
    )


def replace_lora(
    settings: Settings, registry: str, directories: Iterable[str], paths: Mapping[str, str]
) -> Settings:
    """Returns the settings with another registry and other directories and paths of adapters. `paths`: by the
    adapter's name."""
    lora = msgspec.structs.replace(settings.lora, registry=registry, directories=tuple(directories))
    adapters = tuple(
        msgspec.structs.replace(adapter, path=paths[adapter.name]) for adapter in settings.adapters
    )
    return msgspec.structs.replace(settings, lora=lora, adapters=adapters)


def replace_keys(settings: Settings, store: str, pepper: str, spool: str) -> Settings:
    """Returns the settings with another database, pepper and spool."""
    keys = msgspec.structs.replace(settings.keys, store=store, pepper=pepper)
    ledger = msgspec.structs.replace(settings.ledger, spool=spool)
    return msgspec.structs.replace(settings, keys=keys, ledger=ledger)


def replace_knowledge(settings: Settings, directory: str) -> Settings:
    """Returns the settings with another directory of knowledge tables."""
    knowledge = msgspec.structs.replace(settings.knowledge, directory=directory)
    return msgspec.structs.replace(settings, knowledge=knowledge)


def find_knowledge_database(settings: Settings) -> str | None:
    """Returns the address of the database for knowledge tables; None if they are in files. Raises
    SettingsError if `storage` is `database` and the store is not PostgreSQL."""
    storage, store = settings.knowledge.storage, settings.keys.store or ""
    is_postgresql = settings.keys.enabled and store.startswith("postgresql")
    if storage == "database" and not is_postgresql:
        raise SettingsError(
            'knowledge.storage is "database", and there is no PostgreSQL: set ANTIPHON_KEYS=true and '
            "ANTIPHON_STORE=postgresql://..., or leave knowledge.storage out"
        )
    return store if is_postgresql and storage != "files" else None


def with_assigned_models(settings: Settings, embedding_models: Collection[str] | None = ()) -> Settings:
    """Returns the settings with the model of each adapter filled in. `embedding_models` has the same meaning
    as in `assign_models`. Raises SettingsError."""
    return msgspec.structs.replace(
        settings, adapters=assign_models(settings.adapters, settings.models, embedding_models)
    )


def change_model(model: ModelSettings, **values: object) -> ModelSettings:
    """Returns the model with other values."""
    return msgspec.structs.replace(model, **values)


def dump_model(model: ModelSettings) -> dict[str, object]:
    """Returns the model's settings by name, in the form that `build_model` takes."""
    return msgspec.structs.asdict(model)


def encode_settings(settings: Settings) -> bytes:
    """Encodes the settings as one line of JSON for a child process. The line contains secrets, so send it
    only through a pipe."""
    return msgspec.json.encode(settings)


def decode_settings(line: bytes) -> Settings:
    """Decodes a line that `encode_settings` made."""
    return msgspec.json.decode(line, type=Settings)


def choose_interpreter(settings: Settings) -> str:
    """Returns the path of the Python interpreter for engine hosts."""
    return settings.engine.interpreter or sys.executable


TABLE_LISTS = {"models": "model", "adapters": "adapter", "aliases": "alias"}
"""The settings that are lists of tables. The value is what a message calls one table."""


MAX_LISTED = 10
"""The most names of one kind in the text of a report."""


class NameChanges(Struct, frozen=True):
    """The names of providers, models or aliases that a reload added, changed and removed."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    def describe(self, noun: str) -> list[str]:
        """Returns a text for each kind of change that happened, as `added model a, b`."""
        verbs = {"added": self.added, "changed": self.changed, "removed": self.removed}
        return [f"{verb} {noun} {join_names(names)}" for verb, names in verbs.items() if names]


class ReloadReport(Struct, frozen=True):
    """The result of a reload."""

    providers: NameChanges = NameChanges()
    models: NameChanges = NameChanges()
    aliases: NameChanges = NameChanges()
    restart_settings: tuple[str, ...] = ()
    """Names of settings whose new value acts only after a restart."""
    unconfirmed_processes: tuple[str, ...] = ()
    """Processes that have not confirmed the reload yet. They apply it before they handle other commands."""

    def describe(self) -> str:
        """Returns the report in one line."""
        parts = [
            *self.providers.describe("provider"),
            *self.models.describe("model"),
            *self.aliases.describe("alias"),
        ]
        parts = parts or ["nothing changed"]
        if self.restart_settings:
            parts.append(f"only a restart applies {join_names(self.restart_settings)}")
        if self.unconfirmed_processes:
            parts.append(f"not confirmed yet by {join_names(self.unconfirmed_processes)}")
        return "; ".join(parts)


def join_names(names: tuple[str, ...]) -> str:
    """Joins names with commas. After MAX_LISTED names, tells how many more there are."""
    more = f" and {len(names) - MAX_LISTED} more" if len(names) > MAX_LISTED else ""
    return ", ".join(names[:MAX_LISTED]) + more


def compare_settings(
    before: Settings, after: Settings, restart_settings: tuple[str, ...] = ()
) -> ReloadReport:
    """Builds the report of a reload from the providers, models and aliases before and after it."""
    return ReloadReport(
        providers=compare_tables(before.providers, after.providers),
        models=compare_tables(_index_models(before), _index_models(after)),
        aliases=compare_tables(
            {alias.name: alias for alias in before.aliases}, {alias.name: alias for alias in after.aliases}
        ),
        restart_settings=restart_settings,
    )


def compare_tables(before: Mapping[str, object], after: Mapping[str, object]) -> NameChanges:
    """Compares two tables: which names were added, which values changed, and which names were removed."""
    return NameChanges(
        added=tuple(name for name in after if name not in before),
        changed=tuple(name for name in after if name in before and after[name] != before[name]),
        removed=tuple(name for name in before if name not in after),
    )


def _index_models(settings: Settings) -> dict[str, object]:
    """Returns local and routed models by their names."""
    models: dict[str, object] = {model.name: model for model in settings.models}
    return models | {model.name: model for model in settings.routed_models}


def list_restart_settings(before: Settings, after: Settings) -> tuple[str, ...]:
    """Returns the settings of all sections that differ. A reload applies none of them."""
    return tuple(
        f"{section}.{name}"
        for section in SECTIONS
        for name, *_ in list_settings(section)
        if getattr(getattr(before, section), name) != getattr(getattr(after, section), name)
    )
