"""Limits as the tests of every limiter want them."""

from antiphon.domain.limits import Amounts, Limit, Measure, Subject, Window

NOON = 1_800_014_400.0
"""A Friday, 2027-01-15 12:00:00 UTC."""


def limit(amount: int, measure: Measure = Measure.REQUESTS, window: Window | None = Window.MINUTE, id_="one"):
    if measure is Measure.CONCURRENT:
        window = None
    return Limit(f"limit_{id_}", Subject.KEY, "key_1", measure, amount, 0, window)


ONE = Amounts(requests=1)


def output_tokens(count: int) -> Amounts:
    return Amounts(output_tokens=count)
