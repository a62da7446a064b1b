"""Estimates the tokens of an answer for which the vendor tells no usage."""

from antiphon.domain.events import Usage, UsageSource
from antiphon.domain.request import Conversation, GenerationRequest

BYTES_PER_TOKEN = 4
"""Bytes of UTF-8 in one token of English text, about."""


def estimate_tokens(size: int) -> int:
    """Returns the tokens in this many bytes of text; at least 1 if there are any."""
    return -(-size // BYTES_PER_TOKEN)


def estimate_usage(request: GenerationRequest, output_size: int) -> Usage:
    """Returns an estimate from the texts of the request and the bytes of the answer."""
    size = 0
    for prompt in request.prompts:
        if isinstance(prompt, Conversation):
            size += sum(len(message.text.encode()) for message in prompt.messages)
        elif prompt.tokens is not None:
            size += len(prompt.tokens) * BYTES_PER_TOKEN
        else:
            size += len((prompt.text or "").encode())
    return Usage(estimate_tokens(size), estimate_tokens(output_size), source=UsageSource.ESTIMATED)
