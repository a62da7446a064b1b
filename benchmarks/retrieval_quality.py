"""How well a knowledge table finds the page that answers a question: by words, by vectors, and by both.

    python benchmarks/retrieval_quality.py [--model minilm] [--depth 50] [--reranker FILE.gguf]

The pages and questions of benchmarks/retrieval, in a table of the index in SQLite, with the vectors that
`antiphon serve` makes of title and text. Prints recall@3 and nDCG@10 in percent, for each language and kind
of question. A paraphrase shares no content word with its page. Ends with 1 where both together are more than
two points behind the better one of words and vectors in either half of the English questions, or not ahead
overall. With a reranker, the column `reranked` has the 40 best of both in its order. minilm is an English
model: the Chinese rows show words at work, and what a model costs that does not know the language.
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
NEAR = 3
"""Hits that a prompt gets, of which one must be the page."""
FAR = 10
SLACK = 2.0
"""Points that both together may be behind the better one."""
WAYS = ("words", "vectors", "both")
RERANKED = "reranked"
CANDIDATES = 4 * FAR
"""Hits of both that a reranker orders, as many for each wanted one as the server gives it."""

Ranks = dict[str, list[int | None]]
"""For each way, the page's place among the hits of each question, from 1; None where it was not found."""


def embed(client: httpx2.Client, model: str, texts: Sequence[str]) -> list[bytes]:
    """The vectors of texts."""
    vectors: list[bytes] = []
    for at in range(0, len(texts), BATCH):
        body = {"model": model, "input": texts[at : at + BATCH], "encoding_format": "base64"}
        answer = client.post("/v1/embeddings", json=body)
        answer.raise_for_status()
        vectors += [b64decode(each["embedding"]) for each in answer.json()["data"]]
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
    """The place of the question's page among the hits, for each way."""
    queries = {
        "words": SearchQuery(question.question, k=FAR, depth=depth),
        "vectors": SearchQuery(vector=vector, k=FAR, depth=depth),
        "both": SearchQuery(question.question, vector, FAR, depth),
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
    """The place of each question's page after the reranker."""
    found: list[int | None] = []
    for each, vector in zip(questions, vectors, strict=True):
        question, page = each.question, each.page
        query = SearchQuery(question, vector, CANDIDATES, max(CANDIDATES, 50))
        hits = await index.search(PROJECT, TABLE, query)
        body = {"model": "r", "query": question, "documents": [hit.chunk.text for hit in hits]}
        answer = client.post("/v1/rerank", json=body)
        if answer.status_code != 200:
            raise SystemExit(f"the reranker reads no such pages: {answer.text}")
        order = [names[hits[row["index"]].chunk.id] for row in answer.json()["results"]][:FAR]
        found.append(order.index(page) + 1 if page in order else None)
    return found


def measure_recall(places: Sequence[int | None]) -> float:
    """The share of questions whose page is near the top, in percent."""
    return 100 * sum(place is not None and place <= NEAR for place in places) / len(places)


def measure_ndcg(places: Sequence[int | None]) -> float:
    """nDCG@10 in percent. With one relevant page the ideal is 1."""
    return 100 * sum(1 / math.log2(1 + place) for place in places if place) / len(places)


def print_row(label: str, ranks: Ranks) -> None:
    figures = [f"{measure(ranks[way]):9.1f}" for measure in (measure_recall, measure_ndcg) for way in ranks]
    print(f"{label:22} {len(ranks['both']):5}" + "".join(figures))


def find_losses(halves: Mapping[str, Ranks], overall: Ranks) -> list[str]:
    """What both together do worse than the better one of words and vectors."""
    losses = []
    for name, measure in (("recall@3", measure_recall), ("nDCG@10", measure_ndcg)):
        for label, ranks in halves.items():
            found = {way: measure(ranks[way]) for way in WAYS}
            if found["both"] < max(found["words"], found["vectors"]) - SLACK:
                losses.append(f"{name} of both is more than {SLACK} points behind in {label}")
        found = {way: measure(overall[way]) for way in WAYS}
        if found["both"] <= max(found["words"], found["vectors"]):
            losses.append(f"{name} of both is not ahead overall")
    return losses


async def measure(model: str, depth: int, reranker: str | None) -> list[dict[str, int | None]]:
    """The places of each question's page, for each way."""
    pages, questions = read_pages(), read_questions()
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED)}
    models = ["--model", f"m={model}", *(("--model", f"r={reranker}") if reranker else ())]
    with ExitStack() as stack:
        server = stack.enter_context(serving(*models, env=env, threads=None))
        client = stack.enter_context(server.client())
        of_pages = embed(client, "m", [f"{page.title}\n{page.text}" for page in pages])
        of_questions = embed(client, "m", [each.question for each in questions])
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        index = SqliteIndex(Path(folder), SystemClock(), IndexLimits())
        names = await fill(index, pages, of_pages)
        found = [
            await rank(index, names, each, vector, depth)
            for each, vector in zip(questions, of_questions, strict=True)
        ]
        if reranker:
            reranked = await add_reranked(client, index, names, questions, of_questions)
            for places, place in zip(found, reranked, strict=True):
                places[RERANKED] = place
        await index.aclose()
    return found


async def run(model: str, depth: int, reranker: str | None) -> list[str]:
    """Measures and prints. Returns what is worse than it should be."""
    pages, questions = read_pages(), read_questions()
    languages = {page.id: page.language for page in pages}
    found = await measure(model, depth, reranker)
    ways = (*WAYS, RERANKED) if reranker else WAYS

    def select(language: str, kind: str) -> Ranks:
        """The ranks of some questions."""
        chosen = [
            places
            for places, each in zip(found, questions, strict=True)
            if language in ("", languages[each.page]) and kind in ("", each.kind)
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
    given = parser.parse_args()
    losses = asyncio.run(run(given.model, given.depth, given.reranker))
    print("\n".join(losses))
    return 1 if losses else 0


if __name__ == "__main__":
    sys.exit(main())
