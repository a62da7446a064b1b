"""Reads prices of vendors' models, and plans their import with a reason for each skipped model.

The prices have the format of the package genai-prices. The source is the installed package, or a file such as
the data.json of its repository. No request is sent.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

import msgspec

from antiphon.cli.output import JsonObject
from antiphon.domain.identity import matches
from antiphon.domain.models import STAR
from antiphon.domain.prices import DIGITS
from antiphon.domain.values import Struct, field
from antiphon.engines.vendors.profiles import find_preset
from antiphon.errors import SettingsError, explain_extra
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings

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


CURRENCY = "USD"
"""The currency of all published prices."""


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
    prices: Amounts | list[ConditionalAmounts] = field(default_factory=dict)
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
    except OSError as error:
        raise SettingsError(f"{file or PACKAGE} cannot be read: {error.strerror or error}") from error
    except (msgspec.MsgspecError, RecursionError) as error:
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


class ImportOptions(Struct, frozen=True):
    """The user's options for an import."""

    now: int
    """Unix seconds."""
    provider: str | None = None
    """Only models of this provider."""
    model: str | None = None
    """Only models whose name at the vendor matches this pattern."""
    uses_base: bool = False
    """Whether base prices replace prices that this server cannot express."""


class ImportPlan(Struct):
    """The prices to add, by model name or pattern, and the reasons of skipped models."""

    prices: dict[str, tuple[DatedPrice, ...]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def skip_covering_patterns(self) -> None:
        """Removes patterns that would also set the price of a skipped model."""
        for pattern in [name for name in self.prices if STAR in name]:
            if skipped_name := next((name for name in self.skipped if matches([pattern], name)), None):
                del self.prices[pattern]
                self.skipped[pattern] = f"it also covers {skipped_name}"

    def skip_priced_models(self, server_prices: Sequence[JsonObject], now: int) -> None:
        """Removes models that already have a price. `server_prices`: the prices that the server has."""
        current_rows = [
            row for row in server_prices if not isinstance(until := row.get("until"), int) or until > now
        ]
        for name, prices in list(self.prices.items()):
            own_prices = [
                row for row in current_rows if not is_imported(row) and matches([str(row["models"])], name)
            ]
            new_prices = tuple(
                price for price in prices if not was_imported_before(name, price, current_rows, now)
            )
            if own_prices:
                self.skipped[name] = f"it has your own price {own_prices[0].get('id')}"
            if own_prices or not new_prices:
                del self.prices[name]
            else:
                self.prices[name] = new_prices


def is_imported(row: JsonObject) -> bool:
    return str(row.get("note", "")).startswith(PACKAGE)


def was_imported_before(name: str, price: DatedPrice, server_prices: Sequence[JsonObject], now: int) -> bool:
    """Whether an earlier import added the same price with the same start."""
    imported_rows = [row for row in server_prices if is_imported(row) and row.get("models") == name]
    starts = [(since, row) for row in imported_rows if isinstance(since := row.get("since"), int)]
    if price.since is None:
        past_starts = [start for start in starts if start[0] <= now]
        matching_rows = [max(past_starts, key=lambda start: start[0])[1]] if past_starts else []
    else:
        matching_rows = [row for since, row in starts if since == price.since]
    amounts = (price.input, price.cached, price.output)
    return any((row.get("input"), row.get("cached"), row.get("output")) == amounts for row in matching_rows)


def plan_import(
    data: PriceData,
    providers: Mapping[str, ProviderSettings],
    models: Iterable[RoutedModelSettings],
    options: ImportOptions,
) -> ImportPlan:
    """Plans the prices of the vendors' models of all routes, by PROVIDER/MODEL.

    If the settings have no provider of a name, the preset of that name applies.
    """
    plan = ImportPlan()
    vendor_models = dict.fromkeys(list_vendor_models(models))
    if options.provider is not None:
        vendor_models = {(name, model): None for name, model in vendor_models if name == options.provider}
        vendor_models = vendor_models or {(options.provider, STAR): None}
    for provider, model in vendor_models:
        settings = providers.get(provider)
        preset = find_preset((settings and settings.preset) or provider)
        vendor = None if preset is None else preset.price_list
        if vendor is None or vendor not in data.vendors:
            plan.skipped[f"{provider}/{model}"] = f"there is no price list of the provider {provider}"
        else:
            _plan_models(
                plan, f"{provider}/", vendor, select_models(data.vendors[vendor], model, options), options
            )
    plan.skip_covering_patterns()
    return plan


def list_vendor_models(models: Iterable[RoutedModelSettings]) -> Iterator[tuple[str, str]]:
    """Yields the provider and the vendor's model of each route.

    The model is a pattern if callers choose the vendor's model.
    """
    for model in models:
        pattern = STAR if STAR in model.name else model.name
        for route in model.list_routes():
            if route.provider is not None:
                yield route.provider, pattern if route.model is None else route.model


def _plan_models(
    plan: ImportPlan,
    prefix: str,
    vendor: str,
    models: Iterable[tuple[str, ModelPrices | None]],
    options: ImportOptions,
) -> None:
    """Plans the prices of some models of a vendor. `prefix`: the provider with a slash, which begins their
    names on this server."""
    for name, model in models:
        if model is None:
            plan.skipped[prefix + name] = "the price list does not contain it"
            continue
        try:
            plan.prices[prefix + name] = tuple(
                list_dated_prices(vendor, model, options.now, options.uses_base)
            )
        except PriceUnusable as unusable:
            plan.skipped[prefix + name] = str(unusable)


def select_models(
    models: Sequence[ModelPrices], configured: str, options: ImportOptions
) -> Iterator[tuple[str, ModelPrices | None]]:
    """Yields names of a vendor's models with their prices; None without a price.

    `configured`: a name or a pattern.
    """
    if STAR not in configured:
        if options.model is None or matches([options.model], configured):
            yield configured, find_model(models, configured)
    elif options.model is not None and STAR not in options.model:
        yield options.model, find_model(models, options.model)
    else:
        for model in models:
            is_selected = matches([configured], model.id) and matches([options.model or STAR], model.id)
            if is_selected and not model.deprecated:
                yield from ((name, model) for name in model.list_names())


def find_model(models: Sequence[ModelPrices], name: str) -> ModelPrices | None:
    """Returns the prices of a model by its name. An exact name comes before a pattern, a longer pattern
    before a shorter one."""
    candidates = [
        (STAR not in pattern, len(pattern), index)
        for index, model in enumerate(models)
        for pattern in model.list_names()
        if matches([pattern], name)
    ]
    return models[max(candidates)[2]] if candidates else None
