"""Limits in words: as commands take them, and as people read them."""

from antiphon.cli.admin import Card
from antiphon.cli.client import CallFailed
from antiphon.domain.limits import Measure, Window, beyond
from antiphon.domain.money import decimal, nanos
from antiphon.errors import SettingsError

LONGEST = 300
"""Digits of a number."""


def asked(text: str) -> Card:
    """A limit of a key as the server takes it, of `requests=600/minute`, `cost=12.50/month` or
    `concurrent=4`. Raises SettingsError and CallFailed."""
    name, _, rest = text.partition("=")
    amount, _, window = rest.partition("/")
    if name not in set(Measure) or not amount:
        raise SettingsError(
            f"{text!r} is no limit: say what it counts, how much and in which time, as requests=600/minute, "
            f"cost=12.50/month or concurrent=4; counted are {', '.join(Measure)}"
        )
    measure = Measure(name)
    require_window(measure, window or None, "/", f"{name}={amount}")
    said: Card = {"measure": name, "amount": units(measure, amount)}
    return said | ({"window": window} if window else {})


def require_window(measure: Measure, window: str | None, mark: str, said: str = "") -> None:
    """Raises SettingsError where a measure is counted in another time than is said. `mark`: what
    stands before the window where a caller says one; `said`: what stands before that."""
    if measure is Measure.CONCURRENT and window is not None:
        raise SettingsError(f"{measure} is counted at once: leave {mark}{window} out")
    if measure is not Measure.CONCURRENT and window not in set(Window):
        windows = f"{', '.join(list(Window)[:-1])} or {list(Window)[-1]}"
        raise SettingsError(f"{measure} is counted in a time: say {said}{mark}{windows}")


def units(measure: Measure, amount: str) -> int:
    """As the server counts: of cost nano-units. Raises CallFailed."""
    is_number = amount.isascii() and amount.isdecimal() and len(amount) <= LONGEST
    of_cost = measure is Measure.COST
    counted = nanos(amount) if of_cost else int(amount) if is_number else None
    if counted is None:
        taken = "a decimal, at most nine digits behind the point, as 12.50" if of_cost else "an integer"
        raise CallFailed(f"{amount} is no amount of {measure}: it must be {taken}")
    if (problem := beyond(measure, counted)) is not None:
        raise CallFailed(problem)
    return counted


def amount_of(card: Card, name: str) -> str:
    """A field of a limit's card."""
    amount = card.get(name)
    if not isinstance(amount, int):
        return "-"
    return decimal(amount) if card.get("measure") == Measure.COST else str(amount)


def phrase(card: Card) -> str:
    """What a limit limits: `600 requests per minute`."""
    window = card.get("window")
    often = "at once" if window is None else f"per {window}"
    noun = "requests" if card.get("measure") == Measure.CONCURRENT else str(card.get("measure"))
    return f"{amount_of(card, 'amount')} {noun.replace('_', ' ')} {often}"


def phrases(cards: object) -> str:
    """All of a key's, with the models that they are for."""
    found = [each for each in cards if isinstance(each, dict)] if isinstance(cards, list) else []
    return ", ".join(
        phrase(card) + ("" if card.get("models") is None else f" to {card.get('models')}") for card in found
    )
