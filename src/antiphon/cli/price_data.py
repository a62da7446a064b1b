"""Reads prices of vendors' models in the format of the package genai-prices.

The source is the installed package, or a file such as the data.json of its repository. No request is sent.
"""

from collections.abc import Iterator, Mapping
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import msgspec
from msgspec import Struct, field

from antiphon.domain.prices import DIGITS
from antiphon.errors import SettingsError, explain_extra

PACKAGE = "genai-prices"

MAX_DIGITS = 7
"""The most digits before the decimal point of a price."""

INPUT, CACHED, OUTPUT = "input_mtok", "cache_read_mtok", "output_mtok"

UNUSED_PRICES = frozenset(
    """
    web_searches_kcount storage_searches_kcount cache_write_mtok cache_write_5m_mtok cache_write_1h_mtok
    """.split()
)
"""Prices of services that this server never requests: the vendor's searches, and prefixes marked for a
cache."""

EXPLICIT_CACHE_VENDOR = "anthropic"
"""The vendor that caches a prefix only if a request marks it."""


class TieredAmount(Struct, frozen=True):
    """An amount that depends on the length of the prompt."""

    base: Decimal


Amounts = dict[str, Decimal | TieredAmount | None]
"""Dollars for a million tokens, by kind of token."""


class PriceCondition(Struct, frozen=True):
    """The condition under which a price applies: from a date on, or without `start_date`, at some hours of
    the day."""

    start_date: date | None = None


class ConditionalAmounts(Struct, frozen=True):
    """Amounts that apply under a condition."""

    prices: Amounts
    constraint: PriceCondition | None = None


class NameClause(Struct, frozen=True):
    """A rule for the names of a model."""

    equals: str | None = None
    starts_with: str | None = None
    any_of: "tuple[NameClause, ...]" = field(default=(), name="or")

    def list_patterns(self) -> Iterator[str]:
        """Yields patterns of names. Skips rules that a pattern cannot express."""
        if self.equals is not None:
            yield self.equals
        elif self.starts_with is not None:
            yield f"{self.starts_with}*"
        for clause in self.any_of:
            yield from clause.list_patterns()


class ModelPrices(Struct, frozen=True):
    """The prices of one model of a vendor."""

    id: str
    match: NameClause = NameClause()
    prices: Amounts | list[ConditionalAmounts] = {}
    deprecated: bool | None = None

    def list_names(self) -> list[str]:
        """Returns the names and name patterns of the model, without names that a pattern covers."""
        names = dict.fromkeys([self.id, *self.match.list_patterns()])
        prefixes = [name[:-1] for name in names if name.endswith("*")]
        return [
            name
            for name in names
            if not any(name.startswith(prefix) and name != f"{prefix}*" for prefix in prefixes)
        ]


class VendorPrices(Struct, frozen=True):
    """The prices of one vendor."""

    id: str
    models: tuple[ModelPrices, ...]


class DatedPrice(Struct, frozen=True):
    """One price of a model in dollars for a million tokens, as decimal texts."""

    input: str
    output: str
    cached: str | None
    since: int | None
    """Unix seconds; None for now."""


class PriceUnusable(Exception):
    """Raised for a price that the server cannot express. The message gives the reason."""


class PriceData(Struct, frozen=True):
    """The prices of all vendors."""

    vendors: Mapping[str, tuple[ModelPrices, ...]]
    source: str
    """The note of imported prices, such as `genai-prices 0.2.3`."""


def read_prices(file: Path | None) -> PriceData:
    """Reads prices from a file, or from the installed package. Raises SettingsError."""
    try:
        if file is None:
            tree = convert_tree(import_module("genai_prices.data").providers)
            vendors = msgspec.convert(tree, tuple[VendorPrices, ...])
            source = f"{PACKAGE} {version(PACKAGE)}"
        else:
            vendors = msgspec.json.decode(file.read_bytes(), type=tuple[VendorPrices, ...])
            source = f"{PACKAGE} {file.name}"
    except ImportError as missing:
        raise SettingsError(
            f"the package genai-prices is not installed: {explain_extra('prices')}; or give --file with the "
            "data.json of its repository"
        ) from missing
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        raise SettingsError(
            f"{file or PACKAGE} has no prices in the format of genai-prices: {error}"
        ) from error
    return PriceData({vendor.id: vendor.models for vendor in vendors}, source)


def convert_tree(value: object) -> object:
    """Converts objects of the package to the dictionaries of its JSON format."""
    if isinstance(value, list | tuple):
        return [convert_tree(item) for item in value]
    if isinstance(value, Decimal | date | time | str | int | dict | None):
        return value
    public_fields = ((name, item) for name, item in vars(value).items() if not name.startswith("_"))
    return {name.rstrip("_"): convert_tree(item) for name, item in public_fields if item is not None}


def list_dated_prices(vendor: str, model: ModelPrices, now: int, uses_base: bool) -> list[DatedPrice]:
    """Returns the current price and the future prices. `now`: Unix seconds.

    `uses_base`: whether the base price replaces prices that this server cannot express. Raises PriceUnusable.
    """
    if isinstance(model.prices, dict):
        return [build_price(vendor, model.prices, None, uses_base)]
    amounts_by_start: dict[int, Amounts] = {}
    for conditional in model.prices:
        start = None if conditional.constraint is None else conditional.constraint.start_date
        if start is None and conditional.constraint is not None and not uses_base:
            raise PriceUnusable("its price depends on the hour")
        if start is not None or conditional.constraint is None:
            amounts_by_start[to_unix_seconds(start)] = conditional.prices
    current_start = max((start for start in amounts_by_start if start <= now), default=None)
    return [
        build_price(vendor, amounts, None if start == current_start else start, uses_base)
        for start, amounts in sorted(amounts_by_start.items())
        if start > now or start == current_start
    ]


def to_unix_seconds(start: date | None) -> int:
    """Returns the start of a day in UTC as Unix seconds; 0 for None."""
    return 0 if start is None else int(datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp())


def build_price(vendor: str, amounts: Amounts, since: int | None, uses_base: bool) -> DatedPrice:
    """Builds a price from amounts. Raises PriceUnusable."""
    known_amounts = {name: amount for name, amount in amounts.items() if amount is not None}
    if INPUT not in known_amounts:
        raise PriceUnusable("it has no price of input tokens")
    unknown_names = known_amounts.keys() - {INPUT, CACHED, OUTPUT} - UNUSED_PRICES
    cache_writes = {name for name in known_amounts if name.startswith("cache_write")}
    if not uses_base:
        if unknown_names:
            raise PriceUnusable(f"it has prices of other kinds: {', '.join(sorted(unknown_names))}")
        if cache_writes and vendor != EXPLICIT_CACHE_VENDOR:
            raise PriceUnusable("writing tokens to the cache has its own price")
        if any(isinstance(amount, TieredAmount) for amount in known_amounts.values()):
            raise PriceUnusable("its price depends on the length of the prompt")
    cached = known_amounts.get(CACHED)
    return DatedPrice(
        format_amount(known_amounts[INPUT]),
        format_amount(known_amounts.get(OUTPUT, Decimal(0))),
        None if cached is None else format_amount(cached),
        since,
    )


def format_amount(amount: Decimal | TieredAmount) -> str:
    """Formats an amount as a decimal text. Raises PriceUnusable."""
    dollars = amount.base if isinstance(amount, TieredAmount) else amount
    if not dollars.is_finite() or dollars.adjusted() >= MAX_DIGITS:
        raise PriceUnusable(f"{dollars} is no amount of dollars")
    text = f"{dollars:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if dollars < 0 or len(text.partition(".")[2]) > DIGITS:
        raise PriceUnusable(f"{text} has more than {DIGITS} decimal places, or is negative")
    return text
