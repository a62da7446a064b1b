"""Warnings about names of models in limits, keys and prices.

The server accepts a name that no model has now, since models come and go. The answer warns about it.
"""

from collections.abc import Iterable, Iterator

from antiphon.domain.identity import Actor, matches
from antiphon.domain.limits import Limit, Measure, Subject
from antiphon.domain.prices import Price
from antiphon.domain.tenancy import Key
from antiphon.engines.registry import ModelRegistry
from antiphon.errors import ModelNotFound
from antiphon.services.prices import PriceService

MOST_SHOWN = 8
"""The most names in one sentence."""


class ModelWarnings:
    """Warns about names of models. It mentions only models that the caller can use."""

    def __init__(self, models: ModelRegistry, pricing: PriceService | None) -> None:
        self._models = models
        self._pricing = pricing

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
        counted = [pattern for limit, pattern in patterns.items() if limit.measure is Measure.COST]
        names = dict.fromkeys(name for pattern in counted for name in self.list_served(actor, pattern))
        if self._pricing is not None and (unpriced := self._pricing.find_unpriced(list(names))):
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
        warnings = list(self.warn_of_patterns(actor, [price.models]))
        if self._pricing is not None and (
            names := self._pricing.find_refused(self.list_served(actor, price.models))
        ):
            warnings.append(_explain_unpriced(names))
        return warnings

    def _explain_unserved(self, actor: Actor, pattern: str) -> str:
        """Returns a warning about a pattern that matches no served model. It names the model itself if the
        pattern is an alias."""
        if "*" in pattern:
            return f"nothing here is served by a name like {pattern} now"
        try:
            meant = self._models.get(pattern).name
        except ModelNotFound:
            meant = None
        if meant is None or not actor.may_use(meant):
            return f"nothing here is served by the name {pattern} now"
        return f"{pattern} is another name of {meant}, and only its own counts: name {meant}"


def _explain_unpriced(names: list[str]) -> str:
    """Returns a warning about models without a price. A cost limit refuses their requests."""
    more = "" if len(names) <= MOST_SHOWN else f" and {len(names) - MOST_SHOWN} more"
    verb, whose = ("has", "its") if len(names) == 1 else ("have", "their")
    shown = ", ".join(names[:MOST_SHOWN])
    return f"{shown}{more} {verb} no price now: {whose} requests are refused where a limit of cost holds"
