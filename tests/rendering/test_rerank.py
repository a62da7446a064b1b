"""Queries and documents to pairs of token ids over a scripted engine, and what is refused before."""

from collections.abc import Sequence

import pytest

from antiphon.domain.context import Context
from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.request import (
    EmbeddingRequest,
    GenerationRequest,
    Pooling,
    Ranking,
    RawPrompt,
    RerankRequest,
)
from antiphon.engines.base import TextPiece
from antiphon.errors import ContextLengthExceeded, UnsupportedParameter
from antiphon.rendering.renderer import Renderer
from antiphon.rendering.rerank import find_probability
from antiphon_testing import ScriptedEmbeddingEngine, ScriptedTokenEngine

CONTEXT = Context("r", Actor(ActorKind.ANONYMOUS, "somebody"))


def build_reranker(template: str | None = None) -> ScriptedEmbeddingEngine:
    return ScriptedEmbeddingEngine(pooling=Pooling.RANK, rerank_template=template)


async def rank(
    engine: ScriptedTokenEngine, query: str, documents: Sequence[str], most: int | None = None
) -> Ranking:
    request = RerankRequest("m", query, tuple(documents), most)
    prepared = await Renderer(engine).prepare_rerank(request, CONTEXT)
    ranking = await prepared.rank(CONTEXT)
    assert prepared.size.prompt_tokens == ranking.prompt_tokens
    return ranking


async def test_each_document_is_read_with_the_query() -> None:
    engine = build_reranker()
    ranking = await rank(engine, "who", ["a long one", "b"])
    (asked,), frame, encode = engine.asked, engine.table.pair_frame, engine.tokenizer.encode_plain
    assert asked.texts == tuple(
        (*frame.before, *encode("who"), *frame.between, *encode(text), *frame.after)
        for text in ("a long one", "b")
    )
    assert ranking.prompt_tokens == sum(map(len, asked.texts))
    assert ranking.scores == tuple(find_probability(10 - len(text)) for text in asked.texts)
    assert ranking.order() == [1, 0]


async def test_the_text_of_a_control_token_ends_no_part() -> None:
    engine = build_reranker()
    name = engine.table.names[engine.table.eos_id or 0]
    await rank(engine, f"a{name}", [f"b{name}c"])
    assert engine.asked[0].texts[0].count(engine.table.eos_id or 0) == 2


async def test_a_document_is_cut_only_where_that_is_asked() -> None:
    engine = build_reranker()
    await rank(engine, "q", ["abcdefgh" * 9, "b"], most=5)
    encode = engine.tokenizer.encode_plain
    (long, short), frame = engine.asked[0].texts, engine.table.pair_frame
    before = (*frame.before, *encode("q"), *frame.between)
    assert long == (*before, *encode("abcdefgh" * 9)[:5], *frame.after)
    assert short == (*before, *encode("b"), *frame.after)


async def test_the_models_own_template_is_filled() -> None:
    engine = build_reranker("Judge. Q: {query} D: {document} A:")
    name = engine.table.names[engine.table.eos_id or 0]
    await rank(engine, f"who{name}", ["the book"])
    expected = await engine.tokenize([TextPiece(f"Judge. Q: who{name} D: the book A:")], False)
    assert engine.asked[0].texts == (expected,)
    await rank(engine, "who", ["the book of many words"], most=2)
    cut = engine.asked[1].texts[0]
    encode = engine.tokenizer.encode_plain
    assert cut == (*encode("Judge. Q: who D: "), *encode("the book of many words")[:2], *encode(" A:"))


async def test_only_the_templates_own_text_is_control() -> None:
    plain = build_reranker()
    name = plain.table.names[plain.table.eos_id or 0]
    engine = build_reranker("{query}" + name + "{document}")
    await rank(engine, f"a{name}", [f"b{name}"])
    assert engine.asked[0].texts[0].count(engine.table.eos_id or 0) == 1


@pytest.mark.parametrize(
    ("query", "documents", "param"),
    [("q", ["b", "c " * 600], "documents[1]"), ("q " * 600, ["b"], "query")],
)
async def test_what_does_not_fit_is_refused_by_name(query: str, documents: list[str], param: str) -> None:
    engine = build_reranker()
    with pytest.raises(ContextLengthExceeded) as refused:
        await rank(engine, query, documents)
    assert refused.value.param == param
    assert not engine.asked


class RecordingEngine(ScriptedEmbeddingEngine):
    """Keeps the texts that it tokenizes."""

    def __init__(self, template: str | None) -> None:
        super().__init__(pooling=Pooling.RANK, rerank_template=template)
        self.texts: list[str] = []

    async def tokenize(self, pieces: Sequence[TextPiece], add_bos: bool) -> tuple[int, ...]:
        self.texts.append("".join(piece.text for piece in pieces))
        return await super().tokenize(pieces, add_bos)


@pytest.mark.parametrize("template", [None, "Q: {query} D: {document}"])
async def test_a_query_too_long_is_paired_with_no_document(template: str | None) -> None:
    engine = RecordingEngine(template)
    with pytest.raises(ContextLengthExceeded, match="the query takes"):
        await rank(engine, "q " * 600, ["needle"])
    assert engine.texts and not any("needle" in text for text in engine.texts)


async def test_each_kind_of_model_refuses_the_others_work() -> None:
    with pytest.raises(UnsupportedParameter, match="no reranker"):
        await rank(ScriptedEmbeddingEngine(), "q", ["d"])
    with pytest.raises(UnsupportedParameter, match="no reranker"):
        await rank(ScriptedTokenEngine(), "q", ["d"])
    renderer = Renderer(build_reranker())
    with pytest.raises(UnsupportedParameter, match="/v1/rerank"):
        await renderer.prepare_embedding(EmbeddingRequest("m", (RawPrompt("a"),)), CONTEXT)
    with pytest.raises(UnsupportedParameter, match="/v1/rerank"):
        await renderer.prepare(GenerationRequest("m", (RawPrompt("a"),)), CONTEXT)


@pytest.mark.parametrize(
    ("odds", "probability"), [(0, 0.5), (1e4, 1.0), (-1e4, 0.0), (2.0, 0.8807970779778823)]
)
def test_odds_become_probabilities(odds: float, probability: float) -> None:
    assert find_probability(odds) == pytest.approx(probability)
