"""The models that a caller may name, and the engine behind each. Holds no logic of choice; that is
`pipeline.resolve`."""

from collections.abc import Iterator
from dataclasses import dataclass

from antiphon.engines.base import Engine
from antiphon.errors import ModelNotFound


@dataclass(frozen=True, slots=True)
class Model:
    """A name and what serves it."""

    name: str
    engine: Engine
    created: int
    """Unix time in seconds at which this server began to serve it."""


class Models:
    """All models, in the order of the settings."""

    def __init__(self, models: tuple[Model, ...]) -> None:
        self._models = {model.name: model for model in models}

    def __iter__(self) -> Iterator[Model]:
        return iter(self._models.values())

    def get(self, name: str) -> Model:
        """The model of that name. Raises ModelNotFound, which names those that exist."""
        found = self._models.get(name)
        if found is None:
            known = ", ".join(list(self._models)[:8]) or "none"
            shown = name if len(name) <= 100 else name[:100] + "..."
            raise ModelNotFound(
                f"the model {shown!r} does not exist; this server has: {known}", param="model"
            )
        return found

    async def aclose(self) -> None:
        """Closes every engine."""
        for model in self:
            await model.engine.aclose()
