"""Plans of requests: made once for a key and a model, bounded, and made again after a change."""

import pytest

from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.limits import Measure
from antiphon.domain.models import Aliases
from antiphon.domain.tenancy import Grant
from antiphon.domain.values import replace
from antiphon.engines.registry import MAX_CACHED_MODELS, Model, ModelPattern, ModelRegistry, ModelRoute
from antiphon.errors import ModelNotFound, PermissionDenied
from antiphon.pipeline.plans import MAX_PLANS, RequestPlans
from antiphon.pipeline.rules import LimitIndex
from antiphon_testing import ScriptedEngine
from tests.support.accounting import PRICE, limit

ACTOR = Actor(ActorKind.SERVICE_KEY, "key-1", "default")
LIMIT = limit(key="key-1")


def build_model(name: str) -> Model:
    return Model(name, (ModelRoute(ScriptedEngine()),), 1, label="v/*" if name.startswith("v/") else "")


MODEL, ADAPTER = build_model("m"), replace(build_model("a"), parent="m")
PATTERN = ModelPattern(build_model("v/*"), lambda name, _: build_model(name))


@pytest.fixture
def models() -> ModelRegistry:
    return ModelRegistry((MODEL,), Aliases({"other": "m"}), (PATTERN,))


@pytest.fixture
def index() -> LimitIndex:
    index = LimitIndex()
    index.update((LIMIT,), (PRICE,))
    return index


@pytest.fixture
def plans(models: ModelRegistry, index: LimitIndex) -> RequestPlans:
    return RequestPlans(models, index)


def test_a_plan_is_made_once_for_a_key_and_a_model(plans: RequestPlans) -> None:
    plan = plans.find("m", ACTOR)
    assert (plan.model, plan.limits, plan.prices[MODEL.routes[0]]) == (MODEL, (LIMIT,), (PRICE,))
    assert plans.find("m", replace(ACTOR, client="10.0.0.1", expires=5)) is plan
    assert plans.find("other", ACTOR).model is MODEL
    for change in ({"id": "key-2"}, {"user": "ann"}, {"project": "p"}, {"grant": Grant(models=("m*",))}):
        other = plans.find("m", replace(ACTOR, **change))
        assert other is not plan and (other.limits == ()) == (change == {"id": "key-2"})
    assert plans.find("m", ACTOR) is plan


def test_what_a_key_may_not_use_has_no_plan(plans: RequestPlans) -> None:
    with pytest.raises(ModelNotFound):
        plans.find("missing", ACTOR)
    plans.find("m", ACTOR)
    with pytest.raises(PermissionDenied):
        plans.find("m", replace(ACTOR, grant=Grant(models=("x",))))
    assert len(plans) == 1


def test_other_limits_or_prices_make_another_plan(plans: RequestPlans, index: LimitIndex) -> None:
    before = plans.find("m", ACTOR)
    cost, places = limit(Measure.COST, key="key-1"), limit(Measure.CONCURRENT, window=None, key="key-1")
    index.update((LIMIT, cost, places), ())
    after = plans.find("m", ACTOR)
    assert len(plans) == 1
    assert (after.limits, after.child_limits) == ((LIMIT, cost, places), (LIMIT, cost))
    assert (after.cost_limit, after.prices[MODEL.routes[0]]) == (cost, ())
    assert (before.limits, before.cost_limit, before.prices[MODEL.routes[0]]) == ((LIMIT,), None, (PRICE,))


def test_other_models_make_another_plan(plans: RequestPlans, models: ModelRegistry) -> None:
    before = plans.find("m", ACTOR)
    models.put(ADAPTER)
    assert plans.find("a", ACTOR).model is ADAPTER
    models.put(reloaded_adapter := replace(ADAPTER, created=2))
    assert plans.find("a", ACTOR).model is reloaded_adapter
    models.remove(reloaded_adapter)
    with pytest.raises(ModelNotFound):
        plans.find("a", ACTOR)
    models.replace((build_model("m"),), Aliases(), ())
    assert plans.find("m", ACTOR).model is not before.model
    with pytest.raises(ModelNotFound):
        plans.find("other", ACTOR)


def test_the_plan_of_a_pattern_has_the_model_that_the_registry_shows(
    plans: RequestPlans, models: ModelRegistry
) -> None:
    first = plans.find("v/first", ACTOR).model
    assert first in models.list_routed() and plans.find("v/first", ACTOR).model is first
    for number in range(MAX_CACHED_MODELS):  # callers name so many that the registry forgets the first
        models.get(f"v/{number}")
    assert first not in models.list_routed()
    assert plans.find("v/first", ACTOR).model in models.list_routed()


def test_plans_are_bounded(plans: RequestPlans) -> None:
    for number in range(MAX_PLANS + 7):
        plans.find("m", replace(ACTOR, user=f"user-{number}"))
    assert len(plans) == MAX_PLANS
