"""The list of models in Anthropic's form. Anthropic's clients ask for it at OpenAI's path."""

from datetime import UTC, datetime
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.bodies.strict_json import sanitize_key
from antiphon.dialects.http_types import Answer, Request, Response
from antiphon.dialects.services import ModelEntry, Services
from antiphon.errors import InvalidValue

VERSION_HEADER = b"anthropic-version"
"""The header that all of Anthropic's clients send, and others do not."""

PAGE_SIZE, LARGEST_PAGE = 20, 1000
"""The default and the largest number of models in one page. Anthropic has the same."""

_encode = msgspec.json.Encoder().encode


class AnthropicModel(Struct, frozen=True, kw_only=True, tag_field="type", tag="model"):
    """One model."""

    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"] = "active"
    max_input_tokens: int | None
    """The context; null while the model's engine is unavailable."""
    max_tokens: int | None
    """The most tokens of an answer."""
    capabilities: None = None
    deprecated_at: None = None
    retires_at: None = None
    line: None = None


class AnthropicModelList(Struct, frozen=True, kw_only=True):
    """One page of models: first the models of the settings in their order, then adapters."""

    data: list[AnthropicModel]
    has_more: bool
    first_id: str | None
    last_id: str | None


async def list_anthropic_models(request: Request, services: Services) -> Answer:
    """Lists one page of the models that the caller can use. Raises InvalidValue."""
    query = dict(request.query())
    models = [_build_model(entry) for entry in await services.list_profiled_models(request.actor)]
    limit = query.get("limit", str(PAGE_SIZE))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 5 and 1 <= int(limit) <= LARGEST_PAGE):
        raise InvalidValue(f"limit must be a whole number of 1 to {LARGEST_PAGE}", param="limit")
    places = {model.id: index for index, model in enumerate(models)}
    for name in ("after_id", "before_id"):
        if name in query and query[name] not in places:
            raise InvalidValue(f"{name}: there is no model {sanitize_key(query[name])}", param=name)
    size, begin, end = int(limit), 0, len(models)
    if "after_id" in query:
        begin = places[query["after_id"]] + 1
    if "before_id" in query:
        end = places[query["before_id"]]
        page = models[max(begin, end - size) : end]
    else:
        page = models[begin : begin + size]
    first_id, last_id = (page[0].id, page[-1].id) if page else (None, None)
    has_more = len(page) < end - begin
    return Response(
        _encode(AnthropicModelList(data=page, has_more=has_more, first_id=first_id, last_id=last_id))
    )


async def show_anthropic_model(request: Request, services: Services) -> Answer:
    return Response(_encode(_build_model(await services.load_model(request.path_params["model"], request))))


def _build_model(entry: ModelEntry) -> AnthropicModel:
    profile, name = entry.profile, entry.alias or entry.name
    context = None if profile is None else profile.context_length
    return AnthropicModel(
        id=name,
        display_name=name,
        created_at=datetime.fromtimestamp(entry.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        max_input_tokens=context,
        max_tokens=None if profile is None else profile.max_output or context,
    )
