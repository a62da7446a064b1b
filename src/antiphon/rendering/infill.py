"""Builds the prompt of a request with `suffix`: the model fills in the middle between two texts.

The order is that of llama.cpp's server: the begin token if the model needs one, the prefix token and the
prompt, the suffix token and the suffix, the middle token. The names of control tokens in both texts are plain
text.
"""

from antiphon.domain.request import GenerationRequest, Prompt, RawPrompt
from antiphon.engines.base import InfillTokens, TextPiece
from antiphon.errors import UnsupportedParameter
from antiphon.rendering.model_info import ModelInfo
from antiphon.rendering.prompt import require_possible
from antiphon.rendering.tokenizer import TextTokenizer


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
