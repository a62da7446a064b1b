"""How many of the likeliest tokens a request has at each place: within the operator's bound, -1 being the
whole vocabulary."""

from antiphon.domain.request import Conversation, GenerationRequest
from antiphon.domain.values import changed
from antiphon.errors import InvalidValue
from antiphon.rendering.model_info import ModelInfo

ALL = -1
"""Stands for the whole vocabulary, in requests and in the setting."""


def settle_widths(request: GenerationRequest, facts: ModelInfo, most: int) -> GenerationRequest:
    """The request with numbers of tokens only. Raises InvalidValue where it asks for more than `most`."""
    output, size = request.output, facts.info.vocabulary
    if output.logprobs is None and output.prompt_logprobs is None:
        return request
    bound = size if most == ALL else most
    is_chat = any(isinstance(prompt, Conversation) for prompt in request.prompts)
    name = "top_logprobs" if is_chat else "logprobs"
    logprobs = _settle(output.logprobs, size, bound, name)
    scored = _settle(output.prompt_logprobs, size, bound, "prompt_logprobs")
    return changed(request, output=changed(output, logprobs=logprobs, prompt_logprobs=scored))


def _settle(asked: int | None, size: int, bound: int, field: str) -> int | None:
    if asked is None:
        return None
    wanted = size if asked == ALL else asked
    if wanted > bound:
        whole = f"-1 means all {size} tokens of the vocabulary" if asked == ALL else f"got {asked}"
        raise InvalidValue(
            f"{field} must be at most {bound} on this server (ANTIPHON_MAX_LOGPROBS); {whole}", param=field
        )
    return min(wanted, size)
