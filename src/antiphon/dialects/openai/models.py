"""The list of models in OpenAI's form, and vLLM's endpoints that load and unload LoRA adapters.

`state` and `profile` of a model are extensions.
"""

from collections.abc import Iterable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.dialects.base import (
    PLAIN,
    Answer,
    Endpoint,
    LoadCall,
    ModelEntry,
    Request,
    RequestBody,
    Response,
    Services,
)
from antiphon.dialects.common.fields import FieldScope, filter_fields
from antiphon.dialects.common.request_types import Name
from antiphon.dialects.common.response_types import OWNER
from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.domain.identity import Right
from antiphon.domain.models import ADAPTER_NAME, ADAPTER_NAME_RULE, Profile
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue

_encode = msgspec.json.Encoder().encode


class ModelShape(Struct, frozen=True, kw_only=True):
    """A model in the list."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER
    root: str
    """The origin of the weights: a base model's own name, or the SHA-256 of an adapter's content."""
    parent: str | None
    """The base model of an adapter; otherwise null."""
    state: str
    """The state of its engine. An adapter that its engine could not load again is failed."""


class AdapterShape(Struct, frozen=True):
    """The content of an adapter."""

    digest: str
    """SHA-256 of its GGUF file, in hexadecimal."""
    rank: int
    alpha: float
    size: int
    """Bytes."""


class ModelCard(ModelShape, frozen=True, kw_only=True):
    """One model with its profile. The profile is null while the engine is unavailable."""

    profile: Profile | None
    """For an adapter, the profile of its base model."""
    adapter: AdapterShape | None
    """Null for a base model."""


class ModelList(Struct, frozen=True, kw_only=True):
    """All models: first the models of the settings in their order, then adapters."""

    object: Literal["list"] = "list"
    data: list[ModelShape]


class OpenAIModels:
    """Encodes models as a `ModelCodec`."""

    shapes = (ModelList, ModelCard)
    has_profiles = False

    def encode_list(self, models: Iterable[ModelEntry]) -> bytes:
        return _encode(ModelList(data=[_build_model(model) for model in models]))

    def encode_model(self, model: ModelEntry) -> bytes:
        model_adapter = model.adapter
        adapter = (
            AdapterShape(model_adapter.digest, model_adapter.rank, model_adapter.alpha, model_adapter.size)
            if model_adapter
            else None
        )
        shape = msgspec.structs.asdict(_build_model(model))
        return _encode(ModelCard(**shape, profile=model.profile, adapter=adapter))


def _build_model(model: ModelEntry) -> ModelShape:
    return ModelShape(
        id=model.alias or model.name,
        created=model.created,
        root=f"sha256:{model.adapter.digest}" if model.adapter else model.name,
        parent=model.parent,
        state=model.state,
    )


LONGEST_PATH = 4096
"""The most characters of a path, which is the system's limit in bytes."""

AdapterPath = Annotated[str, Meta(min_length=1, max_length=LONGEST_PATH)]


class LoadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/load_lora_adapter."""

    lora_name: Name
    lora_path: AdapterPath
    load_inplace: bool | None = None
    base_model_name: Name | None = None


class UnloadAdapterRequest(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /v1/unload_lora_adapter."""

    lora_name: Name


def decode_load_request(body: bytes) -> LoadCall:
    """Decodes a body of POST /v1/load_lora_adapter. Raises a RequestError."""
    wire = convert(filter_fields(read_object(body), FieldScope.LOAD), LoadAdapterRequest)
    if not ADAPTER_NAME.fullmatch(wire.lora_name):
        raise InvalidValue(f"lora_name must be {ADAPTER_NAME_RULE}", param="lora_name")
    return LoadCall(wire.lora_name, wire.lora_path, wire.base_model_name, bool(wire.load_inplace))


def decode_unload_request(body: bytes) -> str:
    """Returns the adapter's name in a body of POST /v1/unload_lora_adapter. Raises a RequestError."""
    return convert(filter_fields(read_object(body), FieldScope.UNLOAD), UnloadAdapterRequest).lora_name


async def load_adapter(request: Request, services: Services) -> Answer:
    """Loads an adapter from the server's disk as a model."""
    call = decode_load_request(request.body)
    await services.load_adapter(call, request.actor)
    return _confirm(call.name, "added")


async def unload_adapter(request: Request, services: Services) -> Answer:
    """Removes an adapter's name."""
    name = decode_unload_request(request.body)
    await services.unload_adapter(name, request.actor)
    return _confirm(name, "removed")


def _confirm(name: str, verb: str) -> Response:
    """Returns vLLM's answer, in plain text."""
    return Response(f"Success: LoRA adapter '{name}' {verb} successfully.".encode(), media_type=PLAIN)


def declare_adapter_endpoints() -> tuple[Endpoint, Endpoint]:
    """Declares the endpoints that load and unload adapters from the server's disk."""
    load = Endpoint(
        method="POST",
        path="/v1/load_lora_adapter",
        handler=load_adapter,
        right=Right.ADAPT,
        body=RequestBody(shape=LoadAdapterRequest),
        summary="Load a LoRA adapter as a model",
        tag="adapters",
        answers={PLAIN: str},
    )
    unload = replace(
        load,
        path="/v1/unload_lora_adapter",
        handler=unload_adapter,
        body=RequestBody(shape=UnloadAdapterRequest),
        summary="Unload a LoRA adapter",
        ends_with_caller=False,
    )
    return load, unload
