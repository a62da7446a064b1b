"""What the renderer has to know of a model, asked once: its table of tokens, its profile and its chat
template."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from antiphon.domain.identity import Actor
from antiphon.domain.load import Load
from antiphon.domain.profile import Profile
from antiphon.domain.request import Conversation, Prompt
from antiphon.domain.tokenizer import TokenizerInfo
from antiphon.engines.base import EngineInfo, TokenEngine, TokenKind, Vocabulary
from antiphon.errors import TemplateRefused, UnsupportedParameter
from antiphon.processes.sandbox import JobStopped, run_job
from antiphon.rendering.detokenizer import Pieces
from antiphon.rendering.reasoning import families as thinking
from antiphon.rendering.sandboxed_template import FIELD, Helper, OwnTemplate
from antiphon.rendering.templates import BY_TEMPLATE, ChatTemplate, Families, Special, proof_of
from antiphon.rendering.toolcalls import families as calling
from antiphon.telemetry.logs import record

PROOF = "antiphon.rendering.templates:prove"
"""The sandbox's job that proves a template."""

TRIALS = 2
"""How often a template may be tried; a good one takes a fiftieth of the time that it is given."""

NO_CONVERSATIONS = "an embedding model takes no conversation; send its text as prompt"
"""Where a conversation would be rendered for one: it generates nowhere, so nothing else takes it either."""

NOT_TAKEN = (
    f"{FIELD} is not supported: this server takes no templates from callers; leave it out, or have its "
    "operator set ANTIPHON_REQUEST_TEMPLATES=true"
)
"""What a request's template is told where nobody decided to take any."""

Prove = Callable[[Mapping[str, object]], Awaitable[object]]
"""Proves a template from the payload of `proof_of`. Raises TemplateRefused."""


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """One model, as long as its engine serves the same weights."""

    info: EngineInfo
    """As it was when it was asked; its load is empty, as that would be old."""
    vocabulary: Vocabulary
    pieces: Pieces
    spelt: Pieces
    """The same, with control tokens as their names."""
    ends: frozenset[int]
    """Tokens that end a turn; they show no text."""
    longest_piece: int
    """Bytes of the longest token, for telling quickly what cannot fit."""
    profile: Profile
    special: Special
    """What of the vocabulary templates deal with."""
    families: Families
    """What is said of the model's notations."""
    template: ChatTemplate | OwnTemplate | None
    refusal: str
    """Why there is no template."""
    controls: Mapping[str, int]
    """Ids of control tokens by name."""
    named: dict[frozenset[str], Pieces] = field(default_factory=dict)
    """Pieces with some control tokens as their names, as they were asked for."""
    whole: dict[str, int | None] = field(default_factory=dict)
    """Tokens of texts, as they were asked for."""

    def hearing(self, marks: Iterable[str]) -> Pieces:
        """Pieces with those of the marks as their names that are control tokens."""
        marked = frozenset(mark for mark in marks if mark in self.controls)
        if not marked:
            return self.pieces
        if marked not in self.named:
            self.named[marked] = self.pieces.with_names({self.controls[mark]: mark for mark in marked})
        return self.named[marked]

    def wholes(self, texts: Iterable[str]) -> dict[str, int]:
        """Those of the texts that are one token each, which is no control token."""
        return {text: token for text in texts if (token := self._token(text)) is not None}

    def _token(self, text: str) -> int | None:
        if text not in self.whole:
            piece, kinds = text.encode(), self.vocabulary.kinds
            found = (at for at, other in enumerate(self.vocabulary.pieces) if other == piece)
            self.whole[text] = next((at for at in found if kinds[at] is TokenKind.NORMAL), None)
        return self.whole[text]


async def prove_apart(payload: Mapping[str, object]) -> None:
    """Proves a template in the killable helper, again when it was stopped. Raises TemplateRefused, and
    ServerBusy where the machine is too busy: then nothing is known of the template, and it is proved again
    when it is asked for next."""
    for trial in range(1, TRIALS + 1):
        try:
            await run_job(PROOF, payload)
            return
        except JobStopped as stopped:
            if trial == TRIALS:
                stopped.raise_if_waited()
                raise TemplateRefused(f"the model's chat template failed its trial: {stopped}") from None


async def load_info(
    engine: TokenEngine, prove: Prove, before: ModelInfo | None, families: Families = BY_TEMPLATE
) -> ModelInfo:
    """Asks the engine. What was known before still holds when the engine says the same of itself."""
    info = replace(await engine.info(), load=Load())
    if before is not None and info == before.info:
        return before
    vocabulary = await engine.vocabulary()
    pieces = await asyncio.to_thread(Pieces, vocabulary.pieces)
    special = _special(vocabulary)
    template, refusal = await _template(info.chat_template, special, prove, families)
    if template is None and info.embedding is not None:
        refusal = NO_CONVERSATIONS
    controls = {name: token for token, name in vocabulary.names.items()}
    return ModelInfo(
        info=info,
        vocabulary=vocabulary,
        pieces=pieces,
        spelt=await asyncio.to_thread(pieces.with_names, vocabulary.names),
        ends=frozenset(vocabulary.end_ids),
        longest_piece=max(map(len, vocabulary.pieces), default=1) or 1,
        profile=_profile(info, template),
        special=special,
        families=families,
        template=template,
        refusal=refusal,
        controls=controls,
    )


def with_template(facts: ModelInfo, prompt: Prompt, helper: Helper | None, actor: Actor) -> ModelInfo:
    """The model as a request sees it: with the template that the request brings, if it does. Raises
    UnsupportedParameter where no `helper` renders any, TemplateRefused where there is no use for one."""
    if not isinstance(prompt, Conversation) or prompt.template is None:
        return facts
    if helper is None:
        raise UnsupportedParameter(NOT_TAKEN, param=FIELD)
    if facts.info.embedding is not None:
        raise TemplateRefused(NO_CONVERSATIONS, param=FIELD)
    source, known = prompt.template, facts.template
    layout = calling.layout_of(source, facts.families.calls)
    silent = facts.families.calls is None and not any(sign in source for sign, _ in calling.SIGNS)
    if silent and known is not None:
        layout = known.layout  # the weights know no other
    notation = thinking.notation_of(source, facts.families.reasoning)
    if notation is None and known is not None:
        notation = known.notation
    own = OwnTemplate(source, facts.special, facts.families, layout, notation, helper, actor.caller)
    return replace(facts, template=own)


def tokenizer_info(facts: ModelInfo) -> TokenizerInfo:
    """What the model's tokenizer is."""
    table = facts.vocabulary
    return TokenizerInfo(
        context_length=facts.info.context_length,
        controls=table.names,
        bos=_spell_token(facts, table.bos_id),
        eos=_spell_token(facts, table.eos_id),
        add_bos=table.add_bos,
        chat_template=facts.info.chat_template,
    )


def _spell_token(facts: ModelInfo, token: int | None) -> str | None:
    return None if token is None else facts.spelt.text((token,))


def _special(vocabulary: Vocabulary) -> Special:
    names = vocabulary.names
    bos, eos = (
        names.get(-1 if index is None else index, "") for index in (vocabulary.bos_id, vocabulary.eos_id)
    )
    return Special(tuple(names.values()), bos, eos)


async def _template(
    source: str | None, special: Special, prove: Prove, families: Families
) -> tuple[ChatTemplate | None, str]:
    """The model's template once it was proved, or the sentence that says why there is none."""
    if source is None:
        return (
            None,
            "this model has no chat template; send its prompt to /v1/completions, or where the server takes "
            "them (ANTIPHON_REQUEST_TEMPLATES=true) one as chat_template",
        )
    try:
        await prove(proof_of(source, special))
        return await asyncio.to_thread(ChatTemplate, source, special, families), ""
    except TemplateRefused as refused:
        record("chat_template_refused", logging.WARNING, reason=refused.message)
        reason = refused.message.rstrip(".")
        return None, f"this model serves no chat, as its template was refused; use /v1/completions ({reason})"


def _profile(info: EngineInfo, template: ChatTemplate | None) -> Profile:
    return Profile(
        architecture=info.architecture,
        parameters=info.parameters,
        size=info.size,
        quantization=info.quantization,
        context_length=info.context_length,
        vocabulary=info.vocabulary,
        chat=template is not None,
        reasoning=template is not None and template.notation is not None,
        exact=info.exact,
        sequences=info.sequences,
        engine=info.library,
        sampling=info.sampling,
        embedding=info.embedding,
    )
