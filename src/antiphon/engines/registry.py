"""The models that a caller may name, their routes, and the engine of each. `pipeline.routing` chooses among
routes.

Adapters are added and removed while requests run, and a reload replaces the other models. A request keeps the
engine that it found, so removing a name ends no request.
"""

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

from antiphon.domain.identity import Actor
from antiphon.domain.ledger import ABORTED, RouteTry, encode_tries
from antiphon.domain.models import STAR, Adapter, Aliases, DeployedAdapter
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import Engine, EngineState
from antiphon.engines.route_state import RouteState
from antiphon.errors import ModelNotFound

MAX_SHOWN_NAMES = 8
"""The most model names in one error."""

MAX_SHOWN_CHARACTERS = 100
"""The most characters of a name in an error."""


def describe_missing_model(name: str) -> str:
    """Returns the message about an unknown model in OpenAI's words, because clients search for these
    words."""
    shown_name = name if len(name) <= MAX_SHOWN_CHARACTERS else name[:MAX_SHOWN_CHARACTERS] + "..."
    printable_name = "".join(character if character.isprintable() else "?" for character in shown_name)
    return f"The model `{printable_name}` does not exist or you do not have access to it."


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ModelRoute:
    """One way to serve a model. Two routes are never equal."""

    engine: Engine
    kind: str = ""
    """The kind of engine: `llama`, or a vendor."""
    price: str | None = None
    """The model's name in the price list; None uses the model's own name."""
    name: str = ""
    """The route's name in responses, the ledger and errors: `provider/model`. Empty uses the model's name."""
    label: str = ""
    """The route's name in metrics, which contains no text of a caller. Empty uses `name`."""
    provider: str = ""
    """The vendor in traces, as OpenTelemetry's conventions name it; empty for an engine of this server."""
    weight: float = 1.0
    """How often the route is drawn beside others of its order."""
    order: int = 1
    """Routes of a lower order come first."""
    in_flight_limit: int | None = None
    """The most requests in flight over all processes of this server; None is no limit."""
    state: RouteState = dataclasses.field(default_factory=RouteState, repr=False)
    """The state of the route in this process. Routes that fail together share one."""
    header: bytes = dataclasses.field(default=b"", init=False, repr=False)
    """The value of `x-antiphon-route`."""
    aborted_try: str = dataclasses.field(default="", init=False, repr=False)
    """The ledger's text for a request that was on this route when its HTTP process died."""

    def __post_init__(self) -> None:
        """Computes the values that every request needs. The header contains printable ASCII only."""
        object.__setattr__(self, "label", self.label or self.name)
        header_name = "".join(
            character if character.isascii() and character.isprintable() else "?" for character in self.name
        )
        object.__setattr__(self, "header", header_name.encode())
        object.__setattr__(self, "aborted_try", encode_tries((RouteTry(self.name, None, 0),), ABORTED))


@dataclasses.dataclass(frozen=True, slots=True)
class Model:
    """A model's name and its routes. Permissions and limits follow the name, the price follows the route."""

    name: str
    routes: tuple[ModelRoute, ...]
    """At least one."""
    created: int
    """The Unix time in seconds at which this server first served the model."""
    parent: str | None = None
    """An adapter's base model; None for a base model."""
    adapter: Adapter | None = None
    """The adapter itself; None for a base model."""
    deployed: DeployedAdapter | None = None
    """The record of an adapter that a caller deployed, with its owner; None for other models."""
    label: str = ""
    """The model's name in metrics: the pattern if the model came from a pattern, otherwise the name."""
    project: str | None = None
    """The project that an adapter belongs to; None for every other model. The operator's metrics, limits and
    prices count the adapter as its base model, since the project chose the adapter's name."""
    is_kept: bool = False
    """Whether an adapter was loaded while the server ran, and its name lasts over a restart."""
    is_routed: bool = False
    """Whether the settings give the model routes, so that it has no engine of its own."""
    prefers_prefix: bool = False
    """Whether requests with a common prompt prefix prefer the same route."""
    counted_name: str = dataclasses.field(default="", init=False, repr=False, compare=False)
    """The name under which limits, prices and sums of usage count the model."""
    orders: tuple[tuple[ModelRoute, ...], ...] = dataclasses.field(
        default=(), init=False, repr=False, compare=False
    )
    """The routes, grouped by order."""

    def __post_init__(self) -> None:
        """Computes the names for metrics, gives the model's name to routes without one, and groups the routes
        by order."""
        counted_name = self.name if self.project is None or self.parent is None else self.parent
        object.__setattr__(self, "counted_name", counted_name)
        label = self.label or counted_name
        object.__setattr__(self, "label", label)
        routes = tuple(
            route if route.name else replace(route, name=self.name, label=route.label or label)
            for route in self.routes
        )
        object.__setattr__(self, "routes", routes)
        get_order = attrgetter("order")
        groups = (tuple(group) for _, group in groupby(sorted(routes, key=get_order), get_order))
        object.__setattr__(self, "orders", tuple(groups))

    @property
    def engine(self) -> Engine:
        """The engine that supplies the model's profile and tokenizer: that of the first route. A local model
        with several hosts uses its first host that is ready."""
        if len(self.routes) > 1 and not self.is_routed:
            for route in self.routes:
                if route.engine.state() is EngineState.READY:
                    return route.engine
        return self.routes[0].engine


MAX_CACHED_MODELS = 4096
"""The most cached models whose names match a pattern. Callers choose these names, so the cache needs a
bound."""

LONGEST_NAME = 256
"""The most characters of a name that a pattern takes."""


class ModelPattern(Struct, frozen=True, eq=False):
    """A model whose name ends with `*`: each name with the same prefix is a model of its own. Two patterns
    are never equal."""

    model: Model
    """The pattern as a model, for lists."""
    build: Callable[[str, str], Model]
    """Builds the model of a name, from the name and the text that replaces the `*`."""

    @property
    def prefix(self) -> str:
        """The text before the `*`."""
        return self.model.name[:-1]

    def list_allowed_names(self, allowed: Iterable[str]) -> Iterator[str]:
        """Yields the names and patterns that both this pattern and one of `allowed`, a key's names and
        patterns, allow."""
        for pattern in allowed:
            prefix, star, suffix = pattern.partition(STAR)
            if len(pattern) > LONGEST_NAME or not pattern.isprintable():
                continue
            if prefix.startswith(self.prefix) and pattern != self.prefix:
                yield pattern
            elif star and self.prefix.startswith(prefix):
                yield self.model.name + suffix

    def build_listed_model(self, name: str) -> Model:
        """Builds the entry of a model list for `name`, which matches this pattern or is a narrower
        pattern."""
        if STAR in name:
            return replace(self.model, name=name)
        return self.build(name, name.removeprefix(self.prefix))


class ModelRegistry:
    """All models: those of the settings in their order, then adapters in the order of loading. Names that
    match a pattern are models too."""

    def __init__(
        self,
        models: tuple[Model, ...],
        aliases: Aliases | None = None,
        patterns: tuple[ModelPattern, ...] = (),
    ) -> None:
        """`aliases` maps other names to models. A model's own name takes precedence over an alias, an alias
        over a pattern, and a longer pattern over a shorter one."""
        self._models = {model.name: model for model in models}
        self._models |= {pattern.model.name: pattern.model for pattern in patterns}
        self._aliases = aliases or Aliases()
        self._patterns = sorted(patterns, key=lambda pattern: -len(pattern.prefix))
        self._expanded: dict[str, Model] = {}
        """The cached models of names that match a pattern, by name, oldest first."""
        self._owned: dict[tuple[str, str], Model] = {}
        """Adapters of projects, by project and name."""
        self.revision = 0
        """Grows with every change after which a name can stand for another model. What was computed from the
        models of an earlier revision is not used any more."""

    def replace(
        self, models: tuple[Model, ...], aliases: Aliases, patterns: tuple[ModelPattern, ...]
    ) -> None:
        """Replaces the aliases, the patterns, and all models except adapters. Models of names that match an
        unchanged pattern keep the state of their routes."""
        self.revision += 1
        expanded_before = self._expanded
        adapters = [model for model in self if model.parent is not None]
        unchanged_patterns = {pattern.model.name for pattern in self._patterns if pattern in patterns}
        self._models = {model.name: model for model in models}
        self._models |= {pattern.model.name: pattern.model for pattern in patterns}
        self._models |= {model.name: model for model in adapters}
        self._aliases = aliases
        self._patterns = sorted(patterns, key=lambda pattern: -len(pattern.prefix))
        self._expanded = {
            name: model
            for name, model in expanded_before.items()
            if model.label in unchanged_patterns
            and (pattern_match := self._find_pattern(name))
            and pattern_match.model.name == model.label
        }

    def __iter__(self) -> Iterator[Model]:
        return iter(tuple(self._models.values()))

    def __contains__(self, name: str) -> bool:
        return name in self._models

    def list_bases(self) -> tuple[Model, ...]:
        """The models of the settings that have an engine of their own."""
        return tuple(model for model in self if model.parent is None and not model.is_routed)

    def list_routed(self) -> tuple[Model, ...]:
        """The models to which the settings give routes, and the cached models of names that match a
        pattern."""
        routed = [model for model in self if model.is_routed]
        return (*routed, *self._expanded.values())

    def list_patterns(self) -> tuple[ModelPattern, ...]:
        """The patterns."""
        return tuple(self._patterns)

    def list_usable(self, actor: Actor) -> list[Model]:
        """The models that the actor can call. If the actor's key allows only some names of a pattern, these
        names are listed instead of the pattern: `first/ok*` of `first/*`."""
        usable = {model.name: model for model in self if actor.may_use(model.name)}
        for model in self._list_owned(actor.project):
            if actor.may_use(model.name):
                usable.setdefault(model.name, model)
        for pattern in self._patterns:
            if pattern.model.name not in usable:
                for name in pattern.list_allowed_names(actor.grant.models or ()):
                    usable.setdefault(name, pattern.build_listed_model(name))
        return list(usable.values())

    def list_adapters(self) -> tuple[Model, ...]:
        """The models that are adapters, including those of all projects."""
        return (*(model for model in self if model.parent is not None), *self._owned.values())

    def find_adapter(self, name: str, project: str | None) -> Model | None:
        """Returns the adapter of that name. A name of the operator hides an equal name of the project."""
        model = self._models.get(name)
        if model is None and project is not None and not self.is_reserved(name):
            return self._owned.get((project, name))
        return None if model is None or model.parent is None else model

    def find_own(self, name: str, owner: str | None) -> Model | None:
        """Returns the model of that name that belongs to `owner`: a project, or the operator if it is
        None."""
        return self._models.get(name) if owner is None else self._owned.get((owner, name))

    def is_reserved(self, name: str) -> bool:
        """Whether the name is the operator's: of a model, an alias or a pattern. `*` alone reserves none."""
        pattern = self._find_pattern(name)
        return name in self._models or self.is_alias(name) or bool(pattern and pattern.prefix)

    def _list_owned(self, project: str) -> Iterator[Model]:
        """Yields the adapters of a project whose names the operator does not use."""
        for (owner, name), model in tuple(self._owned.items()):
            if owner == project and not self.is_reserved(name):
                yield model

    def get(
        self, name: str, may_use: Callable[[str], bool] = lambda _: True, project: str | None = None
    ) -> Model:
        """Returns the model with that name or alias. The operator's names come before those of the caller's
        `project`. Raises ModelNotFound, which lists the models that the caller may use."""
        model = self._models.get(name)
        if model is None and project is not None and self._owned:
            model = self.find_adapter(name, project)
        if model is None and (target := self._aliases.find_target(name)) is not None:
            model = self._models.get(target) or self._expand(target)
        if model is None:
            model = self._expand(name)
        if model is None:
            names = [*self._models, *(name.name for name in self._list_owned(project or ""))]
            known_names = ", ".join([name for name in names if may_use(name)][:MAX_SHOWN_NAMES]) or "none"
            deployment = (
                " This server deploys no models by name: leave out # and the text after it."
                if "#" in name
                else ""
            )
            raise ModelNotFound(
                f"{describe_missing_model(name)} This server has: {known_names}.{deployment}", param="model"
            )
        return model

    def _expand(self, name: str) -> Model | None:
        """Returns the model of a name that matches a pattern, from the cache if possible. None if no pattern
        matches."""
        expanded = self._expanded.get(name)
        if expanded is not None or not self._patterns or len(name) > LONGEST_NAME or not name.isprintable():
            return expanded
        pattern = self._find_pattern(name)
        if pattern is not None:
            if len(self._expanded) >= MAX_CACHED_MODELS:
                del self._expanded[next(iter(self._expanded))]
                self.revision += 1
            self._expanded[name] = expanded = pattern.build(name, name.removeprefix(pattern.prefix))
        return expanded

    def _find_pattern(self, name: str) -> ModelPattern | None:
        """Returns the longest pattern that the name matches."""
        for pattern in self._patterns:
            if name.startswith(pattern.prefix) and name != pattern.prefix:
                return pattern
        return None

    def is_alias(self, name: str) -> bool:
        """Whether an alias of the operator or of a dialect maps the name to a model."""
        return self._aliases.is_reserved(name)

    def put(self, model: Model) -> None:
        """Adds an adapter, or replaces an adapter of the same name and owner."""
        self.revision += 1
        if model.project is None:
            self._models[model.name] = model
        else:
            self._owned[model.project, model.name] = model

    def remove(self, model: Model) -> None:
        """Removes an adapter's name. Does nothing if the name is already removed."""
        self.revision += 1
        if model.project is not None and self._owned.get((model.project, model.name)) is model:
            del self._owned[model.project, model.name]
        elif self._models.get(model.name) is model:
            del self._models[model.name]

    async def aclose(self) -> None:
        """Closes every engine."""
        for model in self.list_bases():
            for route in model.routes:
                await route.engine.aclose()
