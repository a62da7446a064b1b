"""Plans of requests: what depends on the key, the model, the limits, the prices and the settings.

A plan is made for the first request of a key to a model, and looked up by the others. Every change drops all
plans: the next request finds other rules or another revision of the models. What depends on the time, such as
a budget's window, the end of a key or the rest of a route, is no part of a plan.
"""

from collections.abc import Mapping

from antiphon.domain.identity import Actor
from antiphon.domain.limits import Limit, Measure
from antiphon.domain.prices import Price
from antiphon.domain.values import Struct
from antiphon.engines.registry import Model, ModelRegistry, ModelRoute
from antiphon.pipeline.routing import resolve
from antiphon.pipeline.rules import LimitIndex, RuleSet

MAX_PLANS = 10_000
"""The most plans. Callers choose the names of models and users, so their number needs a bound."""


class RequestPlan(Struct, frozen=True):
    """What the requests of one key to one model have in common."""

    model: Model
    rules: RuleSet
    """The limits and prices of which the plan was made."""
    limits: tuple[Limit, ...]
    """The limits that apply to a caller's request."""
    child_limits: tuple[Limit, ...]
    """Those that apply to a child call: it does not count in limits of concurrent requests."""
    cost_limit: Limit | None
    """The first limit in cost, which only routes with a price can serve; None if there is none."""
    prices: Mapping[ModelRoute, tuple[Price, ...]]
    """The prices of each route, present, past and future. The first one that applies is used."""


class RequestPlans:
    """The plans of this process."""

    def __init__(self, models: ModelRegistry, limit_index: LimitIndex) -> None:
        self._models = models
        self._limit_index = limit_index
        self._rules = limit_index.rules
        self._revision = models.revision
        self._plans: dict[tuple[object, ...], RequestPlan] = {}
        """The oldest comes first."""

    def __len__(self) -> int:
        return len(self._plans)

    def find(self, name: str, actor: Actor) -> RequestPlan:
        """Returns the plan of an actor's requests to a model or alias. Raises ModelNotFound, and
        PermissionDenied if the actor's key does not allow the model."""
        # The rules are read once: another thread replaces them.
        rules, revision = self._limit_index.rules, self._models.revision
        if rules is not self._rules or revision != self._revision:
            self._plans.clear()
            self._rules, self._revision = rules, revision
        # All of the actor that a plan depends on, so a key with other rights has other plans.
        key = (name, actor.id, actor.user, actor.project, actor.kind, actor.grant.models)
        plan = self._plans.get(key)
        if plan is None:
            plan = build_plan(resolve(self._models, name, actor), actor, rules)
            if len(self._plans) >= MAX_PLANS:
                del self._plans[next(iter(self._plans))]
            self._plans[key] = plan
        return plan


def build_plan(model: Model, actor: Actor, rules: RuleSet) -> RequestPlan:
    """Builds the plan of an actor's requests to a model."""
    limits = rules.find_limits(actor, model.counted_name)
    return RequestPlan(
        model,
        rules,
        limits,
        child_limits=tuple(limit for limit in limits if limit.measure is not Measure.CONCURRENT),
        cost_limit=next((limit for limit in limits if limit.measure is Measure.COST), None),
        prices={route: rules.list_prices(route.price or model.counted_name) for route in model.routes},
    )
