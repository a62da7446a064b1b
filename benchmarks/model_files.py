"""The models that benchmarks of the engine measure: files by name.

  - smollm2 talks, and decides what a change is worth; `make install` fetches it.
  - half has 0.48 billion random weights as Q8_0, and smollm2's tokenizer: what a larger model takes.
  - cantor has 5 million weights, so that everything but the weights shows: the microscope of overhead.

`half` is written once, within a minute, into the user's cache directory ($XDG_CACHE_HOME or ~/.cache).

python benchmarks/model_files.py [half]     # prints the path, and writes the file if it is not there
"""

import argparse
import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from antiphon.weights.wheel_model import SMOLLM2, find_wheel_model  # noqa: E402 - needs the path above
from benchmarks.make_model import Shape, write_model  # noqa: E402

MODELS = ("smollm2", "half", "cantor")

CANTOR = ROOT / "src" / "antiphon" / "bundled" / "cantor.gguf"

FETCHED = ROOT / ".venvs" / "minilm" / "models"

HALF = Shape(layers=20, hidden=1280, heads=20, kv_heads=5, feed_forward=3520, vocabulary=49152, context=8192)


def find_model(name: str) -> Path:
    """Returns the file of a name of MODELS, or the path itself. Writes `half` if it is not there yet."""
    if name == "cantor":
        return CANTOR
    if name == "half":
        return _find_half()
    if name != "smollm2":
        return Path(name)
    path = find_wheel_model(SMOLLM2, FETCHED)
    if path is None:
        raise SystemExit(f"{FETCHED} has no smollm2: `make install` fetches it")
    return path


def _find_half() -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "antiphon-benchmarks"
    path = cache / "half.gguf"
    if not path.is_file():
        cache.mkdir(parents=True, exist_ok=True)
        print(f"writing {path}", file=sys.stderr, flush=True)
        with tempfile.TemporaryDirectory(dir=cache) as folder:
            written = write_model(Path(folder) / path.name, HALF, tokenizer=find_model("smollm2"))
            written.replace(path)
    return path


def add_models(parser: argparse.ArgumentParser, *default: str) -> None:
    """Adds the option `--model`, whose value is a list of names and paths."""
    parser.add_argument(
        "--model",
        nargs="+",
        default=list(default or MODELS),
        metavar="NAME",
        help=f"{', '.join(MODELS)} or the path of a GGUF file; default: {' '.join(default or MODELS)}",
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", choices=MODELS, default="half")
    names = parser.parse_args().names
    for name in [names] if isinstance(names, str) else names:
        print(find_model(name))


if __name__ == "__main__":
    main()
