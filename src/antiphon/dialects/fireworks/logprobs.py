"""Log-probabilities in Fireworks' two shapes, both with token ids. Its clients take numbers only, so where
nothing is known, at the first token of a prompt that is echoed, there is 0."""

from antiphon.dialects.common.logprobs import UNLIKELY, ranked, spelt, written
from antiphon.dialects.fireworks.answers import Logprobs, RankedToken, TokenEntry
from antiphon.domain.scores import Scores, TokenScore

GIVEN = 0.0
"""Log-probability of a token that nothing comes before."""


def array_logprobs(scores: Scores, alternatives: bool) -> Logprobs:
    """Arrays of equal length; that of the alternatives only when some were asked for."""
    return Logprobs(
        tokens=written(scores, lambda score: spelt(score.piece)),
        token_logprobs=written(scores, _logprob_of),
        top_logprobs=written(scores, _ranked) if alternatives else None,
        text_offset=written(scores, lambda score: score.offset),
        token_ids=written(scores, lambda score: score.token),
    )


def entry_logprobs(scores: Scores) -> Logprobs:
    """An entry for each token, with its alternatives."""
    return Logprobs(content=written(scores, _entry))


def _entry(score: TokenScore) -> TokenEntry:
    best = [
        RankedToken(token=spelt(piece), logprob=max(value, UNLIKELY), token_id=token, bytes=list(piece))
        for token, piece, value in score.alternatives
    ]
    return TokenEntry(
        token=spelt(score.piece),
        logprob=_logprob_of(score),
        token_id=score.token,
        bytes=list(score.piece),
        text_offset=score.offset,
        top_logprobs=best,
    )


def _ranked(score: TokenScore) -> dict[str, float]:
    return ranked(score) or {spelt(score.piece): GIVEN}


def _logprob_of(score: TokenScore) -> float:
    return GIVEN if score.logprob is None else max(score.logprob, UNLIKELY)
