"""What the renderer has to know of a model, asked once: its table of tokens, its profile and its chat
template."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace

from antiphon.domain.load import Load
from antiphon.domain.profile import Profile
from antiphon.engines.base import EngineInfo, TokenEngine, Vocabulary
from antiphon.errors import TemplateRefused
from antiphon.rendering.detokenizer import Pieces
from antiphon.rendering.templates import ChatTemplate, Special, proof_of
from antiphon.sandbox import JobStopped, run_job
from antiphon.telemetry.logs import record

PROOF = "antiphon.rendering.templates:prove"
"""The sandbox's job that proves a template."""

TRIALS = 2
"""How often a template may be tried; a good one takes a fiftieth of the time that it is given."""

NO_CONVERSATIONS = "an embedding model takes no conversation; send its text as prompt"
"""Where a conversation would be rendered for one: it generates nowhere, so nothing else takes it either."""

Prove = Callable[[Mapping[str, object]], Awaitable[object]]
"""Proves a template from the payload of `proof_of`. Raises TemplateRefused."""


@dataclass(frozen=True, slots=True)
class Facts:
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
    template: ChatTemplate | None
    refusal: str
    """Why there is no template."""
    controls: Mapping[str, int]
    """Ids of control tokens by name."""
    heard: Pieces
    """Pieces with those control tokens as their names that stand around calls."""


async def prove_apart(payload: Mapping[str, object]) -> None:
    """Proves a template in the killable helper, again when it was stopped: the machine may be busy."""
    for trial in range(1, TRIALS + 1):
        try:
            await run_job(PROOF, payload)
            return
        except JobStopped as stopped:
            if trial == TRIALS:
                raise TemplateRefused(f"the model's chat template failed its trial: {stopped}") from None


async def learn(engine: TokenEngine, prove: Prove, before: Facts | None, family: str | None = None) -> Facts:
    """Asks the engine. What was known before still holds when the engine says the same of itself. `family`:
    whose notation the model has for calls; None is what its template says."""
    info = replace(await engine.info(), load=Load())
    if before is not None and info == before.info:
        return before
    vocabulary = await engine.vocabulary()
    pieces = await asyncio.to_thread(Pieces, vocabulary.pieces)
    template, refusal = await _template(info.chat_template, vocabulary, prove, family)
    if template is None and info.embedding is not None:
        refusal = NO_CONVERSATIONS
    controls = {name: token for token, name in vocabulary.names.items()}
    marks = {} if template is None else template.layout.shown(controls)
    return Facts(
        info=info,
        vocabulary=vocabulary,
        pieces=pieces,
        spelt=await asyncio.to_thread(pieces.named, vocabulary.names),
        ends=frozenset(vocabulary.end_ids),
        longest_piece=max(map(len, vocabulary.pieces), default=1) or 1,
        profile=_profile(info, template is not None),
        template=template,
        refusal=refusal,
        controls=controls,
        heard=await asyncio.to_thread(pieces.named, marks) if marks else pieces,
    )


async def _template(
    source: str | None, vocabulary: Vocabulary, prove: Prove, family: str | None
) -> tuple[ChatTemplate | None, str]:
    """The model's template once it was proved, or the sentence that says why there is none."""
    if source is None:
        return None, "this model has no chat template; send its prompt to /v1/completions"
    names = vocabulary.names
    bos, eos = (
        names.get(-1 if index is None else index, "") for index in (vocabulary.bos_id, vocabulary.eos_id)
    )
    special = Special(tuple(names.values()), bos, eos)
    try:
        await prove(proof_of(source, special))
        return await asyncio.to_thread(ChatTemplate, source, special, family), ""
    except TemplateRefused as refused:
        record("chat_template_refused", logging.WARNING, reason=refused.message)
        reason = refused.message.rstrip(".")
        return None, f"this model serves no chat, as its template was refused; use /v1/completions ({reason})"


def _profile(info: EngineInfo, chat: bool) -> Profile:
    return Profile(
        architecture=info.architecture,
        parameters=info.parameters,
        size=info.size,
        quantization=info.quantization,
        context_length=info.context_length,
        vocabulary=info.vocabulary,
        chat=chat,
        exact=info.exact,
        sequences=info.sequences,
        engine=info.library,
        sampling=info.sampling,
        embedding=info.embedding,
    )
