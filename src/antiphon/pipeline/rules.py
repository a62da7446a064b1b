"""The limits and prices that apply to a request. Everything is answered from memory."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from antiphon.domain.identity import Actor, matches
from antiphon.domain.limits import Limit, Subject
from antiphon.domain.prices import Price, find_currency

MAX_CACHED = 10_000
"""Cached answers. Callers choose part of the cache key, so the cache is bounded."""


class RuleSet:
    """All limits and prices at one moment. It never changes; a change makes a new one."""

    def __init__(
        self,
        limits: tuple[Limit, ...] = (),
        prices: tuple[Price, ...] = (),
        families: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`families`: maps the id of each successor key to the id of its first key. A limit of one key
        applies to its whole family."""
        self._prices = sorted(
            prices, key=lambda price: (len(price.models), price.since, price.id), reverse=True
        )
        self.currency = find_currency(prices)
        """Currency of all costs."""
        self._prices_by_model: dict[str, tuple[Price, ...]] = {}
        self._by_target: dict[tuple[Subject, str], list[Limit]] = {}
        self._families = families
        for limit in limits:
            of_key = limit.subject is Subject.KEY
            target = families.get(limit.target, limit.target) if of_key else limit.target
            self._by_target.setdefault((limit.subject, target), []).append(limit)
        self._limits_by_request: dict[tuple[str, str | None, str, str], tuple[Limit, ...]] = {}

    def find_limits(self, actor: Actor, model: str) -> tuple[Limit, ...]:
        """Every limit that applies to requests of this actor to this model."""
        if not self._by_target:
            return ()
        asked = (actor.id, actor.user, actor.project, model)
        found = self._limits_by_request.get(asked)
        if found is None:
            found = tuple(self._match_limits(actor, model))
            if len(self._limits_by_request) >= MAX_CACHED:
                self._limits_by_request.clear()
            self._limits_by_request[asked] = found
        return found

    def _match_limits(self, actor: Actor, model: str) -> Iterable[Limit]:
        key = self._families.get(actor.id, actor.id)
        targets = [(Subject.KEY, key), (Subject.PROJECT, actor.project), (Subject.MODEL, model)]
        if actor.user is not None:
            targets.append((Subject.USER, actor.user))
        for target in targets:
            for limit in self._by_target.get(target, ()):
                if limit.models is None or matches((limit.models,), model):
                    yield limit

    def find_price(self, model: str, at: int) -> Price | None:
        """The price at a time (Unix seconds): the one with the longest matching pattern, and of these the
        latest."""
        found = self._prices_by_model.get(model)
        if found is None:
            found = tuple(price for price in self._prices if matches((price.models,), model))
            if len(self._prices_by_model) >= MAX_CACHED:
                self._prices_by_model.clear()
            self._prices_by_model[model] = found
        for price in found:
            if price.holds(at):
                return price
        return None


class LimitIndex:
    """Holds the current rule set."""

    def __init__(self) -> None:
        self.rules = RuleSet()

    def update(
        self,
        limits: tuple[Limit, ...],
        prices: tuple[Price, ...],
        families: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Replaces the rule set."""
        self.rules = RuleSet(limits, prices, families)
