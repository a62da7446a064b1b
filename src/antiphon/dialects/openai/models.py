"""The list of models and one model with its profile, in OpenAI's shape; state and profile are our own."""

from collections.abc import Iterable
from typing import Literal

import msgspec
from msgspec import Struct

from antiphon.dialects.base import ModelEntry
from antiphon.domain.profile import Profile

OWNER = "antiphon"
"""Who owns the models that this server serves itself; OpenAI's shape wants a name."""

_encode = msgspec.json.Encoder().encode


class ModelShape(Struct, frozen=True, kw_only=True):
    """A model in the list."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = OWNER
    state: str
    """Where its engine stands."""


class ModelCard(ModelShape, frozen=True, kw_only=True):
    """One model with what it can take and give; the profile is null while its engine cannot say."""

    profile: Profile | None


class ModelList(Struct, frozen=True, kw_only=True):
    """All models, in the order of the settings."""

    object: Literal["list"] = "list"
    data: list[ModelShape]


class OpenAIModels:
    """`ModelOperations` of the dialect."""

    path = "/v1/models"

    def listed(self, models: Iterable[ModelEntry]) -> bytes:
        shapes = [ModelShape(id=model.name, created=model.created, state=model.state) for model in models]
        return _encode(ModelList(data=shapes))

    def shown(self, model: ModelEntry) -> bytes:
        card = ModelCard(id=model.name, created=model.created, state=model.state, profile=model.profile)
        return _encode(card)
