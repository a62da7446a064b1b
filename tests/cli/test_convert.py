"""`antiphon models convert`, as a user runs it."""

import json
import shutil
from pathlib import Path

import pytest

from antiphon.weights.gguf import read_header
from tests.cli.conftest import Run
from tests.support.model_files import SAVED


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy of the recorded encoder, to change."""
    return Path(shutil.copytree(SAVED, tmp_path / "saved"))


@pytest.mark.parametrize(("kind", "bytes_"), [("f32", 400_000), ("f16", 220_000), ("q8_0", 150_000)])
def test_a_saved_encoder_becomes_a_file_that_can_be_served(
    antiphon: Run, saved: Path, tmp_path: Path, kind: str, bytes_: int
) -> None:
    out = tmp_path / "encoder.gguf"
    done = antiphon("models", "convert", str(saved), "--out", str(out), "--type", kind)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, str(out), "")
    header = read_header(out)
    assert (header.architecture, header.embeds, header.context_length) == ("bert", True, 96)
    assert out.stat().st_size < bytes_
    if kind != "q8_0":  # the engine's own tests load the other types
        return
    checked = antiphon("doctor", "--load", "--model", str(out))
    assert "encoder.gguf loads" in " ".join(checked.stdout.split()), checked.stdout


def test_what_is_there_stays_and_half_a_file_is_never_left(
    antiphon: Run, saved: Path, tmp_path: Path
) -> None:
    out = tmp_path / "there.gguf"
    out.write_text("mine")
    done = antiphon("models", "convert", str(saved), "--out", str(out))
    assert done.returncode == 1 and "exists already" in done.stderr and out.read_text() == "mine"
    (saved / "model.safetensors").write_bytes(b"\x00" * 100)
    done = antiphon("models", "convert", str(saved), "--out", str(tmp_path / "new.gguf"))
    assert done.returncode == 1 and "model.safetensors cannot be read" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["saved", "there.gguf"]


def test_what_cannot_be_converted_is_one_line_with_its_name(
    antiphon: Run, saved: Path, tmp_path: Path
) -> None:
    config = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps(config | {"model_type": "llama"}))
    arguments = ("--out", str(tmp_path / "out.gguf"))
    refusals = {
        str(saved): "model_type = 'llama'; only 'bert' is converted",
        str(tmp_path): "contains no config.json",
    }
    for source, says in refusals.items():
        done = antiphon("models", "convert", source, *arguments)
        assert done.returncode == 1 and says in done.stderr and done.stderr.count("\n") == 1
    done = antiphon("models", "convert", str(saved), *arguments, "--type", "q4_0")
    assert done.returncode == 2 and "q8_0" in done.stderr
