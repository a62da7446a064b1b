"""What the rules remember of questions is bounded, whatever callers ask by; what they answer stays right."""

from antiphon.domain.identity import Actor, ActorKind
from antiphon.pipeline.rules import MAX_CACHE_ENTRIES, RuleSet
from tests.support.accounting import PRICE, limit

MORE = 2 * MAX_CACHE_ENTRIES + 7


def test_answers_about_limits_are_bounded() -> None:
    of = limit(key="key-1")
    rules = RuleSet((of,))
    for number in range(MORE):
        actor = Actor(ActorKind.SERVICE_KEY, "key-1", "default", f"user-{number}")
        assert rules.find_limits(actor, "m") == (of,)
    assert 0 < len(rules._limits_by_request) <= MAX_CACHE_ENTRIES


def test_answers_about_prices_are_bounded() -> None:
    rules = RuleSet((), (PRICE,))
    for number in range(MORE):
        assert rules.find_price(f"adapter-{number}", 10) == PRICE
    assert 0 < len(rules._prices_by_model) <= MAX_CACHE_ENTRIES
