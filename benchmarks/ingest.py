"""Ingest of a whole file: read, split, embed with minilm and index, by a real server.

    python benchmarks/ingest.py [--megabytes 10] [--words-only] [--threads N]

The text has sentences of the English pages of benchmarks/retrieval, drawn at random. The model must have been
fetched (`make install` does). The server embeds; the figures say what that takes, so compare them with
benchmarks/documents.py (reading and splitting) and benchmarks/knowledge.py (the index alone).
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
    """Paragraphs of five sentences, at least `size` characters."""
    pages = " ".join(page.text for page in read_pages() if page.language == "en")
    sentences = [f"{each.strip()}." for each in pages.split(". ") if each.strip()]
    source, paragraphs, length = random.Random(1), list[str](), 0
    while length < size:
        paragraphs.append(" ".join(source.choices(sentences, k=5)))
        length += len(paragraphs[-1]) + 2
    return "\n\n".join(paragraphs)


def measure_memory(server: Server) -> dict[str, float]:
    """MiB of each child of the server, by what its command names."""
    found = {}
    for word in ("assembly", "engines.host", "processes.knowledge"):
        found[word] = sum(child.memory_info().rss for child in server.children(word)) / MIB
    return found


def ingest(server: Server, text: str, model: str | None) -> tuple[float, float, dict[str, object]]:
    """Seconds until the upload is kept and until it is ready, and the document. Shows each percent."""
    with httpx2.Client(base_url=server.url, timeout=120) as client:
        made = client.post(TABLES, json={"name": "t", "embedding_model": model})
        made.raise_for_status()
        began = time.perf_counter()
        answer = client.post(f"{TABLES}/t/documents", files={"file": ("long.txt", text.encode())})
        answer.raise_for_status()
        kept, card, shown = time.perf_counter() - began, answer.json(), 0
        while card["state"] == "indexing":
            time.sleep(POLL_S)
            card = client.get(f"{TABLES}/t/documents/{card['id']}").json()
            if card["progress"] > shown:
                shown = card["progress"]
                print(f"  {shown} % after {time.perf_counter() - began:.0f} s", file=sys.stderr, flush=True)
        return kept, time.perf_counter() - began, card


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--words-only", action="store_true", help="a table without an embedding model")
    parser.add_argument("--threads", type=int, default=None, help="of the engine; none is its own choice")
    options = parser.parse_args()
    text = make_text(int(options.megabytes * 1_000_000))
    print(f"{platform.machine()}, {os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}", flush=True)
    env = {"ANTIPHON_HUB_CACHE": str(FETCHED), "ANTIPHON_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as home:
        more = {"ANTIPHON_HOME": home}
        with serving("--model", "minilm", threads=options.threads, env=env | more) as server:
            kept, seconds, card = ingest(server, text, None if options.words_only else "minilm")
            memory = measure_memory(server)
            engine = psutil.Process(server.host().pid).cpu_times()
    chunks = int(str(card["chunks"]))
    print(f"{len(text) / 1e6:.1f} MB of text: {card['state']} {card['error'] or ''}")
    print(
        f"  kept after {kept:.1f} s, ready after {seconds:.1f} s: {chunks} chunks, {chunks / seconds:.1f}/s"
    )
    print(f"  processor seconds of the engine {engine.user + engine.system:.0f}")
    print("  MiB: " + ", ".join(f"{word} {size:.0f}" for word, size in memory.items()))
    print(f"  load after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
