"""Prices of tokens: decimals and integers of money, currencies, and a price list over time. All amounts are
integers, so sums are exact."""

import re
from collections.abc import Iterable, Mapping, Sequence

from antiphon.domain.identity import matches
from antiphon.domain.values import Struct

DIGITS = 9
"""The most decimal places of an amount."""

NANO = 1_000_000_000
"""Nano-units of one unit."""

MAX_COST = 9_000_000_000 * NANO
"""The largest cost of one request, and the largest amount of a limit of cost. Databases, Redis and messages
hold integers below 2**63."""

DECIMAL = rf"^[0-9]{{1,7}}(\.[0-9]{{1,{DIGITS}}})?(?![\s\S])"
"""The form of a price's amount: `0.15`, `3`, `0.000000001`."""

_AMOUNT = re.compile(rf"[0-9]{{1,300}}(\.[0-9]{{1,{DIGITS}}})?")
"""The same form for larger amounts too, so that an error can say that an amount is too large."""


def parse_decimal(text: str) -> int | None:
    """Returns the nano-units of a decimal. Returns None for other texts, and for more than nine decimal
    places."""
    if _AMOUNT.fullmatch(text) is None:
        return None
    units, _, fraction = text.partition(".")
    return int(units) * NANO + int(fraction.ljust(DIGITS, "0"))


def format_decimal(amount: int) -> str:
    """Returns nano-units as the shortest exact decimal."""
    units, fraction = divmod(amount, NANO)
    return f"{units}.{fraction:0{DIGITS}}".rstrip("0").rstrip(".")


CENTS = 2
"""The fewest decimals in amounts for people."""


def format_money(amount: int) -> str:
    """Formats nano-units for people: exact, with at least two decimals and with thousands separators."""
    units, fraction = divmod(amount, NANO)
    return f"{units:,}." + f"{fraction:0{DIGITS}}".rstrip("0").ljust(CENTS, "0")


MILLION = 1_000_000
"""The number of tokens that a price is for."""


class Price(Struct, frozen=True):
    """The price of a model's tokens from a time on. Amounts are nano-units of the currency for a million
    tokens: 0.15 dollars for a million are 150,000,000."""

    id: str
    models: str
    """Pattern of model names."""
    currency: str
    """ISO 4217: `USD`. All costs of a server have one currency."""
    since: int
    """Unix seconds when the price begins to apply."""
    input: int
    output: int
    cached: int | None = None
    """The price of prompt tokens that were not computed again; None means `input`."""
    request: int = 0
    """Nano-units for each request."""
    until: int | None = None
    """Unix seconds when the price ceases to apply; None if no end is set."""
    created: int = 0
    note: str = ""

    def applies_at(self, at: int) -> bool:
        """Whether the price applies to requests that begin at that time (Unix seconds)."""
        return self.since <= at and (self.until is None or at < self.until)

    def is_over(self, now: int) -> bool:
        """Whether the price will never apply again. `now`: Unix seconds."""
        return self.until is not None and self.until <= max(now, self.since)

    @property
    def never_applies(self) -> bool:
        """Whether the price ends before it begins, so that it never applies."""
        return self.until is not None and self.until <= self.since

    def compute_max_cost(self, prompt_tokens: int, output_tokens: int) -> int:
        """Returns the highest cost of a request in nano-units, however many prompt tokens are cached."""
        cached_tokens = prompt_tokens if self.cached is not None and self.cached > self.input else 0
        return self.compute_cost(prompt_tokens, cached_tokens, output_tokens)

    def compute_cost(self, prompt_tokens: int, cached_tokens: int, output_tokens: int) -> int:
        """Returns the cost of one request in nano-units, at most MAX_COST. Halves are rounded up."""
        cached_price = self.input if self.cached is None else self.cached
        millionths = (
            (prompt_tokens - cached_tokens) * self.input
            + cached_tokens * cached_price
            + output_tokens * self.output
        )
        return min(MAX_COST, self.request + (2 * millionths + MILLION) // (2 * MILLION))


def find_unpriced(prices: Sequence[Price], models: Mapping[str, Iterable[str]], at: int) -> list[str]:
    """Returns the models without a price at that time (Unix seconds). `models`: for each model, the
    names of its routes in the price list. A model counts as unpriced if one of its routes has no price."""
    priced_patterns = [price.models for price in prices if price.applies_at(at)]
    return [
        model for model, names in models.items() if not all(matches(priced_patterns, name) for name in names)
    ]


def find_currency(prices: Sequence[Price]) -> str | None:
    """Returns the currency of all costs, which is the currency of the newest price; None without prices. All
    prices that apply at one time have the same currency. `prices`: in the order of their creation."""
    return prices[-1].currency if prices else None


CURRENCY_CODES = frozenset(
    """
    AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BGN BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD
    CDF CHF CLP CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF
    GTQ GYD HKD HNL HTG HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK
    LBP LKR LRD LSL LYD MAD MDL MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD
    OMR PAB PEN PGK PHP PKR PLN PYG QAR RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN
    SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XCG
    XOF XPF YER ZAR ZMW ZWG
    """.split()
)
"""The currency codes of ISO 4217, without funds, metals, test codes and the code for no currency."""
