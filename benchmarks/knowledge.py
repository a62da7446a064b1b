"""Measures the index of knowledge tables: ingest, search, memory and disk, through the knowledge process.

python benchmarks/knowledge.py [--sizes 1000 10000] [--queries 200] [--large] [--million]

It runs a real knowledge process, and one client in this process. Each text has 150 words, drawn from 50,000
by Zipf's law; vectors form clusters, like those of texts. A query has ten words, some of them frequent, and a
vector near one of the table. `--large` adds a table of 100,000 chunks, `--million` one of 1,000,000 short
chunks. Times are milliseconds at the client: first of sequential calls, then with four callers while a fifth
writes, then with four reading processes, each with its own connection, and a writer.
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
from antiphon.processes.knowledge.client import connect_knowledge
from antiphon.processes.knowledge.host import MODULE, start_knowledge
from antiphon.retrieval.base import ChunkInput, DocumentInput, KnowledgeIndex, SearchQuery, TableSettings
from antiphon.settings.schema import Settings
from antiphon.settings.server import KnowledgeSettings

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
    """The number of words in a chunk."""


class TextGenerator:
    """Generates random texts and vectors."""

    def __init__(self, shape: Shape, seed: int = 1) -> None:
        self.shape = shape
        self._random = np.random.default_rng(seed)
        ranks = np.arange(1, 50_001)
        self._shares = np.cumsum(1 / ranks) / np.sum(1 / ranks)
        self._centers = self._random.standard_normal((GROUPS, shape.dimensions))

    def draw_words(self, count: int) -> list[str]:
        word_ranks = np.searchsorted(self._shares, self._random.random(count))
        return [f"w{rank}" for rank in word_ranks]

    def draw_vectors(self, count: int) -> list[bytes]:
        centers = self._centers[self._random.integers(0, GROUPS, count)]
        values = centers + self._random.standard_normal((count, self.shape.dimensions)) * 0.7
        return [value.tobytes() for value in values.astype("<f4")]

    def draw_chunks(self, count: int) -> list[ChunkInput]:
        words, vectors = self.draw_words(count * self.shape.words), self.draw_vectors(count)
        length = self.shape.words
        return [
            ChunkInput(" ".join(words[index * length : (index + 1) * length]), vector=vector)
            for index, vector in enumerate(vectors)
        ]

    def draw_query(self) -> SearchQuery:
        return SearchQuery(" ".join(self.draw_words(10)), self.draw_vectors(1)[0], K)

    def draw_batches(self) -> Iterator[list[ChunkInput]]:
        for start in range(0, self.shape.chunks, BATCH):
            yield self.draw_chunks(min(BATCH, self.shape.chunks - start))


async def add_document(
    client: KnowledgeIndex, table: str, name: str, batches: Sequence[list[ChunkInput]]
) -> float:
    """Adds a document. Returns the seconds that the index took."""
    began = time.perf_counter()
    document = await client.begin_document(
        PROJECT, table, DocumentInput(name, f"{table} {name}", "text/plain")
    )
    for number, batch in enumerate(batches):
        await client.put_chunks(PROJECT, table, document.id, number, batch)
    await client.finish_document(PROJECT, table, document.id)
    return time.perf_counter() - began


async def fill(client: KnowledgeIndex, table: str, texts: TextGenerator) -> float:
    """Adds all chunks. Returns the chunks per second, without the time to generate them."""
    seconds, batches, number = 0.0, list[list[ChunkInput]](), 0
    for batch in texts.draw_batches():
        batches.append(batch)
        if sum(map(len, batches)) >= DOCUMENT:
            seconds += await add_document(client, table, f"{number}", batches)
            batches, number = [], number + 1
    if batches:
        seconds += await add_document(client, table, f"{number}", batches)
    return texts.shape.chunks / seconds


async def measure(client: KnowledgeIndex, table: str, queries: Sequence[SearchQuery]) -> list[float]:
    """Runs the queries one after the other. Returns the milliseconds of each."""
    times = []
    for query in queries:
        began = time.perf_counter()
        await client.search(PROJECT, table, query)
        times.append((time.perf_counter() - began) * 1000)
    return times


async def read_in_process(socket: str, shape: Shape, seed: int, count: int) -> None:
    """Runs queries over a new connection, and prints their milliseconds."""
    texts = TextGenerator(shape, seed)
    async with connect_knowledge(socket, lambda: None) as client:
        queries = [texts.draw_query() for _ in range(count)]
        print(json.dumps(await measure(client, f"{shape.chunks} chunks", queries)))


async def measure_processes(
    client: KnowledgeIndex, socket: str, texts: TextGenerator, count: int
) -> tuple[list[float], int]:
    """Runs queries in four processes while this one adds documents of 256 chunks. Returns the milliseconds of
    the queries, and the number of added documents."""
    shape, number, finished = texts.shape, 0, asyncio.Event()

    async def write() -> None:
        nonlocal number
        while not finished.is_set():
            batch = await asyncio.to_thread(texts.draw_chunks, BATCH)
            await add_document(client, f"{shape.chunks} chunks", f"beside {number}", [batch])
            number += 1

    numbers = [str(value) for value in (shape.chunks, shape.dimensions, shape.words)]
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
        finished.set()
    return [milliseconds for output in outputs for milliseconds in json.loads(output)], number


async def measure_beside_writer(
    client: KnowledgeIndex, table: str, texts: TextGenerator, count: int
) -> list[float]:
    """Runs queries of four callers while a fifth adds documents of 256 chunks. Returns their milliseconds."""
    finished = asyncio.Event()

    async def write() -> int:
        number = 0
        while not finished.is_set():
            batch = await asyncio.to_thread(texts.draw_chunks, BATCH)
            await add_document(client, table, f"more {number}", [batch])
            number += 1
        return number

    queries = [[texts.draw_query() for _ in range(count // 4)] for _ in range(4)]
    async with asyncio.TaskGroup() as group:
        write_task = group.create_task(write())
        read_tasks = [group.create_task(measure(client, table, reader_queries)) for reader_queries in queries]
        await asyncio.wait(read_tasks)
        finished.set()
    print(f"    (the writer added {write_task.result()} documents of {BATCH} chunks meanwhile)")
    return [milliseconds for task in read_tasks for milliseconds in task.result()]


def print_times(label: str, times: Sequence[float]) -> None:
    p99 = statistics.quantiles(times, n=100)[-1]
    print(f"  {label:34} p50 {statistics.median(times):8.2f}   p99 {p99:8.2f}", flush=True)


def measure_disk(directory: Path) -> float:
    """Returns the MiB of all files of tables."""
    return sum(file.stat().st_size for file in directory.rglob("*.db*")) / MIB


def find_process() -> psutil.Process:
    (process,) = [child for child in psutil.Process().children() if MODULE in child.cmdline()]
    return process


async def run_table(directory: Path, shape: Shape, count: int) -> None:
    """Fills one table, and measures searches in it."""
    texts, table = TextGenerator(shape), f"{shape.chunks} chunks"
    settings = Settings(knowledge=KnowledgeSettings(str(directory), max_chunks=2 * shape.chunks + 10**6))
    with tempfile.TemporaryDirectory(prefix="ap-") as runtime:
        socket = build_knowledge_path(Path(runtime))
        async with connect_knowledge(socket, lambda: None) as client:
            child = await start_knowledge(settings, socket)
            print(f"{shape.chunks} chunks of {shape.words} words, {shape.dimensions} dimensions")
            await client.create_table(PROJECT, TableSettings(table, "model", shape.dimensions))
            empty_mib = find_process().memory_info().rss / MIB
            print(f"  ingest {await fill(client, table, texts):,.0f} chunks/s")
            size = measure_disk(directory)
            await child.stop(10)
        async with connect_knowledge(socket, lambda: None) as client:
            child = await start_knowledge(settings, socket)
            await client.list_tables(PROJECT)
            queries = [texts.draw_query() for _ in range(count)]
            print_times("first query after a restart", [(await measure(client, table, queries[:1]))[0]] * 2)
            await measure(client, table, queries[: count // 4])
            print_times(
                "words", await measure(client, table, [SearchQuery(query.words, k=K) for query in queries])
            )
            print_times(
                "vector",
                await measure(client, table, [SearchQuery(None, query.vector, K) for query in queries]),
            )
            print_times("words and vector", await measure(client, table, queries))
            deep_queries = [SearchQuery(query.words, query.vector, 100, 100) for query in queries]
            print_times("words and vector, k = 100", await measure(client, table, deep_queries))
            memory = find_process().memory_info().rss / MIB
            print(f"  memory {empty_mib:.0f} MiB empty, {memory:.0f} MiB with the table; disk {size:.0f} MiB")
            print_times(
                "words and vector, four and a writer",
                await measure_beside_writer(client, table, texts, count),
            )
            times, added_documents = await measure_processes(client, socket, texts, count)
            print_times(f"the same, four processes (+{added_documents})", times)
            (document,) = (await client.list_documents(PROJECT, table, limit=1)).items
            began = time.perf_counter()
            await client.delete_document(PROJECT, table, document.id)
            milliseconds = (time.perf_counter() - began) * 1000
            print(f"  removing a document of {document.chunks} chunks {milliseconds:.0f} ms")
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
        asyncio.run(read_in_process(socket, Shape(chunks, dimensions, words), seed, count))
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
