"""docs/vendors.md says what the data says."""

import tomllib
from pathlib import Path

from antiphon.domain.models import ProfileSource
from antiphon.engines.vendors.profiles import ProviderPreset, read_presets

PAGE = (Path(__file__).parents[3] / "docs" / "vendors.md").read_text("utf-8")


def row_of(name: str, preset: ProviderPreset) -> str:
    address = f"`{preset.base_url}`" if preset.base_url else "yours"
    key = f"`{preset.key_variable}`{'' if preset.needs_key else ', if it wants one'}"
    return f"| `{name}` | {preset.kind} | {address} | {key} |"


def test_the_table_of_presets_is_the_data():
    table = PAGE.split("| preset | kind | address | key |\n|---|---|---|---|\n")[1].split("\n\n")[0]
    assert table.splitlines() == [row_of(name, preset) for name, preset in read_presets().items()]


def test_every_source_of_a_profile_is_explained():
    assert [source for source in ProfileSource if f"| `{source}` |" not in PAGE] == []


def test_examples_of_settings_can_be_read():
    examples = [part.split("```")[0] for part in PAGE.split("```toml\n")[1:]]
    assert len(examples) == 4
    assert all(tomllib.loads(example) for example in examples)
