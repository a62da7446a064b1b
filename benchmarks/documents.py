"""What reading and splitting documents costs.

python benchmarks/documents.py [--megabytes 10] [--rounds 3]

Text, Markdown and a PDF of 200 pages are read in the sandbox, as a knowledge table reads them: seconds with
the start of the process, and the most memory of it. Then the Markdown is split, by characters and by tokens,
beside the splitter's library alone, which counts tokens by a callback. A token is a word or a mark here. The
library alone splits a tenth in tokens, since it counts each text many times. Printed are the medians.
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
from antiphon.retrieval.ingest.documents import DocumentFormat, ExtractedDocument, ExtractedPage
from antiphon.retrieval.ingest.extract import extract
from antiphon.retrieval.ingest.split import SplitOptions, split
from tests.support.documents import make_pdf

PAGES = 200
LINES = 45
TOKEN = re.compile(r"\w+|[^\w\s]")
SIZES = ((2_000, 200, SizeUnit.CHARACTERS), (500, 50, SizeUnit.CHARACTERS), (250, 25, SizeUnit.TOKENS))


def write_markdown(characters: int) -> str:
    """Sections of one to eight paragraphs, each of two to nine sentences."""
    draw = random.Random(1)
    words = ["".join(draw.choices("etaoinshrdlucmfwyp", k=draw.randint(2, 10))) for _ in range(5_000)]
    parts: list[str] = []
    size = 0
    while size < characters:
        part = f"## {' '.join(draw.choices(words, k=3))}\n\n" if draw.random() < 0.2 else ""
        for _ in range(draw.randint(2, 9)):
            part += " ".join(draw.choices(words, k=draw.randint(5, 20))).capitalize() + ". "
        parts.append(part)
        size += len(part) + 2
    return "\n\n".join(parts)


def count_tokens(texts: Sequence[str]) -> list[int]:
    return [len(TOKEN.findall(text)) for text in texts]


def time_median(act: Callable[[], object], rounds: int) -> float:
    """The median of the seconds that a call takes."""
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        act()
        taken.append(time.perf_counter() - begun)
    return median(taken)


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
        most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        print(
            f"read   {name:6} {len(data) / 1e6:6.1f} MB {seconds:8.2f} s   at most {most} MB of memory so far"
        )


def measure_splitting(text: str, rounds: int) -> None:
    document = ExtractedDocument("a.md", DocumentFormat.MARKDOWN, (ExtractedPage(text),), markdown=True)
    for size, overlap, unit in SIZES:
        options = SplitOptions(size, overlap, unit)
        ours = time_median(partial(count_chunks, document, options), rounds)
        if unit is SizeUnit.CHARACTERS:
            part, alone = text, MarkdownSplitter(size, overlap)
        else:
            part = text[: len(text) // 10]
            alone = MarkdownSplitter.from_callback(lambda each: count_tokens([each])[0], size, overlap)
        theirs = time_median(partial(alone.chunks, part), rounds) * len(text) / len(part)
        megabytes = len(text) / 1e6
        print(
            f"split  {size:,} {unit} {ours:8.2f} s {megabytes / ours:6.1f} MB/s   "
            f"library alone {theirs:8.2f} s   ratio {theirs / ours:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--megabytes", type=float, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    text = write_markdown(int(asked.megabytes * 1e6))
    with tempfile.TemporaryDirectory() as folder:
        measure_reading(Path(folder), text, asked.rounds)
    measure_splitting(text, asked.rounds)


if __name__ == "__main__":
    main()
