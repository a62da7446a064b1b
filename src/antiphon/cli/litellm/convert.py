"""Converts LiteLLM's configuration to Antiphon's settings. It opens no file."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from shlex import quote

from antiphon.cli.litellm.reading import ImportNotes, Table, get_list, get_number, get_table, get_variable
from antiphon.cli.litellm.vendors import OWN_FIELDS, ProviderTables

ROUTED = {"weight", "order", "rpm", "tpm", "max_parallel_requests"}
"""Fields of a deployment that its route takes, or that have a note of their own."""

SECTIONS = ("router_settings", "litellm_settings", "general_settings", "environment_variables")
"""The tables of a file beside its models."""

LEFT_BY_V1 = {"api_version"}
"""Fields that Azure's v1 API does not need."""

SERVED_MODES = (None, "chat", "completion", "embedding", "rerank", "responses")

LONGEST_WEIGHT = 1e6
MILLION = 1_000_000
MOST_ORDERS = 1_000


@dataclass(slots=True)
class Conversion:
    """The settings so far."""

    environ: Mapping[str, str]
    notes: ImportNotes
    providers: ProviderTables
    routes: dict[str, list[dict[str, object]]] = field(default_factory=dict)
    """Routes by model."""
    profiles: dict[str, dict[str, object]] = field(default_factory=dict)
    settings: dict[str, object] = field(default_factory=dict)
    """The other tables of the file."""


def convert_config(config: Table, environ: Mapping[str, str]) -> tuple[dict[str, object], list[str]]:
    """Returns the tables of antiphon.toml, and a line for each thing that the operator must know."""
    notes = ImportNotes()
    router, library = get_table(config, "router_settings"), get_table(config, "litellm_settings")
    notes.require_shapes("", config, SECTIONS, ["model_list"])
    for section, table in (("router_settings.", router), ("litellm_settings.", library)):
        notes.require_shapes(section, table, ["model_group_alias"], ["fallbacks"])
    timeout = _find_timeout(notes, router, library)
    made = Conversion(environ, notes, ProviderTables(environ, notes, timeout))
    weights: dict[str, list[Table]] = {}
    for number, entry in enumerate(get_list(config, "model_list")):
        _convert_deployment(made, f"model_list[{number}]", entry, weights)
    for name, deployments in weights.items():
        _set_weights(notes, name, made.routes[name], deployments)
    _convert_fallbacks(made, router, library)
    _convert_aliases(made, router)
    _convert_router(notes, router)
    _convert_library(made, library)
    _convert_general(made, get_table(config, "general_settings"))
    for name in get_table(config, "environment_variables"):
        notes.add(f"environment_variables.{name}", "set this variable where the server starts")
    notes.add_rest("the file", config, {"model_list", *SECTIONS})
    return _build_tree(made), notes.lines


def _find_timeout(notes: ImportNotes, router: Table, library: Table) -> float | None:
    """Returns the seconds for an answer, where a deployment says nothing: the router's come first."""
    first = notes.read_number("router_settings.timeout", router.get("timeout"))
    second = notes.read_number("litellm_settings.request_timeout", library.get("request_timeout"))
    if first is not None and second not in (None, first):
        notes.add("litellm_settings.request_timeout", "left out; router_settings.timeout comes before it")
    return first or second


def _convert_deployment(made: Conversion, place: str, entry: object, weights: dict[str, list[Table]]) -> None:
    """Adds a deployment as a route of its model."""
    deployment = entry if isinstance(entry, dict) else {}
    name = deployment.get("model_name")
    params, info = get_table(deployment, "litellm_params"), get_table(deployment, "model_info")
    made.notes.require_shapes(f"{place}.", deployment, ["litellm_params", "model_info"], [])
    if not isinstance(name, str) or not name or len(name) > 200:
        made.notes.add(place, "left out; it has no model_name")
        return
    place = f"{place} ({name})"
    mode = info.get("mode")
    if mode not in SERVED_MODES:
        made.notes.add(place, f"left out; models of the mode {mode} are not served")
        return
    found = made.providers.find(place, params)
    if found is None:
        return
    provider, model = found
    route: dict[str, object] = {"provider": provider, "model": model}
    if "*" in name or "*" in model:
        if not (name.endswith("*") and name.count("*") == 1 and model == "*"):
            made.notes.add(
                place, "left out; a pattern must end with * and keep the vendor's names as they are"
            )
            return
        del route["model"]
    route |= _read_route_bounds(made.notes, f"{place}.litellm_params", params)
    made.routes.setdefault(name, []).append(route)
    weights.setdefault(name, []).append(params)
    _note_limits(made, place, name, params, deployment)
    _convert_info(made, place, name, info)
    taken = OWN_FIELDS | ROUTED | (LEFT_BY_V1 if provider.startswith("azure") else set())
    made.notes.add_rest(f"{place}.litellm_params", params, taken)
    made.notes.add_rest(place, deployment, {"model_name", "litellm_params", "model_info", "rpm", "tpm"})


def _read_route_bounds(notes: ImportNotes, place: str, params: Table) -> dict[str, object]:
    """Reads a route's order and how many of its requests run at once."""
    order = notes.read_count(f"{place}.order", params.get("order"))
    most = notes.read_count(f"{place}.max_parallel_requests", params.get("max_parallel_requests"))
    if order is not None and order > MOST_ORDERS:
        notes.add(f"{place}.order", f"{MOST_ORDERS} is taken; orders go no further")
    bounds: dict[str, object] = {} if order is None else {"order": min(order, MOST_ORDERS)}
    return bounds if most is None else bounds | {"in_flight": most}


def _set_weights(
    notes: ImportNotes, model: str, routes: list[dict[str, object]], deployments: list[Table]
) -> None:
    """Sets the weights of a model's routes, as LiteLLM chooses: by weight, or else by rpm, or else by tpm.
    Notes a weight that cannot be taken."""
    for name in ("weight", "rpm", "tpm"):
        numbers = [get_number(params.get(name)) for params in deployments]
        if len(routes) > 1 and all(numbers):
            largest = max(number or 0 for number in numbers)
            scale = LONGEST_WEIGHT / largest if largest > LONGEST_WEIGHT else 1
            for route, number in zip(routes, numbers, strict=True):
                route["weight"] = (number or 0) * scale
            return
        given = [params.get(name) is not None for params in deployments]
        if name == "weight" and any(given) and not (len(routes) == 1 and all(numbers)):
            notes.add(
                f"model_list ({model}).weight",
                "left out; each deployment of the model must have a weight above 0",
            )


def _note_limits(made: Conversion, place: str, name: str, params: Table, deployment: Table) -> None:
    """Notes the limits of a deployment: they are no settings, but kept in the database of keys."""
    for field_name, measure in (("rpm", "requests"), ("tpm", "tokens")):
        numbers = (
            made.notes.read_number(f"{place}{where}.{field_name}", table.get(field_name), 1)
            for where, table in ((".litellm_params", params), ("", deployment))
        )
        for number in filter(None, numbers):
            made.notes.add(
                f"{place}.{field_name}",
                "no setting; where keys are on, limit the model with all its routes: "
                f"antiphon limits set model {quote(name)} {measure} {int(number)} --per minute",
            )


def _convert_info(made: Conversion, place: str, name: str, info: Table) -> None:
    """Takes sizes of a model into its profile, and notes its prices."""
    taken = {
        "mode",
        "id",
        "max_output_tokens",
        "max_input_tokens",
        "input_cost_per_token",
        "output_cost_per_token",
    }
    for theirs, ours in (("max_output_tokens", "max_output"), ("max_input_tokens", "context_length")):
        where = f"{place}.model_info.{theirs}"
        number = made.notes.read_count(where, info.get(theirs))
        if number is None:
            continue
        profile = made.profiles.setdefault(name, {})
        if profile.setdefault(ours, number) != number:
            made.notes.add(where, f"left out; an earlier deployment of the model says {profile[ours]}")
    costs = [_read_cost(made.notes, f"{place}.model_info", info, kind) for kind in ("input", "output")]
    if any(costs):
        prompt, output = (f"{(cost or 0) * MILLION:.9f}".rstrip("0").rstrip(".") for cost in costs)
        command = f"antiphon prices add {quote(name)} --input {prompt} --output {output} --currency USD"
        made.notes.add(f"{place}.model_info", f"prices are no settings; where keys are on: {command}")
    made.notes.add_rest(f"{place}.model_info", info, taken)


def _read_cost(notes: ImportNotes, place: str, info: Table, kind: str) -> float | None:
    """Reads the price of a token; None for 0, which is no price."""
    name = f"{kind}_cost_per_token"
    is_free = info.get(name) == 0 and not isinstance(info[name], bool)
    return None if is_free else notes.read_number(f"{place}.{name}", info.get(name))


def _convert_fallbacks(made: Conversion, router: Table, library: Table) -> None:
    """Adds the routes of fallback models after a model's own routes."""
    own = {name: list(routes) for name, routes in made.routes.items()}
    fallen: set[str] = set()
    for section, table in (("router_settings", router), ("litellm_settings", library)):
        for entry in get_list(table, "fallbacks"):
            if not isinstance(entry, dict):
                made.notes.add(f"{section}.fallbacks", f"left out {entry!r}; it is no table")
            for name, others in entry.items() if isinstance(entry, dict) else ():
                _add_fallbacks(made, own, f"{section}.fallbacks ({name})", str(name), others)
            fallen |= {str(name) for name in entry} if isinstance(entry, dict) else set()
        others = table.get("default_fallbacks")
        for name in own if others else ():
            if name not in fallen:
                _add_fallbacks(made, own, f"{section}.default_fallbacks ({name})", name, others)


def _add_fallbacks(
    made: Conversion, own: Mapping[str, list[dict[str, object]]], place: str, name: str, others: object
) -> None:
    """Adds the routes of some models to one model, each model at the next order."""
    if name not in made.routes:
        made.notes.add(place, "left out; the model is not served")
        return
    routes = made.routes[name]
    for other in others if isinstance(others, list) else [others]:
        if other == name:
            continue
        if not isinstance(other, str) or other not in own or "*" in name + other:
            made.notes.add(place, f"left out {other!r}; only a served model without * can be a fallback")
            continue
        last = max(_get_order(route) for route in routes)
        orders = sorted({_get_order(route) for route in own[other]})
        for route in own[other]:
            routes.append({**route, "order": min(last + 1 + orders.index(_get_order(route)), MOST_ORDERS)})


def _get_order(route: Mapping[str, object]) -> int:
    order = route.get("order", 1)
    return order if isinstance(order, int) else 1


def _convert_aliases(made: Conversion, router: Table) -> None:
    """Takes other names of models."""
    aliases = []
    for name, target in get_table(router, "model_group_alias").items():
        model = target.get("model") if isinstance(target, dict) else target
        if model in made.routes and name not in made.routes:
            aliases.append({"name": name, "model": model})
        else:
            made.notes.add(f"router_settings.model_group_alias.{name}", f"left out; {model!r} is not served")
    if aliases:
        made.settings["aliases"] = aliases


def _convert_router(notes: ImportNotes, router: Table) -> None:
    """Notes what Antiphon's router does otherwise."""
    strategy = router.get("routing_strategy")
    if strategy not in (None, "simple-shuffle"):
        notes.add(
            "router_settings.routing_strategy",
            f"{strategy} is left out; Antiphon chooses by order and weight (docs/routes.md)",
        )
    taken = {"routing_strategy", "fallbacks", "default_fallbacks", "timeout", "model_group_alias"}
    _note_retries(notes, "router_settings", router)
    notes.add_rest("router_settings", router, taken | {"num_retries"})


def _note_retries(notes: ImportNotes, section: str, table: Table) -> None:
    if table.get("num_retries") is not None:
        notes.add(f"{section}.num_retries", "left out; Antiphon tries each route of a model (docs/routes.md)")


def _convert_library(made: Conversion, library: Table) -> None:
    """Takes the settings of LiteLLM's library that Antiphon has."""
    if library.get("json_logs") is True:
        made.settings["log"] = {"format": "json"}
    elif library.get("json_logs"):
        made.notes.add("litellm_settings.json_logs", "left out; it is neither true nor false")
    if library.get("drop_params"):
        made.notes.add(
            "litellm_settings.drop_params",
            "left out; Antiphon refuses by name what a vendor does not take, and drops nothing",
        )
    _note_retries(made.notes, "litellm_settings", library)
    taken = {"json_logs", "drop_params", "num_retries", "fallbacks", "default_fallbacks", "request_timeout"}
    made.notes.add_rest("litellm_settings", library, taken)


def _convert_general(made: Conversion, general: Table) -> None:
    """Turns keys on where LiteLLM has a database, and notes the secrets to set."""
    if general.get("database_url") is not None:
        made.settings["keys"] = {"enabled": True}
        made.notes.add(
            "general_settings.database_url",
            "keys are on, in a database of Antiphon's own. Users and keys are not copied: make them anew "
            "(docs/keys.md). Another PostgreSQL database goes into ANTIPHON_STORE",
        )
    if (key := general.get("master_key")) is not None:
        source = f"the value of {get_variable(key)}" if get_variable(key) else "it"
        made.notes.add("general_settings.master_key", f"set ANTIPHON_API_KEY to {source} (docs/keys.md)")
    made.notes.add_rest("general_settings", general, {"database_url", "master_key"})


def _build_tree(made: Conversion) -> dict[str, object]:
    """Returns the tables of the file. Providers that no route uses are left out."""
    models = list(_list_models(made))
    used = {route["provider"] for routes in made.routes.values() for route in routes}
    tree = dict(made.settings)
    tree["providers"] = {name: table for name, table in made.providers.tables.items() if name in used}
    return tree | {"models": models}


def _list_models(made: Conversion) -> Iterator[dict[str, object]]:
    """Yields the tables of the models."""
    for name, routes in made.routes.items():
        profile = {"profile": made.profiles[name]} if name in made.profiles else {}
        if len(routes) == 1 and set(routes[0]) <= {"provider", "model"}:
            yield {"name": name, **routes[0], **profile}
        else:
            yield {"name": name, **profile, "routes": routes}
