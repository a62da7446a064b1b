"""Builds the documentation site from docs/ and the pages at the repository's root, into site/.

python scripts/build_site.py [--version NAME] [--builder PATH]

The pages are copied to build/docs, where links between them lead to their places on the site. Then Zensical
builds them, with warnings as errors. `llms.txt` lists all pages for programs that read them.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build" / "docs"
SITE = ROOT / "site"

MOVED = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "README.md": "index.md",
    "docs/decisions/README.md": "decisions/index.md",
}
"""Pages whose place on the site is not their place in docs/."""

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
NAV = re.compile(r"^(?P<indent> *)- (?:(?P<title>[^:\n]+): ?)?(?P<page>\S+\.md)?$", re.MULTILINE)
MADE = re.compile(r"<!--.*?-->", re.DOTALL)


def list_pages() -> Iterator[tuple[str, str]]:
    """Yields each page's place in the repository and its place on the site."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        place = path.relative_to(ROOT).as_posix()
        yield place, MOVED.get(place, path.relative_to(ROOT / "docs").as_posix())
    yield from ((place, page) for place, page in MOVED.items() if not place.startswith("docs/"))


def move_links(text: str, place: str, page: str, pages: dict[str, str]) -> str:
    """Returns a page's text with links that are right on the site. A link to a file that is not there becomes
    the file's name."""

    def move(match: re.Match[str]) -> str:
        target = os.path.normpath((PurePosixPath(place).parent / match[1]).as_posix())
        if target.startswith("docs/") and (BUILD / target.removeprefix("docs/")).is_file():
            return (
                f"]({os.path.relpath(target.removeprefix('docs/'), PurePosixPath(page).parent.as_posix())})"
            )
        if target not in pages:
            return match[0] if (BUILD / page).parent.joinpath(match[1]).is_file() else f"](#{GONE})"
        found = os.path.relpath(pages[target], PurePosixPath(page).parent.as_posix() or ".")
        return f"]({found}{match[2] or ''})"

    parts = FENCE.split(text)
    moved = [part if part.startswith("```") else LINK.sub(move, part) for part in parts]
    return re.sub(rf"\[([^\]]*)\]\(#{GONE}\)", r"\1", "".join(moved))


GONE = "not-on-the-site"


def copy_pages() -> dict[str, str]:
    """Copies all pages to where they are built. Returns their places."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT / "docs", BUILD, ignore=shutil.ignore_patterns("*.md"))
    pages = dict(list_pages())
    for place, page in pages.items():
        target = BUILD / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(move_links((ROOT / place).read_text("utf-8"), place, page, pages), "utf-8")
    return pages


def read_navigation() -> Iterator[tuple[str, str | None]]:
    """Yields the titles of the site's sections and pages in order, with the page if it is one."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    for match in NAV.finditer(text):
        yield (match["title"] or "").strip(), match["page"]


def summarize(page: Path) -> tuple[str, str]:
    """Returns a page's title and its first sentence."""
    lines = MADE.sub("", page.read_text("utf-8")).splitlines()
    title = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), page.stem)
    paragraphs = " ".join(lines).split("# " + title, 1)[-1].strip()
    sentence = re.split(r"(?<=[.!?:])\s", LINK.sub("]", paragraphs), maxsplit=1)[0]
    return title, re.sub(r"[\[\]]", "", sentence)


def write_llms() -> None:
    """Writes the list of pages by the convention of llms.txt, with their Markdown beside the HTML."""
    lines = ["# Antiphon", "", "> One self-hosted server for chat and text completions.", ""]
    for title, page in read_navigation():
        if page is None:
            lines += ["", f"## {title}", ""]
            continue
        name, sentence = summarize(BUILD / page)
        lines.append(f"- [{title or name}]({page}): {sentence}")
        (SITE / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(BUILD / page, SITE / page)
    (SITE / "llms.txt").write_text("\n".join(lines) + "\n", "utf-8")


def publish(version: str) -> None:
    """Moves the built site below its version, and adds it to the list that the selector of versions reads."""
    versions = ROOT / "site-versions"
    place = versions / version
    shutil.rmtree(place, ignore_errors=True)
    versions.mkdir(exist_ok=True)
    shutil.copytree(SITE, place)
    names = sorted((each.name for each in versions.iterdir() if each.is_dir()), reverse=True)
    listed = [{"version": name, "title": name, "aliases": []} for name in names]
    (versions / "versions.json").write_text(json.dumps(listed) + "\n", "utf-8")
    target = f'content="0; url={names[0]}/index.html"'
    newest = f'<!doctype html><meta http-equiv="refresh" {target}><title>Antiphon</title>\n'
    (versions / "index.html").write_text(newest, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", help="keep this build as a version in site-versions/")
    parser.add_argument("--builder", default="zensical", help="the command zensical")
    given = parser.parse_args()
    copy_pages()
    built = subprocess.run([given.builder, "build", "--clean", "--strict"], cwd=ROOT, check=False)
    if built.returncode != 0:
        return built.returncode
    write_llms()
    if given.version:
        publish(given.version)
    print(f"The site is in {SITE.name}/index.html.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
