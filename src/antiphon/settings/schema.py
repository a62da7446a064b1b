"""The tree of all settings, and functions that copy it with other values. Reads no file."""

import sys
from collections.abc import Collection, Iterable, Mapping
from functools import cache
from typing import Annotated, Literal, get_args, get_type_hints

import msgspec
from msgspec import Meta

from antiphon.errors import SettingsError
from antiphon.settings.cluster import ClusterSettings
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
    KIB,
    MIB,
    KnowledgeSettings,
    LogSettings,
    MediaSettings,
    ServerSettings,
    TracingSettings,
    describe,
)
from antiphon.settings.tenancy import KeysSettings, LedgerSettings, LimitsSettings, OidcSettings


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


LARGEST_RESPONSE = 12 * MIB
"""The most bytes of one response. Without keys, it is one message between two processes."""


class ResponsesSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Responses that are kept for later requests, and sealed reasoning (state.md)."""

    store: Annotated[
        bool,
        describe(
            "ANTIPHON_RESPONSES_STORE",
            "Whether responses are kept, unless a request says `store: false`. Without it, requests with "
            "`previous_response_id` or an `item_reference` are refused.",
        ),
    ] = True
    days: Annotated[
        int,
        describe("ANTIPHON_RESPONSES_DAYS", "Days for which a response is kept."),
        Meta(ge=1, le=3_650),
    ] = 30
    max_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_RESPONSES_MAX_BYTES",
            "Largest response with its input in bytes. A larger one is not kept.",
        ),
        Meta(ge=KIB, le=LARGEST_RESPONSE),
    ] = 8 * MIB
    project_bytes: Annotated[
        int,
        describe(
            "ANTIPHON_RESPONSES_PROJECT_BYTES",
            "Most bytes of all responses of one project. The oldest ones are removed first. Without keys, "
            "they are in memory, at most 64 MiB.",
        ),
        Meta(ge=MIB),
    ] = 256 * MIB
    seal_secret: Annotated[
        Annotated[str, Meta(pattern=r"^([0-9A-Fa-f]{2}){32,}$")] | None,
        describe(
            "ANTIPHON_RESPONSES_SEAL_SECRET",
            "The secret of sealed reasoning: at least 64 hexadecimal digits, the same on every server. None "
            "derives it from `keys.pepper`, or, without keys, makes a new one at each start.",
        ),
    ] = None

    def __rich_repr__(self) -> list[tuple[str, object]]:
        """Returns the settings without the secret. `repr` and logs show this form."""
        values = msgspec.structs.asdict(self)
        return [(name, "***" if name == "seal_secret" and value else value) for name, value in values.items()]


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
    responses: ResponsesSettings = ResponsesSettings()
    knowledge: KnowledgeSettings = KnowledgeSettings()
    media: MediaSettings = MediaSettings()
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
    "responses",
    "knowledge",
    "media",
    "log",
    "tracing",
)


@cache
def list_settings(section: str) -> tuple[tuple[str, str, str, object], ...]:
    """Returns name, environment variable, documentation and default of each setting of a section."""
    cls = get_type_hints(Settings)[section]
    hints = get_type_hints(cls, include_extras=True)
    settings = []
    for field in msgspec.structs.fields(cls):
        meta = next(item for item in get_args(hints[field.name]) if isinstance(item, Meta) and item.extra)
        settings.append((field.name, (meta.extra or {})["env"], meta.description or "", field.default))
    return tuple(settings)


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


def replace_seal_secret(settings: Settings, secret: str) -> Settings:
    """Returns the settings with another secret of sealed reasoning."""
    responses = msgspec.structs.replace(settings.responses, seal_secret=secret)
    return msgspec.structs.replace(settings, responses=responses)


def replace_group_rules(settings: Settings, rules: Iterable[str]) -> Settings:
    """Returns the settings with other rules of groups."""
    return msgspec.structs.replace(settings, oidc=msgspec.structs.replace(settings.oidc, groups=tuple(rules)))


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


def add_alias(settings: Settings, name: str, model: str) -> Settings:
    """Returns the settings with one more alias."""
    return msgspec.structs.replace(settings, aliases=(*settings.aliases, AliasSettings(name, model)))


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
