"""Empower's dialect: its endpoints and its part of the OpenAPI document.

Its endpoints also cover LoRA adapters that callers deploy, and base models.
"""

import re
from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.dialects.base import CodecOptions, Endpoint, RequestBody
from antiphon.dialects.calls import GenerationCall
from antiphon.dialects.common.body_decoder import BodyDecoder
from antiphon.dialects.common.dialect import DescribedDialect
from antiphon.dialects.common.endpoints import declare_generation, declare_get, decode_body
from antiphon.dialects.empower import wire_types
from antiphon.dialects.empower.decode import decode_chat
from antiphon.dialects.empower.encode import EmpowerStreamEncoder, encode_chat, encode_flat_error
from antiphon.dialects.empower.fields import FIELD_TABLE, PREFIX, EmpowerScope
from antiphon.dialects.empower.page import PAGE
from antiphon.dialects.empower.wire_types import DeployRequest
from antiphon.dialects.http_types import JSON, Answer, Request, Response, StreamEncoder
from antiphon.dialects.services import ResponseMeta, Services
from antiphon.domain.collect import CollectedGeneration
from antiphon.domain.identity import ActorKind, Right
from antiphon.domain.models import (
    ADAPTER_NAME,
    ADAPTER_NAME_RULE,
    AdapterOrigin,
    DeployedAdapter,
    DeployedBase,
    DeploymentRequest,
)
from antiphon.errors import AntiphonError, InvalidValue

HUB_TOKEN = re.compile(r"[A-Za-z0-9._-]+")
"""The allowed characters of a hub token, which is sent as a header."""

SOURCES = {"HF_HUB": AdapterOrigin.HUB, "LOCAL": AdapterOrigin.LOCAL}

SourceName = Literal["HF_HUB", "LOCAL"]

_encode = msgspec.json.Encoder().encode


DEPLOY_BODY = BodyDecoder(DeployRequest, FIELD_TABLE, EmpowerScope.DEPLOY)

NAME = "empower"

EXAMPLES: Mapping[str, object] = {
    "ChatRequest": {"model": "cantor", "messages": [{"role": "user", "content": "Hello!"}]},
    "DeployRequest": {"model_name": "IlyaGusev/saiga_mistral_7b_lora", "model_source": "HF_HUB"},
}


class EmpowerUser(Struct, frozen=True, kw_only=True):
    """A person. This server stores no names of persons."""

    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    profile_image_url: str | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """The name of a key, never the key itself."""

    name: str


class Creator(Struct, frozen=True, kw_only=True):
    """The caller who deployed a LoRA."""

    actor_type: str
    """API_KEY for a service key, ANONYMOUS for a caller of this machine without a key, and otherwise the kind
    of actor, such as USER."""
    user: EmpowerUser | None = None
    api_key: ApiKey | None = None


class LoraDeployment(Struct, frozen=True, kw_only=True):
    """The adapter of a LoRA."""

    base_model_name: str
    model_name: str
    model_source: SourceName
    hf_revision: str | None
    """The commit on the hub."""
    created_at: int
    """Unix time in seconds."""
    creator: Creator | None
    """The caller who deployed the LoRA. Null if the operator deployed it, or if it was loaded by its path."""


class Lora(Struct, frozen=True, kw_only=True):
    """One LoRA."""

    name: str
    unit_price: float = 0
    """Always zero on this server."""
    active_deployment: LoraDeployment | None
    """The current deployment; null for a LoRA that was removed."""


class BaseDeployment(Struct, frozen=True, kw_only=True):
    """The model of a base model's name, from the operator's settings."""

    model_name: str
    model_source: SourceName
    created_at: int
    creator: Creator | None


class BaseModel(Struct, frozen=True, kw_only=True):
    """One base model."""

    name: str
    unit_price: float = 0
    active_deployment: BaseDeployment


def decode_deploy(body: bytes) -> DeploymentRequest:
    """Decodes a body of POST /empower/api/v1/lora. Raises a RequestError."""
    wire, _ = DEPLOY_BODY.decode(body)
    source = SOURCES[wire.model_source]
    if source is not AdapterOrigin.HUB:
        for hub_field, value in (("hf_revision", wire.hf_revision), ("hf_token", wire.hf_token)):
            if value is not None:
                raise InvalidValue(f"{hub_field} is taken only with model_source HF_HUB", param=hub_field)
    field = "model_name" if wire.name is None else "name"
    name = wire.model_name if wire.name is None else wire.name
    if not ADAPTER_NAME.fullmatch(name):
        hint = "; send another name in the field name" if wire.name is None else ""
        raise InvalidValue(
            f"{field} must be {ADAPTER_NAME_RULE}{hint}",
            param=field,
        )
    if wire.hf_token is not None and not HUB_TOKEN.fullmatch(wire.hf_token):
        raise InvalidValue("hf_token must be letters, digits and characters of ._-", param="hf_token")
    return DeploymentRequest(
        name, wire.model_name, source, wire.hf_revision, wire.hf_token, wire.base_model_name
    )


def _build_lora(lora: DeployedAdapter) -> Lora:
    """Builds the answer about one LoRA."""
    actor, creator = lora.creator, None
    if actor is not None and actor.kind is ActorKind.SERVICE_KEY:
        creator = Creator(actor_type="API_KEY", api_key=ApiKey(name=actor.id))
    elif actor is not None:
        creator = Creator(actor_type=actor.kind.upper())
    deployment = LoraDeployment(
        base_model_name=lora.base,
        model_name=lora.model_name,
        model_source="HF_HUB" if lora.source is AdapterOrigin.HUB else "LOCAL",
        hf_revision=lora.revision,
        created_at=lora.created,
        creator=creator,
    )
    return Lora(name=lora.name, active_deployment=deployment)


def _build_base_model(base: DeployedBase) -> BaseModel:
    """Builds the answer about one base model."""
    deployment = BaseDeployment(
        model_name=base.name, model_source="LOCAL", created_at=base.created, creator=None
    )
    return BaseModel(name=base.name, active_deployment=deployment)


async def deploy(request: Request, services: Services) -> Answer:
    services.require_owner(request)
    deployment = await decode_body(decode_deploy, request, services)
    return _respond(_build_lora(await services.deployments.deploy(deployment, request.actor)))


async def remove_lora(request: Request, services: Services) -> Answer:
    services.require_owner(request)
    name = request.path_params["name"]
    await services.deployments.remove(name, request.actor)
    return _respond(Lora(name=name, active_deployment=None))


async def show_lora(request: Request, services: Services) -> Answer:
    return _respond(_build_lora(services.deployments.find(request.path_params["name"], request.actor)))


async def list_loras(request: Request, services: Services) -> Answer:
    return _respond(list(map(_build_lora, services.deployments.list_deployed(request.actor))))


async def show_base(request: Request, services: Services) -> Answer:
    return _respond(
        _build_base_model(services.deployments.find_base(request.path_params["name"], request.actor))
    )


async def list_bases(request: Request, services: Services) -> Answer:
    return _respond(list(map(_build_base_model, services.deployments.list_bases(request.actor))))


def _respond(shape: object) -> Response:
    """Returns a response with the answer as JSON."""
    return Response(_encode(shape))


def declare_loras(loras: str, bases: str) -> tuple[Endpoint, ...]:
    """Declares the endpoints of LoRAs and base models, below two paths. Their names can contain slashes."""
    post = Endpoint(
        method="POST",
        path=loras,
        handler=deploy,
        right=Right.ADAPT,
        body=RequestBody(shape=DeployRequest),
        summary="Deploy a LoRA",
        tag="loras",
        answers={JSON: Lora},
    )
    delete = Endpoint(
        method="DELETE",
        path=f"{loras}/{{name:path}}",
        handler=remove_lora,
        right=Right.ADAPT,
        summary="Remove a LoRA",
        tag="loras",
        answers={JSON: Lora},
        ends_with_caller=False,
    )
    return (
        post,
        declare_get(loras, list_loras, "List the LoRAs", "loras", list[Lora]),
        declare_get(f"{loras}/{{name:path}}", show_lora, "Show one LoRA", "loras", Lora),
        delete,
        declare_get(bases, list_bases, "List the base models", "loras", list[BaseModel]),
        declare_get(f"{bases}/{{name:path}}", show_base, "Show one base model", "loras", BaseModel),
    )


class EmpowerChatCompletions(CodecOptions):
    """Decodes and encodes POST /empower/api/v1/chat/completions."""

    shapes = (wire_types.ChatRequest, wire_types.ChatAnswer, wire_types.ChatChunk)

    def decode(self, body: bytes) -> GenerationCall:
        return decode_chat(body, self._reports_unknown, self._strict)

    def encode_answer(
        self, meta: ResponseMeta, call: GenerationCall, generation: CollectedGeneration
    ) -> bytes:
        return encode_chat(meta, generation)

    def create_encoder(self, meta: ResponseMeta, call: GenerationCall) -> StreamEncoder:
        return EmpowerStreamEncoder(meta, call)


class Empower(DescribedDialect):
    """Empower's dialect. It has no state, so one value serves every request."""

    name = NAME
    prefix = "/empower"
    field_table = FIELD_TABLE
    error_type = wire_types.FlatError
    examples = EXAMPLES
    schema_prefix = "Empower"
    page = PAGE

    def __init__(self, report_unknown: bool = False, strict_schemas: bool = False) -> None:
        chat = EmpowerChatCompletions(report_unknown, strict_schemas)
        self.endpoints = (
            declare_generation(NAME, EmpowerScope.CHAT, "Answer a conversation, as Empower does", chat),
            *declare_loras(EmpowerScope.DEPLOY, f"{PREFIX}/base-model"),
        )

    def encode_error(self, error: AntiphonError, request: Request | None = None) -> bytes:
        return encode_flat_error(error)
