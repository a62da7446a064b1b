"""Measures how well a knowledge table finds the page for a question: by words, by vectors, and by both.

python benchmarks/retrieval_quality.py [--model minilm] [--depth 50] [--reranker FILE.gguf]

It uses the pages and questions of benchmarks/retrieval, a SQLite index, and the vectors of title and text
from `antiphon serve`. Prints recall@3 and nDCG@10 in percent, for each language and kind of question. A
paraphrase has no content word in common with its page. The exit status is 1 if both together are more than
two points worse than the better one of words and vectors in either half of the English questions, or not
better overall. With a reranker, the column `reranked` has the 40 best of both in the reranker's order. minilm
is an English model: the Chinese rows show the search by words, and the effect of a model that does not know
the language.
"""

import argparse
import asyncio
import math
import sys
import tempfile
from base64 import b64decode
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.domain.context import SystemClock
from antiphon.retrieval.base import ChunkInput, IndexLimits, KnowledgeIndex, SearchQuery, TableSettings
from antiphon.retrieval.sqlite.index import SqliteIndex
from tests.support.retrieval_set import QualityPage, QualityQuestion, read_pages, read_questions
from tests.support.server import serving

FETCHED = Path(__file__).parents[1] / ".venvs" / "minilm" / "models"
PROJECT, TABLE = "quality", "pages"
BATCH = 64
RECALL_HITS = 3
"""The number of hits in a prompt. One of them must be the page."""
NDCG_HITS = 10
TOLERANCE = 2.0
"""The most percentage points that both together may be worse than the better one."""
METHODS = ("words", "vectors", "both")
RERANKED = "reranked"
CANDIDATES = 4 * NDCG_HITS
"""The number of hits that the reranker sorts. It is the server's factor times the wanted hits."""

Ranks = dict[str, list[int | None]]
"""For each method, the page's rank among the hits of each question, from 1; None if it was not found."""


def embed(client: httpx2.Client, model: str, texts: Sequence[str]) -> list[bytes]:
    """Returns the vectors of texts."""
    vectors: list[bytes] = []
    for start in range(0, len(texts), BATCH):
        body = {"model": model, "input": texts[start : start + BATCH], "encoding_format": "base64"}
        answer = client.post("/v1/embeddings", json=body)
        answer.raise_for_status()
        vectors += [b64decode(item["embedding"]) for item in answer.json()["data"]]
    return vectors


async def fill(
    index: KnowledgeIndex, pages: Sequence[QualityPage], vectors: Sequence[bytes]
) -> dict[str, str]:
    """Adds the pages to a new table. Returns the pages' ids by their chunks'."""
    settings = TableSettings(TABLE, embedding_model="any", dimensions=len(vectors[0]) // 4)
    await index.create_table(PROJECT, settings)
    chunks = [
        ChunkInput(page.text, page.title, vector=vector) for page, vector in zip(pages, vectors, strict=True)
    ]
    added = await index.add_chunks(PROJECT, TABLE, chunks)
    return {chunk.id: page.id for chunk, page in zip(added, pages, strict=True)}


async def rank(
    index: KnowledgeIndex, names: Mapping[str, str], question: QualityQuestion, vector: bytes, depth: int
) -> dict[str, int | None]:
    """Returns the rank of the question's page among the hits, for each method."""
    queries = {
        "words": SearchQuery(question.question, k=NDCG_HITS, depth=depth),
        "vectors": SearchQuery(vector=vector, k=NDCG_HITS, depth=depth),
        "both": SearchQuery(question.question, vector, NDCG_HITS, depth),
    }
    places: dict[str, int | None] = {}
    for way, query in queries.items():
        hits = [names[hit.chunk.id] for hit in await index.search(PROJECT, TABLE, query)]
        places[way] = hits.index(question.page) + 1 if question.page in hits else None
    return places


async def add_reranked(
    client: httpx2.Client,
    index: KnowledgeIndex,
    names: Mapping[str, str],
    questions: Sequence[QualityQuestion],
    vectors: Sequence[bytes],
) -> list[int | None]:
    """Returns the rank of each question's page after reranking."""
    ranks: list[int | None] = []
    for question, vector in zip(questions, vectors, strict=True):
        query_text, page = question.question, question.page
        query = SearchQuery(query_text, vector, CANDIDATES, max(CANDIDATES, 50))
        hits = await index.search(PROJECT, TABLE, query)
        body = {"model": "r", "query": query_text, "documents": [hit.chunk.text for hit in hits]}
        answer = client.post("/v1/rerank", json=body)
        if answer.status_code != 200:
            raise SystemExit(f"the reranker failed: {answer.text}")
        order = [names[hits[row["index"]].chunk.id] for row in answer.json()["results"]][:NDCG_HITS]
        ranks.append(order.index(page) + 1 if page in order else None)
    return ranks


def measure_recall(places: Sequence[int | None]) -> float:
    """Returns the percentage of questions whose page is among the first hits."""
    return 100 * sum(place is not None and place <= RECALL_HITS for place in places) / len(places)


def measure_ndcg(places: Sequence[int | None]) -> float:
    """Returns nDCG@10 in percent. The ideal value is 1 for one relevant page."""
    return 100 * sum(1 / math.log2(1 + place) for place in places if place) / len(places)


def print_row(label: str, ranks: Ranks) -> None:
    figures = [f"{measure(ranks[way]):9.1f}" for measure in (measure_recall, measure_ndcg) for way in ranks]
    print(f"{label:22} {len(ranks['both']):5}" + "".join(figures))


def find_losses(halves: Mapping[str, Ranks], overall: Ranks) -> list[str]:
    """Describes the measures in which both together are too much worse than the better one."""
    losses = []
    for name, measure in (("recall@3", measure_recall), ("nDCG@10", measure_ndcg)):
        for label, ranks in halves.items():
            values = {way: measure(ranks[way]) for way in METHODS}
            if values["both"] < max(values["words"], values["vectors"]) - TOLERANCE:
                losses.append(f"{name} of both is more than {TOLERANCE} points behind in {label}")
        values = {way: measure(overall[way]) for way in METHODS}
        if values["both"] <= max(values["words"], values["vectors"]):
            losses.append(f"{name} of both is not ahead overall")
    return losses


async def measure(model: str, depth: int, reranker: str | None) -> list[dict[str, int | None]]:
    """Returns the ranks of each question's page, for each method."""
    pages, questions = read_pages(), read_questions()
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED)}
    models = ["--model", f"m={model}", *(("--model", f"r={reranker}") if reranker else ())]
    with ExitStack() as stack:
        server = stack.enter_context(serving(*models, env=env, threads=None))
        client = stack.enter_context(server.client())
        page_vectors = embed(client, "m", [f"{page.title}\n{page.text}" for page in pages])
        question_vectors = embed(client, "m", [question.question for question in questions])
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        index = SqliteIndex(Path(folder), SystemClock(), IndexLimits())
        names = await fill(index, pages, page_vectors)
        question_ranks = [
            await rank(index, names, question, vector, depth)
            for question, vector in zip(questions, question_vectors, strict=True)
        ]
        if reranker:
            reranked = await add_reranked(client, index, names, questions, question_vectors)
            for places, place in zip(question_ranks, reranked, strict=True):
                places[RERANKED] = place
        await index.aclose()
    return question_ranks


async def run(model: str, depth: int, reranker: str | None) -> list[str]:
    """Measures and prints. Returns a sentence for each measure that is too bad."""
    pages, questions = read_pages(), read_questions()
    languages = {page.id: page.language for page in pages}
    question_ranks = await measure(model, depth, reranker)
    ways = (*METHODS, RERANKED) if reranker else METHODS

    def select(language: str, kind: str) -> Ranks:
        """Selects the ranks of questions of a language and a kind."""
        chosen = [
            places
            for places, question in zip(question_ranks, questions, strict=True)
            if language in ("", languages[question.page]) and kind in ("", question.kind)
        ]
        return {way: [places[way] for places in chosen] for way in ways}

    print(f"{len(pages)} pages, {model}, {depth} hits of each ranking fused")
    print(f"{'':28}{'recall@3':>{9 * len(ways)}}{'nDCG@10':>{9 * len(ways)}}")
    print(f"{'language, kind':22} {'asked':>5}" + "".join(f"{way:>9}" for way in ways) * 2)
    for language, kind in (("en", "words"), ("en", "paraphrase"), ("zh", "words"), ("zh", "paraphrase")):
        print_row(f"{language}, {kind}", select(language, kind))
    for label, (language, kind) in {
        "en": ("en", ""),
        "words": ("", "words"),
        "paraphrase": ("", "paraphrase"),
        "all": ("", ""),
    }.items():
        print_row(label, select(language, kind))
    halves = {f"en, {kind}": select("en", kind) for kind in ("words", "paraphrase")}
    return find_losses(halves, select("", ""))


def main() -> int:
    """Runs the measurement."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--depth", type=int, default=50)
    parser.add_argument("--reranker", help="a cross-encoder's GGUF file")
    options = parser.parse_args()
    losses = asyncio.run(run(options.model, options.depth, options.reranker))
    print("\n".join(losses))
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
