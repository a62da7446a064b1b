"""Loads what the renderer must know about a model: its vocabulary, its profile and its chat template."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping

from antiphon.domain.identity import Actor
from antiphon.domain.models import Load, Profile, TokenizerInfo
from antiphon.domain.request import Conversation, Prompt, SamplingOptions
from antiphon.domain.values import Struct, field, replace
from antiphon.engines.base import EngineInfo, TokenEngine, TokenKind, Vocabulary
from antiphon.errors import TemplateRefused, UnsupportedParameter
from antiphon.processes.sandbox import JobStopped, run_job
from antiphon.rendering.call_notation import CALL_SIGNS, detect_notation
from antiphon.rendering.detokenizer import Pieces
from antiphon.rendering.reasoning import detect_reasoning
from antiphon.rendering.template.chat_template import (
    BY_TEMPLATE,
    PROVED,
    ChatTemplate,
    NotationFamilies,
    SpecialTokens,
    build_proof,
    digest_proof,
)
from antiphon.rendering.template.request_template import TEMPLATE_FIELD, RequestTemplate, TemplateHelper
from antiphon.telemetry.logs import record

PROOF = "antiphon.rendering.template.chat_template:prove"
"""The name of the sandbox's job that proves a template."""

TRIALS = 2
"""How many trials a template's proof has. A good template needs a fiftieth of the allowed time."""

NO_CONVERSATIONS = "an embedding model takes no conversation; send its text as prompt"
"""The error message for a conversation that is sent to an embedding model. No endpoint renders conversations
for such a model."""

NOT_TAKEN = (
    f"{TEMPLATE_FIELD} is not supported: this server takes no templates from callers; leave it out, or "
    "have its operator set ANTIPHON_REQUEST_TEMPLATES=true"
)
"""The error message for a template in a request, if the operator allows no such templates."""

Prove = Callable[[Mapping[str, object]], Awaitable[object]]
"""Proves a template from the payload of `build_proof`. Raises TemplateRefused."""


class ModelInfo(Struct, frozen=True):
    """Information about one model. It is valid while the model's engine serves the same weights."""

    info: EngineInfo
    """The engine's information when it was loaded, with an empty load."""
    vocabulary: Vocabulary
    pieces: Pieces
    named_pieces: Pieces
    """The same pieces, but each control token has its name as text."""
    end_tokens: frozenset[int]
    """Tokens that end a turn; they show no text."""
    longest_piece: int
    """Bytes of the longest token. A text that cannot fit the context even in such tokens is refused without
    tokenizing."""
    profile: Profile
    special: SpecialTokens
    """The special tokens that templates need."""
    families: NotationFamilies
    """The configured families of the model's notations."""
    template: ChatTemplate | RequestTemplate | None
    template_refusal: str
    """The reason why `template` is None; empty if there is a template."""
    controls: Mapping[str, int]
    """The ids of control tokens by their names."""
    _shown_pieces: dict[frozenset[str], Pieces] = field(default_factory=dict)
    """Cache of `pieces_showing`."""
    _token_ids: dict[str, int | None] = field(default_factory=dict)
    """Cache of `find_single_tokens`."""

    def pieces_showing(self, marks: Iterable[str]) -> Pieces:
        """Returns pieces in which the control tokens among these marks have their names as text."""
        marked = frozenset(mark for mark in marks if mark in self.controls)
        if not marked:
            return self.pieces
        if marked not in self._shown_pieces:
            self._shown_pieces[marked] = self.pieces.with_names(
                {self.controls[mark]: mark for mark in marked}
            )
        return self._shown_pieces[marked]

    def find_single_tokens(self, texts: Iterable[str]) -> dict[str, int]:
        """Returns a token id for each text that is exactly one normal token."""
        return {text: token for text in texts if (token := self._find_token(text)) is not None}

    def _find_token(self, text: str) -> int | None:
        """Returns the id of the normal token with exactly this text, or None."""
        if text not in self._token_ids:
            piece, kinds = text.encode(), self.vocabulary.kinds
            token_ids = (
                token for token, other_piece in enumerate(self.vocabulary.pieces) if other_piece == piece
            )
            self._token_ids[text] = next(
                (token for token in token_ids if kinds[token] is TokenKind.NORMAL), None
            )
        return self._token_ids[text]


async def prove_in_sandbox(payload: Mapping[str, object]) -> None:
    """Proves a template in the sandbox. If the sandbox stops the job, tries again. Raises TemplateRefused.
    Raises ServerBusy if the machine is too busy; the next request then proves the template again."""
    for trial in range(1, TRIALS + 1):
        try:
            await run_job(PROOF, payload)
            return
        except JobStopped as stopped:
            if trial == TRIALS:
                stopped.raise_if_machine_was_busy()
                raise TemplateRefused(f"the model's chat template failed its trial: {stopped}") from None


async def load_info(
    engine: TokenEngine,
    prove: Prove,
    previous: ModelInfo | None,
    families: NotationFamilies = BY_TEMPLATE,
    sampling: SamplingOptions = SamplingOptions(),
) -> ModelInfo:
    """Loads the information about the model. Returns `previous` if the engine's information has not
    changed. `sampling`: defaults that take precedence over those of the model file."""
    info = replace(await engine.info(), load=Load())
    if previous is not None and info == previous.info:
        return previous
    vocabulary = await engine.vocabulary()
    pieces = await asyncio.to_thread(Pieces, vocabulary.pieces)
    special = _find_special_tokens(vocabulary)
    template, refusal = await _load_template(info.chat_template, special, prove, families)
    if template is None and info.embedding is not None:
        refusal = NO_CONVERSATIONS
    controls = {name: token for token, name in vocabulary.names.items()}
    return ModelInfo(
        info=info,
        vocabulary=vocabulary,
        pieces=pieces,
        named_pieces=await asyncio.to_thread(pieces.with_names, vocabulary.names),
        end_tokens=frozenset(vocabulary.end_ids),
        longest_piece=max(map(len, vocabulary.pieces), default=1) or 1,
        profile=_build_profile(info, template, vocabulary, sampling),
        special=special,
        families=families,
        template=template,
        template_refusal=refusal,
        controls=controls,
    )


def with_template(
    model_info: ModelInfo, prompt: Prompt, helper: TemplateHelper | None, actor: Actor
) -> ModelInfo:
    """Returns the information with the request's own template, if the request has one. Raises
    UnsupportedParameter if there is no `helper` to render it, and TemplateRefused for an embedding model."""
    if not isinstance(prompt, Conversation) or prompt.template is None:
        return model_info
    if helper is None:
        raise UnsupportedParameter(NOT_TAKEN, param=TEMPLATE_FIELD)
    if model_info.info.embedding is not None:
        raise TemplateRefused(NO_CONVERSATIONS, param=TEMPLATE_FIELD)
    source, template = prompt.template, model_info.template
    call_notation = detect_notation(source, model_info.families.calls)
    has_call_sign = any(sign in source for sign, _ in CALL_SIGNS)
    if model_info.families.calls is None and not has_call_sign and template is not None:
        call_notation = template.call_notation  # the model was trained with this notation
    reasoning_notation = detect_reasoning(source, model_info.families.reasoning)
    if reasoning_notation is None and template is not None:
        reasoning_notation = template.reasoning_notation
    request_template = RequestTemplate(
        source,
        model_info.special,
        model_info.families,
        call_notation,
        reasoning_notation,
        helper,
        actor.caller,
    )
    return replace(model_info, template=request_template)


def build_tokenizer_info(model_info: ModelInfo) -> TokenizerInfo:
    """Returns the properties of the tokenizer that the API reports."""
    vocabulary = model_info.vocabulary
    return TokenizerInfo(
        context_length=model_info.info.context_length,
        controls=vocabulary.names,
        bos=_spell_token(model_info, vocabulary.bos_id),
        eos=_spell_token(model_info, vocabulary.eos_id),
        add_bos=vocabulary.add_bos,
        chat_template=model_info.info.chat_template,
    )


def _spell_token(model_info: ModelInfo, token: int | None) -> str | None:
    return None if token is None else model_info.named_pieces.text((token,))


def _find_special_tokens(vocabulary: Vocabulary) -> SpecialTokens:
    """Returns the names of all control tokens, of the begin token and of the end token."""
    names = vocabulary.names
    bos = "" if vocabulary.bos_id is None else names.get(vocabulary.bos_id, "")
    eos = "" if vocabulary.eos_id is None else names.get(vocabulary.eos_id, "")
    return SpecialTokens(tuple(names.values()), bos, eos)


async def _load_template(
    source: str | None, special: SpecialTokens, prove: Prove, families: NotationFamilies
) -> tuple[ChatTemplate | None, str]:
    """Returns the model's template after its proof. If there is no usable template, returns None and the
    reason."""
    if source is None:
        return (
            None,
            "this model has no chat template; send its prompt to /v1/completions, or, if the server accepts "
            "templates (ANTIPHON_REQUEST_TEMPLATES=true), send one as chat_template",
        )
    proof = build_proof(source, special)
    try:
        if digest_proof(proof) not in PROVED:
            await prove(proof)
        return await asyncio.to_thread(ChatTemplate, source, special, families), ""
    except TemplateRefused as refused:
        record("chat_template_refused", logging.WARNING, reason=refused.message)
        reason = refused.message.rstrip(".")
        return None, f"this model serves no chat, as its template was refused; use /v1/completions ({reason})"


def _build_profile(
    info: EngineInfo, template: ChatTemplate | None, vocabulary: Vocabulary, sampling: SamplingOptions
) -> Profile:
    """Builds the public description of a model from the properties of the engine, the template and the
    vocabulary."""
    return Profile(
        architecture=info.architecture,
        parameters=info.parameters,
        size=info.size,
        quantization=info.quantization,
        context_length=info.context_length,
        vocabulary=info.vocabulary,
        chat=template is not None,
        reasoning=template is not None and template.reasoning_notation is not None,
        exact=info.exact,
        sequences=info.sequences,
        engine=info.library,
        sampling=sampling.with_defaults(info.sampling),
        refused=() if info.takes_predictions or info.embedding is not None else ("prediction",),
        infill=vocabulary.infill is not None and info.embedding is None,
        embedding=info.embedding,
        portable_seeds=info.portable_seeds,
        devices=info.devices,
        modalities=("text", *(info.media.kinds if info.media is not None else ())),
        license=info.license,
        organization=info.organization,
    )
