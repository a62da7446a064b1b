"""What is installed from a release: every file of a package, and of no other."""

import tomllib
import zipfile
from pathlib import Path

import antiphon
from scripts.release import VERSION_FILES, VERSION_LINE, build
from tests.support.docs import ROOT


def list_wheel(folder: Path, out: Path) -> set[str]:
    """Builds the distribution of a folder. Returns its files without the metadata."""
    wheel = build("build_wheel", folder, out, "1700000000")
    names = zipfile.ZipFile(out / wheel).namelist()
    return {name for name in names if not name.partition("/")[0].endswith(".dist-info")}


def list_package(name: str) -> set[str]:
    files = [path for path in (ROOT / "src" / name).rglob("*") if path.is_file()]
    made = (path for path in files if "__pycache__" in path.parts or path.suffix == ".so")
    return {str(path.relative_to(ROOT / "src")) for path in {*files} - {*made}}


def test_the_wheel_holds_every_file_of_the_package_and_no_test_kit(tmp_path):
    names = list_wheel(ROOT, tmp_path)
    assert names == list_package("antiphon")
    assert "antiphon/bundled/cantor.gguf" in names


def test_the_kits_are_a_wheel_of_their_own(tmp_path):
    names = list_wheel(ROOT / "src", tmp_path)
    assert names == list_package("antiphon_testing")
    assert "antiphon_testing/token_kit.py" in names


def test_the_kits_ask_for_the_server_of_their_version():
    texts = {name: (ROOT / name).read_text("utf-8") for name in VERSION_FILES}
    project = tomllib.loads(texts["src/pyproject.toml"])["project"]
    assert project["version"] == antiphon.__version__
    assert project["dependencies"] == [f"antiphon=={antiphon.__version__}"]
    changed = {name: VERSION_LINE.sub(r"\g<1>1.2.3", text) for name, text in texts.items()}
    assert '\n__version__ = "1.2.3"\n' in changed["src/antiphon/__init__.py"]
    project = tomllib.loads(changed["src/pyproject.toml"])["project"]
    assert (project["version"], project["dependencies"]) == ("1.2.3", ["antiphon==1.2.3"])
