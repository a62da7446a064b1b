"""Builds a release into dist/: the source archive, two wheels, an SBOM, the licences and the digests.

The version is the commit's tag (v1.2.3), or --version. The committed files are built twice, from two copies.
The second wheels are built from the unpacked source archive. The files of both builds must be equal. Usage:
python scripts/release.py [--version 1.2.3] [--out dist], after `make release` has installed the tools.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from io import BytesIO
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOOLS = ROOT / ".venvs" / "release" / "bin"
VERSION_FILES = ("src/antiphon/__init__.py", "src/pyproject.toml")
VERSION_LINE = re.compile(r'^((?:__version__|version) = "|dependencies = \["antiphon==)[^"]*', re.MULTILINE)
VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?(\.dev\d+)?")
PINNED = re.compile(r"^([a-z0-9][a-z0-9.-]*)==(\S+)", re.MULTILINE)
NOT_LOCKED = {"native", "testing"}
"""Extras without a lock: the user builds `native`, and `testing` is of the same release."""

BUILD = "import sys; from flit_core import buildapi; print(getattr(buildapi, sys.argv[1])(sys.argv[2]))"


def main() -> None:
    """Builds the release."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", help="[the commit's tag, as v1.2.3]")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="[dist]")
    options = parser.parse_args()
    version = options.version or find_tag()
    if not VERSION.fullmatch(version):
        sys.exit(f"{version!r} is no version: write it as 1.2.3, 1.2.3rc1 or 1.2.3.dev0")
    out: Path = options.out.absolute()
    if out.exists():
        shutil.rmtree(out)
    out.mkdir(parents=True)
    build_archives(version, out)
    write_sbom(version, out)
    write_licences(version, out)
    write_digests(out)
    for path in sorted(out.iterdir()):
        print(f"{path.stat().st_size:>11,} {path.name}")


def find_tag() -> str:
    """Returns the version of the commit's tag. Exits if there is no tag."""
    command = ["git", "describe", "--tags", "--exact-match", "--match", "v[0-9]*"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit("This commit has no tag such as v1.2.3: create one, or use --version 1.2.3")
    return result.stdout.strip().removeprefix("v")


def build_archives(version: str, out: Path) -> None:
    """Builds the source archive and the wheels into `out`. Exits if a second build gives other files."""
    with tempfile.TemporaryDirectory() as place:
        first, second, third = (Path(place) / name for name in ("first", "second", "third"))
        rebuild_folder = Path(place) / "again"
        rebuild_folder.mkdir()
        export(first, version)
        seconds = read_commit_time()
        sdist = build("build_sdist", first, out, seconds)
        wheels = [build("build_wheel", folder, out, seconds) for folder in (first, first / "src")]
        export(second, version)
        build("build_sdist", second, rebuild_folder, seconds)
        with tarfile.open(rebuild_folder / sdist) as archive:
            archive.extractall(third, filter="data")
        (unpacked,) = third.iterdir()
        for folder in (unpacked, unpacked / "src"):
            build("build_wheel", folder, rebuild_folder, seconds)
        for name in (sdist, *wheels):
            if digest(out / name) != digest(rebuild_folder / name):
                sys.exit(
                    f"{name} is not reproducible: {digest(out / name)} and {digest(rebuild_folder / name)}"
                )


def export(folder: Path, version: str) -> None:
    """Writes the committed files into a folder, with the release's version."""
    folder.mkdir()
    command = ["git", "archive", "HEAD"]
    committed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=BytesIO(committed)) as archive:
        archive.extractall(folder, filter="data")
    for name in VERSION_FILES:
        file = folder / name
        file.write_text(VERSION_LINE.sub(rf"\g<1>{version}", file.read_text("utf-8")), "utf-8")


def build(hook: str, folder: Path, out: Path, seconds: str) -> str:
    """Calls a hook of the locked build backend. `seconds`: the time of all files, in Unix time. Returns the
    name of the built file."""
    command = [sys.executable, "-c", BUILD, hook, str(out)]
    env = os.environ | {"SOURCE_DATE_EPOCH": seconds}
    result = subprocess.run(command, cwd=folder, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout.strip()


def read_commit_time() -> str:
    """Returns the commit's time in Unix seconds."""
    command = ["git", "log", "-1", "--format=%ct"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def list_locks() -> list[Path]:
    """Returns the lock files of the runtime and of its extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = ["serve", *project["optional-dependencies"]]
    return [ROOT / "requirements" / f"{name}.txt" for name in names if name not in NOT_LOCKED]


def write_sbom(version: str, out: Path) -> None:
    """Writes a CycloneDX SBOM of the runtime and all extras, from their locks."""
    entries = {}
    for lock in list_locks():
        for entry in re.split(r"\n(?=\S)", lock.read_text("utf-8").strip()):
            entries[entry.split(" ")[0]] = entry
    file = out / f"antiphon-{version}.cdx.json"
    command: list[str | Path] = [TOOLS / "cyclonedx-py", "requirements", "-", "--pyproject", "pyproject.toml"]
    command += ["--output-reproducible", "--output-format", "JSON", "--output-file", file]
    text = "\n".join(entries[name] for name in sorted(entries)) + "\n"
    subprocess.run(command, cwd=ROOT, input=text, text=True, check=True)
    document = json.loads(file.read_text("utf-8"))
    document["metadata"]["component"]["version"] = version
    file.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


def write_licences(version: str, out: Path) -> None:
    """Writes a table of the licences of all locked packages that are installed here. Exits if one is
    unknown."""
    names = sorted({name for lock in list_locks() for name, _ in PINNED.findall(lock.read_text("utf-8"))})
    command: list[str | Path] = [TOOLS / "pip-licenses", "--python", sys.executable, "--packages", *names]
    command += ["--format", "markdown", "--with-urls", "--order", "license", "--with-system"]
    table = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = [[cell.strip() for cell in row.split("|")] for row in table.splitlines()]
    if unknown := [row[1] for row in rows if row[3] == "UNKNOWN"]:
        sys.exit(f"these packages have an unknown licence: {', '.join(unknown)}")
    (out / f"antiphon-{version}-licenses.md").write_text(table, "utf-8")


def write_digests(out: Path) -> None:
    """Writes SHA256SUMS, which `sha256sum --check` reads."""
    lines = [f"{digest(path)}  {path.name}\n" for path in sorted(out.iterdir())]
    (out / "SHA256SUMS").write_text("".join(lines), "utf-8")


def digest(path: Path) -> str:
    """Returns a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
