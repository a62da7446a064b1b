"""The features of vendors' models, and presets of providers, as data.

A preset has the known properties of a vendor or a server. A profile has the features of one model. The
operator's settings replace both. The data is in presets.toml and models.toml. Each is read once, at the first
use.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache, lru_cache
from importlib.resources import files
from typing import Literal

import msgspec

from antiphon.domain.models import Profile, ProfileSource
from antiphon.domain.request import SPEECH
from antiphon.domain.values import Struct, Value, replace
from antiphon.settings.providers import ProfileSettings, WireFormat

__all__ = (
    "ProfileSource",
    "VendorProfile",
    "build_profile",
    "merge_profile",
)

TokenLimit = Literal["max_tokens", "max_completion_tokens"]

SNAPSHOT = re.compile(r"-(?:\d{4}-\d{2}-\d{2}|\d{8}|\d{4}|\d{3}|latest)")
"""The end of a snapshot's name, after the model's name: `-2025-08-07`, `-20250929`, `-0709`, `-001`."""

MAX_CACHED_LOOKUPS = 1024
"""The most cached results of `find_profile`. Callers choose the names that match a pattern, so the cache
needs a bound."""

REFUSED = "refused"
"""The only key of models.toml that is not a vendor: the sets of refused parameters."""


class VendorProfile(Struct, frozen=True):
    """The features of one model of a vendor. None means unknown."""

    context_length: int | None = None
    """Tokens of prompt and output together."""
    max_output: int | None = None
    """The most output tokens, reasoning included."""
    modalities: tuple[str, ...] = ("text",)
    """The kinds of content in messages: `text`, `image`, `audio`, `document`."""
    reasoning: bool | None = None
    """Whether the model can reason before it answers."""
    refused: frozenset[str] = frozenset()
    """Parameters, by OpenAI's names, that the vendor refuses for this model only."""
    source: ProfileSource = ProfileSource.DEFAULTS
    token_limit: str | None = None
    """The parameter that limits output tokens: `max_completion_tokens`. None means the provider's own."""
    output_modalities: tuple[str, ...] = ("text",)
    """The kinds of content in answers: `text`, `audio`."""

    @property
    def gives_speech(self) -> bool:
        """Whether the model can give spoken answers."""
        return SPEECH in self.output_modalities


def merge_profile(profile: VendorProfile, settings: ProfileSettings) -> VendorProfile:
    """Returns the profile with the values that the operator has set. A setting of None leaves the profile's
    value."""
    names = settings.__struct_fields__
    values = {name: value for name in names if (value := getattr(settings, name)) is not None}
    if not values:
        return profile
    if settings.refused is not None:
        values["refused"] = frozenset(settings.refused)
    return replace(profile, **values, source=ProfileSource.SETTINGS)


def build_profile(profile: VendorProfile, provider: str, engine: str, refused: frozenset[str]) -> Profile:
    """Builds the published profile of a vendor's model. `provider`: the operator's name of the vendor.
    `refused`: parameters that the provider takes for none of its models."""
    return Profile(
        architecture=None,
        parameters=None,
        size=None,
        quantization=None,
        context_length=profile.context_length,
        vocabulary=None,
        chat=True,
        exact=False,
        sequences=None,
        engine=engine,
        modalities=profile.modalities,
        output_modalities=profile.output_modalities,
        reasoning=profile.reasoning,
        infill=None,
        max_output=profile.max_output,
        refused=tuple(sorted(profile.refused | refused)),
        source=profile.source,
        provider=provider,
    )


class ProviderPreset(Value, frozen=True, forbid_unknown_fields=True):
    """The known properties of one vendor or server. The operator's settings replace them."""

    kind: WireFormat
    """The wire format."""
    key_variable: str
    """The environment variable that usually contains the key."""
    base_url: str | None = None
    """The vendor's address; None if every operator has a different one."""
    needs_key: bool = True
    """Whether every request needs a key. If not, a key is sent only if the operator sets one."""
    key_header: str | None = None
    """The header of the key; None means the header of the wire format."""
    key_prefix: str | None = None
    """The text before the key in the header; None means that of the wire format."""
    is_private: bool = False
    """Whether the address is usually a private or loopback one."""
    takes: tuple[str, ...] = ()
    """Parameters that it takes beyond those of the wire format."""
    refuses: tuple[str, ...] = ()
    """Parameters of the wire format that it refuses or ignores."""
    renames: Mapping[str, str] = {}
    """Maps the names of parameters in callers' requests to the vendor's own names."""
    body: Mapping[str, object] = {}
    """Fields that the body of each generation request gets."""
    token_limit: TokenLimit = "max_tokens"
    """The parameter that limits the output tokens of chats."""
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    """The field of messages that contains reasoning. None if there is no such field."""
    asks_usage: bool = True
    """Whether it takes `stream_options.include_usage`."""
    has_deployments: bool = False
    """Whether MODEL/DEPLOYMENT names a deployment of a model. The vendor gets only the deployment."""
    reports_fields: bool = False
    """Whether its answers report fields that it ignores, and keywords of schemas that it does not enforce, as
    those of Antiphon do."""
    modalities: tuple[str, ...] = ("text",)
    """The kinds of content in messages to models outside the table. Such a model may still refuse some."""
    context_length: int | None = None
    """The context length of models outside the table."""
    max_output: int | None = None
    """The most output tokens of models outside the table."""
    table: str | None = None
    """The name of the table of its models; None means the preset's own name."""
    price_list: str | None = None
    """The vendor's name in the package genai-prices. None if no prices are published."""
    trace_name: str | None = None
    """The vendor's name in OpenTelemetry's conventions; None means the preset's own name."""


@cache
def read_presets() -> Mapping[str, ProviderPreset]:
    """Returns all presets by name, in the order of the data."""
    text = files("antiphon.engines.vendors").joinpath("presets.toml").read_text("utf-8")
    return msgspec.convert(tomllib.loads(text), dict[str, ProviderPreset])


def find_preset(name: str) -> ProviderPreset | None:
    """Returns the preset of that name. Returns None if there is none."""
    return read_presets().get(name)


def list_presets() -> tuple[str, ...]:
    """Returns the names of all presets."""
    return tuple(read_presets())


class ProfileEntry(Value, frozen=True, forbid_unknown_fields=True):
    """Models of one vendor with the same features: one entry of models.toml."""

    models: tuple[str, ...]
    context_length: int | None = None
    max_output: int | None = None
    modalities: tuple[Literal["text", "image", "audio", "document"], ...] = ("text",)
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
    tree = tomllib.loads(files("antiphon.engines.vendors").joinpath("models.toml").read_text("utf-8"))
    refused = msgspec.convert(tree.pop(REFUSED), dict[str, frozenset[str]])
    vendors = msgspec.convert(tree, dict[str, tuple[ProfileEntry, ...]])
    table: dict[str, dict[str, VendorProfile]] = {vendor: {} for vendor in vendors}
    for vendor, entries in vendors.items():
        for entry in entries:
            table[vendor] |= dict.fromkeys(entry.models, entry.build(refused))
    return table


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
