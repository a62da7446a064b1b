"""Measures the time and memory of reading and splitting documents.

python benchmarks/documents.py [--megabytes 10] [--rounds 3]

It reads text, Markdown and a PDF of 200 pages in the sandbox, as a knowledge table does. The seconds include
the start of the process; the memory is its maximum. Then it splits the Markdown by characters and by tokens,
and compares with the splitter's library alone, which counts tokens by a callback. A token is a word or a
punctuation mark here. By tokens, the library alone splits only a tenth of the text, because it counts each
text many times. Prints the medians.
"""

import argparse
import asyncio
import random
import re
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from semantic_text_splitter import MarkdownSplitter

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.retrieval.base import SizeUnit
from antiphon.retrieval.ingest.document_reader import extract
from antiphon.retrieval.ingest.documents import DocumentFormat, ExtractedDocument, ExtractedPage
from antiphon.retrieval.ingest.split import SplitOptions, split
from tests.support.documents import make_pdf

PAGES = 200
LINES = 45
TOKEN = re.compile(r"\w+|[^\w\s]")
SIZES = ((2_000, 200, SizeUnit.CHARACTERS), (500, 50, SizeUnit.CHARACTERS), (250, 25, SizeUnit.TOKENS))


def write_markdown(characters: int) -> str:
    """Generates Markdown with sections, each of several paragraphs of two to nine sentences."""
    randomizer = random.Random(1)
    words = [
        "".join(randomizer.choices("etaoinshrdlucmfwyp", k=randomizer.randint(2, 10))) for _ in range(5_000)
    ]
    parts: list[str] = []
    size = 0
    while size < characters:
        part = f"## {' '.join(randomizer.choices(words, k=3))}\n\n" if randomizer.random() < 0.2 else ""
        for _ in range(randomizer.randint(2, 9)):
            part += " ".join(randomizer.choices(words, k=randomizer.randint(5, 20))).capitalize() + ". "
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)


def count_tokens(texts: Sequence[str]) -> list[int]:
    return [len(TOKEN.findall(text)) for text in texts]


def time_median(call: Callable[[], object], rounds: int) -> float:
    """Returns the median seconds of a call."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        call()
        times.append(time.perf_counter() - began)
    return median(times)


def read(path: Path) -> ExtractedDocument:
    return asyncio.run(extract(path, path.name))


def count_chunks(document: ExtractedDocument, options: SplitOptions) -> int:
    return sum(1 for _ in split(document, options, count_tokens))


def measure_reading(folder: Path, text: str, rounds: int) -> None:
    lines = [f"Line {number}: the quick brown fox jumps over the lazy dog." for number in range(LINES)]
    files = {
        "a.txt": text.encode(),
        "a.md": text.encode(),
        "a.pdf": make_pdf([lines] * PAGES),
    }
    for name, data in files.items():
        path = folder / name
        path.write_bytes(data)
        seconds = time_median(partial(read, path), rounds)
        max_megabytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        print(
            f"read   {name:6} {len(data) / 1e6:6.1f} MB {seconds:8.2f} s   at most {max_megabytes} MB of "
            "memory so far"
        )


def measure_splitting(text: str, rounds: int) -> None:
    document = ExtractedDocument("a.md", DocumentFormat.MARKDOWN, (ExtractedPage(text),), markdown=True)
    for size, overlap, unit in SIZES:
        options = SplitOptions(size, overlap, unit)
        antiphon_seconds = time_median(partial(count_chunks, document, options), rounds)
        if unit is SizeUnit.CHARACTERS:
            part, splitter = text, MarkdownSplitter(size, overlap)
        else:
            part = text[: len(text) // 10]
            splitter = MarkdownSplitter.from_callback(lambda piece: count_tokens([piece])[0], size, overlap)
        library_seconds = time_median(partial(splitter.chunks, part), rounds) * len(text) / len(part)
        megabytes = len(text) / 1e6
        print(
            f"split  {size:,} {unit} {antiphon_seconds:8.2f} s {megabytes / antiphon_seconds:6.1f} MB/s   "
            f"library alone {library_seconds:8.2f} s   ratio {library_seconds / antiphon_seconds:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    text = write_markdown(int(options.megabytes * 1e6))
    with tempfile.TemporaryDirectory() as folder:
        measure_reading(Path(folder), text, options.rounds)
    measure_splitting(text, options.rounds)


if __name__ == "__main__":
    main()
