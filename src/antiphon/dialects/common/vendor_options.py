"""Reads the options that only vendors' services support."""

from antiphon.dialects.common.request_types import ChatCompletionRequest, PredictionShape, SpeechShape
from antiphon.domain.request import NO_VENDOR_OPTIONS, SPEECH, SpeechOptions, VendorOptions
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue, MissingParameter


def read_vendor_options(
    service_tier: str | None, prompt_cache_key: str | None, verbosity: str | None = None
) -> VendorOptions:
    """Reads the options that chats and text completions share. An empty `prompt_cache_key` counts as
    absent."""
    if service_tier is None and not prompt_cache_key and verbosity is None:
        return NO_VENDOR_OPTIONS
    return VendorOptions(verbosity, service_tier, prompt_cache_key or None)


def read_chat_vendor_options(wire: ChatCompletionRequest) -> VendorOptions:
    """Reads the options of a chat. Raises a RequestError."""
    vendor_options = read_vendor_options(wire.service_tier, wire.prompt_cache_key, wire.verbosity)
    if wire.prediction is not None:
        vendor_options = replace(vendor_options, prediction=join_prediction(wire.prediction))
    if wire.modalities is None and wire.audio is None:
        return vendor_options
    return replace(vendor_options, modalities=read_modalities(wire), audio=read_speech_options(wire.audio))


def join_prediction(prediction: PredictionShape) -> str:
    """Returns the predicted text."""
    content = prediction.content
    return content if isinstance(content, str) else "".join(part.text for part in content)


def read_modalities(wire: ChatCompletionRequest) -> tuple[str, ...]:
    """Returns the requested kinds of output. Raises a RequestError if `modalities` and `audio` contradict
    each other."""
    modalities = tuple(dict.fromkeys(wire.modalities or ()))
    if SPEECH not in modalities and wire.audio is not None:
        raise InvalidValue("audio is taken only together with modalities that contain audio", param="audio")
    if SPEECH in modalities and wire.audio is None:
        raise MissingParameter(
            "audio is missing: modalities with audio need it; send a format and a voice", param="audio"
        )
    return modalities


def read_speech_options(audio: SpeechShape | None) -> SpeechOptions | None:
    """Returns the options of a spoken answer."""
    if audio is None:
        return None
    voice = audio.voice
    if isinstance(voice, str):
        return SpeechOptions(audio.format, voice)
    return SpeechOptions(audio.format, voice.id, is_custom=True)
