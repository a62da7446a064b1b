"""What an answer from a knowledge table adds to the time to the first token, in milliseconds.

    python benchmarks/retrieval_latency.py [--rounds 7] [--requests 12]

`antiphon serve` with the bundled model and minilm (`make install` fetches it), without keys. Three requests
are asked by turns, one after the other, for one streamed token each: a question with `rag_params` and a given
query, the same question without it, and the prompt that the model sees with it, written by the caller. So the
difference to the last one is the cost of the search, and the rest is that of the longer prompt. Each question
is new; the beginnings of prompts are cached in all three. Prints the medians over all rounds.
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
from antiphon.retrieval.prompt import insert_chunks
from tests.support.server import serving

MODELS = Path(__file__).parents[1] / ".venvs" / "minilm" / "models"

TABLES: dict[str, str | None] = {"words": None, "hybrid": "minilm"}
CHUNKS = 1_000
BATCH = 100
WORDS = "boat tower island harbour captain storm lamp rope letter winter bread song mountain river".split()
QUERY = "boat in the harbour of an island"


def fill(client: httpx2.Client) -> None:
    """Makes a table of words and one with vectors, of the same chunks."""
    chance = random.Random(1)
    texts = [" ".join(chance.choices(WORDS, k=24)) + f" {number}" for number in range(CHUNKS)]
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
    """The milliseconds to the first token, and the references."""
    body: dict[str, Any] = {
        "model": "cantor",
        "messages": [{"role": "user", "content": question}],
        "max_tokens": 1,
        "stream": True,
    }
    if table:
        body["rag_params"] = {"table_id": table, "search_query": QUERY}
    references: dict[str, Any] = {}
    began, took = time.perf_counter(), 0.0
    with client.stream("POST", "/v1/chat/completions", json=body) as answer:
        answer.raise_for_status()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            references = chunk.get("references", references)
            if not took and any(choice["delta"].get("content") for choice in chunk["choices"]):
                took = (time.perf_counter() - began) * 1000
    if not took:
        raise RuntimeError("the model said nothing")
    return took, references


def write_prompt(question: str, references: dict[str, Any]) -> str:
    """The question as the model sees it with its chunks."""
    chunks = [
        ReferencedChunk(each["chunk_id"], "", each["text"], each["title"], None, "", 0.0)
        for each in references["chunks"]
    ]
    return insert_chunks((Message(Role.USER, question),), 0, chunks, cites=True)[0].text


def measure(client: httpx2.Client, table: str, rounds: int, requests: int) -> tuple[float, float, float]:
    """The medians with the search, with the same prompt, and with the question alone."""
    medians: tuple[list[float], ...] = ([], [], [])
    for turn in range(rounds):
        times: tuple[list[float], ...] = ([], [], [])
        for number in range(requests):
            question = f"Which boat is red, of row {turn} and place {number}?"
            found, references = time_first_token(client, question, table)
            if len(references["chunks"]) != 3:
                raise RuntimeError("the search did not find three chunks")
            asked = question.replace("row", "line")  # another prompt, or it would be cached whole
            written, _ = time_first_token(client, write_prompt(asked, references))
            alone, _ = time_first_token(client, question)
            for each, took in zip(times, (found, written, alone), strict=True):
                each.append(took)
        for each, of_round in zip(medians, times, strict=True):
            each.append(statistics.median(of_round))
    found, written, alone = map(statistics.median, medians)
    return found, written, alone


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
            found, written, alone = measure(client, table, options.rounds, options.requests)
            print(
                f"{table:7} {found:7.2f}  same prompt {written:7.2f} x{found / written:.2f}  "
                f"question alone {alone:7.2f} x{found / alone:.2f}  the search adds {found - written:6.2f}"
            )


if __name__ == "__main__":
    main()
