"""The profile of a vendor's model. It holds facts and does no work."""

from dataclasses import dataclass, replace

from antiphon.domain.models import Profile, ProfileSource
from antiphon.domain.request import SPEECH
from antiphon.settings.providers import ProfileSettings

__all__ = ("ProfileSource", "VendorProfile", "build_profile", "merge_profile")


@dataclass(frozen=True, slots=True)
class VendorProfile:
    """What one model of a vendor takes and gives. None means unknown."""

    context_length: int | None = None
    """Tokens of prompt and output together."""
    max_output: int | None = None
    """The most output tokens, reasoning included."""
    modalities: tuple[str, ...] = ("text",)
    """What messages can contain: `text`, `image`, `audio`."""
    reasoning: bool | None = None
    """Whether the model can reason before it answers."""
    refused: frozenset[str] = frozenset()
    """Parameters, by OpenAI's names, that the vendor takes but not for this model."""
    source: ProfileSource = ProfileSource.DEFAULTS
    token_limit: str | None = None
    """The name of the limit of output tokens: `max_completion_tokens`. None is the provider's."""
    output_modalities: tuple[str, ...] = ("text",)
    """What answers can contain: `text`, `audio`."""

    @property
    def gives_speech(self) -> bool:
        """Whether the model can give spoken answers."""
        return SPEECH in self.output_modalities


def merge_profile(profile: VendorProfile, given: ProfileSettings) -> VendorProfile:
    """Returns the profile with the operator's values, which go before the table's. None is not set."""
    names = given.__struct_fields__
    told = {name: value for name in names if (value := getattr(given, name)) is not None}
    if not told:
        return profile
    if given.refused is not None:
        told["refused"] = frozenset(given.refused)
    return replace(profile, **told, source=ProfileSource.SETTINGS)


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
