"""The table of vendors' models, its lookup, and what becomes of a profile on its way to callers."""

import pytest

from antiphon.domain.models import ProfileSource
from antiphon.engines.vendors.parameters import list_names
from antiphon.engines.vendors.profiles import (
    VendorProfile,
    build_profile,
    find_profile,
    list_presets,
    merge_profile,
    read_table,
)
from antiphon.settings.providers import ProfileSettings


def find(kind: str, model: str) -> VendorProfile:
    found = find_profile(kind, model)
    assert found is not None
    return found


def test_a_reasoning_model_of_openai_has_no_temperature():
    profile = find("openai", "gpt-5")
    assert (profile.context_length, profile.max_output) == (400_000, 128_000)
    assert {"temperature", "top_p", "stop", "logprobs"} <= profile.refused
    assert profile.reasoning and profile.source is ProfileSource.TABLE
    assert profile.token_limit == "max_completion_tokens"


@pytest.mark.parametrize(
    ("kind", "snapshot", "model"),
    [
        ("openai", "gpt-5-2025-08-07", "gpt-5"),
        ("openai", "gpt-5.1-2025-11-13", "gpt-5.1"),
        ("openai", "gpt-4-0613", "gpt-4"),
        ("anthropic", "claude-sonnet-4-5-20250929", "claude-sonnet-4-5"),
        ("xai", "grok-4.3-latest", "grok-4.3"),
        ("azure", "gpt-4o-2024-11-20", "gpt-4o"),
    ],
)
def test_a_snapshot_has_the_profile_of_its_model(kind: str, snapshot: str, model: str):
    assert find(kind, snapshot) is find(kind, model)


def test_a_snapshot_can_have_an_entry_of_its_own():
    assert find("openai", "gpt-4o-2024-05-13").max_output == 4096
    assert find("openai", "gpt-4o").max_output == 16_384


def test_the_longest_name_wins():
    assert find("openai", "gpt-5-mini-2025-08-07") is find("openai", "gpt-5-mini")
    assert find("anthropic", "claude-opus-4-5-20251101").context_length == 200_000


@pytest.mark.parametrize(
    ("kind", "model"),
    [
        ("openai", "gpt-5-unheard-of"),
        ("openai", "gpt-50"),
        ("openai", "gpt-4-1106-preview"),
        ("openai", "claude-opus-5"),
        ("vllm", "gpt-5"),
        ("nobody", "gpt-5"),
        ("mistral", "mistral-large-2411"),
    ],
)
def test_what_no_entry_covers_is_unknown(kind: str, model: str):
    assert find_profile(kind, model) is None


def test_every_vendor_of_the_table_is_a_preset():
    assert set(read_table()) <= set(list_presets())


def test_refused_parameters_have_names_that_requests_can_ask_for():
    profiles = [profile for models in read_table().values() for profile in models.values()]
    assert len(profiles) > 80
    assert frozenset[str]().union(*(profile.refused for profile in profiles)) <= list_names()


def test_output_fits_into_the_context():
    for models in read_table().values():
        for name, profile in models.items():
            assert (profile.max_output or 0) <= (profile.context_length or 0), name


def test_an_operators_values_go_before_the_tables():
    merged = merge_profile(find("openai", "gpt-4o"), ProfileSettings(context_length=1000, refused=("seed",)))
    assert (merged.context_length, merged.max_output) == (1000, 16_384)
    assert merged.refused == {"seed"} and merged.modalities == ("text", "image")
    assert merged.source is ProfileSource.SETTINGS


def test_an_operator_who_sets_nothing_changes_nothing():
    profile = find("openai", "gpt-4o")
    assert merge_profile(profile, ProfileSettings()) is profile


def test_a_published_profile_invents_nothing():
    profile = build_profile(find("anthropic", "claude-opus-5"), "first", "anthropic", frozenset({"seed"}))
    assert (profile.provider, profile.engine, profile.source) == ("first", "anthropic", "table")
    taken = ("continue_final_message", "seed", "temperature", "thinking_token_budget", "top_k", "top_p")
    assert profile.refused == taken
    assert (profile.parameters, profile.size, profile.vocabulary, profile.sequences) == (None,) * 4
    assert not profile.exact and profile.max_output == 128_000
