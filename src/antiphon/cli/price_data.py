"""Reads prices of vendors' models in the format of the package genai-prices: from the installed package, or
from a file such as the data.json of its repository. It asks no server."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
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
"""Digits before the point of a price that the server takes."""

INPUT, CACHED, OUTPUT = "input_mtok", "cache_read_mtok", "output_mtok"

UNUSED = frozenset(
    """
    web_searches_kcount storage_searches_kcount cache_write_mtok cache_write_5m_mtok cache_write_1h_mtok
    """.split()
)
"""Prices of what no request of this server orders: searches of the vendor, and marked prefixes to keep."""

ORDERED_WRITES = "anthropic"
"""The vendor that keeps a prefix only where a request marks it. Others keep prefixes unasked."""


class TieredAmount(Struct, frozen=True):
    """An amount that depends on the length of the prompt."""

    base: Decimal


Amounts = dict[str, Decimal | TieredAmount | None]
"""Dollars for a million tokens, by kind of token."""


class PriceCondition(Struct, frozen=True):
    """When a price applies. Without a date it is an hour of the day."""

    start_date: date | None = None


class ConditionalAmounts(Struct, frozen=True):
    """Amounts that apply under a condition."""

    prices: Amounts
    constraint: PriceCondition | None = None


class NameClause(Struct, frozen=True):
    """A rule of names that a model has."""

    equals: str | None = None
    starts_with: str | None = None
    any_of: "tuple[NameClause, ...]" = field(default=(), name="or")

    def list_patterns(self) -> Iterator[str]:
        """Yields patterns of names. Rules that a pattern cannot express yield nothing."""
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
        """Returns the names and patterns of names of the model, without those that a pattern covers."""
        names = dict.fromkeys([self.id, *self.match.list_patterns()])
        starts = [name[:-1] for name in names if name.endswith("*")]
        return [
            name
            for name in names
            if not any(name.startswith(start) and name != f"{start}*" for start in starts)
        ]


class VendorPrices(Struct, frozen=True):
    """The prices of one vendor."""

    id: str
    models: tuple[ModelPrices, ...]


@dataclass(frozen=True, slots=True)
class DatedPrice:
    """One price of a model that this server can express: decimal texts of dollars for a million tokens."""

    input: str
    output: str
    cached: str | None
    since: int | None
    """Unix seconds; None is now."""


class PriceUnusable(Exception):
    """A price that this server cannot express. The message tells why."""


@dataclass(frozen=True, slots=True)
class PriceData:
    """The prices of all vendors."""

    vendors: Mapping[str, tuple[ModelPrices, ...]]
    source: str
    """What prices of it are marked with: `genai-prices 0.2.3`."""


def read_prices(file: Path | None) -> PriceData:
    """Reads a file, or the installed package. Raises SettingsError."""
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
    public = ((name, item) for name, item in vars(value).items() if not name.startswith("_"))
    return {name.rstrip("_"): convert_tree(item) for name, item in public if item is not None}


def list_dated(vendor: str, model: ModelPrices, now: int, is_base: bool) -> list[DatedPrice]:
    """Returns the price that applies now, and those that will apply. `now`: Unix seconds. `is_base`: whether
    the base price stands for one that this server cannot express. Raises PriceUnusable."""
    if isinstance(model.prices, dict):
        return [build_price(vendor, model.prices, None, is_base)]
    dated: dict[int, Amounts] = {}
    for each in model.prices:
        start = None if each.constraint is None else each.constraint.start_date
        if start is None and each.constraint is not None and not is_base:
            raise PriceUnusable("its price depends on the hour")
        if start is not None or each.constraint is None:
            dated[count_seconds(start)] = each.prices
    current = max((start for start in dated if start <= now), default=None)
    return [
        build_price(vendor, amounts, None if start == current else start, is_base)
        for start, amounts in sorted(dated.items())
        if start > now or start == current
    ]


def count_seconds(start: date | None) -> int:
    """Returns the Unix seconds of a day's beginning in UTC. None is the beginning of time."""
    return 0 if start is None else int(datetime(start.year, start.month, start.day, tzinfo=UTC).timestamp())


def build_price(vendor: str, amounts: Amounts, since: int | None, is_base: bool) -> DatedPrice:
    """Builds a price of amounts. Raises PriceUnusable."""
    amounts_given = {name: amount for name, amount in amounts.items() if amount is not None}
    if INPUT not in amounts_given:
        raise PriceUnusable("it has no price of input tokens")
    unknown_names = amounts_given.keys() - {INPUT, CACHED, OUTPUT} - UNUSED
    writes = {name for name in amounts_given if name.startswith("cache_write")}
    if not is_base:
        if unknown_names:
            raise PriceUnusable(f"it has prices of other kinds: {', '.join(sorted(unknown_names))}")
        if writes and vendor != ORDERED_WRITES:
            raise PriceUnusable("tokens that are written to its cache have a price of their own")
        if any(isinstance(amount, TieredAmount) for amount in amounts_given.values()):
            raise PriceUnusable("its price depends on the length of the prompt")
    cached = amounts_given.get(CACHED)
    return DatedPrice(
        format_amount(amounts_given[INPUT]),
        format_amount(amounts_given.get(OUTPUT, Decimal(0))),
        None if cached is None else format_amount(cached),
        since,
    )


def format_amount(amount: Decimal | TieredAmount) -> str:
    """Returns an amount as the decimal text of a price. Raises PriceUnusable."""
    exact = amount.base if isinstance(amount, TieredAmount) else amount
    if not exact.is_finite() or exact.adjusted() >= MAX_DIGITS:
        raise PriceUnusable(f"{exact} is no amount of dollars")
    text = f"{exact:f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    if exact < 0 or len(text.partition(".")[2]) > DIGITS:
        raise PriceUnusable(f"{text} has more than {DIGITS} decimal places, or is negative")
    return text
