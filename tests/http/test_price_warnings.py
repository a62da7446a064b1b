"""Warnings about prices of vendors' models: prices follow routes, limits follow names."""

from antiphon.domain.identity import LOCAL_ANONYMOUS
from antiphon.domain.prices import Price, find_unpriced
from antiphon.engines.registry import Model, ModelPattern, ModelRegistry, ModelRoute
from antiphon.http.admin.model_warnings import ModelWarnings
from antiphon_testing.scripted_engine import ScriptedEngine


def route_to(price: str) -> ModelRoute:
    return ModelRoute(ScriptedEngine(), price.partition("/")[0], price=price, name=price)


def price_of(models: str) -> Price:
    return Price("price_1", models, "USD", 0, 1, 1)


EITHER = Model("either", (route_to("first/a"), route_to("second/b")), 0)
PATTERN = Model("third/*", (route_to("third/third/*"),), 0)
REGISTRY = ModelRegistry((EITHER,), patterns=(ModelPattern(PATTERN, lambda name, rest: PATTERN),))


def warn(models: str) -> list[str]:
    return ModelWarnings(REGISTRY, None).warn_of_price(LOCAL_ANONYMOUS, price_of(models))


def test_a_price_of_a_routes_model_is_of_use():
    assert warn("first/a") == warn("second/*") == warn("third/any") == []


def test_a_price_of_no_route_is_named():
    assert warn("first/z") == ["nothing here is served by the name first/z now"]
    assert warn("nobody/*") == ["nothing here is served by a name like nobody/* now"]


def test_a_price_of_a_routed_models_own_name_is_named():
    (told,) = warn("either")
    assert told.endswith("this price is for none of them: name first/a or second/b")


def test_a_model_needs_a_price_of_each_route():
    names = {"either": ["first/a", "second/b"]}
    assert find_unpriced([price_of("first/*")], names, 5) == ["either"]
    assert find_unpriced([price_of("first/*"), price_of("second/b")], names, 5) == []
