"""Estimates the tokens of a request for which the vendor tells no usage."""

from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import Conversation, EmbeddingRequest, GenerationRequest, Prompt

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in one token of English text, about."""


def estimate_tokens(size: int) -> int:
    """Returns the tokens in this many bytes of text; at least 1 if there are any."""
    return -(-size // BYTES_PER_TOKEN)


def estimate_usage(request: GenerationRequest, output_size: int) -> Usage:
    """Returns an estimate from the texts of the request and the bytes of the answer."""
    size = sum(map(_measure, request.prompts))
    return Usage(estimate_tokens(size), estimate_tokens(output_size), source=UsageSource.ESTIMATED)


def estimate_inputs(request: EmbeddingRequest) -> int:
    """Returns an estimate of the tokens of all inputs."""
    return estimate_tokens(sum(map(_measure, request.inputs)))


def _measure(prompt: Prompt) -> int:
    """Returns the bytes of a prompt's text; for token ids, the bytes of as many usual tokens."""
    if isinstance(prompt, Conversation):
        return sum(len(message.text.encode()) for message in prompt.messages)
    if prompt.tokens is not None:
        return len(prompt.tokens) * BYTES_PER_TOKEN
    return len((prompt.text or "").encode())
