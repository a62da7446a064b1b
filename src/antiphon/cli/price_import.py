"""Plans an import of vendors' prices: which models of this server get which price, and which get none and
why. It asks no server."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from antiphon.cli.output import Card
from antiphon.cli.price_data import PACKAGE, DatedPrice, ModelPrices, PriceData, PriceUnusable, list_dated
from antiphon.domain.identity import matches
from antiphon.domain.models import STAR
from antiphon.engines.profiles.presets import find_preset
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings, RouteSettings

CURRENCY = "USD"
"""The currency of all published prices."""


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What the user asks for."""

    now: int
    """Unix seconds."""
    provider: str | None = None
    """Only models of this provider."""
    model: str | None = None
    """Only models whose name at the vendor fits this pattern."""
    is_base: bool = False
    """Whether base prices stand for those that this server cannot express."""


@dataclass(slots=True)
class ImportPlan:
    """The prices to add, by name or pattern of models, and the models that get none, with the reason."""

    prices: dict[str, tuple[DatedPrice, ...]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)

    def skip_covered(self) -> None:
        """Removes patterns that would also price a model that was skipped."""
        for pattern in [name for name in self.prices if STAR in name]:
            if covered := next((name for name in self.skipped if matches([pattern], name)), None):
                del self.prices[pattern]
                self.skipped[pattern] = f"it also covers {covered}"

    def skip_priced(self, cards: Sequence[Card], now: int) -> None:
        """Removes models that have a price already. `cards`: the server's prices."""
        holding = [card for card in cards if not isinstance(until := card.get("until"), int) or until > now]
        for name, prices in list(self.prices.items()):
            own = [card for card in holding if not is_imported(card) and matches([str(card["models"])], name)]
            new = tuple(price for price in prices if not is_known(name, price, holding, now))
            if own:
                self.skipped[name] = f"it has a price of yours, {own[0].get('id')}"
            if own or not new:
                del self.prices[name]
            else:
                self.prices[name] = new


def is_imported(card: Card) -> bool:
    """Whether a price of the server comes from an import."""
    return str(card.get("note", "")).startswith(PACKAGE)


def is_known(name: str, price: DatedPrice, cards: Sequence[Card], now: int) -> bool:
    """Whether an earlier import added this price, and no later one holds."""
    imported = [card for card in cards if is_imported(card) and card.get("models") == name]
    started = [(since, card) for card in imported if isinstance(since := card.get("since"), int)]
    if price.since is None:
        current = [each for each in started if each[0] <= now]
        same = [max(current, key=lambda each: each[0])[1]] if current else []
    else:
        same = [card for since, card in started if since == price.since]
    amounts = (price.input, price.cached, price.output)
    return any((card.get("input"), card.get("cached"), card.get("output")) == amounts for card in same)


def plan_import(
    data: PriceData,
    providers: Mapping[str, ProviderSettings],
    models: Iterable[RoutedModelSettings],
    options: ImportOptions,
) -> ImportPlan:
    """Plans the prices of the configured models. A provider that the settings do not have is the preset of
    that name, whose models are called NAME/MODEL."""
    plan = ImportPlan()
    if options.provider is not None and options.provider not in providers:
        models = [RoutedModelSettings(name=f"{options.provider}/{STAR}", provider=options.provider)]
    for model in models:
        routes = model.list_routes()
        if options.provider is None or options.provider in [route.provider for route in routes]:
            _plan_model(
                plan, model.name, [_find_list(route, providers, data) for route in routes], routes, options
            )
    plan.skip_covered()
    return plan


def _plan_model(
    plan: ImportPlan,
    name: str,
    lists: Sequence[tuple[str, tuple[ModelPrices, ...]] | str],
    routes: Sequence[RouteSettings],
    options: ImportOptions,
) -> None:
    """Plans the prices of one configured model. `lists`: the price list of each route, or why there is
    none."""
    found: list[ImportPlan] = []
    for route, prices in zip(routes, lists, strict=True):
        if isinstance(prices, str):
            plan.skipped[name] = prices
            return
        found.append(_plan_route(name, route, prices, options))
    first, *others = found
    if any(other.prices != first.prices for other in others):
        plan.skipped[name] = "its routes have different prices"
        return
    plan.prices |= first.prices
    plan.skipped |= first.skipped


def _find_list(
    route: RouteSettings, providers: Mapping[str, ProviderSettings], data: PriceData
) -> tuple[str, tuple[ModelPrices, ...]] | str:
    """Returns the vendor of a route and its price list, or why there is none."""
    if route.provider is None:
        return "one of its routes is a local model"
    settings = providers.get(route.provider)
    preset = find_preset((settings and settings.preset) or route.provider)
    vendor = None if preset is None else preset.price_list
    if vendor is None or vendor not in data.vendors:
        return f"there is no price list of the provider {route.provider}"
    return vendor, data.vendors[vendor]


def _plan_route(
    name: str, route: RouteSettings, prices: tuple[str, tuple[ModelPrices, ...]], options: ImportOptions
) -> ImportPlan:
    """Plans the prices of one route of a configured model, or of a pattern of models."""
    vendor, models = prices
    plan = ImportPlan()
    fixed = route.model if route.model is not None or STAR in name else name
    for theirs, model in select_models(models, fixed, options.model):
        ours = name.replace(STAR, theirs) if fixed is None else name
        if model is None:
            plan.skipped[ours] = f"the price list does not have {theirs}"
            continue
        try:
            plan.prices[ours] = tuple(list_dated(vendor, model, options.now, options.is_base))
        except PriceUnusable as unusable:
            plan.skipped[ours] = str(unusable)
    return plan


def select_models(
    models: Sequence[ModelPrices], fixed: str | None, wanted: str | None
) -> Iterator[tuple[str, ModelPrices | None]]:
    """Yields names of a vendor's models with their prices. `fixed`: the only model. `wanted`: a pattern of
    names."""
    if fixed is not None:
        if wanted is None or matches([wanted], fixed):
            yield fixed, find_model(models, fixed)
    elif wanted is not None and STAR not in wanted:
        yield wanted, find_model(models, wanted)
    else:
        for model in models:
            if not model.deprecated and matches([wanted or STAR], model.id):
                yield from ((name, model) for name in model.list_names())


def find_model(models: Sequence[ModelPrices], name: str) -> ModelPrices | None:
    """Returns the prices of a model by its name. An exact name goes before a pattern, and a longer pattern
    before a shorter one."""
    fitting = [
        (STAR not in pattern, len(pattern), at)
        for at, model in enumerate(models)
        for pattern in model.list_names()
        if matches([pattern], name)
    ]
    return models[max(fitting)[2]] if fitting else None
