"""The list of models and one model with its profile, in OpenAI's shape; state and profile are our own."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.dialects.base import ModelEntry
from antiphon.dialects.common.response_types import OWNER
from antiphon.domain.profile import Profile

_encode = msgspec.json.Encoder().encode


class ModelShape(Struct, frozen=True, kw_only=True):
    """A model in the list."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER
    root: str
    """Whose weights: of a base model its own name, of an adapter the SHA-256 of its content."""
    parent: str | None
    """Of an adapter, the base model; else null."""
    state: str
    """Where its engine stands; an adapter that its engine could not load again is failed."""


class AdapterShape(Struct, frozen=True):
    """What an adapter is."""

    digest: str
    """SHA-256 of its GGUF file, in hexadecimal."""
    rank: int
    alpha: float
    size: int
    """Bytes."""


class ModelCard(ModelShape, frozen=True, kw_only=True):
    """One model with what it can take and give; the profile is null while its engine cannot say."""

    profile: Profile | None
    """An adapter's is its base model's."""
    adapter: AdapterShape | None
    """Null for a base model."""


class ModelList(Struct, frozen=True, kw_only=True):
    """All models: those of the settings in their order, then adapters."""

    object: Literal["list"] = "list"
    data: list[ModelShape]


class OpenAIModels:
    """`ModelCodec` of the dialect."""

    shapes = (ModelList, ModelCard)
    has_profiles = False

    def listed(self, models: Iterable[ModelEntry]) -> bytes:
        return _encode(ModelList(data=[_build_model(model) for model in models]))

    def shown(self, model: ModelEntry) -> bytes:
        found = model.adapter
        adapter = AdapterShape(found.digest, found.rank, found.alpha, found.size) if found else None
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
