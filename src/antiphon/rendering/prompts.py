"""From a prompt to token ids that fit, or the sentence that says why not. Makes no token and draws
nothing."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from antiphon.domain.constraint import Constraint
from antiphon.domain.context import Clock
from antiphon.domain.messages import Role
from antiphon.domain.request import (
    Conversation,
    GenerationRequest,
    Output,
    Overflow,
    Prompt,
    RawPrompt,
    Truncation,
)
from antiphon.domain.sampling import AskedSampling
from antiphon.engines.base import TextPiece
from antiphon.errors import ContextLengthExceeded, InvalidValue, TemplateRefused, UnsupportedParameter
from antiphon.rendering.characters import is_whole
from antiphon.rendering.echo import PromptEcho, lay_out
from antiphon.rendering.fair_tokenizer import TextTokenizer
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.prompt_logprobs import PromptLogprobs
from antiphon.rendering.reasoning.notation import Begin
from antiphon.rendering.sandboxed_template import TEMPLATE_FIELD, RequestTemplate
from antiphon.rendering.template_messages import measure, collect_texts

MOST_CUT = 1 << 20
"""Characters of a prompt that is longer than the context, where the caller asked to have it cut: what does
not count is tokenized all the same."""

MOST_SCORES = 1 << 20
"""Log-probabilities of one answer, alternatives included: some 30 megabytes of JSON. 50,000 tokens with 20
alternatives each are within it."""

USUAL_WIDTH = 20
"""Alternatives up to which an answer that may fill the context is taken without `max_tokens`: few do."""

LARGE_CONVERSATION = 20_000
"""Characters, with 200 for each message, above which a template runs in a thread: about one millisecond."""


@dataclass(frozen=True, slots=True)
class FittedPrompt:
    """A prompt that fits."""

    tokens: tuple[int, ...]
    max_tokens: int
    """Completion tokens of each choice."""
    recital: PromptEcho | None = None
    """What its choices begin with, with `echo`."""
    repeated: str = ""
    """The same of a conversation: its last message."""
    begin: Begin | None = None
    """Where its choices begin, of a model that reasons."""
    constraint: Constraint | None = None
    """What they are held to."""
    sheet: PromptLogprobs | None = None
    """Its scores, where some are wanted."""


async def fit_prompts(
    tokens: TextTokenizer, facts: ModelInfo, request: GenerationRequest, clock: Clock
) -> list[FittedPrompt]:
    """Every prompt of a request, before any of them makes a token. Raises a RequestError."""
    require_generating(facts, request.model)
    _require_tokens(request, facts)
    found: list[FittedPrompt] = []
    for prompt in request.prompts:
        _require_continuable(prompt, facts)
        is_cut = request.output.truncate_prompt is not None
        ids = truncate_tokens(await encode(tokens, facts, prompt, clock, is_cut), request.output, facts)
        fits = fit(prompt, ids, request.output, facts)
        fits = _add_logprobs(len(found), prompt, fits, request.output, facts)
        found.append(await _add_echo(prompt, fits, request, facts))
    _require_writable(request, found)
    least, room = request.sampling.min_tokens or 0, min(fits.max_tokens for fits in found)
    if least > room:
        part = _describe_prompt(request.prompts[0])
        raise ContextLengthExceeded(
            f"{_limit(facts)} However, min_tokens is {least}, and only {room} tokens may follow this prompt. "
            f"Please reduce the length of the {part}, or min_tokens.",
            param="min_tokens",
        )
    return found


def _limit(facts: ModelInfo) -> str:
    """The first sentence about what is too long, in OpenAI's words: clients look for them."""
    return f"This model's maximum context length is {facts.info.context_length} tokens."


def _require_continuable(prompt: Prompt, facts: ModelInfo) -> None:
    """Raises UnsupportedParameter where a message is left open in a model's last channel, and calls would be
    made in another."""
    if not isinstance(prompt, Conversation) or not prompt.continues or prompt.tools is None:
        return
    if facts.template is not None and facts.template.call_notation.frames:
        raise UnsupportedParameter(
            "continue_final_message is not supported with tools on this model: it calls in a channel of its "
            "own, and the message that is left open is in another; leave one of them out",
            param="continue_final_message",
        )


def require_generating(facts: ModelInfo, model: str) -> None:
    """Raises UnsupportedParameter for a model that makes vectors."""
    if facts.info.embedding is not None:
        raise UnsupportedParameter(
            f"{model} is an embedding model: it makes vectors of texts and generates none; ask for "
            "embeddings, or name a model that generates",
            param="model",
        )


def _require_writable(request: GenerationRequest, found: Sequence[FittedPrompt]) -> None:
    """Refuses scores that would fill the memory, before any of them is made."""
    output, numbers = request.output, 0
    prompts = sum(len(fits.tokens) for fits in found)
    if output.logprobs is not None:
        width = max(output.logprobs, len(output.logprob_token_ids))
        is_bounded = output.max_tokens is not None or width > USUAL_WIDTH
        made = sum(fits.max_tokens for fits in found) if is_bounded else 0
        candidates = output.best_of or output.choices
        numbers += (prompts * output.echo + made) * candidates * (1 + width)
    if output.prompt_logprobs is not None:
        shown = 1 if isinstance(request.prompts[0], Conversation) else output.choices
        numbers += prompts * shown * (1 + output.prompt_logprobs)
    if numbers > MOST_SCORES:
        raise InvalidValue(
            f"this may make {numbers:,} log-probabilities, and {MOST_SCORES:,} are the most of one request: "
            "ask for fewer alternatives, choices or tokens (max_tokens), or send fewer prompts at once",
            param="prompt_logprobs" if output.logprobs is None else "logprobs",
        )


def _require_tokens(request: GenerationRequest, facts: ModelInfo) -> None:
    """Raises InvalidValue where a field names a token that the model does not have."""
    asked: AskedSampling = request.sampling
    require_known(request.output.stop_token_ids, facts, "stop_token_ids")
    require_known(request.output.logprob_token_ids, facts, "logprob_token_ids")
    require_known(asked.allowed_token_ids or (), facts, "allowed_token_ids")
    require_known([token for token, _ in asked.logit_bias or ()], facts, "logit_bias")


def _add_logprobs(index: int, prompt: Prompt, fits: FittedPrompt, output: Output, facts: ModelInfo) -> FittedPrompt:
    """With a sheet for its scores, wide enough for all who read it."""
    recites = output.echo and isinstance(prompt, RawPrompt)
    wanted = (output.logprobs if recites else None, output.prompt_logprobs)
    widths = [width for width in wanted if width is not None]
    if not widths:
        return fits
    sheet = PromptLogprobs(index, fits.tokens, facts.spelt.bytes, max(widths), output.prompt_logprobs)
    return replace(fits, sheet=sheet)


async def _add_echo(prompt: Prompt, fits: FittedPrompt, request: GenerationRequest, facts: ModelInfo) -> FittedPrompt:
    if not request.output.echo:
        return fits
    if isinstance(prompt, Conversation):
        return replace(fits, repeated=_last_said(prompt))
    if request.output.truncate_prompt is not None:
        prompt = RawPrompt(tokens=fits.tokens)
    layout = await lay_out(prompt, fits.tokens, facts)
    logprobs = request.output.logprobs
    return replace(fits, recital=PromptEcho(layout, None if logprobs is None else fits.sheet, logprobs or 0))


def _last_said(prompt: Conversation) -> str:
    """The last message, where it is the assistant's: an answer goes on with no other."""
    last = prompt.messages[-1]
    if last.role is not Role.ASSISTANT:
        raise UnsupportedParameter(
            f"echo repeats the last message where it is the assistant's, and here it is the {last.role}'s: "
            "leave it out",
            param="echo",
        )
    return last.text


async def encode(
    tokens: TextTokenizer, facts: ModelInfo, prompt: Prompt, clock: Clock, is_cut: bool = False
) -> tuple[int, ...]:
    """The token ids of a prompt. `is_cut`: whether it is cut to fit, so that it may be longer than the
    context."""
    if isinstance(prompt, RawPrompt) and prompt.tokens is not None:
        looked_at = prompt.tokens if is_cut else prompt.tokens[: facts.info.context_length]
        require_known(looked_at, facts, "prompt")  # more do not fit anyway
        return prompt.tokens
    if facts.info.embedding is not None and isinstance(prompt, RawPrompt):
        return await tokenize_text(tokens, facts, prompt.text or "", prompt.add_special)
    if isinstance(prompt, RawPrompt) and not prompt.text:
        return start_of_text(facts) if prompt.add_special else ()
    wanted = _begins(prompt, facts)
    pieces = await render_prompt(facts, prompt, clock)
    _require_possible(pieces, facts, prompt, MOST_CUT if is_cut else 0)
    bos = facts.vocabulary.names.get(-1 if facts.vocabulary.bos_id is None else facts.vocabulary.bos_id)
    stands = bool(bos and pieces and pieces[0].control and pieces[0].text.startswith(bos))
    return await tokens.tokenize(pieces, wanted and not stands)


def start_of_text(facts: ModelInfo) -> tuple[int, ...]:
    """The token that a new text begins after: the begin token, else the end token, as OpenAI's
    `<|endoftext|>`; none where the model has neither."""
    table = facts.vocabulary
    start = table.eos_id if table.bos_id is None else table.bos_id
    return () if start is None else (start,)


def _begins(prompt: Prompt, facts: ModelInfo) -> bool:
    """Whether a prompt begins with the model's begin token: a text where the model wants one, unless the
    caller does not; a conversation also where only the caller wants one."""
    if prompt.add_special is None or isinstance(prompt, RawPrompt):
        return facts.vocabulary.add_bos and prompt.add_special is not False
    if prompt.add_special and facts.vocabulary.bos_id is None:
        raise UnsupportedParameter(
            "add_special_tokens is not supported: this model has no begin token; leave it out",
            param="add_special_tokens",
        )
    return prompt.add_special


async def tokenize_text(tokens: TextTokenizer, facts: ModelInfo, text: str, special: bool = True) -> tuple[int, ...]:
    """The token ids of a text whose vector is made; nothing in it is a control token. `special`: with what
    the model wants before and after it."""
    before, after = facts.vocabulary.around if special else ((), ())
    return (*before, *await tokens.tokenize([TextPiece(text)], False), *after)


async def render_prompt(facts: ModelInfo, prompt: Prompt, clock: Clock) -> tuple[TextPiece, ...]:
    """A prompt's text, with what of it are control tokens. Raises a RequestError."""
    if isinstance(prompt, RawPrompt):
        _require_characters([prompt.text or ""], prompt)
        return (TextPiece(prompt.text, control=True),) if prompt.text else ()
    texts, size = measure(prompt)
    _require_characters(texts, prompt)
    if facts.template is None:
        raise TemplateRefused(facts.refusal, param="messages")
    if isinstance(facts.template, RequestTemplate):
        return await facts.template.render(prompt, clock)
    if size > LARGE_CONVERSATION or not _is_plain(prompt):
        return await asyncio.to_thread(facts.template.render, prompt, clock)
    return facts.template.render(prompt, clock)


def _is_plain(prompt: Conversation) -> bool:
    """Whether no value could have a template count or walk far: its trial was with none."""
    values = prompt.template_values.values()
    return prompt.documents is None and all(isinstance(value, bool | str) for value in values)


def require_known(tokens: Sequence[int], facts: ModelInfo, field: str) -> None:
    """Raises InvalidValue for an id outside the vocabulary."""
    size = facts.info.vocabulary
    if tokens and not (min(tokens) >= 0 and max(tokens) < size):
        wrong = next(token for token in tokens if not 0 <= token < size)
        raise InvalidValue(
            f"{field}: token id {wrong} is not one of this model's {size}, which begin at 0", param=field
        )


def truncate_tokens(tokens: tuple[int, ...], output: Output, facts: ModelInfo) -> tuple[int, ...]:
    """The tokens of a prompt that is to be cut which are kept, or all."""
    count = output.truncate_prompt
    if count is None:
        return tokens
    if count < 0:
        wanted = 1 if output.max_tokens is None else output.max_tokens
        count = max(facts.info.context_length - wanted, 1)
    return tokens[-count:] if output.truncation is Truncation.LEFT else tokens[:count]


def fit(prompt: Prompt, tokens: tuple[int, ...], output: Output, facts: ModelInfo) -> FittedPrompt:
    """The prompt with the tokens that a choice may make. Raises ContextLengthExceeded, which names the
    numbers."""
    context, count, wanted = facts.info.context_length, len(tokens), output.max_tokens
    left, part = context - count, _describe_prompt(prompt)
    if not count:
        raise InvalidValue(_no_token(prompt), param=_at_fault(prompt, ()))
    if wanted is not None and wanted < (0 if output.echo else 1):
        raise InvalidValue("max_tokens must be at least 1; 0 is taken with echo", param="max_tokens")
    if left < (0 if wanted == 0 else 1):
        most = f"{context}." if wanted == 0 else f"{context - 1}, so that one can be generated."
        raise ContextLengthExceeded(
            f"{_limit(facts)} However, your {part} resulted in {count} tokens. "
            f"Please reduce the length of the {part} to at most {most}",
            param=_at_fault(prompt, _lengths(tokens, facts)),
        )
    if wanted is not None and wanted > left and output.overflow is Overflow.SHORTEN:
        wanted = left
    if wanted is not None and wanted > left:
        raise ContextLengthExceeded(
            f"{_limit(facts)} However, you requested {count + wanted} tokens ({count} in the {part}, "
            f"{wanted} in the completion). Please reduce the length of the {part} or completion. "
            f"The completion may have at most {left} tokens.",
            param=_at_fault(prompt, _lengths(tokens, facts)),
        )
    return FittedPrompt(tokens, left if wanted is None else wanted)


def _no_token(prompt: Prompt) -> str:
    """Why a prompt without any token is refused."""
    if isinstance(prompt, RawPrompt) and prompt.text == "" and prompt.add_special:
        return (
            "an empty prompt means the model's start token, and this model has neither a begin nor an end "
            "token; send a prompt"
        )
    return "the prompt holds no token; send at least one"


def _require_possible(pieces: Sequence[TextPiece], facts: ModelInfo, prompt: Prompt, cut: int) -> None:
    """Refuses at once what no tokenizer could make fit, however large it is. `cut`: characters up to which it
    will be made to fit."""
    size = sum(len(piece.text) for piece in pieces)
    least = size // facts.longest_piece
    if size > cut and least > facts.info.context_length:
        part = _describe_prompt(prompt)
        raise ContextLengthExceeded(
            f"{_limit(facts)} However, your {part} resulted in at least {least} tokens. "
            f"Please reduce the length of the {part}.",
            param=_at_fault(prompt, (size,)),
        )


def _require_characters(texts: Sequence[str], prompt: Prompt) -> None:
    """Raises InvalidValue for half a surrogate pair: JSON can say one, UTF-8 and tokenizers cannot."""
    if not all(map(is_whole, texts)):
        raise InvalidValue(
            "the text holds half of a surrogate pair, which is no character; send valid Unicode",
            param=_field(prompt),
        )


def _describe_prompt(prompt: Prompt) -> str:
    """With what counts beside the messages."""
    if not isinstance(prompt, Conversation):
        return "prompt"
    written = "prompt that the request's chat template writes" if prompt.template is not None else ""
    return written or ("messages and tools" if prompt.tools is not None else "messages")


def _at_fault(prompt: Prompt, lengths: Iterable[int]) -> str:
    """The field that made a prompt of parts of these lengths, in bytes or characters: the request's template,
    where less than half of it is what the messages and tools say."""
    if not isinstance(prompt, Conversation) or prompt.template is None:
        return _field(prompt)
    said, size = sum(len(text.encode()) for text in collect_texts(prompt)), sum(lengths)
    return TEMPLATE_FIELD if not size or 2 * said < size else _field(prompt)


def _lengths(tokens: Sequence[int], facts: ModelInfo) -> Iterator[int]:
    return (len(facts.vocabulary.pieces[token]) for token in tokens)


def _field(prompt: Prompt) -> str:
    """What the dialects call it."""
    return "messages" if isinstance(prompt, Conversation) else "prompt"
