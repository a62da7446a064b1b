"""The profile of a vendor's model. It holds facts and does no work."""

from dataclasses import dataclass

from antiphon.domain.models import Profile, ProfileSource

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


def merge_profile(
    profile: VendorProfile,
    *,
    context_length: int | None = None,
    max_output: int | None = None,
    modalities: tuple[str, ...] | None = None,
    reasoning: bool | None = None,
    refused: tuple[str, ...] | None = None,
) -> VendorProfile:
    """Returns the profile with the operator's values, which go before the table's. None is not set."""
    if (context_length, max_output, modalities, reasoning, refused) == (None,) * 5:
        return profile
    return VendorProfile(
        profile.context_length if context_length is None else context_length,
        profile.max_output if max_output is None else max_output,
        profile.modalities if modalities is None else modalities,
        profile.reasoning if reasoning is None else reasoning,
        profile.refused if refused is None else frozenset(refused),
        ProfileSource.SETTINGS,
        profile.token_limit,
    )


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
        reasoning=profile.reasoning,
        max_output=profile.max_output,
        refused=tuple(sorted(profile.refused | refused)),
        source=profile.source,
        provider=provider,
    )
