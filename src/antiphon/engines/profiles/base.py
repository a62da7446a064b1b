"""The profile of a vendor's model, and its combination with the operator's settings."""

from antiphon.domain.models import Profile, ProfileSource
from antiphon.domain.request import SPEECH
from antiphon.domain.values import Struct, replace
from antiphon.settings.providers import ProfileSettings

__all__ = ("ProfileSource", "VendorProfile", "build_profile", "merge_profile")


class VendorProfile(Struct, frozen=True):
    """The features of one model of a vendor. None means unknown."""

    context_length: int | None = None
    """Tokens of prompt and output together."""
    max_output: int | None = None
    """The most output tokens, reasoning included."""
    modalities: tuple[str, ...] = ("text",)
    """The kinds of content in messages: `text`, `image`, `audio`."""
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
