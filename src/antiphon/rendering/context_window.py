"""Fits prompts into the context window, or explains why a prompt does not fit. This module generates no
token."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from antiphon.domain.context import Clock
from antiphon.domain.messages import Role
from antiphon.domain.request import (
    Constraint,
    Conversation,
    GenerationRequest,
    Output,
    Overflow,
    Prompt,
    RawPrompt,
    Truncation,
)
from antiphon.domain.sampling import SamplingOptions
from antiphon.errors import ContextLengthExceeded, InvalidValue, UnsupportedParameter
from antiphon.rendering.echo import PromptEcho, compute_layout
from antiphon.rendering.infill import encode_infill
from antiphon.rendering.logprobs import PromptLogprobs
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.prompt import (
    blame_field,
    context_sentence,
    describe_prompt,
    encode,
    require_token_ids,
)
from antiphon.rendering.reasoning.notation import Begin
from antiphon.rendering.tokenizer import TextTokenizer

MOST_SCORES = 1 << 20
"""The most log-probabilities of one answer, including alternatives. They are about 30 megabytes of JSON.
50,000 tokens with 20 alternatives each are below this limit."""

USUAL_WIDTH = 20
"""If a request has no `max_tokens` and at most this many alternatives, only its prompt counts for
MOST_SCORES. The reason is that few answers fill the context."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits the context window."""

    tokens: tuple[int, ...]
    max_tokens: int
    """The most completion tokens of each choice."""
    echo: PromptEcho | None = None
    """The prompt that each choice repeats at its start, if the request sets `echo`."""
    repeated: str = ""
    """The last message of a conversation, if the request sets `echo`."""
    begin: Begin | None = None
    """Whether the prompt's choices begin before, in or after the reasoning, if the model reasons."""
    constraint: Constraint | None = None
    """The constraint of the prompt's choices."""
    logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, if the caller requests them."""


async def fit_prompts(
    tokens: TextTokenizer, model_info: ModelInfo, request: GenerationRequest, clock: Clock
) -> list[FittedPrompt]:
    """Fits all prompts of a request into the context window. Raises a RequestError."""
    require_generating(model_info, request.model)
    _require_tokens(request, model_info)
    fitted: list[FittedPrompt] = []
    for prompt in request.prompts:
        _require_continuable(prompt, model_info)
        if request.output.suffix:
            ids = await encode_infill(tokens, model_info, request, prompt)
        else:
            is_cut = request.output.truncate_prompt is not None
            ids = await encode(tokens, model_info, prompt, clock, is_cut)
            ids = truncate_tokens(ids, request.output, model_info)
        fitted_prompt = fit(prompt, ids, request.output, model_info)
        fitted_prompt = _add_logprobs(len(fitted), prompt, fitted_prompt, request.output, model_info)
        fitted.append(await _add_echo(prompt, fitted_prompt, request, model_info))
    _require_few_logprobs(request, fitted)
    min_tokens, free_tokens = request.sampling.min_tokens or 0, min(each.max_tokens for each in fitted)
    if min_tokens > free_tokens:
        part = describe_prompt(request.prompts[0])
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, min_tokens is {min_tokens}, and only {free_tokens} "
            f"tokens may follow this prompt. Please reduce the length of the {part}, or min_tokens.",
            param="min_tokens",
        )
    return fitted


def _require_continuable(prompt: Prompt, model_info: ModelInfo) -> None:
    """Raises UnsupportedParameter for a conversation that has tools and continues its last message, if the
    model writes in channels. Calls have another channel than the last message."""
    if not isinstance(prompt, Conversation) or not prompt.continues or prompt.tools is None:
        return
    if model_info.template is not None and model_info.template.call_notation.channels:
        raise UnsupportedParameter(
            "continue_final_message is not supported with tools on this model: it calls in a channel of its "
            "own, and the message that is left open is in another; leave one of them out",
            param="continue_final_message",
        )


def require_generating(model_info: ModelInfo, model: str) -> None:
    """Raises UnsupportedParameter for an embedding model or a reranker."""
    embedding = model_info.info.embedding
    if embedding is not None and embedding.ranks:
        raise UnsupportedParameter(
            f"{model} ranks documents and generates no text; send POST /v1/rerank, or name a model that "
            "generates",
            param="model",
        )
    if embedding is not None:
        raise UnsupportedParameter(
            f"{model} is an embedding model: it makes vectors of texts and generates none; ask for "
            "embeddings, or name a model that generates",
            param="model",
        )


def _require_few_logprobs(request: GenerationRequest, fitted: Sequence[FittedPrompt]) -> None:
    """Raises InvalidValue if the answer could have too many log-probabilities for the memory."""
    output, numbers = request.output, 0
    prompt_tokens = sum(len(prompt.tokens) for prompt in fitted)
    if output.logprobs is not None:
        width = max(output.logprobs, len(output.logprob_token_ids))
        is_bounded = output.max_tokens is not None or width > USUAL_WIDTH
        output_tokens = sum(prompt.max_tokens for prompt in fitted) if is_bounded else 0
        candidates = output.best_of or output.choices
        numbers += (prompt_tokens * output.echo + output_tokens) * candidates * (1 + width)
    if output.prompt_logprobs is not None:
        choices = 1 if isinstance(request.prompts[0], Conversation) else output.choices
        numbers += prompt_tokens * choices * (1 + output.prompt_logprobs)
    if numbers > MOST_SCORES:
        raise InvalidValue(
            f"this may make {numbers:,} log-probabilities, and {MOST_SCORES:,} are the most of one request: "
            "ask for fewer alternatives, choices or tokens (max_tokens), or send fewer prompts at once",
            param="prompt_logprobs" if output.logprobs is None else "logprobs",
        )


def _require_tokens(request: GenerationRequest, model_info: ModelInfo) -> None:
    """Raises InvalidValue if a field contains a token id that the model does not have."""
    options: SamplingOptions = request.sampling
    require_token_ids(request.output.stop_token_ids, model_info, "stop_token_ids")
    require_token_ids(request.output.logprob_token_ids, model_info, "logprob_token_ids")
    require_token_ids(options.allowed_token_ids or (), model_info, "allowed_token_ids")
    require_token_ids([token for token, _ in options.logit_bias or ()], model_info, "logit_bias")


def _add_logprobs(
    index: int, prompt: Prompt, fits: FittedPrompt, output: Output, model_info: ModelInfo
) -> FittedPrompt:
    """Adds an empty PromptLogprobs to the prompt, if log-probabilities of its tokens are requested. The
    request can ask for two lists of alternatives; the longer one decides the number of alternatives."""
    repeats_prompt = output.echo and isinstance(prompt, RawPrompt)
    logprobs = (output.logprobs if repeats_prompt else None, output.prompt_logprobs)
    widths = [width for width in logprobs if width is not None]
    if not widths:
        return fits
    prompt_logprobs = PromptLogprobs(
        index, fits.tokens, model_info.spelt.bytes, max(widths), output.prompt_logprobs
    )
    return replace(fits, logprobs=prompt_logprobs)


async def _add_echo(
    prompt: Prompt, fits: FittedPrompt, request: GenerationRequest, model_info: ModelInfo
) -> FittedPrompt:
    """Adds the text that the choices repeat to the prompt, if the request sets `echo`."""
    if not request.output.echo:
        return fits
    if isinstance(prompt, Conversation):
        return replace(fits, repeated=_last_message_text(prompt))
    if request.output.truncate_prompt is not None:
        prompt = RawPrompt(tokens=fits.tokens)
    layout = await compute_layout(prompt, fits.tokens, model_info)
    logprobs = request.output.logprobs
    return replace(fits, echo=PromptEcho(layout, None if logprobs is None else fits.logprobs, logprobs or 0))


def _last_message_text(prompt: Conversation) -> str:
    """Returns the text of the last message. Raises UnsupportedParameter if the assistant did not write that
    message."""
    last_message = prompt.messages[-1]
    if last_message.role is not Role.ASSISTANT:
        raise UnsupportedParameter(
            f"echo repeats the last message where it is the assistant's, and here it is "
            f"the {last_message.role}'s: "
            "leave it out",
            param="echo",
        )
    return last_message.text


def truncate_tokens(tokens: tuple[int, ...], output: Output, model_info: ModelInfo) -> tuple[int, ...]:
    """Truncates a prompt as the request wishes. Returns all tokens if it wishes no truncation."""
    count = output.truncate_prompt
    if count is None:
        return tokens
    if count < 0:
        max_tokens = 1 if output.max_tokens is None else output.max_tokens
        count = max(model_info.info.context_length - max_tokens, 1)
    return tokens[-count:] if output.truncation is Truncation.LEFT else tokens[:count]


def fit(prompt: Prompt, tokens: tuple[int, ...], output: Output, model_info: ModelInfo) -> FittedPrompt:
    """Checks the prompt's length and sets the limit of the completion. Raises ContextLengthExceeded with both
    lengths in its message."""
    context, count, max_tokens = model_info.info.context_length, len(tokens), output.max_tokens
    free_tokens, part = context - count, "prompt and suffix" if output.suffix else describe_prompt(prompt)
    if not count:
        raise InvalidValue(_explain_no_token(prompt), param=blame_field(prompt, ()))
    if max_tokens is not None and max_tokens < (0 if output.echo else 1):
        raise InvalidValue("max_tokens must be at least 1; 0 is taken with echo", param="max_tokens")
    if free_tokens < (0 if max_tokens == 0 else 1):
        limit_text = f"{context}." if max_tokens == 0 else f"{context - 1}, so that one can be generated."
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, your {part} resulted in {count} tokens. "
            f"Please reduce the length of the {part} to at most {limit_text}",
            param=blame_field(prompt, _lengths(tokens, model_info)),
        )
    if max_tokens is not None and max_tokens > free_tokens and output.overflow is Overflow.SHORTEN:
        max_tokens = free_tokens
    if max_tokens is not None and max_tokens > free_tokens:
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, you requested {count + max_tokens} tokens ({count} "
            "in the "
            f"{part}, {max_tokens} in the completion). Please reduce the length of the {part} or completion. "
            f"The completion may have at most {free_tokens} tokens.",
            param=blame_field(prompt, _lengths(tokens, model_info)),
        )
    return FittedPrompt(tokens, free_tokens if max_tokens is None else max_tokens)


def _explain_no_token(prompt: Prompt) -> str:
    """Explains why a prompt without tokens is refused."""
    if isinstance(prompt, RawPrompt) and prompt.text == "" and prompt.add_special:
        return (
            "an empty prompt means the model's start token, and this model has neither a begin nor an end "
            "token; send a prompt"
        )
    return "the prompt holds no token; send at least one"


def _lengths(tokens: Sequence[int], model_info: ModelInfo) -> Iterator[int]:
    """Yields the length of each token in bytes."""
    return (len(model_info.vocabulary.pieces[token]) for token in tokens)
