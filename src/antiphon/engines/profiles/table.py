"""The table of vendors' models and their features.

The data is in models.toml. It is read once, at the first use.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

import msgspec

from antiphon.domain.models import ProfileSource
from antiphon.domain.values import Value
from antiphon.engines.profiles.base import VendorProfile
from antiphon.engines.profiles.presets import TokenLimit, find_preset

SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|\d{3}|latest)")
"""The end of a snapshot's name, after the model's name: `-2025-08-07`, `-20250929`, `-0709`, `-001`."""

MAX_CACHED_LOOKUPS = 1024
"""The most cached results of `find_profile`. Callers choose the names that match a pattern, so the cache
needs a bound."""

REFUSED = "refused"
"""The only key of models.toml that is not a vendor: the sets of refused parameters."""


class ProfileEntry(Value, frozen=True, forbid_unknown_fields=True):
    """Models of one vendor with the same features: one entry of models.toml."""

    models: tuple[str, ...]
    context_length: int | None = None
    max_output: int | None = None
    modalities: tuple[Literal["text", "image", "audio"], ...] = ("text",)
    output_modalities: tuple[Literal["text", "audio"], ...] = ("text",)
    reasoning: bool = False
    refused: str | None = None
    """The name of a set of refused parameters."""
    token_limit: TokenLimit | None = None

    def build(self, refused: Mapping[str, frozenset[str]]) -> VendorProfile:
        """Builds the profile of these models. `refused`: the sets of refused parameters, by name."""
        return VendorProfile(
            self.context_length,
            self.max_output,
            tuple(self.modalities),
            self.reasoning,
            frozenset() if self.refused is None else refused[self.refused],
            ProfileSource.TABLE,
            self.token_limit,
            tuple(self.output_modalities),
        )


@cache
def read_table() -> Mapping[str, Mapping[str, VendorProfile]]:
    """Returns the profiles of all models that the table knows, by vendor and name."""
    tree = tomllib.loads(files("antiphon.engines.profiles").joinpath("models.toml").read_text("utf-8"))
    refused = msgspec.convert(tree.pop(REFUSED), dict[str, frozenset[str]])
    vendors = msgspec.convert(tree, dict[str, tuple[ProfileEntry, ...]])
    return {
        vendor: {
            name: profile for entry in entries for profile in [entry.build(refused)] for name in entry.models
        }
        for vendor, entries in vendors.items()
    }


@lru_cache(maxsize=MAX_CACHED_LOOKUPS)
def find_profile(kind: str, model: str) -> VendorProfile | None:
    """Returns the table's profile of a vendor's model. Returns None if the table does not know the model.

    `kind`: the name of a preset, or a wire format, which means the vendor that made it. If no name in the
    table equals `model`, it is the name of a snapshot: the longest name before a snapshot's end is taken.
    """
    preset = find_preset(kind)
    models = read_table().get((preset.table if preset else None) or kind, {})
    if model in models:
        return models[model]
    matching = (
        name for name in models if model.startswith(name) and SNAPSHOT.fullmatch(model, len(name)) is not None
    )
    longest = max(matching, key=len, default=None)
    return None if longest is None else models[longest]
