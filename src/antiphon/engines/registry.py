"""The models that a caller may name, and the engine behind each. Holds no logic of choice; that is
`pipeline.resolve`.

Base models are there from the start to the end. Adapters come and go while requests run: a request holds the
engine that it found, so taking a name away ends none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from antiphon.domain.adapters import Adapter, DeployedAdapter
from antiphon.domain.aliases import Aliases
from antiphon.engines.base import Engine
from antiphon.errors import ModelNotFound

MOST_SHOWN = 8
"""Names that an error repeats."""


LONGEST_SHOWN = 100
"""Characters of a name that an error repeats."""


def describe_missing_model(name: str) -> str:
    """The sentence about a model that does not exist, in OpenAI's words: clients look for them."""
    shown = name if len(name) <= LONGEST_SHOWN else name[:LONGEST_SHOWN] + "..."
    plain = "".join(character if character.isprintable() else "?" for character in shown)
    return f"The model `{plain}` does not exist or you do not have access to it."


@dataclass(frozen=True, slots=True)
class ModelRoute:
    """One way to serve a model."""

    engine: Engine
    kind: str = ""
    """Of engine: `llama`, a vendor."""
    price: str | None = None
    """The name by which the price list knows what is computed here; None is the model's own."""


@dataclass(frozen=True, slots=True)
class Model:
    """A name and what serves it. Permission and limits follow the name, the price follows the route."""

    name: str
    routes: tuple[ModelRoute, ...]
    """In the order in which they are tried; at least one."""
    created: int
    """Unix time in seconds at which this server began to serve it."""
    parent: str | None = None
    """Of an adapter, the base model's name; None is a base model."""
    adapter: Adapter | None = None
    """Of an adapter, what it is."""
    deployed: DeployedAdapter | None = None
    """Of an adapter that a caller deployed, who did and what."""

    @property
    def engine(self) -> Engine:
        """Of the first route: whose profile and tokenizer are the model's."""
        return self.routes[0].engine


class ModelRegistry:
    """All models: the base models in the order of the settings, then adapters in the order of loading."""

    def __init__(self, models: tuple[Model, ...], aliases: Aliases | None = None) -> None:
        """`aliases`: other names, for what no model is called."""
        self._models = {model.name: model for model in models}
        self._aliases = aliases or Aliases()

    def __iter__(self) -> Iterator[Model]:
        return iter(tuple(self._models.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def list_bases(self) -> tuple[Model, ...]:
        """The models that have an engine of their own."""
        return tuple(model for model in self if model.parent is None)

    def list_adapters(self) -> tuple[Model, ...]:
        """The models that are adapters of another."""
        return tuple(model for model in self if model.parent is not None)

    def get(self, name: str, may_use: Callable[[str], bool] = lambda _: True) -> Model:
        """The model of that name or alias. Raises ModelNotFound, which names the models that the caller may
        use."""
        found = self._models.get(name)
        if found is None and (target := self._aliases.target(name)) is not None:
            found = self._models.get(target)
        if found is None:
            known = ", ".join([name for name in self._models if may_use(name)][:MOST_SHOWN]) or "none"
            deployment = (
                " Nothing is deployed by name here: leave out # and what follows." if "#" in name else ""
            )
            raise ModelNotFound(
                f"{describe_missing_model(name)} This server has: {known}.{deployment}", param="model"
            )
        return found

    def is_alias(self, name: str) -> bool:
        """Whether a rule of the operator or of a dialect maps the name to a model."""
        return self._aliases.is_taken(name)

    def put(self, model: Model) -> None:
        """Serves an adapter from now on, in place of one of the same name."""
        self._models[model.name] = model

    def remove(self, model: Model) -> None:
        """Takes an adapter's name away; one that is not there is no error."""
        if self._models.get(model.name) is model:
            del self._models[model.name]

    async def aclose(self) -> None:
        """Closes every engine."""
        for model in self.list_bases():
            for route in model.routes:
                await route.engine.aclose()
