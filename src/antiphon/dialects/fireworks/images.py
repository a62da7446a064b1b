"""`images`: as many as the prompt has places for, and refused by name while no model sees."""

from antiphon.dialects.fireworks.wire import FireworksCompletionRequest
from antiphon.errors import InvalidValue, UnsupportedParameter

PLACE = "<image>"
"""Where in a prompt an image belongs."""


def require_images(wire: FireworksCompletionRequest) -> None:
    """Raises InvalidValue where images and their places differ in number, and UnsupportedParameter for any
    image at all."""
    if wire.images is None:
        return
    many = isinstance(wire.prompt, list) and any(isinstance(item, str | list) for item in wire.prompt)
    pairs = _pair_images(wire, many)
    for where, prompt, images in pairs:
        if isinstance(prompt, str) and prompt.count(PLACE) != len(images):
            raise InvalidValue(
                f"{where} must hold one image for each {PLACE} in the prompt: it holds {len(images)}, and "
                f"the prompt has {prompt.count(PLACE)}",
                param="images",
            )
    if any(images for _, _, images in pairs):
        raise UnsupportedParameter(
            f"images is not supported: {wire.model} takes text only; leave it out", param="images"
        )


def _pair_images(wire: FireworksCompletionRequest, many: bool) -> list[tuple[str, object, list[str]]]:
    """Each prompt with its images, and where those stand."""
    given = wire.images or []
    nested = [item for item in given if isinstance(item, list)]
    flat = [item for item in given if isinstance(item, str)]
    if nested and flat:
        raise InvalidValue("images must hold only texts or only lists of texts", param="images")
    if not many:
        if len(nested) > 1:
            raise InvalidValue("images must be one list for one prompt", param="images")
        return [("images", wire.prompt, nested[0] if nested else flat)]
    if flat or (nested and len(nested) != len(wire.prompt)):
        raise InvalidValue(
            f"images must hold a list for each prompt, of which there are {len(wire.prompt)}", param="images"
        )
    lists = nested or [[] for _ in wire.prompt]
    return [(f"images[{at}]", prompt, lists[at]) for at, prompt in enumerate(wire.prompt)]
