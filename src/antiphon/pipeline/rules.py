"""The limits and prices that apply to requests, and what a request is accounted with where keys are on."""

from collections.abc import Mapping
from types import MappingProxyType

from antiphon.domain.identity import Actor, ActorKind, matches
from antiphon.domain.limits import Limit, Subject
from antiphon.domain.prices import Price, find_currency
from antiphon.domain.values import Struct, field
from antiphon.ledger.base import Ledger, Recorder
from antiphon.limits.base import Limiter
from antiphon.pipeline.late_settlements import LateSettlements

EXHAUSTED_SECONDS = 60.0
"""Seconds for which a limit stays in `ExhaustedLimits`."""


class RuleSet:
    """All limits and prices at one moment. A rule set never changes; a change of a limit makes a new one. The
    plans of requests (`pipeline.plans`) keep what they find here."""

    def __init__(
        self,
        limits: tuple[Limit, ...] = (),
        prices: tuple[Price, ...] = (),
        families: Mapping[str, str] = MappingProxyType({}),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """`families` maps the id of each successor key to the id of its first key. A limit of one key applies
        to its whole family. `names`: the names of projects, users and keys that have limits, by id."""
        self._prices = sorted(
            prices, key=lambda price: (len(price.models), price.since, price.id), reverse=True
        )
        self.currency = find_currency(prices)
        """Currency of all costs."""
        self._limits_by_target: dict[tuple[Subject, str], list[Limit]] = {}
        self._families = families
        self._names = names
        for limit in limits:
            is_key_limit = limit.subject is Subject.KEY
            target = families.get(limit.target, limit.target) if is_key_limit else limit.target
            self._limits_by_target.setdefault((limit.subject, target), []).append(limit)

    def find_limits(self, actor: Actor, model: str) -> tuple[Limit, ...]:
        """Returns every limit that applies to requests of this actor to this model: those of the actor's key,
        project and user, and of the model. A service key that acts for a user counts for its project alone:
        it cannot use up what the user has in other projects."""
        key = self._families.get(actor.id, actor.id)
        targets = [(Subject.KEY, key), (Subject.PROJECT, actor.project), (Subject.MODEL, model)]
        if actor.user is not None and actor.kind is not ActorKind.SERVICE_KEY:
            targets.append((Subject.USER, actor.user))
        return tuple(
            limit
            for target in targets
            for limit in self._limits_by_target.get(target, ())
            if limit.models is None or matches((limit.models,), model)
        )

    def describe_subject(self, limit: Limit) -> str:
        """Describes the subject of a limit by its name and id."""
        name = None if limit.subject is Subject.MODEL else self._names.get(limit.target)
        return f"{limit.subject} {f'{name} ({limit.target})' if name else limit.target}"

    def list_prices(self, model: str) -> tuple[Price, ...]:
        """Lists the prices of a model at all times. The first one that applies is used: the one with the
        longest matching pattern, and of several the latest."""
        return tuple(price for price in self._prices if matches((price.models,), model))


class LimitIndex:
    """Holds the current rule set."""

    def __init__(self) -> None:
        self.rules = RuleSet()

    def update(
        self,
        limits: tuple[Limit, ...],
        prices: tuple[Price, ...],
        families: Mapping[str, str] = MappingProxyType({}),
        names: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Replaces the rule set."""
        self.rules = RuleSet(limits, prices, families, names)


class ExhaustedLimits:
    """Limits that recently refused a request. Requests under these limits are reserved before their size is
    known. This class refuses nothing."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}
        """For each limit id, the monotonic seconds at which the limit is removed. The earliest comes
        first."""

    def __len__(self) -> int:
        """The number of these limits."""
        return len(self._until)

    def add(self, limit: Limit, now: float) -> None:
        """Adds a limit that refused a request. `now`: monotonic seconds."""
        self._until.pop(limit.id, None)
        self._until[limit.id] = now + EXHAUSTED_SECONDS
        while (
            self._until[oldest_id := next(iter(self._until))] <= now
        ):  # limits that no request uses any more
            del self._until[oldest_id]

    def includes_any(self, limits: tuple[Limit, ...], now: float) -> bool:
        """Whether one of these limits was exhausted recently. Removes the limits whose time has passed."""
        if not self._until:
            return False
        for id_ in [limit.id for limit in limits if limit.id in self._until]:
            if self._until[id_] > now:
                return True
            del self._until[id_]
        return False


class Accounting(Struct, frozen=True):
    """Limiter, ledger and prices, where keys are on."""

    limiter: Limiter
    ledger: Ledger
    limit_index: LimitIndex
    reserve_tokens: int
    """Output tokens that a request without a maximum reserves, at first and with each extension."""
    recorder: Recorder | None = None
    """Stores the texts of requests, for projects that turned it on."""
    exhausted: ExhaustedLimits = field(default_factory=ExhaustedLimits)
    late_settlements: LateSettlements | None = None
    """Waits for the usage of finished answers whose caller has left; None does not wait."""
