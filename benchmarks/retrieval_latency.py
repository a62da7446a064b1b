"""Measures the time that retrieval from a knowledge table adds to the first token, in milliseconds.

python benchmarks/retrieval_latency.py [--rounds 7] [--requests 12]

It runs `antiphon serve` with the bundled model and minilm (`make install` fetches it), without keys. It sends
three kinds of requests in turn, each for one streamed token: a question with `rag_params` and a query, the
same question without them, and the prompt with chunks as the model sees it, written by the caller. The
difference to the last one is the cost of the search; the rest is the cost of the longer prompt. Each question
is new; the prefixes of prompts are cached in all three. Prints the medians over all rounds.
"""

import argparse
import json
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx2

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.domain.messages import Message, Role
from antiphon.domain.retrieval import ReferencedChunk
from antiphon.pipeline.retrieve import insert_chunks
from tests.support.server import serving

MODELS = Path(__file__).parents[1] / ".venvs" / "minilm" / "models"

TABLES: dict[str, str | None] = {"words": None, "hybrid": "minilm"}
CHUNKS = 1_000
BATCH = 100
WORDS = "boat tower island harbour captain storm lamp rope letter winter bread song mountain river".split()
QUERY = "boat in the harbour of an island"


def fill(client: httpx2.Client) -> None:
    """Creates a table without vectors and one with vectors, and adds the same chunks to both."""
    randomizer = random.Random(1)
    texts = [" ".join(randomizer.choices(WORDS, k=24)) + f" {number}" for number in range(CHUNKS)]
    for name, model in TABLES.items():
        body = {"name": name, "embedding_model": model}
        client.post("/v1/knowledge/tables", json=body).raise_for_status()
        for start in range(0, CHUNKS, BATCH):
            chunks = [{"text": text} for text in texts[start : start + BATCH]]
            answer = client.post(f"/v1/knowledge/tables/{name}/chunks", json={"chunks": chunks}, timeout=300)
            answer.raise_for_status()


def time_first_token(
    client: httpx2.Client, question: str, table: str | None = None
) -> tuple[float, dict[str, Any]]:
    """Returns the milliseconds to the first token, and the references."""
    body: dict[str, Any] = {
        "model": "cantor",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 1,
        "stream": True,
    }
    if table:
        body["rag_params"] = {"table_id": table, "search_query": QUERY}
    references: dict[str, Any] = {}
    began, milliseconds = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            references = chunk.get("references", references)
            if not milliseconds and any(choice["delta"].get("content") for choice in chunk["choices"]):
                milliseconds = (time.perf_counter() - began) * 1000
    if not milliseconds:
        raise RuntimeError("the model generated no text")
    return milliseconds, references


def write_prompt(question: str, references: dict[str, Any]) -> str:
    """Returns the question with its chunks, as the model sees it."""
    chunks = [
        ReferencedChunk(chunk["chunk_id"], "", chunk["text"], chunk["title"], None, "", 0.0)
        for chunk in references["chunks"]
    ]
    return insert_chunks((Message(Role.USER, question),), 0, chunks, cites=True)[0].text


def measure(client: httpx2.Client, table: str, rounds: int, requests: int) -> tuple[float, float, float]:
    """Returns the medians with the search, with the same prompt, and with the question alone."""
    medians: tuple[list[float], ...] = ([], [], [])
    for round_number in range(rounds):
        times: tuple[list[float], ...] = ([], [], [])
        for number in range(requests):
            question = f"Which boat is red, of row {round_number} and place {number}?"
            with_search, references = time_first_token(client, question, table)
            if len(references["chunks"]) != 3:
                raise RuntimeError("the search did not find three chunks")
            changed_question = question.replace(
                "row", "line"
            )  # a different prompt, since the same one would be cached completely
            same_prompt, _ = time_first_token(client, write_prompt(changed_question, references))
            question_only, _ = time_first_token(client, question)
            for series, value in zip(times, (with_search, same_prompt, question_only), strict=True):
                series.append(value)
        for series, round_times in zip(medians, times, strict=True):
            series.append(statistics.median(round_times))
    with_search, same_prompt, question_only = map(statistics.median, medians)
    return with_search, same_prompt, question_only


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--requests", type=int, default=12)
    options = parser.parse_args()
    print(f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; milliseconds")
    env = {"ANTIPHON_HUB_CACHE": str(MODELS), "ANTIPHON_HUB_OFFLINE": "1"}
    with (
        tempfile.TemporaryDirectory() as home,
        serving("--model", "cantor", "--model", "minilm", env=env | {"ANTIPHON_HOME": home}) as server,
        server.client() as client,
    ):
        fill(client)
        for table in TABLES:
            time_first_token(client, "Which boat?", table)
            with_search, same_prompt, question_only = measure(client, table, options.rounds, options.requests)
            print(
                f"{table:7} {with_search:7.2f}  same prompt {same_prompt:7.2f} "
                f"x{with_search / same_prompt:.2f}  "
                f"question alone {question_only:7.2f} x{with_search / question_only:.2f}  "
                f"the search adds {with_search - same_prompt:6.2f}"
            )


if __name__ == "__main__":
    main()
