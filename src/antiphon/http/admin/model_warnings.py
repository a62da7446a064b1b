"""Warnings about the names of models in keys, limits and prices, and about models without a price."""

from collections.abc import Iterable, Iterator

from antiphon.domain.identity import Actor, matches
from antiphon.domain.limits import Limit, Measure, Subject
from antiphon.domain.models import STAR
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import Key
from antiphon.engines.registry import ModelRegistry
from antiphon.errors import InvalidValue, ModelNotFound
from antiphon.services.prices import PriceService

MAX_NAMES = 8
"""The most names in one sentence."""


class ModelWarnings:
    """Warns about names of models. It mentions only models that the caller can use."""

    def __init__(self, models: ModelRegistry, prices: PriceService | None) -> None:
        self._models = models
        self._prices = prices

    def list_served(self, actor: Actor, pattern: str | None = None) -> list[str]:
        """Returns the names of served models that match a pattern. None matches all."""
        names = [model.name for model in self._models if actor.may_use(model.name)]
        return [name for name in names if pattern is None or matches((pattern,), name)]

    def warn_of_patterns(self, actor: Actor, patterns: Iterable[str | None]) -> Iterator[str]:
        """Yields a warning about each pattern that matches no served model."""
        for pattern in dict.fromkeys(patterns):
            if pattern is not None and not self.list_served(actor, pattern):
                yield self._explain_unserved(actor, pattern)

    def warn_of_limits(self, actor: Actor, limits: Iterable[Limit]) -> list[str]:
        """Returns warnings about limits that are set together."""
        patterns = {
            limit: limit.target if limit.subject is Subject.MODEL else limit.models for limit in limits
        }
        warnings = list(self.warn_of_patterns(actor, patterns.values()))
        cost_patterns = [pattern for limit, pattern in patterns.items() if limit.measure is Measure.COST]
        names = self._list_price_names(
            name for pattern in cost_patterns for name in self.list_served(actor, pattern)
        )
        if self._prices is not None and (unpriced := self._prices.find_unpriced(names)):
            warnings.append(_explain_unpriced(unpriced))
        return warnings

    def warn_of_key(self, actor: Actor, key: Key, limits: Iterable[Limit] = ()) -> list[str]:
        """Returns warnings about a key and the limits that are set with it."""
        warnings = [
            *self.warn_of_patterns(actor, key.grant.models or ()),
            *self.warn_of_limits(actor, limits),
        ]
        return list(dict.fromkeys(warnings))

    def warn_of_price(self, actor: Actor, price: Price) -> list[str]:
        """Returns warnings about a price, also about an ended one."""
        served = self._list_price_names(self.list_served(actor))
        priced = {
            model: names
            for model, names in served.items()
            if any(matches((price.models,), name) for name in names)
        }
        is_used = priced or self._prices_chosen_models(price.models)
        warnings = [] if is_used else list(self.warn_of_patterns(actor, [price.models]))
        if not is_used:
            unused_names = filter(served.get, self.list_served(actor, price.models))
            warnings += [_explain_unused(name, served[name]) for name in unused_names]
        if self._prices is not None and (refused := self._prices.find_refused(priced)):
            warnings.append(_explain_unpriced(refused))
        return warnings

    def require_used_price(self, actor: Actor, models: str) -> None:
        """Raises InvalidValue for a price of a routed model's own name. No request would have this price."""
        served = self._list_price_names(self.list_served(actor))
        is_used = any(models in names for names in served.values()) or self._prices_chosen_models(models)
        if models in served and not is_used:
            raise InvalidValue(_explain_unused(models, served[models]), param="models")

    def _list_price_names(self, served: Iterable[str]) -> dict[str, set[str]]:
        """Returns the price names of each model's routes. Skips model patterns, because callers choose the
        vendor's model there."""
        names = set(served)
        return {
            model.name: {route.price or model.name for route in model.routes}
            for model in self._models
            if model.name in names and STAR not in model.name
        }

    def _prices_chosen_models(self, pattern: str) -> bool:
        """Whether a price's pattern begins with the name of a provider whose models callers can choose by a
        model pattern. Such a price can apply although no served model matches it now."""
        pattern_models = [model for model in self._models if STAR in model.name]
        return any(pattern.startswith(f"{route.kind}/") for model in pattern_models for route in model.routes)

    def _explain_unserved(self, actor: Actor, pattern: str) -> str:
        """Returns a warning about a pattern that matches no served model. If the pattern is an alias, the
        warning contains the name of its model."""
        if "*" in pattern:
            return f"nothing here is served by a name like {pattern} now"
        try:
            model_name = self._models.get(pattern).name
        except ModelNotFound:
            model_name = None
        if model_name is None or not actor.may_use(model_name):
            return f"nothing here is served by the name {pattern} now"
        return f"{pattern} is another name of {model_name}, and only its own counts: name {model_name}"


def _explain_unused(model: str, price_names: set[str]) -> str:
    """Returns a warning about a price of a routed model's own name, which no request has."""
    names = " or ".join(sorted(price_names))
    return f"{model} has the prices of its routes, and this price is for none of them: name {names}"


def _explain_unpriced(names: list[str]) -> str:
    """Returns a warning about models without a price. A cost limit refuses their requests."""
    remainder = "" if len(names) <= MAX_NAMES else f" and {len(names) - MAX_NAMES} more"
    verb, pronoun = ("has", "its") if len(names) == 1 else ("have", "their")
    first_names = ", ".join(names[:MAX_NAMES])
    return (
        f"{first_names}{remainder} {verb} no price now: "
        f"{pronoun} requests are refused where a limit of cost applies"
    )
