"""Empower's endpoints of LoRA adapters and base models: what a deployment asks for, and what is shown."""

import re
from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.dialects.common.strict_json import convert, read_object
from antiphon.dialects.empower.fields import EmpowerScope, filter_fields
from antiphon.dialects.empower.wire import DeployRequest
from antiphon.domain.adapter import ADAPTER_NAME, NAME_RULE
from antiphon.domain.deployment import Deployed, DeployedBase, Deployment, Source
from antiphon.domain.identity import Actor, ActorKind
from antiphon.errors import InvalidValue

HUB_TOKEN = re.compile(r"[A-Za-z0-9._-]+")
"""It goes into a header as it is."""

SOURCES = {"HF_HUB": Source.HUB, "LOCAL": Source.LOCAL}

SourceName = Literal["HF_HUB", "LOCAL"]

_encode = msgspec.json.Encoder().encode


class EmpowerUser(Struct, frozen=True, kw_only=True):
    """A person; nobody has a name of their own here yet."""

    email: str | None = None
    first_name: str | None = None
    last_name: str | None = None
    profile_image_url: str | None = None


class ApiKey(Struct, frozen=True, kw_only=True):
    """A key by its name; never the key."""

    name: str


class Creator(Struct, frozen=True, kw_only=True):
    """Who deployed it."""

    actor_type: str
    """API_KEY, the bearer of a key; ANONYMOUS, a caller of this machine without one; USER and others by their
    kind."""
    user: EmpowerUser | None = None
    api_key: ApiKey | None = None


class LoraDeployment(Struct, frozen=True, kw_only=True):
    """What is served under a LoRA's name."""

    base_model_name: str
    model_name: str
    model_source: SourceName
    hf_revision: str | None
    """The commit."""
    created_at: int
    """Unix time in seconds."""
    creator: Creator | None
    """Null: it is the operator's, or was loaded by its path."""


class Lora(Struct, frozen=True, kw_only=True):
    """One LoRA."""

    name: str
    unit_price: float = 0
    """Nothing is charged here."""
    active_deployment: LoraDeployment | None
    """Null of one that was removed."""


class BaseDeployment(Struct, frozen=True, kw_only=True):
    """What is served under a base model's name: what the operator's settings say."""

    model_name: str
    model_source: SourceName
    created_at: int
    creator: Creator | None


class BaseModel(Struct, frozen=True, kw_only=True):
    """One base model."""

    name: str
    unit_price: float = 0
    active_deployment: BaseDeployment


class EmpowerLoras:
    """`DeploymentCodec` of the dialect."""

    shapes = (DeployRequest, Lora, BaseModel)

    def decode_deploy(self, body: bytes) -> Deployment:
        given = filter_fields(read_object(body), EmpowerScope.DEPLOY)
        wire = convert(given, DeployRequest)
        source = SOURCES[wire.model_source]
        if source is not Source.HUB:
            _require_absent(wire)
        field = "model_name" if wire.name is None else "name"
        name = wire.model_name if wire.name is None else wire.name
        if not ADAPTER_NAME.fullmatch(name):
            also = "; send a name that does" if wire.name is None else ""
            raise InvalidValue(
                f"{field} must be {NAME_RULE}{also}",
                param=field,
            )
        if wire.hf_token is not None and not HUB_TOKEN.fullmatch(wire.hf_token):
            raise InvalidValue("hf_token must be letters, digits and characters of ._-", param="hf_token")
        return Deployment(
            name, wire.model_name, source, wire.hf_revision, wire.hf_token, wire.base_model_name
        )

    def deployed(self, lora: Deployed) -> bytes:
        return _encode(_build_lora(lora))

    def removed(self, name: str) -> bytes:
        return _encode(Lora(name=name, active_deployment=None))

    def listed(self, loras: Iterable[Deployed]) -> bytes:
        return _encode([_build_lora(lora) for lora in loras])

    def base(self, base: DeployedBase) -> bytes:
        return _encode(_build_base_model(base))

    def bases(self, bases: Iterable[DeployedBase]) -> bytes:
        return _encode([_build_base_model(base) for base in bases])


def _require_absent(wire: DeployRequest) -> None:
    for field, value in (("hf_revision", wire.hf_revision), ("hf_token", wire.hf_token)):
        if value is not None:
            raise InvalidValue(f"{field} is taken only with model_source HF_HUB", param=field)


def _build_lora(lora: Deployed) -> Lora:
    deployment = LoraDeployment(
        base_model_name=lora.base,
        model_name=lora.model_name,
        model_source="HF_HUB" if lora.source is Source.HUB else "LOCAL",
        hf_revision=lora.revision,
        created_at=lora.created,
        creator=_build_creator(lora.creator),
    )
    return Lora(name=lora.name, active_deployment=deployment)


def _build_base_model(base: DeployedBase) -> BaseModel:
    deployment = BaseDeployment(
        model_name=base.name, model_source="LOCAL", created_at=base.created, creator=None
    )
    return BaseModel(name=base.name, active_deployment=deployment)


def _build_creator(actor: Actor | None) -> Creator | None:
    if actor is None:
        return None
    if actor.kind is ActorKind.SERVICE_KEY:
        return Creator(actor_type="API_KEY", api_key=ApiKey(name=actor.id))
    return Creator(actor_type=actor.kind.upper())
