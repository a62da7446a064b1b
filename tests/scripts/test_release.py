"""What is installed from a release: every file of the package."""

import zipfile

from scripts.release import build
from tests.support.docs import ROOT

MADE = {".pyc", ".so"}


def test_the_wheel_holds_every_file_of_the_package(tmp_path):
    wheel = build("build_wheel", ROOT, tmp_path, "1700000000")
    names = {name for name in zipfile.ZipFile(tmp_path / wheel).namelist() if name.startswith("antiphon/")}
    files = (path for path in (ROOT / "src" / "antiphon").rglob("*") if path.is_file())
    assert names == {str(path.relative_to(ROOT / "src")) for path in files if path.suffix not in MADE}
    assert "antiphon/bundled/cantor.gguf" in names
