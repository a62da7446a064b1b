"""Reads settings: a flag overrides an environment variable, which overrides `antiphon.toml`.

An unknown key is an error that names the most similar known key. A setting that has an effect only together
with another setting is refused by name without it. This module opens only the settings file at the given
path.
"""

import difflib
import ipaddress
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import msgspec

from antiphon import validation_messages
from antiphon.domain.values import Struct
from antiphon.errors import SettingsError
from antiphon.regular_files import read_text
from antiphon.settings.cluster import require_cluster
from antiphon.settings.models import ModelSettings, require_engine_settings, require_hosts
from antiphon.settings.providers import (
    PROVIDER_NAME,
    ProviderSettings,
    RoutedModelSettings,
    is_routed,
    require_provider,
    require_routed_models,
)
from antiphon.settings.schema import SECTIONS, TABLE_LISTS, Settings, list_settings
from antiphon.settings.server import PATH_MARK, ServerSettings, is_address, is_loopback
from antiphon.settings.tenancy import require_complete_oidc, require_complete_webhook

T = TypeVar("T")

MAX_INTEGER = 2**63 - 1

ENVIRONMENT_PREFIX = "ANTIPHON_"
TEST_PREFIX = "ANTIPHON_TEST_"
"""The prefix of the test suite's variables. They are not settings."""

FLAGS_WITHOUT_VARIABLE = (
    *("model", "lora", "alias", "config", "sequences", "context_length"),
    *("threads", "mmproj", "gpu_layers", "devices", "tensor_split", "exact"),
)
"""The flags of `serve` that no variable replaces."""

MAX_QUOTED_LENGTH = 60
"""The most characters of a value that an error message quotes."""


class Dependency(Struct, frozen=True):
    """Settings of a section that have an effect only if a condition on other settings is met."""

    section: str
    names: tuple[str, ...]
    is_met: Callable[[Settings], bool]
    reason: str
    """Why the settings have no effect if the condition is not met, and which other setting to change."""


DEPENDENCIES = (
    Dependency(
        "tracing",
        ("service_name", "sample_ratio", "content", "metrics_interval"),
        lambda settings: settings.tracing.endpoint is not None,
        "nothing is traced without a collector; set tracing.endpoint (ANTIPHON_TRACING_ENDPOINT)",
    ),
    Dependency(
        "media",
        ("fetch_private",),
        lambda settings: any(host != "*" for host in settings.media.fetch),
        "only hosts that are named can have private addresses; name them in media.fetch "
        "(ANTIPHON_MEDIA_FETCH)",
    ),
    Dependency(
        "lora",
        ("project_adapters",),
        lambda settings: settings.keys.enabled,
        "there are no projects without keys; set keys.enabled (ANTIPHON_KEYS=true)",
    ),
    Dependency(
        "lora",
        ("project_adapters",),
        lambda settings: bool(settings.lora.repositories),
        "projects load adapters only from repositories; set lora.repositories (ANTIPHON_LORA_REPOSITORIES)",
    ),
    Dependency(
        "lora",
        ("project_bytes",),
        lambda settings: settings.lora.project_adapters > 0,
        "projects have no adapters; raise lora.project_adapters (ANTIPHON_LORA_PROJECT_ADAPTERS)",
    ),
    Dependency(
        "lora",
        ("max_bytes", "keep_names"),
        lambda settings: bool(settings.lora.directories or settings.lora.repositories),
        "callers cannot load adapters; set lora.directories (ANTIPHON_LORA_DIRECTORIES) or lora.repositories "
        "(ANTIPHON_LORA_REPOSITORIES)",
    ),
    Dependency(
        "limits",
        ("prefix",),
        lambda settings: settings.limits.url is not None,
        "Redis is not used; set limits.url (ANTIPHON_LIMITS_URL)",
    ),
    Dependency(
        "oidc",
        ("console_scopes",),
        lambda settings: settings.oidc.console_client_id is not None,
        "the console signs nobody in; set oidc.console_client_id (ANTIPHON_OIDC_CONSOLE_CLIENT_ID)",
    ),
    Dependency(
        "memory",
        ("summary_days",),
        lambda settings: settings.memory.summaries > 0,
        "no summary is stored; raise memory.summaries (ANTIPHON_MEMORY_SUMMARIES), which is 0",
    ),
    Dependency(
        "responses",
        ("days", "max_bytes", "project_bytes"),
        lambda settings: settings.responses.store,
        "no response is kept; set responses.store (ANTIPHON_RESPONSES_STORE), which is false",
    ),
    Dependency(
        "engine",
        ("memory_budget",),
        lambda settings: any(model.load == "request" for model in settings.models),
        'there is no model with load = "request"; set load = "request" in a [[models]] table',
    ),
    Dependency(
        "server",
        ("allowed_hosts",),
        lambda settings: not settings.keys.enabled and settings.server.api_key is None,
        "a server with keys accepts every host name; leave keys.enabled (ANTIPHON_KEYS) and server.api_key "
        "(ANTIPHON_API_KEY) out",
    ),
)


def require_dependencies(settings: Settings) -> None:
    """Raises SettingsError for a setting without an effect."""
    for dependency in DEPENDENCIES:
        if dependency.is_met(settings):
            continue
        section = getattr(settings, dependency.section)
        for name, variable, _, default in list_settings(dependency.section):
            if name in dependency.names and getattr(section, name) != default:
                setting = f"{dependency.section}.{name}"
                raise SettingsError(
                    f"{setting} ({variable}) has no effect: {dependency.reason}, or leave {setting} out"
                )


class SourceKind(StrEnum):
    """The sources of a value. Later ones override earlier ones."""

    DEFAULT = "default"
    FILE = "file"
    VARIABLE = "variable"
    FLAG = "flag"


Layers = Sequence[tuple[SourceKind, Mapping[str, object]]]
"""The values of each source by section and name. Later sources override earlier ones."""


def format_flag(section: str, name: str) -> str:
    """Returns the command line's flag of a setting."""
    if section == "cluster" and name == "address":
        return "--cluster"
    prefix = "log-" if section == "log" else ""
    return f"--{prefix}{name.replace('_', '-')}"


def build_setting_namer(
    layers: Layers,
    tree: Mapping[str, object],
    file: Path | None,
    variables: Mapping[tuple[str, str], str],
) -> Callable[[str], str]:
    """Returns a function that names the setting at a path as the source of its value does: as a flag, a
    variable, or a key of the file. `tree`: the merged values. `variables`: by section and name."""

    def name_setting(path: str) -> str:
        list_name, bracket, _ = path.partition("[")
        if bracket and list_name in TABLE_LISTS:
            item_path, _, name = path.partition(".")
            number = int(item_path.removeprefix(f"{list_name}[").removesuffix("]")) + 1
            return name_item_setting(
                TABLE_LISTS[list_name],
                validation_messages.find_value(tree, item_path),
                name,
                f"number {number}",
            )
        section, _, name = path.partition("[")[0].partition(".")
        kind = next(kind for kind, layer in reversed(layers) if _has_setting(layer.get(section), name))
        if kind is SourceKind.FLAG and name:
            return format_flag(section, name)
        if kind is SourceKind.VARIABLE and name:
            return variables[section, name]
        return f"{path} in {file}"

    return name_setting


def name_model_setting(values: object, name: str) -> str:
    """Returns how a message names a setting of a model: with the model's name, if the model has one."""
    return name_item_setting("model", values, name, "without a name")


def name_item_setting(noun: str, values: object, name: str, fallback: str) -> str:
    """Returns how a message names a setting of a table in a list, as `port of the model m`. `values`: the
    table. `fallback`: what follows the noun if the table has no name."""
    item_name = values.get("name") if isinstance(values, Mapping) else None
    item = f"the {noun} {item_name if item_name and isinstance(item_name, str) else fallback}"
    return f"{name} of {item}" if name else item


def _has_setting(section: object, name: str) -> bool:
    """Whether a source sets the setting. `section`: the source's values of the section. An empty name means
    the section itself."""
    return section is not None and (not name or (isinstance(section, dict) and name in section))


def load_settings(
    flags: Mapping[str, Mapping[str, object]],
    environ: Mapping[str, str],
    file: Path | None,
    models: list[dict[str, object]],
    adapters: list[dict[str, object]] | None = None,
    aliases: list[dict[str, object]] | None = None,
) -> Settings:
    """Returns the effective settings. `flags`: the values of the command line, by section. `models`,
    `adapters` and `aliases` replace the values of the file unless they are empty.

    Raises SettingsError with one sentence that names the key, its source, and the most similar known key.
    """
    tree: dict[str, Any] = {}
    layers = read_layers(flags, environ, file)
    for _, layer in layers:
        _merge(tree, layer)
    providers, routed_models = _extract_vendors(tree)
    tree |= {
        name: tables for name, tables in zip(TABLE_LISTS, (models, adapters, aliases), strict=True) if tables
    }
    name_setting = build_setting_namer(
        layers, tree, file, {setting: variable for variable, setting in _list_variables().items()}
    )
    try:
        settings = msgspec.convert(tree, Settings, strict=False)
    except msgspec.ValidationError as problem:
        raise SettingsError(explain(str(problem), tree, Settings, name_setting)) from None
    _require_usable_values(msgspec.to_builtins(settings), Settings, name_setting)
    _require_addresses(settings)
    _require_networks(settings.server)
    _require_safe_listener(settings.server, settings.keys.enabled)
    require_dependencies(settings)
    require_complete_webhook(settings.limits, settings.keys.enabled)
    require_complete_oidc(settings.oidc, settings.keys.enabled)
    require_cluster(settings.cluster, settings.models)
    _require_unique_names(settings.models)
    require_engine_settings(settings.models)
    other_names = [*(model.name for model in routed_models), *(adapter.name for adapter in settings.adapters)]
    require_hosts(settings.models, other_names)
    require_routed_models(routed_models, providers, [model.name for model in settings.models])
    return msgspec.structs.replace(settings, providers=providers, routed_models=routed_models)


def _extract_vendors(
    tree: dict[str, Any],
) -> tuple[dict[str, ProviderSettings], tuple[RoutedModelSettings, ...]]:
    """Removes the providers and the routed models from the tree, and converts them. The tree then has only
    local models. Raises SettingsError."""
    if "routed_models" in tree:
        raise SettingsError("there is no setting routed_models; give [[models]] a list of routes")
    providers, models = tree.pop("providers", {}), tree.get("models")
    if not isinstance(providers, dict):
        raise SettingsError("providers must be a table of tables: [providers.NAME]")
    provider_settings = {name: build_provider(name, values) for name, values in providers.items()}
    if not isinstance(models, list):
        return provider_settings, ()
    tree["models"] = [table for table in models if not is_routed(table)]
    return provider_settings, tuple(build_routed_model(table) for table in models if is_routed(table))


def build_provider(name: str, values: object) -> ProviderSettings:
    """Converts one `[providers.NAME]` table. Raises SettingsError."""
    if not re.fullmatch(PROVIDER_NAME, name):
        raise SettingsError(
            "the name of a provider must be at most 64 letters, digits and "
            f"characters of ._-, and begin with a letter or digit, not {name!r}"
        )
    provider = _convert_table(values, ProviderSettings, f"providers.{name}")
    require_provider(name, provider)
    return provider


def build_routed_model(values: Mapping[str, object]) -> RoutedModelSettings:
    """Converts one `[[models]]` table with routes. Raises SettingsError."""
    name = values.get("name")
    return _convert_table(values, RoutedModelSettings, f"the model {name or 'without a name'}")


def _convert_table(values: object, cls: type[T], table_name: str) -> T:
    """Converts a table of the file. `table_name`: its name in messages. Raises SettingsError."""

    def name_setting(path: str) -> str:
        return f"{path} of {table_name}" if path else table_name

    try:
        table = msgspec.convert(values, cls)
    except msgspec.ValidationError as problem:
        tree = values if isinstance(values, Mapping) else {}
        raise SettingsError(explain(str(problem), tree, cls, name_setting)) from None
    _require_usable_values(msgspec.to_builtins(table), cls, name_setting)
    return table


def _require_usable_values(
    value: object, cls: type, name_setting: Callable[[str], str], path: str = ""
) -> None:
    """Raises SettingsError for a text that no file, address or process can have, for a path in a home
    directory that does not exist, and for an integer that cannot be sent to a process. `value`: the part of
    the settings at `path`."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            _require_usable_values(item, cls, name_setting, f"{path}.{name}" if path else name)
    elif isinstance(value, list | tuple):
        for number, item in enumerate(value):
            _require_usable_values(item, cls, name_setting, f"{path}[{number}]")
    elif isinstance(value, int) and value > MAX_INTEGER:
        raise SettingsError(f"{name_setting(path)} is more than {MAX_INTEGER}; lower it")
    elif isinstance(value, str):
        if "\0" in value:
            raise SettingsError(f"{name_setting(path)} has a NUL character; leave it out")
        if any("\ud800" <= character <= "\udfff" for character in value):
            raise SettingsError(f"{name_setting(path)} is not UTF-8; write it in UTF-8")
        location = value.removeprefix("file:")
        if location.startswith("~") and _is_path(_find_type(cls, path)):
            try:
                Path(location).expanduser()
            except RuntimeError:
                home = repr(location.partition("/")[0])
                raise SettingsError(
                    f"{name_setting(path)} begins with {home}, and no such user has a home directory; write "
                    "the whole path"
                ) from None


def _is_path(hint: object) -> bool:
    """Whether the type of a setting is a path or a list of paths."""
    return any(isinstance(each, msgspec.Meta) and each.extra == PATH_MARK for each in _iterate_types(hint))


def _require_addresses(settings: Settings) -> None:
    """Raises SettingsError for an address whose host or port cannot be used. `require_provider` checks those
    of providers."""
    addresses = {
        "hub.endpoint": settings.hub.endpoint,
        "limits.webhook": settings.limits.webhook,
        "oidc.issuer": settings.oidc.issuer,
        "oidc.keys_url": settings.oidc.keys_url,
        "tracing.endpoint": settings.tracing.endpoint,
    }
    for name, url in addresses.items():
        if url is not None and not is_address(url):
            raise SettingsError(
                f"{name} has no usable host or port; write it as https://HOST or https://HOST:PORT"
            )


def _require_networks(server: ServerSettings) -> None:
    """Raises SettingsError for a proxy that is no address and no network."""
    for network in server.trusted_proxies:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            raise SettingsError(
                f"server.trusted_proxies: {network!r} is no address or network; write 127.0.0.1 or 10.0.0.0/8"
            ) from None


def read_layers(
    flags: Mapping[str, Mapping[str, object]], environ: Mapping[str, str], file: Path | None
) -> list[tuple[SourceKind, dict[str, Any]]]:
    """Reads the values of each source. Later sources override earlier ones. Raises SettingsError."""
    return [
        (SourceKind.FILE, _read_file(file) if file else {}),
        (SourceKind.VARIABLE, _read_environment(environ)),
        (SourceKind.FLAG, {section: dict(values) for section, values in flags.items() if values}),
    ]


def build_model(values: Mapping[str, object]) -> ModelSettings:
    """Converts values to one model's settings. Raises SettingsError."""
    try:
        return msgspec.convert(values, ModelSettings)
    except msgspec.ValidationError as problem:
        raise SettingsError(
            explain(str(problem), values, ModelSettings, partial(name_model_setting, values))
        ) from None


def build_server(values: Mapping[str, object], name_setting: Callable[[str], str]) -> ServerSettings:
    """Converts values of the section `server` alone. `name_setting`: returns the name of the setting at a
    path for a message. Raises SettingsError."""
    tree = {"server": values}
    try:
        return msgspec.convert(tree, Settings, strict=False).server
    except msgspec.ValidationError as problem:
        raise SettingsError(explain(str(problem), tree, Settings, name_setting)) from None


def _read_file(file: Path) -> dict[str, Any]:
    """Reads the settings file. Raises SettingsError."""
    try:
        return tomllib.loads(read_text(file))
    except OSError as problem:
        raise SettingsError(f"cannot read the settings file {file}: {problem.strerror}") from None
    except RecursionError:
        raise SettingsError(f"{file} is not valid TOML: it has too many levels") from None
    except ValueError as problem:  # a TOMLDecodeError, text that is not UTF-8, or a number of 5,000 digits
        raise SettingsError(f"{file} is not valid TOML: {problem}") from None


def _read_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Reads the settings of environment variables. Raises SettingsError for an unknown variable."""
    settings_by_variable = _list_variables()
    tree: dict[str, Any] = {}
    for variable, value in environ.items():
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable.startswith(TEST_PREFIX):
            continue
        if variable not in settings_by_variable:
            # Words are compared without the prefix, which would make all variables similar.
            word = variable.removeprefix(ENVIRONMENT_PREFIX)
            known = {name.removeprefix(ENVIRONMENT_PREFIX): name for name in settings_by_variable}
            known |= {flag.upper(): f"the flag --{flag.replace('_', '-')}" for flag in FLAGS_WITHOUT_VARIABLE}
            nearest = difflib.get_close_matches(word.upper(), known, n=1, cutoff=0.75)
            hint = f"; did you mean {known[nearest[0]]}?" if nearest else ""
            if hint and nearest[0].lower() in FLAGS_WITHOUT_VARIABLE:
                hint += " It has no variable"
            raise SettingsError(f"unknown environment variable {variable}{hint}")
        section, name = settings_by_variable[variable]
        if value:
            tree.setdefault(section, {})[name] = _parse_value(section, name, value)
    return tree


def _list_variables() -> dict[str, tuple[str, str]]:
    """Returns the section and name of each setting, keyed by environment variable."""
    return {
        variable: (section, name) for section in SECTIONS for name, variable, _, _ in list_settings(section)
    }


def _parse_value(section: str, name: str, value: str) -> object:
    """Splits the value of a setting that is a list at its commas. Returns any other value unchanged, because
    the decoder converts it."""
    hint = get_type_hints(get_type_hints(Settings)[section])[name]
    if get_origin(hint) is tuple:
        return [part.strip() for part in value.split(",") if part.strip()]
    return value


def _merge(tree: dict[str, Any], layer: Mapping[str, Any]) -> None:
    """Merges `layer` into the tree. Only the file can have a section that is not a table: it stays in the
    tree, so that the decoder refuses it."""
    for section, values in layer.items():
        merged = tree.setdefault(section, {})
        if isinstance(merged, dict) and isinstance(values, dict):
            merged.update(values)
        else:
            tree[section] = values if merged == {} else merged


def _require_safe_listener(server: ServerSettings, has_keys: bool) -> None:
    """Raises SettingsError for an unusable key, or if other machines could use the server without a key."""
    if server.api_key is not None and not (16 <= len(server.api_key) <= 512 and server.api_key.isprintable()):
        raise SettingsError(
            "ANTIPHON_API_KEY must be 16 to 512 printable characters; make one with: openssl rand -hex 24"
        )
    if server.api_key is None and not has_keys and not is_loopback(server.host):
        raise SettingsError(
            f"refusing to listen on {server.host} without a key: set ANTIPHON_API_KEY (openssl rand -hex 24 "
            "makes one) or ANTIPHON_KEYS=true, or listen on 127.0.0.1"
        )


def _require_unique_names(models: tuple[ModelSettings, ...]) -> None:
    """Raises SettingsError if two models have the same name."""
    names: set[str] = set()
    for model in models:
        if model.name in names:
            raise SettingsError(
                f"two models are named {model.name!r}; give one of them another name with --model NAME=PATH"
            )
        names.add(model.name)


def explain(problem: str, tree: Mapping[str, object], cls: type, name_setting: Callable[[str], str]) -> str:
    """Turns msgspec's error about a tree of settings into a sentence.

    `name_setting` returns the name of the setting at a path, in the user's notation.
    """
    error = validation_messages.parse_message(problem)
    if name := error.unknown_field:
        nearest = suggest_nearest(name.rpartition(".")[2], _list_fields(_find_type(cls, error.path)))
        return f"there is no setting {name_setting(name)}{nearest}"
    if name := error.missing_field:
        return f"{name_setting(name)} is missing"
    expected = _describe_expected(error, _find_type(cls, error.path))
    return f"{name_setting(error.path)} must be {expected}, not {_describe_value(tree, error.path)}"


def suggest_nearest(word: str, names: Iterable[str]) -> str:
    """Returns the end of an error about an unknown word, which suggests the most similar of `names`. Empty if
    none is similar."""
    matches = difflib.get_close_matches(word, list(names), n=1, cutoff=0.6)
    return f"; did you mean {matches[0]}?" if matches else ""


def _describe_expected(error: validation_messages.ValidationProblem, hint: object) -> str:
    """Describes the values that a setting accepts, for a message."""
    for nested_type in _iterate_types(hint):
        if get_origin(nested_type) is Literal:
            *choices, last_choice = get_args(nested_type)
            return f"{', '.join(choices)} or {last_choice}" if choices else str(last_choice)
        if examples := getattr(nested_type, "examples", None):
            return f"like {examples[0]}"
    item_hint = f" of tables, each below [[{error.path}]]" if error.path in TABLE_LISTS else ""
    return error.expected_value.replace("an object", "a table") + item_hint


def _describe_value(tree: Mapping[str, object], path: str) -> str:
    """Describes the value at a path for a message. Quotes numbers and texts, up to MAX_QUOTED_LENGTH
    characters. Does not quote a key, a token, a header or an address with a password."""
    value = validation_messages.find_value(tree, path)
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    if (
        "api_key" in path
        or path in ("key", "cluster.token")
        or path.startswith("headers")
        or "@" in str(value)
    ):
        return "a number" if isinstance(value, int | float) else "this value"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= MAX_QUOTED_LENGTH else f"{text[:MAX_QUOTED_LENGTH]}..."


def _find_type(cls: object, path: str) -> object:
    """Returns the type of the setting at a path."""
    for name, _ in validation_messages.STEP.findall(path):
        if name:  # an index is skipped, because `_iterate_types` finds the item's type
            cls = _get_field_types(cls).get(name)
    return cls


def _list_fields(hint: object) -> list[str]:
    """Returns the names of a structure's fields."""
    return list(_get_field_types(hint))


def _get_field_types(hint: object) -> dict[str, object]:
    """Returns the types of a structure's fields by name. Empty for a type that is not a structure."""
    struct = next(
        (nested_type for nested_type in _iterate_types(hint) if hasattr(nested_type, "__struct_fields__")),
        None,
    )
    return get_type_hints(struct, include_extras=True) if struct else {}


def _iterate_types(hint: object) -> Iterator[object]:
    """Yields a type and all types that it contains."""
    yield hint
    for nested_type in get_args(hint):
        yield from _iterate_types(nested_type)
