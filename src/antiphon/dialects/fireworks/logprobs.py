"""Log-probabilities in Fireworks' two shapes, both with token ids. Its clients take numbers only, so where
nothing is known, at the first token of a prompt that is echoed, there is 0."""

from antiphon.dialects.common.encode import UNLIKELY, build_top_logprobs, encode_list, spell_token
from antiphon.dialects.fireworks.answers import FireworksRankedToken, Logprobs, TokenEntry
from antiphon.domain.scores import Scores, TokenScore

FIRST_LOGPROB = 0.0
"""Log-probability of a token that nothing comes before."""


def build_array_logprobs(scores: Scores, alternatives: bool) -> Logprobs:
    """Arrays of equal length; that of the alternatives only when some were asked for."""
    return Logprobs(
        tokens=encode_list(scores, lambda score: spell_token(score.piece)),
        token_logprobs=encode_list(scores, _clamp_logprob),
        top_logprobs=encode_list(scores, _build_top_logprobs) if alternatives else None,
        text_offset=encode_list(scores, lambda score: score.offset),
        token_ids=encode_list(scores, lambda score: score.token),
    )


def build_entry_logprobs(scores: Scores) -> Logprobs:
    """An entry for each token, with its alternatives."""
    return Logprobs(content=encode_list(scores, _build_entry))


def _build_entry(score: TokenScore) -> TokenEntry:
    best = [
        FireworksRankedToken(
            token=spell_token(piece), logprob=max(value, UNLIKELY), token_id=token, bytes=list(piece)
        )
        for token, piece, value in score.alternatives
    ]
    return TokenEntry(
        token=spell_token(score.piece),
        logprob=_clamp_logprob(score),
        token_id=score.token,
        bytes=list(score.piece),
        text_offset=score.offset,
        top_logprobs=best,
    )


def _build_top_logprobs(score: TokenScore) -> dict[str, float]:
    return build_top_logprobs(score) or {spell_token(score.piece): FIRST_LOGPROB}


def _clamp_logprob(score: TokenScore) -> float:
    return FIRST_LOGPROB if score.logprob is None else max(score.logprob, UNLIKELY)
