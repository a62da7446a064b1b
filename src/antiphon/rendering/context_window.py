"""Checks that prompts fit into the context window, and truncates them if the request asks for it. This module
generates no token."""

from collections.abc import Iterator, Sequence

from antiphon.domain.context import Clock
from antiphon.domain.media import Medium
from antiphon.domain.messages import MediaKind, Role
from antiphon.domain.request import (
    Constraint,
    Conversation,
    GenerationRequest,
    Output,
    Overflow,
    Prompt,
    RawPrompt,
    SamplingOptions,
    Truncation,
)
from antiphon.domain.values import Struct, replace
from antiphon.engines.base import MEDIUM_CELL, MediumSpan
from antiphon.errors import ContextLengthExceeded, InvalidValue, UnsupportedParameter
from antiphon.rendering.echo import PromptEcho, compute_layout
from antiphon.rendering.logprobs import PromptLogprobs
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.prompt import (
    blame_field,
    context_sentence,
    describe_prompt,
    encode,
    encode_infill,
    encode_with_media,
    require_token_ids,
)
from antiphon.rendering.prompt_media import NO_MEDIA, RequestMedia, list_media
from antiphon.rendering.reasoning import ReasoningPosition
from antiphon.rendering.tokenizer import TextTokenizer

MOST_SCORES = 1 << 20
"""The most log-probabilities of one answer, including alternatives. They are about 30 megabytes of JSON.
50,000 tokens with 20 alternatives each are below this limit."""

USUAL_WIDTH = 20
"""If a request has no `max_tokens` and at most this many alternatives, only its prompt counts for
MOST_SCORES. The reason is that few answers fill the context."""


class FittedPrompt(Struct, frozen=True):
    """A prompt that fits the context window."""

    tokens: tuple[int, ...]
    max_tokens: int
    """The most completion tokens of each choice."""
    echo: PromptEcho | None = None
    """The prompt that each choice repeats at its start, if the request sets `echo`."""
    repeated_message: str = ""
    """The last message of a conversation, if the request sets `echo`."""
    begin: ReasoningPosition | None = None
    """Whether the prompt's choices begin before, in or after the reasoning, if the model reasons."""
    constraint: Constraint | None = None
    """The constraint of the prompt's choices."""
    logprobs: PromptLogprobs | None = None
    """Log-probabilities of the prompt's tokens, if the caller requests them."""
    spans: tuple[MediumSpan, ...] = ()
    """Where the cells of media are among the tokens."""
    media: tuple[Medium, ...] = ()
    """The media of the spans, each once."""

    def count_cells(self, kind: MediaKind) -> int:
        """Returns how many tokens are cells of media of this kind."""
        return sum(span.cells for span in self.spans if span.kind is kind)


async def fit_prompts(
    tokenizer: TextTokenizer,
    model_info: ModelInfo,
    request: GenerationRequest,
    clock: Clock,
    media: RequestMedia = NO_MEDIA,
) -> list[FittedPrompt]:
    """Fits all prompts of a request into the context window. `media`: the request's media, which are
    decoded. Raises a RequestError."""
    require_generating(model_info, request.model)
    _require_known_tokens(request, model_info)
    fitted_prompts: list[FittedPrompt] = []
    for prompt in request.prompts:
        _require_continuable(prompt, model_info)
        spans: tuple[MediumSpan, ...] = ()
        parts = list_media((prompt,)) if media else []
        if parts:
            encoded = await encode_with_media(tokenizer, model_info, prompt, clock, media)
            prompt_tokens, spans = encoded.ids, encoded.media
        elif request.output.suffix:
            prompt_tokens = await encode_infill(tokenizer, model_info, request, prompt)
        else:
            is_truncated = request.output.truncate_prompt is not None
            prompt_tokens = await encode(tokenizer, model_info, prompt, clock, is_truncated)
            prompt_tokens = truncate_tokens(prompt_tokens, request.output, model_info)
        fitted_prompt = fit(prompt, prompt_tokens, request.output, model_info)
        if spans:
            by_digest = {media[part].medium.digest: media[part].medium for part in parts}
            fitted_prompt = replace(fitted_prompt, spans=spans, media=tuple(by_digest.values()))
        fitted_prompt = _add_logprobs(len(fitted_prompts), prompt, fitted_prompt, request.output, model_info)
        fitted_prompts.append(await _add_echo(prompt, fitted_prompt, request, model_info))
    _require_few_logprobs(request, fitted_prompts)
    min_tokens, free_tokens = (
        request.sampling.min_tokens or 0,
        min(each.max_tokens for each in fitted_prompts),
    )
    if min_tokens > free_tokens:
        prompt_name = describe_prompt(request.prompts[0])
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, min_tokens is {min_tokens}, and only {free_tokens} "
            f"tokens may follow this prompt. Please reduce the length of the {prompt_name}, or min_tokens.",
            param="min_tokens",
        )
    return fitted_prompts


def _require_continuable(prompt: Prompt, model_info: ModelInfo) -> None:
    """Raises UnsupportedParameter for a conversation that has tools and continues its last message, if the
    model writes in channels. Such a model writes calls in another channel than the last message."""
    if not isinstance(prompt, Conversation) or not prompt.continues or prompt.tools is None:
        return
    if model_info.template is not None and model_info.template.call_notation.channels:
        raise UnsupportedParameter(
            "continue_final_message is not supported with tools on this model: it writes calls in another "
            "channel than messages, so a continued message could have no call; leave out "
            "continue_final_message or tools",
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
            f"{model} is an embedding model: it makes vectors and generates no text; ask for embeddings, or "
            "name a model that generates text",
            param="model",
        )


def _require_few_logprobs(request: GenerationRequest, fitted_prompts: Sequence[FittedPrompt]) -> None:
    """Raises InvalidValue if the answer could have more log-probabilities than MOST_SCORES."""
    output, logprob_count = request.output, 0
    prompt_tokens = sum(len(prompt.tokens) for prompt in fitted_prompts)
    if output.logprobs is not None:
        width = max(output.logprobs, len(output.logprob_token_ids))
        is_bounded = output.max_tokens is not None or width > USUAL_WIDTH
        output_tokens = sum(prompt.max_tokens for prompt in fitted_prompts) if is_bounded else 0
        candidates = output.best_of or output.choices
        logprob_count += (prompt_tokens * output.echo + output_tokens) * candidates * (1 + width)
    if output.prompt_logprobs is not None:
        choices = 1 if isinstance(request.prompts[0], Conversation) else output.choices
        logprob_count += prompt_tokens * choices * (1 + output.prompt_logprobs)
    if logprob_count > MOST_SCORES:
        raise InvalidValue(
            f"this request may make {logprob_count:,} log-probabilities, and {MOST_SCORES:,} are the most of "
            "one request: ask for fewer alternatives, choices or tokens (max_tokens), or send fewer prompts",
            param="prompt_logprobs" if output.logprobs is None else "logprobs",
        )


def _require_known_tokens(request: GenerationRequest, model_info: ModelInfo) -> None:
    """Raises InvalidValue if a field contains a token id that the model does not have."""
    options: SamplingOptions = request.sampling
    require_token_ids(request.output.stop_token_ids, model_info, "stop_token_ids")
    require_token_ids(request.output.logprob_token_ids, model_info, "logprob_token_ids")
    require_token_ids(options.allowed_token_ids or (), model_info, "allowed_token_ids")
    require_token_ids([token for token, _ in options.logit_bias or ()], model_info, "logit_bias")


def _add_logprobs(
    prompt_index: int, prompt: Prompt, fitted_prompt: FittedPrompt, output: Output, model_info: ModelInfo
) -> FittedPrompt:
    """Adds an empty PromptLogprobs to the prompt, if log-probabilities of its tokens are requested.
    `prompt_index`: the prompt's position in the request. The request can ask for alternatives by `logprobs`
    and by `prompt_logprobs`; the larger number is computed."""
    repeats_prompt = output.echo and isinstance(prompt, RawPrompt)
    requested_widths = (output.logprobs if repeats_prompt else None, output.prompt_logprobs)
    widths = [width for width in requested_widths if width is not None]
    if not widths:
        return fitted_prompt
    prompt_logprobs = PromptLogprobs(
        prompt_index, fitted_prompt.tokens, model_info.named_pieces.bytes, max(widths), output.prompt_logprobs
    )
    return replace(fitted_prompt, logprobs=prompt_logprobs)


async def _add_echo(
    prompt: Prompt, fitted_prompt: FittedPrompt, request: GenerationRequest, model_info: ModelInfo
) -> FittedPrompt:
    """Adds the text that the choices repeat, if the request sets `echo`."""
    if not request.output.echo:
        return fitted_prompt
    if isinstance(prompt, Conversation):
        return replace(fitted_prompt, repeated_message=_get_last_assistant_text(prompt))
    if request.output.truncate_prompt is not None:
        prompt = RawPrompt(tokens=fitted_prompt.tokens)
    layout = await compute_layout(prompt, fitted_prompt.tokens, model_info)
    logprobs = request.output.logprobs
    return replace(
        fitted_prompt,
        echo=PromptEcho(layout, None if logprobs is None else fitted_prompt.logprobs, logprobs or 0),
    )


def _get_last_assistant_text(prompt: Conversation) -> str:
    """Returns the text of the last message. Raises UnsupportedParameter if the assistant did not write that
    message."""
    last_message = prompt.messages[-1]
    if last_message.role is not Role.ASSISTANT:
        raise UnsupportedParameter(
            f"echo repeats the last message only if its role is assistant, and here its role is "
            f"{last_message.role}; leave out echo",
            param="echo",
        )
    return last_message.text


def truncate_tokens(tokens: tuple[int, ...], output: Output, model_info: ModelInfo) -> tuple[int, ...]:
    """Truncates a prompt to `truncate_prompt` tokens. Returns all tokens if the request does not set this. A
    negative number keeps as many tokens as fit beside the completion."""
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
    context_length, token_count, max_tokens = model_info.info.context_length, len(tokens), output.max_tokens
    free_tokens, prompt_name = (
        context_length - token_count,
        "prompt and suffix" if output.suffix else describe_prompt(prompt),
    )
    if not token_count:
        raise InvalidValue(_explain_no_token(prompt), param=blame_field(prompt, ()))
    if max_tokens is not None and max_tokens < (0 if output.echo else 1):
        raise InvalidValue("max_tokens must be at least 1, or 0 together with echo", param="max_tokens")
    if free_tokens < (0 if max_tokens == 0 else 1):
        limit = context_length if max_tokens == 0 else context_length - 1
        limit_text = f"{limit}." if max_tokens == 0 else f"{limit}, so that one can be generated."
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, your {prompt_name} resulted in {token_count} tokens. "
            f"Please reduce the length of the {prompt_name} to at most {limit_text}",
            param=blame_field(prompt, _measure_tokens(tokens, model_info)),
            lengths=(token_count, limit),
        )
    if max_tokens is not None and max_tokens > free_tokens and output.overflow is Overflow.SHORTEN:
        max_tokens = free_tokens
    if max_tokens is not None and max_tokens > free_tokens:
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, you requested {token_count + max_tokens} tokens "
            f"({token_count} in the {prompt_name}, {max_tokens} in the completion). Please reduce the length "
            f"of the {prompt_name} or completion. "
            f"The completion may have at most {free_tokens} tokens.",
            param=blame_field(prompt, _measure_tokens(tokens, model_info)),
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


def _measure_tokens(tokens: Sequence[int], model_info: ModelInfo) -> Iterator[int]:
    """Yields the length of each token in bytes."""
    return (len(model_info.vocabulary.pieces[token]) for token in tokens if token != MEDIUM_CELL)
