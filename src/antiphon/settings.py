"""Every setting, declared once: its type, default, environment variable and meaning.

A flag beats an environment variable, which beats `antiphon.toml`. Unknown keys are errors that name the
nearest known one.
This module reads what it is handed; it opens no file by itself except the one whose path it is given.
"""

import ipaddress
import os
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from antiphon.errors import SettingsError
from antiphon.settings_aliases import AliasSettings
from antiphon.settings_errors import explain, suggest_nearest
from antiphon.settings_hub import HubSettings
from antiphon.settings_keys import KeysSettings
from antiphon.settings_ledger import LedgerSettings
from antiphon.settings_limits import LimitsSettings
from antiphon.settings_lora import AdapterSettings, LoraSettings, assign_models
from antiphon.settings_meta import AT_LEAST_ZERO, describe
from antiphon.settings_model import ModelSettings
from antiphon.settings_oidc import OidcSettings, require_usable
from antiphon.settings_said import LISTED, SourceKind, of_model, spelling
from antiphon.settings_server import ServerSettings

ENVIRONMENT_PREFIX = "ANTIPHON_"
FOREIGN_PREFIX = "ANTIPHON_TEST_"
"""Variables of the test suite; never settings."""


class EngineSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The embedded engine and its processes."""

    interpreter: Annotated[
        str | None,
        describe(
            "ANTIPHON_ENGINE_INTERPRETER", "Python that runs engine hosts; none means the server's own."
        ),
    ] = None
    library: Annotated[
        str | None,
        describe("ANTIPHON_ENGINE_LIBRARY", "Path of the llama.cpp library; none searches the usual places."),
    ] = None
    user: Annotated[
        str | None,
        describe(
            "ANTIPHON_ENGINE_USER",
            "User whose rights engine hosts take when root starts the server; none keeps the server's.",
        ),
    ] = None
    wait_policy: Annotated[
        Literal["passive", "active"],
        describe(
            "ANTIPHON_ENGINE_WAIT_POLICY",
            "How idle OpenMP threads wait: passive for shared machines, active for idle ones.",
        ),
    ] = "passive"
    restart_patience: Annotated[
        float,
        describe(
            "ANTIPHON_ENGINE_RESTART_PATIENCE",
            "Seconds that a request waits for an engine that is starting again.",
        ),
        AT_LEAST_ZERO,
    ] = 15.0
    prefix_sharing: Annotated[
        Literal["project", "server"],
        describe(
            "ANTIPHON_ENGINE_PREFIX_SHARING",
            "Who shares what is kept of a prompt: each project for itself, or all that send no salt.",
        ),
    ] = "project"


class LogSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the server writes to standard error."""

    level: Annotated[
        Literal["debug", "info", "warning", "error"],
        describe("ANTIPHON_LOG_LEVEL", "Least severe level that is written."),
    ] = "info"
    format: Annotated[
        Literal["text", "json"],
        describe("ANTIPHON_LOG_FORMAT", "One line for people, or one JSON object, for each record."),
    ] = "text"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The whole tree."""

    server: ServerSettings = ServerSettings()
    engine: EngineSettings = EngineSettings()
    hub: HubSettings = HubSettings()
    lora: LoraSettings = LoraSettings()
    keys: KeysSettings = KeysSettings()
    limits: LimitsSettings = LimitsSettings()
    ledger: LedgerSettings = LedgerSettings()
    oidc: OidcSettings = OidcSettings()
    log: LogSettings = LogSettings()
    models: tuple[ModelSettings, ...] = ()
    adapters: tuple[AdapterSettings, ...] = ()
    aliases: tuple[AliasSettings, ...] = ()


SECTIONS: tuple[str, ...] = ("server", "engine", "hub", "lora", "keys", "limits", "ledger", "oidc", "log")


def list_settings(section: str) -> Iterator[tuple[str, str, str, object]]:
    """(name, environment variable, doc line, default) of each setting of a section, in order."""
    cls = get_type_hints(Settings)[section]
    hints = get_type_hints(cls, include_extras=True)
    for field in msgspec.structs.fields(cls):
        meta = next(item for item in get_args(hints[field.name]) if isinstance(item, Meta) and item.extra)
        yield field.name, (meta.extra or {})["env"], meta.description or "", field.default


def load(
    flags: Mapping[str, Mapping[str, object]],
    environ: Mapping[str, str],
    file: Path | None,
    models: list[dict[str, object]],
    adapters: list[dict[str, object]] | None = None,
    aliases: list[dict[str, object]] | None = None,
) -> Settings:
    """The effective settings. `flags` holds only what was said on the command line, by section; `models`,
    `adapters` and `aliases`, where there are any, take the place of the file's.

    Raises SettingsError with one sentence that names the key, where it was said, and the nearest known one.
    """
    tree: dict[str, Any] = {}
    said_by = layers(flags, environ, file)
    for _, layer in said_by:
        _merge(tree, layer)
    tree |= {name: many for name, many in zip(LISTED, (models, adapters, aliases), strict=True) if many}
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as problem:
        spelled = spelling(said_by, tree, file, {place: env for env, place in _variables().items()})
        raise SettingsError(explain(str(problem), tree, Settings, spelled)) from None
    _refuse_open_door(settings.server, settings.keys.enabled)
    require_usable(settings.oidc, settings.keys.enabled, is_loopback)
    _refuse_double_names(settings.models)
    return settings


def layers(
    flags: Mapping[str, Mapping[str, object]], environ: Mapping[str, str], file: Path | None
) -> list[tuple[SourceKind, dict[str, Any]]]:
    """What each source says, weakest first. Raises SettingsError."""
    return [
        (SourceKind.FILE, _from_file(file) if file else {}),
        (SourceKind.VARIABLE, _from_environment(environ)),
        (SourceKind.FLAG, {section: dict(values) for section, values in flags.items() if values}),
    ]


def with_models(settings: Settings, models: Iterable[ModelSettings]) -> Settings:
    """The same settings with other models."""
    return msgspec.structs.replace(settings, models=tuple(models))


def with_lora(
    settings: Settings, registry: str, directories: Iterable[str], paths: Mapping[str, str]
) -> Settings:
    """The same settings with other places of adapters; `paths`: by the adapter's name."""
    lora = msgspec.structs.replace(settings.lora, registry=registry, directories=tuple(directories))
    adapters = tuple(
        msgspec.structs.replace(adapter, path=paths[adapter.name]) for adapter in settings.adapters
    )
    return msgspec.structs.replace(settings, lora=lora, adapters=adapters)


def with_keys(settings: Settings, store: str, pepper: str, spool: str) -> Settings:
    """The same settings with another database, pepper and spool."""
    keys = msgspec.structs.replace(settings.keys, store=store, pepper=pepper)
    ledger = msgspec.structs.replace(settings.ledger, spool=spool)
    return msgspec.structs.replace(settings, keys=keys, ledger=ledger)


def with_homes(settings: Settings, embedding: Collection[str] | None = ()) -> Settings:
    """The same settings, in which each adapter says which model it adapts; `embedding` as of `housed`. Raises
    SettingsError."""
    return msgspec.structs.replace(
        settings, adapters=assign_models(settings.adapters, settings.models, embedding)
    )


def model(values: Mapping[str, object]) -> ModelSettings:
    """One model's settings. Raises SettingsError."""
    try:
        return msgspec.convert(values, ModelSettings)
    except msgspec.ValidationError as problem:
        spelled = partial(of_model, values)
        raise SettingsError(explain(str(problem), values, ModelSettings, spelled)) from None


def change_model(model: ModelSettings, **values: object) -> ModelSettings:
    """The same model with other values."""
    return msgspec.structs.replace(model, **values)


def values_of(model: ModelSettings) -> dict[str, object]:
    """The model's settings by name, as `model` takes them."""
    return msgspec.structs.asdict(model)


def encode(settings: Settings) -> bytes:
    """One line of JSON, for a child process; holds the key, so it goes through a pipe, never an argument."""
    return msgspec.json.encode(settings)


def decode(line: bytes) -> Settings:
    """The settings that `encode` wrote."""
    return msgspec.json.decode(line, type=Settings)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _from_file(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text("utf-8"))
    except OSError as problem:
        raise SettingsError(
            f"cannot read the settings file {file}: {os.strerror(problem.errno or 0)}"
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise SettingsError(f"{file} is not valid TOML: {problem}") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    places = _variables()
    tree: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(FOREIGN_PREFIX):
            continue
        if variable not in places:
            raise SettingsError(f"unknown environment variable {variable}{suggest_nearest(variable, places)}")
        section, name = places[variable]
        if value:
            tree.setdefault(section, {})[name] = _parse_value(section, name, value)
    return tree


def _variables() -> dict[str, tuple[str, str]]:
    """Section and name of the setting that each variable is."""
    return {env: (section, name) for section in SECTIONS for name, env, _, _ in list_settings(section)}


def _parse_value(section: str, name: str, value: str) -> object:
    """A list setting is written with commas in the environment; all else is converted by its type."""
    hint = get_type_hints(get_type_hints(Settings)[section])[name]
    if get_origin(hint) is tuple:
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _merge(tree: dict[str, Any], over: Mapping[str, Any]) -> None:
    """What is no table stays as it is, for the decoder to refuse."""
    for section, values in over.items():
        held = tree.setdefault(section, {})
        if isinstance(held, dict) and isinstance(values, dict):
            held.update(values)
        else:
            tree[section] = values if held == {} else held


def _refuse_open_door(server: ServerSettings, keys: bool) -> None:
    if server.api_key is not None and not (16 <= len(server.api_key) <= 512 and server.api_key.isprintable()):
        raise SettingsError(
            "ANTIPHON_API_KEY must be 16 to 512 printable characters; make one with: openssl rand -hex 24"
        )
    if server.api_key is None and not keys and not is_loopback(server.host):
        raise SettingsError(
            f"refusing to listen on {server.host} without a key: set ANTIPHON_API_KEY (openssl rand -hex 24 "
            "makes one) or ANTIPHON_KEYS=true, or listen on 127.0.0.1"
        )


def _refuse_double_names(models: tuple[ModelSettings, ...]) -> None:
    seen: set[str] = set()
    for model in models:
        if model.name in seen:
            raise SettingsError(
                f"two models are named {model.name!r}; give one another name with --model NAME=PATH"
            )
        seen.add(model.name)


def interpreter(settings: Settings) -> str:
    """The Python that runs engine hosts."""
    return settings.engine.interpreter or sys.executable
