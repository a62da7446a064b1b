"""What a reload leaves as it is in an HTTP process, and what it takes over."""

from antiphon.assembly.models import ModelSources, build_models, build_served_models, find_unchanged
from antiphon.assembly.vendors import build_vendors
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import ProviderFailed
from antiphon.settings.changes import MAX_REMOVED_MODELS, list_removed_models
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings, RouteSettings
from antiphon.settings.schema import Settings
from antiphon_testing import FakeClock

CLOCK = FakeClock()


def provider(port: int = 1) -> ProviderSettings:
    return ProviderSettings(kind="openai", base_url=f"http://127.0.0.1:{port}/v1", private=True)


def routed(name: str, *providers: str) -> RoutedModelSettings:
    routes = tuple(RouteSettings(provider=each, model=None if "*" in name else "m") for each in providers)
    return RoutedModelSettings(name=name, routes=routes)


BEFORE = Settings(
    providers={"a": provider(), "b": provider()},
    routed_models=(routed("same", "a"), routed("wider", "a"), routed("moved", "b"), routed("all/*", "a")),
)


def reload(after: Settings, registry: ModelRegistry, before: ModelSources) -> ModelSources:
    """As an HTTP process does it."""
    sources = ModelSources(after, {}, build_vendors(after, {}, before.vendors))
    served = build_served_models(sources, CLOCK, find_unchanged(before, sources, registry))
    registry.replace(served.models, served.aliases, served.patterns)
    return sources


def begin() -> tuple[ModelRegistry, ModelSources]:
    vendors = build_vendors(BEFORE, {})
    sources = ModelSources(BEFORE, {}, vendors)
    return build_models(sources, CLOCK), sources


def rest(model: Model) -> Model:
    model.routes[0].state.rest(ProviderFailed("down"), 0.0, 0.0)
    return model


def test_a_route_that_rests_goes_on_resting():
    registry, before = begin()
    same, wider, moved = (rest(registry.get(name)) for name in ("same", "wider", "moved"))
    used = rest(registry.get("all/x"))
    after = Settings(
        providers={"a": provider(), "b": provider(2), "c": provider()},
        routed_models=(
            routed("same", "a"),
            routed("wider", "a", "c"),
            routed("moved", "b"),
            routed("all/*", "a"),
        ),
    )
    now = reload(after, registry, before)
    assert registry.get("same") is same
    assert registry.get("all/x") is used
    assert registry.get("wider").routes[0].state is wider.routes[0].state
    assert registry.get("moved").routes[0].state is not moved.routes[0].state, "it leads elsewhere"
    assert now.vendors.clients["a"] is before.vendors.clients["a"]
    assert now.vendors.clients["b"] is not before.vendors.clients["b"]


def test_a_changed_pattern_keeps_the_rests_of_its_names():
    registry, before = begin()
    used = rest(registry.get("all/x"))
    after = Settings(providers=BEFORE.providers, routed_models=(routed("all/*", "a", "b"),))
    reload(after, registry, before)
    assert registry.get("all/x") is not used
    assert registry.get("all/x").routes[0].state is used.routes[0].state


def test_a_new_longer_pattern_takes_names_that_were_used():
    registry, before = begin()
    registry.get("all/x/y")
    after = Settings(providers=BEFORE.providers, routed_models=(routed("all/*", "a"), routed("all/x/*", "b")))
    reload(after, registry, before)
    assert registry.get("all/x/y").label == "all/x/*"


def test_removed_models_are_listed_up_to_a_bound():
    def settings(*names: str) -> Settings:
        return Settings(providers={"a": provider()}, routed_models=tuple(routed(each, "a") for each in names))

    removed = list_removed_models(settings("a", "b", "c"), settings("c"))
    assert removed == ("a", "b")
    removed = list_removed_models(settings("c"), settings("a"), removed)
    assert removed == ("b", "c")
    for number in range(MAX_REMOVED_MODELS):
        removed = list_removed_models(settings(f"m{number}"), settings(f"m{number + 1}"), removed)
    assert removed == tuple(f"m{number}" for number in range(MAX_REMOVED_MODELS))
