"""What the rules remember of questions is bounded, whatever callers ask by; what they answer stays right."""

from antiphon.domain.identity import Actor, ActorKind
from antiphon.pipeline.rules import MOST_KEPT, Rules
from tests.support.accounting import PRICE, limit

MORE = 2 * MOST_KEPT + 7


def test_answers_about_limits_are_bounded() -> None:
    of = limit(key="key-1")
    rules = Rules((of,))
    for number in range(MORE):
        actor = Actor(ActorKind.SERVICE_KEY, "key-1", "default", f"user-{number}")
        assert rules.limits_of(actor, "m") == (of,)
    assert 0 < len(rules._answers) <= MOST_KEPT


def test_answers_about_prices_are_bounded() -> None:
    rules = Rules((), (PRICE,))
    for number in range(MORE):
        assert rules.price_of(f"adapter-{number}", 10) == PRICE
    assert 0 < len(rules._prices_of) <= MOST_KEPT
