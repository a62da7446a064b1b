"""Lists the models in JamAI Base's form, and chooses a model for a request that names none.

An id contains a slash, as in JamAI: `antiphon/NAME`, or the name itself if it contains one. Patterns of names
are not listed, because they cannot be called.
"""

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.dialects.base import Endpoint
from antiphon.dialects.common.endpoints import declare_get
from antiphon.dialects.common.list_query import QUERY, ListQuery
from antiphon.dialects.common.response_types import OWNER
from antiphon.dialects.http_types import Answer, Request, Response
from antiphon.dialects.jamai.fields import BASE
from antiphon.dialects.jamai.lists import ORDER_PARAMETERS, declare_parameter, order_items
from antiphon.dialects.services import ModelEntry, Services
from antiphon.domain.models import STAR, Profile
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, ModelNotFound

Kind = Literal["completion", "llm", "embed", "rerank"]

CAPABILITIES = (
    "completion", "chat", "image", "audio", "document", "tool", "embed", "rerank", "reasoning",
)  # fmt: skip
"""The capabilities in a query. No model has `document`, which JamAI's client knows."""

FAILED = "failed"
"""The state of an engine that is not restarted any more."""

PREFIX = f"{OWNER}/"
"""The start of an id if the model's name has no slash."""

IDS: Mapping[str, Any] = {"type": "array", "items": {"type": "string"}}
"""The schema of a list of ids."""

SORT_KEYS = ("id", "name", "created_at", "updated_at")

_encode = msgspec.json.Encoder().encode

Moment = Annotated[datetime, Meta(tz=True)]


class JamaiModel(Struct, frozen=True, kw_only=True):
    """One model. Unknown fields are absent while its engine is unavailable."""

    id: str
    type: Kind | UnsetType = UNSET
    name: str
    owned_by: str = OWNER
    capabilities: list[str] | UnsetType = UNSET
    context_length: int | UnsetType = UNSET
    max_output_tokens: int | UnsetType = UNSET
    created_at: Moment
    updated_at: Moment


class JamaiModelList(Struct, frozen=True, kw_only=True):
    """The models: first those of the settings in their order, then adapters, unless the query orders them."""

    object: Literal["models.info"] = "models.info"
    data: list[JamaiModel]


def declare_models() -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints for the models and for their ids."""
    capabilities = declare_parameter(
        "capabilities", {"type": "array", "items": {"enum": list(CAPABILITIES)}}, explode=True
    )
    text = {"type": "string"}
    list_parameters = (
        declare_parameter("model", text),
        capabilities,
        declare_parameter("order_by", {"enum": list(SORT_KEYS)}),
        declare_parameter("order_ascending", {"type": "boolean", "default": True}),
    )
    id_parameters = (declare_parameter("prefer", text), capabilities)
    models = declare_get(
        f"{BASE}/v1/models", list_models, "List the models", "models", JamaiModelList, *list_parameters
    )
    ids_endpoint = declare_get(
        f"{BASE}/v1/models/ids", list_ids, "List the ids of models", "models", IDS, *id_parameters
    )
    return models, replace(ids_endpoint, aliases=(f"{BASE}/v1/model_names",))


async def list_models(request: Request, services: Services) -> Answer:
    """Lists the models that the caller can use, filtered by id and capabilities."""
    query = ListQuery(request.query(), "model", *ORDER_PARAMETERS, repeated=("capabilities",))
    model_id = query.get("model")
    models = [
        model
        for model in await _load_models(request, services, _read_capabilities(query))
        if model_id in ("", model.id, model.name)
    ]
    if query.get("order_by") or query.get("order_ascending"):
        models = order_items(models, query, SORT_KEYS, "id")
    return Response(_encode(JamaiModelList(data=models)))


async def list_ids(request: Request, services: Services) -> Answer:
    """Lists the ids of models with these capabilities. The preferred one is first."""
    query = ListQuery(request.query(), "prefer", repeated=("capabilities",))
    models = await _load_models(request, services, _read_capabilities(query))
    preferred = query.get("prefer")
    models.sort(key=lambda model: preferred not in (model.id, model.name))
    return Response(_encode([model.id for model in models]))


def _read_capabilities(query: ListQuery) -> frozenset[str]:
    """Returns the requested capabilities. Raises InvalidValue for an unknown one."""
    names = query.get_all("capabilities")
    if not {*names} <= {*CAPABILITIES}:
        raise InvalidValue(
            f"capabilities must be some of {', '.join(CAPABILITIES)}", param=f"{QUERY}.capabilities"
        )
    return frozenset(names)


async def _load_models(
    request: Request, services: Services, capabilities: frozenset[str]
) -> list[JamaiModel]:
    entries = await services.list_profiled_models(request.actor)
    return [
        build_model(entry) for entry in _iterate_callable(entries) if capabilities <= get_capabilities(entry)
    ]


def _iterate_callable(entries: Iterable[ModelEntry]) -> Iterator[ModelEntry]:
    """Yields the models without patterns of names."""
    return (entry for entry in entries if STAR not in entry.name)


def build_model(entry: ModelEntry) -> JamaiModel:
    created, profile = datetime.fromtimestamp(entry.created, UTC), entry.profile
    profile_fields = {} if profile is None else _describe_profile(profile)
    return JamaiModel(
        id=build_id(entry.name), name=entry.name, created_at=created, updated_at=created, **profile_fields
    )


def _describe_profile(profile: Profile) -> dict[str, Any]:
    """Returns the fields of a model that depend on its profile."""
    fields: dict[str, Any] = {
        "type": _get_kind(profile),
        "capabilities": [name for name in CAPABILITIES if name in list_capabilities(profile)],
        "context_length": profile.context_length,
        "max_output_tokens": profile.max_output,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _get_kind(profile: Profile) -> Kind:
    """Returns the type of a model."""
    if profile.embedding is not None:
        return "rerank" if profile.embedding.ranks else "embed"
    return "llm" if profile.chat else "completion"


def get_capabilities(entry: ModelEntry) -> frozenset[str]:
    """Returns a model's capabilities; none while its engine is unavailable."""
    return frozenset() if entry.profile is None else list_capabilities(entry.profile)


def list_capabilities(profile: Profile) -> frozenset[str]:
    kind = _get_kind(profile)
    if kind != "llm":
        return frozenset({str(kind)})
    modalities = {"chat", *profile.modalities} - {"text", "document"}
    return frozenset(
        modalities
        | ({"tool"} if "tools" not in profile.refused else set())
        | ({"reasoning"} if profile.reasoning else set())
    )


def build_id(name: str) -> str:
    return name if "/" in name else PREFIX + name


async def choose_model(
    model: str, capabilities: frozenset[str], request: Request, services: Services
) -> tuple[str, str]:
    """Returns the name of a request's model, and the id in its answer. If the request names no model, chooses
    one with these capabilities. Raises ModelNotFound if there is none."""
    if not model:
        name = find_capable(await services.list_profiled_models(request.actor), capabilities)
        return name, build_id(name)
    names = {entry.name for entry in services.list_models(request.actor)}
    plain_name = model.removeprefix(PREFIX)
    return (plain_name if model not in names and plain_name in names else model), model


def find_capable(entries: Iterable[ModelEntry], capabilities: frozenset[str]) -> str:
    """Returns the name of the first usable model with these capabilities. If there is none, returns the first
    model that is not loaded yet. Raises ModelNotFound."""
    usable_entries = [entry for entry in _iterate_callable(entries) if entry.state != FAILED]
    capable_entries = [entry for entry in usable_entries if capabilities <= get_capabilities(entry)]
    for entry in capable_entries or [entry for entry in usable_entries if entry.profile is None]:
        return entry.name
    capability_names = ", ".join(name for name in CAPABILITIES if name in capabilities)
    raise ModelNotFound(
        f"no model that you can use has the capabilities {capability_names}; GET {BASE}/v1/models "
        "shows the capabilities of each model",
        param="model",
    )
