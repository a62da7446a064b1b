"""Joins the console's libraries into src/antiphon/console/vendor, each into one file without bare imports.

scripts/vendor_console.py [--check]

The packages are those of tests/console/package-lock.json, whose digests npm compares. esbuild joins them. The
folder also gets the icons that the console uses, the licences, and SHA256SUMS of all files.
--check only says whether the folder is what the packages make.
"""

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ROOT / "tests" / "console" / "node_modules"
CONSOLE = ROOT / "src" / "antiphon" / "console"
VENDOR = CONSOLE / "vendor"

LANGUAGES = (
    "bash c cpp csharp css diff go ini java javascript json kotlin lua makefile markdown php plaintext "
    "python ruby rust sql swift typescript xml yaml"
).split()
"""Languages whose code is coloured. Each costs about 1 kB."""

ENTRIES = {
    "lit.js": (
        'export { LitElement, html, svg, nothing } from "lit";\n'
        'export { classMap } from "lit/directives/class-map.js";\n'
        'export { keyed } from "lit/directives/keyed.js";\n'
        'export { live } from "lit/directives/live.js";\n'
        'export { ref, createRef } from "lit/directives/ref.js";\n'
        'export { repeat } from "lit/directives/repeat.js";\n'
    ),
    "markdown.js": 'export { marked } from "marked";\nexport { default as DOMPurify } from "dompurify";\n',
    "highlight.js": 'import hljs from "highlight.js/lib/core";\n'
    + "".join(f'import {name} from "highlight.js/lib/languages/{name}";\n' for name in LANGUAGES)
    + "".join(f'hljs.registerLanguage("{name}", {name});\n' for name in LANGUAGES)
    + "export { hljs };\n",
    "charts.js": 'export { default as uPlot } from "uplot";\n',
}
"""What each file exports."""

LICENSED = ("lit", "marked", "dompurify", "highlight.js", "uplot", "lucide-static")


def build(folder: Path) -> None:
    """Writes all files into a folder."""
    for name, text in ENTRIES.items():
        (folder / name).write_text(join(text), "utf-8")
    (folder / "icons.svg").write_text(collect_icons(), "utf-8")
    (folder / "charts.css").write_bytes((PACKAGES / "uplot" / "dist" / "uPlot.min.css").read_bytes())
    (folder / "LICENSES.txt").write_text(collect_licenses(), "utf-8")
    sums = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n"
        for path in sorted(folder.iterdir())
        if path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("".join(sums), "utf-8")


def join(entry: str) -> str:
    """Returns one module that contains what `entry` imports."""
    command = [
        str(PACKAGES / ".bin" / "esbuild"),
        *(
            "--bundle",
            "--minify",
            "--format=esm",
            "--target=es2022",
            "--legal-comments=none",
            "--charset=utf8",
        ),
        "--banner:js=// @ts-nocheck",
    ]
    done = subprocess.run(
        command, input=entry, text=True, capture_output=True, check=True, cwd=PACKAGES.parent
    )
    return done.stdout


def collect_icons() -> str:
    """Returns a sprite of the icons whose names the console's modules contain."""
    sources = [path.read_text("utf-8") for path in sorted(CONSOLE.glob("app/**/*.js"))]
    names = sorted({name for source in sources for name in re.findall(r'icon\("([a-z0-9-]+)"', source)})
    symbols = []
    for name in names:
        drawing = (PACKAGES / "lucide-static" / "icons" / f"{name}.svg").read_text("utf-8")
        shapes = "".join(re.findall(r"<(?!svg)[a-z][^>]*/>", drawing))
        symbols.append(f'<symbol id="{name}" viewBox="0 0 24 24">{shapes}</symbol>\n')
    return f'<svg xmlns="http://www.w3.org/2000/svg">\n{"".join(symbols)}</svg>\n'


def collect_licenses() -> str:
    """Returns the licences of the packages, with their versions."""
    parts = []
    for name in LICENSED:
        package = PACKAGES / name
        version = json.loads((package / "package.json").read_text("utf-8"))["version"]
        texts = sorted(path for path in package.iterdir() if path.name.upper().startswith("LICENSE"))
        parts.append(f"{name} {version}\n\n{texts[0].read_text('utf-8').strip()}\n")
    return f"\n{'-' * 80}\n\n".join(parts)


def find_differences(folder: Path) -> list[str]:
    """Returns the names of files that are not as the packages make them."""
    names = {path.name for path in folder.iterdir()} | {path.name for path in VENDOR.iterdir()}
    return sorted(name for name in names if read(folder / name) != read(VENDOR / name))


def read(path: Path) -> bytes | None:
    """Returns the content of a file; None if there is no file."""
    return path.read_bytes() if path.exists() else None


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    if not parser.parse_args().check:
        VENDOR.mkdir(exist_ok=True)
        build(VENDOR)
        return
    with tempfile.TemporaryDirectory() as made:
        build(Path(made))
        if differences := find_differences(Path(made)):
            sys.exit(f"{VENDOR.relative_to(ROOT)} differs: {', '.join(differences)}")


if __name__ == "__main__":
    main()
