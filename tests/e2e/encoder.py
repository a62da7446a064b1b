"""The recorded encoder as a model file, for tests that serve it."""

import json
from pathlib import Path
from typing import Any

from antiphon.weights.convert.bert import convert_bert

SAVED = Path(__file__).parents[1] / "fixtures" / "encoder"
ROWS: list[dict[str, Any]] = json.loads((SAVED / "vectors.json").read_text("utf-8"))["rows"]
FITTING = [row for row in ROWS if len(row["ids"]) < 96]
"""Those that were not cut when they were recorded: here nothing is."""


def write_encoder(path: Path, kind: str = "F16") -> Path:
    """Converts it, with mean pooling."""
    convert_bert(SAVED, path, kind)
    return path
