"""The index of knowledge tables: ingest, search, memory and disk, through the knowledge process.

    python benchmarks/knowledge.py [--sizes 1000 10000] [--queries 200] [--large] [--million]

A real knowledge process, and one client in this process over its socket. Texts have 150 words each, drawn
from 50,000 by Zipf's law; vectors lie in groups, as those of texts do. A question has ten words, of which
some are frequent, and a vector beside one of the table. `--large` adds 100,000 chunks, `--million` 1,000,000
with short texts. Times are milliseconds at the client, one call after the other, then with four callers
while a fifth writes, and then with four processes that read, each over its own connection, beside a writer.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.engines.host.runtime import build_knowledge_path
from antiphon.processes.knowledge.client import KnowledgeClient, connect_knowledge
from antiphon.processes.knowledge.host import MODULE, start_knowledge
from antiphon.retrieval.base import ChunkInput, DocumentInput, SearchQuery, TableSettings
from antiphon.settings.knowledge import KnowledgeSettings
from antiphon.settings.schema import Settings

PROJECT = "default"
BATCH = 256
DOCUMENT = 2048
"""Chunks of one document."""
GROUPS = 500
K = 3
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Shape:
    """The texts and vectors of one table."""

    chunks: int
    dimensions: int
    words: int
    """Words of a chunk."""


class Texts:
    """Random texts and vectors."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        self._random = np.random.default_rng(seed)
        ranks = np.arange(1, 50_001)
        self._shares = np.cumsum(1 / ranks) / np.sum(1 / ranks)
        self._centers = self._random.standard_normal((GROUPS, shape.dimensions))

    def draw_words(self, count: int) -> list[str]:
        places = np.searchsorted(self._shares, self._random.random(count))
        return [f"w{place}" for place in places]

    def draw_vectors(self, count: int) -> list[bytes]:
        near = self._centers[self._random.integers(0, GROUPS, count)]
        values = near + self._random.standard_normal((count, self.shape.dimensions)) * 0.7
        return [value.tobytes() for value in values.astype("<f4")]

    def draw_chunks(self, count: int) -> list[ChunkInput]:
        words, vectors = self.draw_words(count * self.shape.words), self.draw_vectors(count)
        length = self.shape.words
        return [
            ChunkInput(" ".join(words[place * length : (place + 1) * length]), vector=vector)
            for place, vector in enumerate(vectors)
        ]

    def draw_query(self) -> SearchQuery:
        return SearchQuery(" ".join(self.draw_words(10)), self.draw_vectors(1)[0], K)

    def draw_batches(self) -> Iterator[list[ChunkInput]]:
        for start in range(0, self.shape.chunks, BATCH):
            yield self.draw_chunks(min(BATCH, self.shape.chunks - start))


async def add_document(
    client: KnowledgeClient, table: str, name: str, batches: Sequence[list[ChunkInput]]
) -> float:
    """The seconds that the index took."""
    began = time.perf_counter()
    document = await client.begin_document(
        PROJECT, table, DocumentInput(name, f"{table} {name}", "text/plain")
    )
    for number, batch in enumerate(batches):
        await client.put_chunks(PROJECT, table, document.id, number, batch)
    await client.finish_document(PROJECT, table, document.id)
    return time.perf_counter() - began


async def fill(client: KnowledgeClient, table: str, texts: Texts) -> float:
    """Adds all chunks; the chunks of a second, without the time of making them."""
    seconds, waiting, number = 0.0, list[list[ChunkInput]](), 0
    for batch in texts.draw_batches():
        waiting.append(batch)
        if sum(map(len, waiting)) >= DOCUMENT:
            seconds += await add_document(client, table, f"{number}", waiting)
            waiting, number = [], number + 1
    if waiting:
        seconds += await add_document(client, table, f"{number}", waiting)
    return texts.shape.chunks / seconds


async def measure(client: KnowledgeClient, table: str, queries: Sequence[SearchQuery]) -> list[float]:
    """The milliseconds of each query, one after the other."""
    times = []
    for query in queries:
        began = time.perf_counter()
        await client.search(PROJECT, table, query)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def read_alone(socket: str, shape: Shape, seed: int, count: int) -> None:
    """Prints the milliseconds of queries over a connection of this process's own."""
    texts = Texts(shape, seed)
    async with connect_knowledge(socket, lambda: None) as client:
        queries = [texts.draw_query() for _ in range(count)]
        print(json.dumps(await measure(client, f"{shape.chunks} chunks", queries)))


async def measure_processes(
    client: KnowledgeClient, socket: str, texts: Texts, count: int
) -> tuple[list[float], int]:
    """The milliseconds of queries of four processes while this one adds documents of 256 chunks, and how many
    it added."""
    shape, number, over = texts.shape, 0, asyncio.Event()

    async def write() -> None:
        nonlocal number
        while not over.is_set():
            batch = await asyncio.to_thread(texts.draw_chunks, BATCH)
            await add_document(client, f"{shape.chunks} chunks", f"beside {number}", [batch])
            number += 1

    numbers = [str(each) for each in (shape.chunks, shape.dimensions, shape.words)]
    readers = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, "--read", socket, *numbers, str(seed), str(count // 4)),
            stdout=asyncio.subprocess.PIPE,
        )
        for seed in range(2, 6)
    ]
    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        outputs = [(await reader.communicate())[0] for reader in readers]
        over.set()
    return [one for output in outputs for one in json.loads(output)], number


async def measure_beside_writer(client: KnowledgeClient, table: str, texts: Texts, count: int) -> list[float]:
    """The milliseconds of queries of four callers while a fifth adds documents of 256 chunks."""
    over = asyncio.Event()

    async def write() -> int:
        number = 0
        while not over.is_set():
            batch = await asyncio.to_thread(texts.draw_chunks, BATCH)
            await add_document(client, table, f"more {number}", [batch])
            number += 1
        return number

    queries = [[texts.draw_query() for _ in range(count // 4)] for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        writing = group.create_task(write())
        reading = [group.create_task(measure(client, table, each)) for each in queries]
        await asyncio.wait(reading)
        over.set()
    print(f"    (the writer added {writing.result()} documents of {BATCH} chunks meanwhile)")
    return [one for task in reading for one in task.result()]


def show(what: str, times: Sequence[float]) -> None:
    p99 = statistics.quantiles(times, n=100)[-1]
    print(f"  {what:34} p50 {statistics.median(times):8.2f}   p99 {p99:8.2f}", flush=True)


def measure_disk(directory: Path) -> float:
    """MiB of all files of tables."""
    return sum(file.stat().st_size for file in directory.rglob("*.db*")) / MIB


def find_process() -> psutil.Process:
    (found,) = [child for child in psutil.Process().children() if MODULE in child.cmdline()]
    return found


async def run_table(directory: Path, shape: Shape, count: int) -> None:
    """Fills and searches one table."""
    texts, table = Texts(shape), f"{shape.chunks} chunks"
    settings = Settings(knowledge=KnowledgeSettings(str(directory), max_chunks=2 * shape.chunks + 10**6))
    with tempfile.TemporaryDirectory(prefix="ap-") as runtime:
        socket = build_knowledge_path(Path(runtime))
        async with connect_knowledge(socket, lambda: None) as client:
            child = await start_knowledge(settings, socket)
            print(f"{shape.chunks} chunks of {shape.words} words, {shape.dimensions} dimensions")
            await client.create_table(PROJECT, TableSettings(table, "model", shape.dimensions))
            empty = find_process().memory_info().rss / MIB
            print(f"  ingest {await fill(client, table, texts):,.0f} chunks/s")
            size = measure_disk(directory)
            await child.stop(10)
        async with connect_knowledge(socket, lambda: None) as client:
            child = await start_knowledge(settings, socket)
            await client.list_tables(PROJECT)
            queries = [texts.draw_query() for _ in range(count)]
            show("first query after a restart", [(await measure(client, table, queries[:1]))[0]] * 2)
            await measure(client, table, queries[: count // 4])
            show("words", await measure(client, table, [SearchQuery(query.words, k=K) for query in queries]))
            show(
                "vector",
                await measure(client, table, [SearchQuery(None, query.vector, K) for query in queries]),
            )
            show("words and vector", await measure(client, table, queries))
            deep = [SearchQuery(query.words, query.vector, 100, 100) for query in queries]
            show("words and vector, k = 100", await measure(client, table, deep))
            memory = find_process().memory_info().rss / MIB
            print(f"  memory {empty:.0f} MiB empty, {memory:.0f} MiB with the table; disk {size:.0f} MiB")
            show(
                "words and vector, four and a writer",
                await measure_beside_writer(client, table, texts, count),
            )
            times, added = await measure_processes(client, socket, texts, count)
            show(f"the same, four processes (+{added})", times)
            (document,) = (await client.list_documents(PROJECT, table, limit=1)).items
            began = time.perf_counter()
            await client.delete_document(PROJECT, table, document.id)
            took = (time.perf_counter() - began) * 1000
            print(f"  removing a document of {document.chunks} chunks {took:.0f} ms")
            await child.stop(10)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--sizes", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--dimensions", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--large", action="store_true", help="also 100,000 chunks")
    parser.add_argument("--million", action="store_true", help="also 1,000,000 chunks of 20 words")
    parser.add_argument("--read", nargs=6, metavar="VALUE", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        socket, *numbers = options.read
        chunks, dimensions, words, seed, count = map(int, numbers)
        asyncio.run(read_alone(socket, Shape(chunks, dimensions, words), seed, count))
        return
    print(
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}; milliseconds, k = {K}"
    )
    shapes = [Shape(size, options.dimensions, 150) for size in options.sizes]
    shapes += [Shape(100_000, options.dimensions, 150)] if options.large else []
    shapes += [Shape(1_000_000, options.dimensions, 20)] if options.million else []
    for shape in shapes:
        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(run_table(Path(directory), shape, options.queries))


if __name__ == "__main__":
    main()
