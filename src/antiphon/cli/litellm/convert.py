"""Converts LiteLLM's configuration to Antiphon's settings, and formats settings as TOML. It opens no file.

It uses only the parts of TOML that `antiphon import` needs.
"""

import json
import re
from collections.abc import Iterator, Mapping
from shlex import quote

from antiphon.cli.litellm.config import (
    PROVIDER_FIELDS,
    ImportNotes,
    ProviderTables,
    Table,
    get_list,
    get_number,
    get_table,
    get_variable,
)
from antiphon.domain.values import Struct, field

ROUTE_FIELDS = {"weight", "order", "rpm", "tpm", "max_parallel_requests"}
"""Fields of a deployment that become fields of its route, or notes about limits."""

SECTIONS = ("router_settings", "litellm_settings", "general_settings", "environment_variables")
"""The tables of a file, without the models."""

UNUSED_AZURE_FIELDS = {"api_version"}
"""Fields that Azure's v1 API does not need."""

SERVED_MODES = (None, "chat", "completion", "embedding", "rerank", "responses")

LARGEST_WEIGHT = 1e6
MILLION = 1_000_000
HIGHEST_ORDER = 1_000

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


class Conversion(Struct):
    """The state of one conversion: the settings that are converted so far, and notes for the operator."""

    environ: Mapping[str, str]
    notes: ImportNotes
    providers: ProviderTables
    routes: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Routes by model."""
    profiles: dict[str, dict[str, object]] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    """The other tables of the new file."""


def convert_config(config: Table, environ: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """Returns the tables of antiphon.toml, and notes for the operator."""
    notes = ImportNotes()
    router, library = get_table(config, "router_settings"), get_table(config, "litellm_settings")
    notes.note_wrong_types("", config, SECTIONS, ["model_list"])
    for section, table in (("router_settings.", router), ("litellm_settings.", library)):
        notes.note_wrong_types(section, table, ["model_group_alias"], ["fallbacks"])
    timeout = _find_timeout(notes, router, library)
    conversion = Conversion(environ, notes, ProviderTables(environ, notes, timeout))
    params_by_model: dict[str, list[Table]] = {}
    for index, entry in enumerate(get_list(config, "model_list")):
        _convert_deployment(conversion, f"model_list[{index}]", entry, params_by_model)
    for name, deployments in params_by_model.items():
        _set_weights(notes, name, conversion.routes[name], deployments)
    _convert_fallbacks(conversion, router, library)
    _convert_aliases(conversion, router)
    _note_router_settings(notes, router)
    _convert_library(conversion, library)
    _convert_general(conversion, get_table(config, "general_settings"))
    for name in get_table(config, "environment_variables"):
        notes.add(f"environment_variables.{name}", "set this variable where the server starts")
    notes.note_unknown_fields("the file", config, {"model_list", *SECTIONS})
    models = []
    for model, routes in conversion.routes.items():
        profile = {"profile": conversion.profiles[model]} if model in conversion.profiles else {}
        if len(routes) == 1 and set(routes[0]) <= {"provider", "model"}:
            models.append({"name": model, **routes[0], **profile})
        else:
            models.append({"name": model, **profile, "routes": routes})
    used_names = {route["provider"] for routes in conversion.routes.values() for route in routes}
    used_providers = {
        name: table for name, table in conversion.providers.tables.items() if name in used_names
    }
    return {**conversion.settings, "providers": used_providers, "models": models}, notes.lines


def _find_timeout(notes: ImportNotes, router: Table, library: Table) -> float | None:
    """Returns the default seconds for a response. The router's setting takes precedence."""
    router_timeout = notes.read_number("router_settings.timeout", router.get("timeout"))
    library_timeout = notes.read_number("litellm_settings.request_timeout", library.get("request_timeout"))
    if router_timeout is not None and library_timeout not in (None, router_timeout):
        notes.add("litellm_settings.request_timeout", "left out; router_settings.timeout takes precedence")
    return router_timeout or library_timeout


def _convert_deployment(
    conversion: Conversion, field_path: str, entry: object, params_by_model: dict[str, list[Table]]
) -> None:
    """Adds a deployment as a route of its model, and its parameters to `params_by_model`."""
    deployment = entry if isinstance(entry, dict) else {}
    name = deployment.get("model_name")
    params, info = get_table(deployment, "litellm_params"), get_table(deployment, "model_info")
    conversion.notes.note_wrong_types(f"{field_path}.", deployment, ["litellm_params", "model_info"], [])
    if not isinstance(name, str) or not name or len(name) > 200:
        conversion.notes.add(field_path, "left out; it has no model_name")
        return
    field_path = f"{field_path} ({name})"
    mode = info.get("mode")
    if mode not in SERVED_MODES:
        conversion.notes.add(field_path, f"left out; Antiphon serves no models of the mode {mode}")
        return
    provider_and_model = conversion.providers.add_provider(field_path, params)
    if provider_and_model is None:
        return
    provider, model = provider_and_model
    route: dict[str, object] = {"provider": provider, "model": model}
    if "*" in name or "*" in model:
        if not (name.endswith("*") and name.count("*") == 1 and model == "*"):
            conversion.notes.add(
                field_path, "left out; a pattern must end with * and not change the vendor's names"
            )
            return
        del route["model"]
    route |= _read_route_bounds(conversion.notes, f"{field_path}.litellm_params", params)
    conversion.routes.setdefault(name, []).append(route)
    params_by_model.setdefault(name, []).append(params)
    _note_limits(conversion, field_path, name, params, deployment)
    _convert_info(conversion, field_path, name, info, f"{provider}/{model}")
    handled_fields = (
        PROVIDER_FIELDS | ROUTE_FIELDS | (UNUSED_AZURE_FIELDS if provider.startswith("azure") else set())
    )
    conversion.notes.note_unknown_fields(f"{field_path}.litellm_params", params, handled_fields)
    conversion.notes.note_unknown_fields(
        field_path, deployment, {"model_name", "litellm_params", "model_info", "rpm", "tpm"}
    )


def _read_route_bounds(notes: ImportNotes, field_path: str, params: Table) -> dict[str, object]:
    """Reads a route's order and its largest number of simultaneous requests."""
    order = notes.read_count(f"{field_path}.order", params.get("order"))
    in_flight = notes.read_count(f"{field_path}.max_parallel_requests", params.get("max_parallel_requests"))
    if order is not None and order > HIGHEST_ORDER:
        notes.add(f"{field_path}.order", f"{HIGHEST_ORDER} is used; it is the highest order")
    bounds: dict[str, object] = {} if order is None else {"order": min(order, HIGHEST_ORDER)}
    return bounds if in_flight is None else bounds | {"in_flight": in_flight}


def _set_weights(
    notes: ImportNotes, model: str, routes: list[dict[str, object]], deployments: list[Table]
) -> None:
    """Sets the weights of a model's routes, and notes unusable weights.

    As in LiteLLM, the weights come from the first of the fields weight, rpm and tpm that all deployments
    have.
    """
    for name in ("weight", "rpm", "tpm"):
        weights = [get_number(params.get(name)) for params in deployments]
        if len(routes) > 1 and all(weights):
            largest = max(weight or 0 for weight in weights)
            scale = LARGEST_WEIGHT / largest if largest > LARGEST_WEIGHT else 1
            for route, weight in zip(routes, weights, strict=True):
                route["weight"] = (weight or 0) * scale
            return
        has_value = any(params.get(name) is not None for params in deployments)
        if name == "weight" and has_value and not (len(routes) == 1 and all(weights)):
            notes.add(
                f"model_list ({model}).weight",
                "left out; each deployment of the model must have a weight above 0",
            )


def _note_limits(
    conversion: Conversion, field_path: str, name: str, params: Table, deployment: Table
) -> None:
    """Notes the limits of a deployment. Antiphon stores limits in the database of keys, not in the
    settings."""
    for field_name, measure in (("rpm", "requests"), ("tpm", "tokens")):
        numbers = (
            conversion.notes.read_number(f"{field_path}{section}.{field_name}", table.get(field_name), 1)
            for section, table in ((".litellm_params", params), ("", deployment))
        )
        for number in filter(None, numbers):
            text = f"limit the model with all its routes: antiphon limits set model {quote(name)}"
            if "*" in name:  # requests count for one model
                text = f"limit each key: antiphon limits set key KEY --models {quote(name)}"
            conversion.notes.add(
                f"{field_path}.{field_name}",
                f"no setting; with keys enabled, {text} {measure} {int(number)} --per minute",
            )


def _convert_info(conversion: Conversion, field_path: str, name: str, info: Table, priced_name: str) -> None:
    """Adds the sizes of a model to its profile, and notes its prices. `priced_name`: the name of the route
    for prices."""
    handled_fields = {
        "mode",
        "id",
        "max_output_tokens",
        "max_input_tokens",
        "input_cost_per_token",
        "output_cost_per_token",
    }
    for source_name, field_name in (
        ("max_output_tokens", "max_output"),
        ("max_input_tokens", "context_length"),
    ):
        source_path = f"{field_path}.model_info.{source_name}"
        number = conversion.notes.read_count(source_path, info.get(source_name))
        if number is None:
            continue
        profile = conversion.profiles.setdefault(name, {})
        if profile.setdefault(field_name, number) != number:
            conversion.notes.add(
                source_path, f"left out; an earlier deployment of the model has {profile[field_name]}"
            )
    costs = [
        _read_cost(conversion.notes, f"{field_path}.model_info", info, kind) for kind in ("input", "output")
    ]
    if any(costs):
        prompt, output = (f"{(cost or 0) * MILLION:.9f}".rstrip("0").rstrip(".") for cost in costs)
        command = (
            f"antiphon prices add {quote(priced_name)} --input {prompt} --output {output} --currency USD"
        )
        conversion.notes.add(
            f"{field_path}.model_info", f"prices are no settings; with keys enabled, run: {command}"
        )
    conversion.notes.note_unknown_fields(f"{field_path}.model_info", info, handled_fields)


def _read_cost(notes: ImportNotes, field_path: str, info: Table, kind: str) -> float | None:
    """Reads the price of a token; None for 0, which means no price."""
    name = f"{kind}_cost_per_token"
    is_free = info.get(name) == 0 and not isinstance(info[name], bool)
    return None if is_free else notes.read_number(f"{field_path}.{name}", info.get(name))


def _convert_fallbacks(conversion: Conversion, router: Table, library: Table) -> None:
    """Adds the routes of fallback models after a model's own routes."""
    own_routes = {name: list(routes) for name, routes in conversion.routes.items()}
    models_with_fallbacks: set[str] = set()
    for section, table in (("router_settings", router), ("litellm_settings", library)):
        for entry in get_list(table, "fallbacks"):
            if not isinstance(entry, dict):
                conversion.notes.add(f"{section}.fallbacks", f"left out {entry!r}; it is no table")
            for name, fallbacks in entry.items() if isinstance(entry, dict) else ():
                _add_fallbacks(conversion, own_routes, f"{section}.fallbacks ({name})", str(name), fallbacks)
            models_with_fallbacks |= {str(name) for name in entry} if isinstance(entry, dict) else set()
        fallbacks = table.get("default_fallbacks")
        for name in own_routes if fallbacks else ():
            if name not in models_with_fallbacks:
                _add_fallbacks(
                    conversion, own_routes, f"{section}.default_fallbacks ({name})", name, fallbacks
                )


def _add_fallbacks(
    conversion: Conversion,
    own_routes: Mapping[str, list[dict[str, object]]],
    field_path: str,
    name: str,
    fallbacks: object,
) -> None:
    """Adds the routes of fallback models to one model. Each fallback model gets the next order."""
    if name not in conversion.routes:
        conversion.notes.add(field_path, "left out; the model is not converted")
        return
    routes = conversion.routes[name]
    for fallback in fallbacks if isinstance(fallbacks, list) else [fallbacks]:
        if fallback == name:
            continue
        if not isinstance(fallback, str) or fallback not in own_routes or "*" in name + fallback:
            conversion.notes.add(
                field_path, f"left out {fallback!r}; only a converted model without * can be a fallback"
            )
            continue
        last_order = max(_get_order(route) for route in routes)
        orders = sorted({_get_order(route) for route in own_routes[fallback]})
        for route in own_routes[fallback]:
            routes.append(
                {**route, "order": min(last_order + 1 + orders.index(_get_order(route)), HIGHEST_ORDER)}
            )


def _get_order(route: Mapping[str, object]) -> int:
    order = route.get("order", 1)
    return order if isinstance(order, int) else 1


def _convert_aliases(conversion: Conversion, router: Table) -> None:
    """Converts other names of models."""
    aliases = []
    for name, entry in get_table(router, "model_group_alias").items():
        model = entry.get("model") if isinstance(entry, dict) else entry
        if model in conversion.routes and name not in conversion.routes:
            aliases.append({"name": name, "model": model})
        else:
            conversion.notes.add(
                f"router_settings.model_group_alias.{name}", f"left out; {model!r} is not converted"
            )
    if aliases:
        conversion.settings["aliases"] = aliases


def _note_router_settings(notes: ImportNotes, router: Table) -> None:
    """Notes settings of LiteLLM's router that Antiphon lacks."""
    strategy = router.get("routing_strategy")
    if strategy not in (None, "simple-shuffle"):
        notes.add(
            "router_settings.routing_strategy",
            f"{strategy} is left out; Antiphon selects routes by order and weight (docs/routes.md)",
        )
    handled_fields = {"routing_strategy", "fallbacks", "default_fallbacks", "timeout", "model_group_alias"}
    _note_retries(notes, "router_settings", router)
    notes.note_unknown_fields("router_settings", router, handled_fields | {"num_retries"})


def _note_retries(notes: ImportNotes, section: str, table: Table) -> None:
    if table.get("num_retries") is not None:
        notes.add(f"{section}.num_retries", "left out; Antiphon tries each route of a model (docs/routes.md)")


def _convert_library(conversion: Conversion, library: Table) -> None:
    """Converts the settings of LiteLLM's library that Antiphon has."""
    if library.get("json_logs") is True:
        conversion.settings["log"] = {"format": "json"}
    elif library.get("json_logs"):
        conversion.notes.add("litellm_settings.json_logs", "left out; it is neither true nor false")
    if library.get("drop_params"):
        conversion.notes.add(
            "litellm_settings.drop_params",
            "left out; Antiphon rejects parameters that a vendor does not support, and drops none",
        )
    _note_retries(conversion.notes, "litellm_settings", library)
    handled_fields = {
        "json_logs",
        "drop_params",
        "num_retries",
        "fallbacks",
        "default_fallbacks",
        "request_timeout",
    }
    conversion.notes.note_unknown_fields("litellm_settings", library, handled_fields)


def _convert_general(conversion: Conversion, general: Table) -> None:
    """Enables keys if LiteLLM has a database, and notes the secrets to set."""
    if general.get("database_url") is not None:
        conversion.settings["keys"] = {"enabled": True}
        conversion.notes.add(
            "general_settings.database_url",
            "keys are enabled, in a new database. Users and keys are not copied: create them again "
            "(docs/keys.md). To use PostgreSQL, set ANTIPHON_STORE to another database",
        )
    if (key := general.get("master_key")) is not None:
        source = f"the value of {get_variable(key)}" if get_variable(key) else "it"
        conversion.notes.add(
            "general_settings.master_key", f"set ANTIPHON_API_KEY to {source} (docs/keys.md)"
        )
    conversion.notes.note_unknown_fields("general_settings", general, {"database_url", "master_key"})


def format_toml(table: Mapping[str, object]) -> str:
    """Formats tables of settings. Values may be strings, numbers, booleans, tables and lists of tables."""
    return "\n".join(_list_lines(table, "")).lstrip("\n") + "\n"


def _list_lines(table: Mapping[str, object], path: str) -> Iterator[str]:
    """Yields the lines of a table: first its values, then its tables."""
    tables = {name: value for name, value in table.items() if isinstance(value, dict | list)}
    for name, value in table.items():
        if name not in tables:
            yield f"{_format_key(name)} = {_format_value(value)}"
    for name, value in tables.items():
        child_path = f"{path}.{_format_key(name)}".lstrip(".")
        for child in value if isinstance(value, list) else [value]:
            if isinstance(value, list):
                yield from ("", f"[[{child_path}]]")
            elif any(not isinstance(child_value, dict | list) for child_value in child.values()):
                yield from ("", f"[{child_path}]")
            yield from _list_lines(child, child_path)


def _format_key(name: str) -> str:
    return name if BARE_KEY.fullmatch(name) else _format_value(name)


def _format_value(value: object) -> str:
    """Formats a value. TOML strings are JSON strings, except for one control character."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
