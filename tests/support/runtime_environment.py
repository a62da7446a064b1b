"""An environment that has only the locked runtime: what `make serve` installs, and none of the test tools.

It is a virtual environment of links to the installed packages, so making it costs no installation. Its
interpreter starts the same interpreter for every child, so the children of a server have no more.
"""

import re
import sys
import sysconfig
from importlib.metadata import distribution, distributions
from pathlib import Path

from packaging.utils import canonicalize_name

from tests.support.docs import ROOT

LOCK = ROOT / "requirements" / "serve.txt"
PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==", re.MULTILINE)
SITE = Path(sysconfig.get_path("purelib"))


def make_runtime_environment(folder: Path) -> str:
    """Makes the environment in the folder. Returns the path of its interpreter."""
    site = folder / SITE.relative_to(sys.prefix)
    for each in (site, folder / "bin"):
        each.mkdir(parents=True)
    python = folder / "bin" / "python"
    python.symlink_to(Path(sys.executable).resolve())
    home = Path(sys.executable).resolve().parent
    (folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    installed = {canonicalize_name(each.name) for each in distributions()}
    locked = set(PINNED.findall(LOCK.read_text("utf-8")))
    for name in sorted(locked & installed | {"antiphon"}):
        link_distribution(name, site)
    return str(python)


def link_distribution(name: str, site: Path) -> None:
    """Links all files and folders of a distribution that lie in site-packages."""
    tops = {file.parts[0] for file in distribution(name).files or ()} - {"..", "__pycache__"}
    for top in tops:
        if not (site / top).exists():
            (site / top).symlink_to(SITE / top)
