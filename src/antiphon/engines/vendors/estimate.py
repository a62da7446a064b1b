"""Estimates the tokens of a request if the vendor reports no usage, or impossible numbers."""

from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import Conversation, EmbeddingRequest, GenerationRequest, Prompt
from antiphon.domain.token_estimate import BYTES_PER_TOKEN, estimate_tokens, measure_text

MAX_TOKENS = 1 << 31
"""A bound that is larger than the tokens of any request."""


def is_possible(usage: Usage) -> bool:
    """Whether a vendor's counts are possible. Impossible counts could cause a negative or an enormous
    bill."""
    prompt, completion = usage.prompt_tokens, usage.completion_tokens
    return (
        max(prompt, completion) <= MAX_TOKENS
        and 0 <= usage.cached_tokens <= prompt
        and 0 <= usage.cache_write_tokens <= prompt
        and 0 <= usage.prompt_audio_tokens <= prompt
        and 0 <= usage.reasoning_tokens <= completion
        and 0 <= usage.completion_audio_tokens <= completion
        and 0 <= usage.accepted_prediction_tokens + usage.rejected_prediction_tokens <= completion
    )


def estimate_usage(request: GenerationRequest, output_size: int) -> Usage:
    """Returns an estimate of the usage. `output_size`: the bytes of the answer."""
    prompt, completion = estimate_prompt(request), estimate_tokens(output_size)
    return Usage(prompt, completion, source=UsageSource.ESTIMATED)


def estimate_prompt(request: GenerationRequest) -> int:
    """Returns an estimate of the prompts' tokens, without images and recordings."""
    suffixes = measure_text(request.output.suffix) * len(request.prompts)
    return estimate_tokens(sum(map(_measure, request.prompts)) + suffixes)


def estimate_inputs(request: EmbeddingRequest) -> int:
    """Returns an estimate of the tokens of all inputs."""
    return estimate_tokens(sum(map(_measure, request.inputs)))


def _measure(prompt: Prompt) -> int:
    """Returns the bytes of a prompt's text. For token ids, estimates the bytes by their number."""
    if isinstance(prompt, Conversation):
        return sum([measure_text(message.text) for message in prompt.messages])
    if prompt.tokens is not None:
        return len(prompt.tokens) * BYTES_PER_TOKEN
    return measure_text(prompt.text or "")
