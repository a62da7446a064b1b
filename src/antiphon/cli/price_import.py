"""Plans an import of vendors' prices, with a reason for each skipped model. No request is sent."""

from collections.abc import Iterable, Iterator, Mapping, Sequence

from antiphon.cli.output import Card
from antiphon.cli.price_data import (
    PACKAGE,
    DatedPrice,
    ModelPrices,
    PriceData,
    PriceUnusable,
    list_dated_prices,
)
from antiphon.domain.identity import matches
from antiphon.domain.models import STAR
from antiphon.domain.values import Struct, field
from antiphon.engines.profiles.presets import find_preset
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings

CURRENCY = "USD"
"""The currency of all published prices."""


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

    def skip_priced_models(self, cards: Sequence[Card], now: int) -> None:
        """Removes models that already have a price. `cards`: the server's prices."""
        current_cards = [
            card for card in cards if not isinstance(until := card.get("until"), int) or until > now
        ]
        for name, prices in list(self.prices.items()):
            own_prices = [
                card
                for card in current_cards
                if not is_imported(card) and matches([str(card["models"])], name)
            ]
            new_prices = tuple(
                price for price in prices if not was_imported_before(name, price, current_cards, now)
            )
            if own_prices:
                self.skipped[name] = f"it has your own price {own_prices[0].get('id')}"
            if own_prices or not new_prices:
                del self.prices[name]
            else:
                self.prices[name] = new_prices


def is_imported(card: Card) -> bool:
    return str(card.get("note", "")).startswith(PACKAGE)


def was_imported_before(name: str, price: DatedPrice, cards: Sequence[Card], now: int) -> bool:
    """Whether an earlier import added the same price with the same start."""
    imported_cards = [card for card in cards if is_imported(card) and card.get("models") == name]
    starts = [(since, card) for card in imported_cards if isinstance(since := card.get("since"), int)]
    if price.since is None:
        past_starts = [start for start in starts if start[0] <= now]
        matching_cards = [max(past_starts, key=lambda start: start[0])[1]] if past_starts else []
    else:
        matching_cards = [card for since, card in starts if since == price.since]
    amounts = (price.input, price.cached, price.output)
    return any(
        (card.get("input"), card.get("cached"), card.get("output")) == amounts for card in matching_cards
    )


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
