"""The profile of a vendor's model. It holds facts and does no work."""

from dataclasses import dataclass
from enum import StrEnum


class ProfileSource(StrEnum):
    """Where the facts of a profile come from."""

    WEIGHTS = "weights"
    """The model's own file."""
    TABLE = "table"
    """The table that ships with this release."""
    SETTINGS = "settings"
    """The operator's settings."""
    DEFAULTS = "provider defaults"
    """No table knows the model, so these are the provider's defaults."""


@dataclass(frozen=True, slots=True)
class VendorProfile:
    """What one model of a vendor takes and gives. None means unknown."""

    context_length: int | None = None
    """Tokens of prompt and output together."""
    max_output: int | None = None
    """The most output tokens, reasoning included."""
    modalities: tuple[str, ...] = ("text",)
    """What messages can contain: `text`, `image`, `audio`."""
    reasoning: bool = False
    """Whether the model can reason before it answers."""
    refused: frozenset[str] = frozenset()
    """Parameters, by OpenAI's names, that the vendor takes but not for this model."""
    source: ProfileSource = ProfileSource.DEFAULTS
