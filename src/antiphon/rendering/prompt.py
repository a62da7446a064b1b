"""Converts a prompt to its text and its token ids. This module generates no token.

With `suffix`, the model fills in the middle between two texts. The order is that of llama.cpp's server. First
come the begin token, if the model needs one, the prefix token and the prompt. Then come the suffix token and
the suffix, and the middle token. The names of control tokens in both texts are plain text.
"""

import asyncio
from collections.abc import Iterable, Sequence
from itertools import chain

from antiphon.domain.context import Clock
from antiphon.domain.messages import MediaContent, TextContent
from antiphon.domain.request import Conversation, GenerationRequest, Prediction, Prompt, RawPrompt
from antiphon.domain.vendor_fields import REFUSALS
from antiphon.engines.base import InfillTokens, MediumSpan, PromptTokens, TextPiece
from antiphon.errors import ContextLengthExceeded, InvalidValue, TemplateRefused, UnsupportedParameter
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.prompt_media import RequestMedia, mark_media, place_medium
from antiphon.rendering.template.messages import collect_texts, measure
from antiphon.rendering.template.request_template import TEMPLATE_FIELD, RequestTemplate
from antiphon.rendering.template.shield import is_valid_unicode
from antiphon.rendering.tokenizer import TextTokenizer

MOST_TRUNCATED = 1 << 20
"""The most characters of a prompt that the server truncates. The tokenizer reads the dropped part too."""

INVALID_UNICODE = "the text holds half of a surrogate pair, which is no character; send valid Unicode"

LARGE_CONVERSATION = 20_000
"""A thread renders a conversation with more characters. This many take about one millisecond. Each message
counts as 200 more characters."""


async def encode_with_media(
    tokenizer: TextTokenizer,
    model_info: ModelInfo,
    prompt: Prompt,
    clock: Clock,
    media: RequestMedia,
) -> PromptTokens:
    """Returns the tokens of a prompt with media."""
    parts: Iterable[tuple[TextPiece, ...] | MediaContent]
    if isinstance(prompt, RawPrompt):
        _require_valid_unicode(
            [part.text for part in prompt.content if isinstance(part, TextContent)], prompt
        )
        parts = [
            (TextPiece(part.text, control=True),) if isinstance(part, TextContent) else part
            for part in prompt.content
        ]
        pieces = tuple(chain.from_iterable(part for part in parts if isinstance(part, tuple)))
    else:
        template_texts = (model_info.info.chat_template or "", *model_info.vocabulary.names.values())
        marked = mark_media(prompt, template_texts)
        pieces = await render_prompt(model_info, marked.conversation, clock)
        parts = marked.split(pieces)
    require_possible(pieces, model_info, prompt)
    ids, spans = list[int](), list[MediumSpan]()
    adds_bos = _adds_bos(prompt, model_info) and not _has_bos(pieces, model_info)
    for part in parts:
        if isinstance(part, MediaContent):
            if adds_bos:
                ids += await tokenizer.tokenize((), True)
                adds_bos = False
            spans += place_medium(media[part], len(ids))
            ids += media[part].layout.ids
        elif any(piece.text for piece in part) or adds_bos:
            ids += await tokenizer.tokenize(part, adds_bos)
            adds_bos = False
    return PromptTokens(tuple(ids), tuple(spans))


async def encode(
    tokenizer: TextTokenizer, model_info: ModelInfo, prompt: Prompt, clock: Clock, is_truncated: bool = False
) -> tuple[int, ...]:
    """Returns the token ids of a prompt of text. `is_truncated`: whether the request truncates them; then the
    prompt may be longer than the context."""
    if isinstance(prompt, RawPrompt) and prompt.tokens is not None:
        # Without truncation, a prompt with more tokens is refused later.
        checked_tokens = prompt.tokens if is_truncated else prompt.tokens[: model_info.info.context_length]
        require_token_ids(checked_tokens, model_info, "prompt")
        return prompt.tokens
    if model_info.info.embedding is not None and isinstance(prompt, RawPrompt):
        return await tokenize_text(tokenizer, model_info, prompt.text or "", prompt.add_special)
    if isinstance(prompt, RawPrompt) and not prompt.text:
        return build_text_start(model_info) if prompt.add_special else ()
    adds_bos = _adds_bos(prompt, model_info)
    pieces = await render_prompt(model_info, prompt, clock)
    require_possible(pieces, model_info, prompt, MOST_TRUNCATED if is_truncated else 0)
    return await tokenizer.tokenize(pieces, adds_bos and not _has_bos(pieces, model_info))


def _has_bos(pieces: Sequence[TextPiece], model_info: ModelInfo) -> bool:
    """Whether a rendered prompt begins with the begin token."""
    bos_id = model_info.vocabulary.bos_id
    bos = None if bos_id is None else model_info.vocabulary.names.get(bos_id)
    return bool(bos and pieces and pieces[0].control and pieces[0].text.startswith(bos))


def build_text_start(model_info: ModelInfo) -> tuple[int, ...]:
    """Returns the token that begins a new text: the begin token. Without a begin token, returns the end
    token, as OpenAI does with `<|endoftext|>`. Returns no token if the model has neither."""
    vocabulary = model_info.vocabulary
    start_token = vocabulary.eos_id if vocabulary.bos_id is None else vocabulary.bos_id
    return () if start_token is None else (start_token,)


def _adds_bos(prompt: Prompt, model_info: ModelInfo) -> bool:
    """Whether the tokenizer adds the begin token. A text gets the token by the model's rule unless the caller
    refuses it. A conversation gets the token only if the caller asks for it. Raises UnsupportedParameter for
    a model without the token."""
    if prompt.add_special is None or isinstance(prompt, RawPrompt):
        return model_info.vocabulary.add_bos and prompt.add_special is not False
    if prompt.add_special and model_info.vocabulary.bos_id is None:
        raise UnsupportedParameter(
            "add_special_tokens is not supported: this model has no begin token; leave it out",
            param="add_special_tokens",
        )
    return prompt.add_special


async def tokenize_text(
    tokenizer: TextTokenizer, model_info: ModelInfo, text: str, add_special: bool = True
) -> tuple[int, ...]:
    """Tokenizes a text for embedding. The text cannot contain a control token. `add_special`: whether to add
    the tokens that the model needs before and after the text."""
    before, after = model_info.vocabulary.embedding_frame if add_special else ((), ())
    return (*before, *await tokenizer.tokenize([TextPiece(text)], False), *after)


async def render_prompt(model_info: ModelInfo, prompt: Prompt, clock: Clock) -> tuple[TextPiece, ...]:
    """Renders a prompt to pieces of text, in which control tokens are marked. Raises a RequestError."""
    if isinstance(prompt, RawPrompt):
        _require_valid_unicode([prompt.text or ""], prompt)
        return (TextPiece(prompt.text, control=True),) if prompt.text else ()
    texts, size = measure(prompt)
    _require_valid_unicode(texts, prompt)
    if model_info.template is None:
        raise TemplateRefused(model_info.template_refusal, param="messages")
    if isinstance(model_info.template, RequestTemplate):
        return await model_info.template.render(prompt, clock)
    if size > LARGE_CONVERSATION or not _has_simple_values(prompt):
        return await asyncio.to_thread(model_info.template.render, prompt, clock)
    return model_info.template.render(prompt, clock)


def _has_simple_values(prompt: Conversation) -> bool:
    """Whether the caller gives the template only booleans and texts. Lists, objects and documents can make
    rendering slow, because the template was proved without them."""
    values = prompt.template_values.values()
    return prompt.documents is None and all(isinstance(value, bool | str) for value in values)


def require_token_ids(tokens: Sequence[int], model_info: ModelInfo, field: str) -> None:
    """Raises InvalidValue for an id outside the vocabulary."""
    vocabulary_size = model_info.info.vocabulary
    if tokens and not (min(tokens) >= 0 and max(tokens) < vocabulary_size):
        unknown_id = next(token for token in tokens if not 0 <= token < vocabulary_size)
        raise InvalidValue(
            f"{field}: token id {unknown_id} is not one of this model's ids, 0 to {vocabulary_size - 1}",
            param=field,
        )


def require_possible(
    pieces: Sequence[TextPiece], model_info: ModelInfo, prompt: Prompt, allowed_characters: int = 0
) -> None:
    """Raises ContextLengthExceeded for a text that has too many characters for the context with any
    tokenizer. `allowed_characters`: a text of at most this many characters is accepted, because its tokens
    are truncated later."""
    size = sum(len(piece.text) for piece in pieces)
    least_tokens = size // model_info.longest_piece
    if size > allowed_characters and least_tokens > model_info.info.context_length:
        prompt_name = describe_prompt(prompt)
        raise ContextLengthExceeded(
            f"{context_sentence(model_info)} However, your {prompt_name} resulted in at least "
            f"{least_tokens} tokens. "
            f"Please reduce the length of the {prompt_name}.",
            param=blame_field(prompt, (size,)),
            lengths=(least_tokens, model_info.info.context_length - 1),
        )


def _require_valid_unicode(texts: Sequence[str], prompt: Prompt) -> None:
    """Raises InvalidValue for a text with a lone surrogate, which JSON can contain but UTF-8 cannot."""
    if not is_valid_unicode("".join(texts)):
        raise InvalidValue(
            INVALID_UNICODE,
            param=_name_field(prompt),
        )


async def tokenize_prediction(
    tokenizer: TextTokenizer, model_info: ModelInfo, prediction: Prediction
) -> tuple[tuple[int, ...], bool]:
    """Returns the token ids of a prediction, as a completion has them: without a begin token, and no text of
    it is a control token. Also returns whether tokens that no context can hold were cut. Raises
    UnsupportedParameter if the model takes no predictions, and InvalidValue for an unknown token id."""
    if not model_info.info.takes_predictions:
        field = prediction.field
        raise UnsupportedParameter(f"{field} is not supported: {REFUSALS['prediction']}", param=field)
    context_length = model_info.info.context_length
    if prediction.tokens is not None:
        require_token_ids(prediction.tokens, model_info, prediction.field)
        return prediction.tokens[:context_length], len(prediction.tokens) > context_length
    if not is_valid_unicode(prediction.text):
        raise InvalidValue(INVALID_UNICODE, param=prediction.field)
    # So many characters have more tokens than the context with any tokenizer.
    text = prediction.text[: (context_length + 1) * model_info.longest_piece]
    if model_info.vocabulary.space_prefix:
        text = text.removeprefix(" ")  # the tokenizer adds it
    tokens = await tokenizer.tokenize([TextPiece(text)], False) if text else ()
    return tokens[:context_length], len(tokens) > context_length


def context_sentence(model_info: ModelInfo) -> str:
    """Returns the first sentence of a context error, in OpenAI's words: clients search for them."""
    return f"This model's maximum context length is {model_info.info.context_length} tokens."


def describe_prompt(prompt: Prompt) -> str:
    """Returns the request fields whose tokens the prompt contains, as words for an error."""
    if not isinstance(prompt, Conversation):
        return "prompt"
    if prompt.template is not None:
        return "prompt that the request's chat template writes"
    return "messages and tools" if prompt.tools is not None else "messages"


def blame_field(prompt: Prompt, lengths: Iterable[int]) -> str:
    """Returns the request field that makes a prompt too long. If messages and tools are less than half of the
    prompt, that field is the request's template. `lengths`: of the prompt's parts, in bytes or characters."""
    if not isinstance(prompt, Conversation) or prompt.template is None:
        return _name_field(prompt)
    caller_bytes, total_length = sum(len(text.encode()) for text in collect_texts(prompt)), sum(lengths)
    return TEMPLATE_FIELD if not total_length or 2 * caller_bytes < total_length else _name_field(prompt)


def _name_field(prompt: Prompt) -> str:
    """Returns the request field that holds the prompt."""
    return "messages" if isinstance(prompt, Conversation) else "prompt"


async def encode_infill(
    tokenizer: TextTokenizer, model_info: ModelInfo, request: GenerationRequest, prompt: Prompt
) -> tuple[int, ...]:
    """Returns the token ids of a prompt and the request's suffix. Raises UnsupportedParameter if the model or
    the request allows no suffix."""
    text, infill = _require_fillable(model_info, request, prompt)
    prompt_piece, suffix_piece = TextPiece(text), TextPiece(request.output.suffix)
    require_possible((prompt_piece, suffix_piece), model_info, prompt)
    bos_id = model_info.vocabulary.bos_id
    adds_bos = model_info.vocabulary.add_bos and prompt.add_special is not False
    return (
        *((bos_id,) if adds_bos and bos_id is not None else ()),
        infill.prefix,
        *await tokenizer.tokenize((prompt_piece,), False),
        infill.suffix,
        *await tokenizer.tokenize((suffix_piece,), False),
        infill.middle,
    )


def _require_fillable(
    model_info: ModelInfo, request: GenerationRequest, prompt: Prompt
) -> tuple[str, InfillTokens]:
    """Returns the prompt's text, and the tokens that mark prefix, suffix and middle. Raises
    UnsupportedParameter."""
    infill, output = model_info.vocabulary.infill, request.output
    if not isinstance(prompt, RawPrompt):
        raise _build_refusal("a conversation has no middle; send a prompt instead of messages")
    if infill is None:
        raise _build_refusal("this model has no tokens for filling in the middle; leave it out")
    if prompt.tokens is not None:
        raise _build_refusal("a prompt of token ids stays as it is; send the prompt as a text")
    if output.echo:
        raise _build_refusal("echo repeats the prompt, which the suffix is part of here; leave out echo")
    if output.truncate_prompt is not None:
        raise _build_refusal(
            "truncate_prompt_tokens would cut the tokens that mark the parts; shorten the texts instead"
        )
    return prompt.text or "", infill


def _build_refusal(reason: str) -> UnsupportedParameter:
    """Returns the error for a suffix that is refused."""
    return UnsupportedParameter(f"suffix is not supported: {reason}", param="suffix")
