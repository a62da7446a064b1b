"""Measures the ingest of a whole file by a real server: reading, splitting, embedding with minilm, indexing.

python benchmarks/ingest.py [--megabytes 10] [--words-only] [--threads N]

The text consists of random sentences from the English pages of benchmarks/retrieval. `make install` fetches
the model. Most of the time is for the embeddings; compare with benchmarks/documents.py (reading and
splitting) and benchmarks/knowledge.py (the index alone).
"""

import argparse
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path

import httpx2
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.support.retrieval_set import read_pages
from tests.support.server import Server, serving

FETCHED = Path(__file__).parents[1] / ".venvs" / "minilm" / "models"
TABLES = "/v1/knowledge/tables"
MIB = 1024 * 1024
POLL_S = 1.0


def make_text(size: int) -> str:
    """Generates paragraphs of five sentences, with at least `size` characters."""
    pages = " ".join(page.text for page in read_pages() if page.language == "en")
    sentences = [f"{sentence.strip()}." for sentence in pages.split(". ") if sentence.strip()]
    randomizer, paragraphs, length = random.Random(1), list[str](), 0
    while length < size:
        paragraphs.append(" ".join(randomizer.choices(sentences, k=5)))
        length += len(paragraphs[-1]) + 2
    return "\n\n".join(paragraphs)


def measure_memory(server: Server) -> dict[str, float]:
    """Returns the MiB of the server's children, by a word in their commands."""
    megabytes = {}
    for word in ("assembly", "engines.host", "processes.knowledge"):
        megabytes[word] = sum(child.memory_info().rss for child in server.children(word)) / MIB
    return megabytes


def ingest(server: Server, text: str, model: str | None) -> tuple[float, float, dict[str, object]]:
    """Uploads the text. Returns the seconds until it is stored and until it is indexed, and the document."""
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        created = client.post(TABLES, json={"name": "t", "embedding_model": model})
        created.raise_for_status()
        began = time.perf_counter()
        answer = client.post(f"{TABLES}/t/documents", files={"file": ("long.txt", text.encode())})
        answer.raise_for_status()
        upload_seconds, document, last_progress = time.perf_counter() - began, answer.json(), 0
        while document["state"] == "indexing":
            time.sleep(POLL_S)
            document = client.get(f"{TABLES}/t/documents/{document['id']}").json()
            if document["progress"] > last_progress:
                last_progress = document["progress"]
                print(
                    f"  {last_progress} % after {time.perf_counter() - began:.0f} s",
                    file=sys.stderr,
                    flush=True,
                )
        return upload_seconds, time.perf_counter() - began, document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--words-only", action="store_true", help="a table without an embedding model")
    parser.add_argument(
        "--threads", type=int, default=None, help="threads of the engine; default: its own choice"
    )
    options = parser.parse_args()
    text = make_text(int(options.megabytes * 1_000_000))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}", flush=True)
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED), "ANTIPHON_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as home:
        home_variable = {"ANTIPHON_HOME": home}
        with serving("--model", "minilm", threads=options.threads, env=env | home_variable) as server:
            upload_seconds, seconds, document = ingest(server, text, None if options.words_only else "minilm")
            memory = measure_memory(server)
            engine = psutil.Process(server.host().pid).cpu_times()
    chunks = int(str(document["chunks"]))
    print(f"{len(text) / 1e6:.1f} MB of text: {document['state']} {document['error'] or ''}")
    print(
        f"  kept after {upload_seconds:.1f} s, ready after {seconds:.1f} s: {chunks} chunks, "
        f"{chunks / seconds:.1f}/s"
    )
    print(f"  processor seconds of the engine {engine.user + engine.system:.0f}")
    print("  MiB: " + ", ".join(f"{word} {size:.0f}" for word, size in memory.items()))
    print(f"  load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
