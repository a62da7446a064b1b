"""`antiphon prices import`: which published prices become prices of this server, and which do not and why."""

import json
from decimal import Decimal
from importlib import import_module
from pathlib import Path

import pytest

from antiphon.cli.price_import import (
    DatedPrice,
    ImportOptions,
    ImportPlan,
    PriceData,
    convert_tree,
    plan_import,
    read_prices,
)
from antiphon.errors import SettingsError
from antiphon.settings.providers import ProviderSettings, RoutedModelSettings, RouteSettings
from tests.cli.conftest import Run
from tests.cli.scripted import *  # noqa: F403 - fixtures are found by their names; `__all__` lists them
from tests.cli.scripted import Scripted, page

NOW = 1_790_000_000
SOON = 1_798_761_600
"""2027-01-01."""
PLAIN = {"input_mtok": 0.15, "cache_read_mtok": 0.075, "output_mtok": 0.6, "web_searches_kcount": 10}
TIERED = {"input_mtok": {"base": 2, "tiers": [{"start": 200_000, "price": 4}]}, "output_mtok": 10}
DATA = [
    {
        "id": "openai",
        "name": "OpenAI",
        "models": [
            {
                "id": "plain",
                "match": {"or": [{"equals": "plain"}, {"equals": "plain-2025"}, {"regex": "^plain-x$"}]},
                "prices": PLAIN,
            },
            {"id": "tiered", "match": {"equals": "tiered"}, "prices": TIERED},
            {
                "id": "dated",
                "match": {"starts_with": "dated"},
                "prices": [
                    {"prices": {"input_mtok": 9, "output_mtok": 9}},
                    {"constraint": {"start_date": "2026-03-13"}, "prices": {"input_mtok": 5}},
                    {"constraint": {"start_date": "2027-01-01"}, "prices": {"input_mtok": 4}},
                ],
            },
            {
                "id": "hourly",
                "match": {"equals": "hourly"},
                "prices": [
                    {"prices": {"input_mtok": 1, "output_mtok": 2}},
                    {"constraint": {"start_time": "01:00:00Z", "end_time": "04:00:00Z"}, "prices": TIERED},
                ],
            },
            {
                "id": "hearing",
                "match": {"equals": "hearing"},
                "prices": {"input_mtok": 1, "input_audio_mtok": 3},
            },
            {"id": "exact", "match": {"equals": "exact"}, "prices": {"input_mtok": 0.0000000001}},
            {
                "id": "writing",
                "match": {"equals": "writing"},
                "prices": {"input_mtok": 1, "cache_write_mtok": 2},
            },
            {"id": "old", "match": {"equals": "old"}, "prices": PLAIN, "deprecated": True},
        ],
    },
    {
        "id": "anthropic",
        "models": [
            {
                "id": "claude-a",
                "match": {"or": [{"starts_with": "claude-a"}, {"starts_with": "claude-b"}]},
                "prices": {
                    "input_mtok": 3,
                    "cache_read_mtok": 0.3,
                    "cache_write_mtok": 3.75,
                    "output_mtok": 15,
                },
            },
            {"id": "claude-a-long", "match": {"equals": "claude-a-long"}, "prices": TIERED},
        ],
    },
]
PRICE = DatedPrice("0.15", "0.6", "0.075", None)
PROVIDERS = {"first": ProviderSettings(preset="openai"), "own": ProviderSettings(preset="vllm")}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.json"
    path.write_text(json.dumps(DATA))
    return path


@pytest.fixture
def data(file: Path) -> PriceData:
    return read_prices(file)


def plan(data: PriceData, *models: RoutedModelSettings, base: bool = False, **options: str) -> ImportPlan:
    return plan_import(data, PROVIDERS, models, ImportOptions(NOW, uses_base=base, **options))


def test_a_pattern_of_models_gets_prices_of_the_vendors_models(data: PriceData) -> None:
    found = plan(data, RoutedModelSettings(name="first/*", provider="first"))
    assert found.prices["first/plain"] == found.prices["first/plain-2025"] == (PRICE,)
    assert {name.removeprefix("first/") for name in found.prices} == {"plain", "plain-2025", "dated*"}


def test_a_price_that_cannot_be_expressed_is_skipped_by_name(data: PriceData) -> None:
    skipped = plan(data, RoutedModelSettings(name="first/*", provider="first")).skipped
    assert {name.removeprefix("first/"): reason for name, reason in skipped.items()} == {
        "tiered": "its price depends on the length of the prompt",
        "hourly": "its price depends on the hour",
        "hearing": "it has prices of other kinds: input_audio_mtok",
        "exact": "0.0000000001 has more than 9 decimal places, or is negative",
        "writing": "writing tokens to the cache has its own price",
    }


@pytest.mark.parametrize("amount", ["NaN", "Infinity", "1e999999", "10000000"])
def test_an_amount_that_is_no_price_is_skipped(tmp_path: Path, amount: str) -> None:
    file = tmp_path / "data.json"
    vendor = {"id": "openai", "models": [{"id": "odd", "prices": {"input_mtok": amount}}]}
    file.write_text(json.dumps([vendor]))
    found = plan_import(read_prices(file), {}, (), ImportOptions(NOW, provider="openai"))
    assert not found.prices and "no amount of dollars" in found.skipped["openai/odd"]


def test_a_file_that_is_too_deep_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "data.json"
    deep = '{"or": [' * 9000 + "]}" * 9000
    file.write_text(f'[{{"id": "openai", "models": [{{"id": "a", "match": {deep}}}]}}]')
    with pytest.raises(SettingsError, match="no prices in the format"):
        read_prices(file)


def test_base_prices_are_taken_when_the_user_wants_them(data: PriceData) -> None:
    found = plan(data, RoutedModelSettings(name="first/*", provider="first"), base=True)
    assert found.prices["first/tiered"] == (DatedPrice("2", "10", None, None),)
    assert found.prices["first/hourly"] == (DatedPrice("1", "2", None, None),)
    assert set(found.skipped) == {"first/exact"}


def test_a_price_begins_at_its_own_date(data: PriceData) -> None:
    found = plan(data, RoutedModelSettings(name="it", provider="first", model="dated-2026"))
    assert found.prices["first/dated-2026"] == (
        DatedPrice("5", "0", None, None),
        DatedPrice("4", "0", None, SOON),
    )


def test_prices_follow_the_models_of_routes(data: PriceData) -> None:
    routes = (
        RouteSettings("first", model="plain"),
        RouteSettings("first", model="dated-2026", order=2),
        RouteSettings("own", model="plain"),
        RouteSettings("first", model="nobody"),
        RouteSettings(engine="cantor"),
    )
    found = plan(data, RoutedModelSettings(name="either", routes=routes))
    assert set(found.prices) == {"first/plain", "first/dated-2026"}
    assert found.skipped == {
        "own/plain": "there is no price list of the provider own",
        "first/nobody": "the price list does not contain it",
    }


def test_a_routed_name_is_the_vendors_where_a_route_says_none(data: PriceData) -> None:
    assert set(plan(data, RoutedModelSettings(name="plain", provider="first")).prices) == {"first/plain"}


def test_a_pattern_that_covers_a_skipped_model_is_skipped(data: PriceData) -> None:
    found = plan(data, provider="anthropic")
    assert set(found.prices) == {"anthropic/claude-b*"}
    assert found.skipped["anthropic/claude-a*"] == "it also covers anthropic/claude-a-long"


def test_one_model_can_be_chosen(data: PriceData) -> None:
    assert set(plan(data, provider="openai", model="pl*").prices) == {"openai/plain", "openai/plain-2025"}
    assert set(plan(data, provider="anthropic", model="claude-a-1").prices) == {"anthropic/claude-a-1"}
    models = [RoutedModelSettings(name=f"{name}-*", provider=name) for name in PROVIDERS]
    assert set(plan(data, *models, provider="first", model="plain").prices) == {"first/plain"}


def test_a_file_without_prices_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"models": []}')
    with pytest.raises(SettingsError, match="format of genai-prices"):
        read_prices(tmp_path / "a.json")


def test_the_installed_package_has_prices_of_every_list() -> None:
    data = read_prices(None)
    assert data.source.startswith("genai-prices 0.")
    assert {"openai", "anthropic", "google", "x-ai", "mistral"} <= set(data.vendors)
    found = plan(data, provider="openai", model="gpt-4o-mini")
    assert found.prices == {"openai/gpt-4o-mini": (PRICE,)}


def test_objects_of_the_package_become_its_json() -> None:
    types = import_module("genai_prices.types")
    clause = types.ClauseOr(or_=[types.ClauseEquals(equals="a")])
    price = types.ModelPrice(input_mtok=Decimal("0.1"), output_mtok=None)
    assert convert_tree(clause) == {"or": [{"equals": "a"}]}
    assert convert_tree([price]) == [{"input_mtok": Decimal("0.1")}]


def card(models: str, note: str = "", **values: object) -> dict[str, object]:
    amounts = {"currency": "USD", "input": "0.15", "cached": "0.075", "output": "0.6", "request": "0"}
    return {"id": "price_1", "models": models, "note": note, "since": 60, "until": None} | amounts | values


def run_import(antiphon: Run, server: Scripted, file: Path, *words: str) -> str:
    ended = antiphon(
        "prices", "import", "--provider", "openai", "--model", "plain*", "--file", str(file),
        "--url", server.url, *words,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout + ended.stderr


def test_a_dry_run_prints_and_adds_nothing(antiphon: Run, server: Scripted, file: Path) -> None:
    server.answers = [page()]
    printed = run_import(antiphon, server, file, "--dry-run")
    assert "openai/plain-2025" in printed and "would add from genai-prices data.json: 2" in printed
    assert [asked[0] for asked in server.asked] == ["GET"]


def test_prices_are_added_and_marked(antiphon: Run, server: Scripted, file: Path) -> None:
    server.answers = [page(card("big-*")), (201, card("openai/plain")), (201, card("openai/plain-2025"))]
    assert "added from genai-prices data.json: 2" in run_import(antiphon, server, file)
    assert server.asked[1][:3] == (
        "POST",
        "/admin/v1/prices",
        {
            "models": "openai/plain",
            "currency": "USD",
            "input": "0.15",
            "cached": "0.075",
            "output": "0.6",
            "note": "genai-prices data.json",
        },
    )


def test_an_operators_price_wins(antiphon: Run, server: Scripted, file: Path) -> None:
    server.answers = [page(card("openai/*"))]
    assert "it has your own price price_1" in run_import(antiphon, server, file)
    assert len(server.asked) == 1


def test_only_changed_prices_are_imported_again(antiphon: Run, server: Scripted, file: Path) -> None:
    mark = "genai-prices 0.2.3"
    known = [
        card("openai/plain", mark),
        card("openai/plain-2025", mark, input="9"),
        card("openai/*", until=61),
    ]
    server.answers = [page(*known), (201, card("openai/plain-2025"))]
    assert "added from genai-prices data.json: 1" in run_import(antiphon, server, file)
    server.answers = [page(card("openai/plain", mark), card("openai/plain-2025", mark))]
    assert "nothing to add" in run_import(antiphon, server, file)


def test_prices_of_another_currency_are_refused(antiphon: Run, server: Scripted, file: Path) -> None:
    server.answers = [page(card("m", currency="EUR"))]
    ended = antiphon("prices", "import", "--provider", "openai", "--file", str(file), "--url", server.url)
    assert ended.returncode == 1 and "this server's are in EUR" in ended.stderr


def test_the_settings_say_which_models_are_priced(
    antiphon: Run, server: Scripted, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "antiphon.toml").write_text(
        '[providers.first]\npreset = "openai"\n[[models]]\nname = "it"\nprovider = "first"\nmodel = "plain"\n'
    )
    server.answers = [page()]
    ended = antiphon("prices", "import", "--file", str(file), "--dry-run", "--json", "--url", server.url)
    assert [row["models"] for row in json.loads(ended.stdout)["prices"]] == ["first/plain"]
