"""The list of models in Fireworks' shape."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import UNSET, Struct, UnsetType

from antiphon.dialects.base import ModelEntry
from antiphon.dialects.common.response_types import OWNER

_encode = msgspec.json.Encoder().encode


class FireworksModelShape(Struct, frozen=True, kw_only=True):
    """One model. What it can do is left out while its engine cannot say."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER
    kind: Literal["HF_BASE_MODEL", "HF_PEFT_ADDON", "EMBEDDING_MODEL"]
    """A base model, a LoRA adapter, or a model that makes vectors."""
    supports_chat: bool | UnsetType = UNSET
    supports_image_input: bool | UnsetType = UNSET
    supports_tools: bool | UnsetType = UNSET
    context_length: int | UnsetType = UNSET


class FireworksModelList(Struct, frozen=True, kw_only=True):
    """All models: those of the settings in their order, then adapters."""

    object: Literal["list"] = "list"
    data: list[FireworksModelShape]


class FireworksModels:
    """`ModelCodec` of the dialect."""

    shapes = (FireworksModelList, FireworksModelShape)
    has_profiles = True

    def listed(self, models: Iterable[ModelEntry]) -> bytes:
        return _encode(FireworksModelList(data=[_build_model(model) for model in models]))

    def shown(self, model: ModelEntry) -> bytes:
        return _encode(_build_model(model))


def _build_model(model: ModelEntry) -> FireworksModelShape:
    base: Literal["HF_BASE_MODEL", "HF_PEFT_ADDON"] = "HF_PEFT_ADDON" if model.parent else "HF_BASE_MODEL"
    profile = model.profile
    if profile is None:
        return FireworksModelShape(id=model.alias or model.name, created=model.created, kind=base)
    return FireworksModelShape(
        id=model.alias or model.name,
        created=model.created,
        kind=base if profile.embedding is None else "EMBEDDING_MODEL",
        supports_chat=profile.chat,
        supports_image_input="image" in profile.modalities,
        # Whoever can chat is shown tools, by the server where the template has no place for them.
        supports_tools=profile.chat,
        context_length=profile.context_length,
    )
