"""Builds the documentation site from docs/ and the pages at the repository's root, into site/.

python scripts/build_site.py [--version NAME] [--repository URL] [--builder PATH]

It copies the pages to build/docs and changes the links between them to the site's paths. Then Zensical builds
them, with warnings as errors. `llms.txt` lists all pages for programs.
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
CONFIGURATION = ROOT / "build-site.yml"
"""At the root, because its paths are relative to its folder."""

SITE_PATHS = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "README.md": "index.md",
    "SECURITY.md": "security-policy.md",
    "docs/decisions/README.md": "decisions/index.md",
}
"""Pages whose path on the site differs from their path in the repository."""

LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```.*?^```)", re.MULTILINE | re.DOTALL)
NAVIGATION_LINE = re.compile(r"^(?P<indent> *)- (?:(?P<title>[^:\n]+): ?)?(?P<page>\S+\.md)?$", re.MULTILINE)
HTML_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)


def list_pages() -> Iterator[tuple[str, str]]:
    """Yields the path of each page in the repository and on the site."""
    for path in sorted((ROOT / "docs").rglob("*.md")):
        source = path.relative_to(ROOT).as_posix()
        yield source, SITE_PATHS.get(source, path.relative_to(ROOT / "docs").as_posix())
    yield from ((source, page) for source, page in SITE_PATHS.items() if not source.startswith("docs/"))


def move_links(text: str, source: str, page: str, pages: dict[str, str]) -> str:
    """Returns a page's text with links that work on the site. A link to a file that is not on the site
    becomes the file's name."""

    def move(match: re.Match[str]) -> str:
        target = os.path.normpath((PurePosixPath(source).parent / match[1]).as_posix())
        if target.startswith("docs/") and (BUILD / target.removeprefix("docs/")).is_file():
            return (
                f"]({os.path.relpath(target.removeprefix('docs/'), PurePosixPath(page).parent.as_posix())})"
            )
        if target not in pages:
            return match[0] if (BUILD / page).parent.joinpath(match[1]).is_file() else f"](#{MISSING_LINK})"
        relative_path = os.path.relpath(pages[target], PurePosixPath(page).parent.as_posix() or ".")
        return f"]({relative_path}{match[2] or ''})"

    parts = FENCE.split(text)
    moved_parts = [part if part.startswith("```") else LINK.sub(move, part) for part in parts]
    return re.sub(rf"\[([^\]]*)\]\(#{MISSING_LINK}\)", r"\1", "".join(moved_parts))


MISSING_LINK = "not-on-the-site"


def copy_pages() -> dict[str, str]:
    """Copies all pages to the build folder. Returns their paths on the site by their paths in the
    repository."""
    shutil.rmtree(BUILD, ignore_errors=True)
    shutil.copytree(ROOT / "docs", BUILD, ignore=shutil.ignore_patterns("*.md"))
    pages = dict(list_pages())
    for source, page in pages.items():
        target = BUILD / page
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(move_links((ROOT / source).read_text("utf-8"), source, page, pages), "utf-8")
    return pages


def write_configuration(version: str | None, repository: str | None) -> None:
    """Writes the builder's configuration. The selector of versions needs the list that `publish` writes, so a
    build without a version has no selector."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8")
    if version:
        text = text.replace("\nextra:\n", "\nextra:\n  version: { provider: mike }\n")
    if repository:
        text = f"repo_url: {json.dumps(repository)}\n{text}"
    CONFIGURATION.write_text(text, "utf-8")


def read_navigation() -> Iterator[tuple[str, str | None]]:
    """Yields the titles of the site's sections and pages in order. The second value is None for a section."""
    text = (ROOT / "mkdocs.yml").read_text("utf-8").partition("\nnav:\n")[2]
    for match in NAVIGATION_LINE.finditer(text):
        yield (match["title"] or "").strip(), match["page"]


def summarize(page: Path) -> tuple[str, str]:
    """Returns a page's title and its first sentence."""
    lines = HTML_COMMENT.sub("", page.read_text("utf-8")).splitlines()
    title = next((line.removeprefix("# ") for line in lines if line.startswith("# ")), page.stem)
    paragraphs = " ".join(lines).split("# " + title, 1)[-1].strip()
    sentence = re.split(r"(?<=[.!?:])\s", LINK.sub("]", paragraphs), maxsplit=1)[0]
    return title, re.sub(r"[\[\]]", "", sentence)


def write_llms() -> None:
    """Writes the list of pages in the format of llms.txt, and copies their Markdown beside the HTML."""
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
    """Copies the built site into a folder for its version, and updates the list for the version selector."""
    versions = ROOT / "site-versions"
    version_folder = versions / version
    shutil.rmtree(version_folder, ignore_errors=True)
    versions.mkdir(exist_ok=True)
    shutil.copytree(SITE, version_folder)
    names = sorted((folder.name for folder in versions.iterdir() if folder.is_dir()), reverse=True)
    version_list = [{"version": name, "title": name, "aliases": []} for name in names]
    (versions / "versions.json").write_text(json.dumps(version_list) + "\n", "utf-8")
    target = f'content="0; url={names[0]}/index.html"'
    redirect_page = f'<!doctype html><meta http-equiv="refresh" {target}><title>Antiphon</title>\n'
    (versions / "index.html").write_text(redirect_page, "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", help="keep this build as a version in site-versions/")
    parser.add_argument("--repository", help="the address that every page links to")
    parser.add_argument("--builder", default="zensical", help="the command zensical")
    options = parser.parse_args()
    copy_pages()
    write_configuration(options.version, options.repository)
    command = [options.builder, "build", "--clean", "--strict", "--config-file", str(CONFIGURATION)]
    result = subprocess.run(command, cwd=ROOT, check=False)
    CONFIGURATION.unlink()
    if result.returncode != 0:
        return result.returncode
    write_llms()
    if options.version:
        publish(options.version)
    print(f"The site is in {SITE.name}/index.html.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
