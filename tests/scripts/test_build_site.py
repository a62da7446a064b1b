"""scripts/build_site.py: the site has every page, no broken link, and a list for programs."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BUILDER = ROOT / ".venvs/site/bin/zensical"

EXTERNAL = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="https?://(?!127\.)[^"]*"')


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the site is made from, built."""
    tree = tmp_path_factory.mktemp("site")
    for name in ("docs", "scripts", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "mkdocs.yml"):
        shutil.copy(ROOT / name, tree)
    return tree


def build(tree: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "scripts/build_site.py", "--builder", str(BUILDER), *words]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def site(tree: Path) -> Path:
    done = build(tree)
    assert done.returncode == 0, done.stdout + done.stderr
    return tree / "site"


def list_navigation(tree: Path) -> set[str]:
    return set(re.findall(r"(\S+\.md)$", (tree / "mkdocs.yml").read_text(), re.MULTILINE))


def test_every_page_is_built_and_in_the_navigation(tree: Path, site: Path) -> None:
    pages = {path.relative_to(tree / "build/docs").as_posix() for path in (tree / "build/docs").rglob("*.md")}
    missing = {page for page in pages - list_navigation(tree) if not page.startswith("decisions/")}
    assert not missing, "add these to nav in mkdocs.yml"
    assert all((site / page.replace(".md", ".html")).is_file() for page in pages)


def test_links_between_pages_lead_to_the_site(site: Path) -> None:
    assert 'href="decisions/index.html"' in (site / "architecture.html").read_text()
    assert 'href="quickstart.html"' in (site / "index.html").read_text()


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        assert not EXTERNAL.search(page.read_text()), page.name


def test_llms_txt_lists_each_page_with_its_text(tree: Path, site: Path) -> None:
    listed = set(re.findall(r"\]\(([^)]+\.md)\): \S", (site / "llms.txt").read_text()))
    assert listed == list_navigation(tree)
    assert (site / "quickstart.md").read_text().startswith("# Quickstart")


@pytest.fixture
def short_tree(tmp_path: Path) -> Path:
    """A few short pages and the configuration of the whole site: a build takes a fraction of the time."""
    pages = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/RESULTS.md"]
    for page in (*pages, "docs/decisions/README.md", "docs/quickstart.md", "docs/faq.md"):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"# {page}\n\nA short page.\n")
    (tmp_path / "docs/faq.md").write_text("# Questions\n\n[found](quickstart.md)\n")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    configuration = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    navigation = "\nnav:\n  - Start:\n      - Antiphon: index.md\n      - Quickstart: quickstart.md\n"
    (tmp_path / "mkdocs.yml").write_text(configuration + navigation)
    return tmp_path


def test_a_broken_link_ends_the_build(short_tree: Path) -> None:
    assert build(short_tree).returncode == 0
    page = short_tree / "docs/faq.md"
    page.write_text(page.read_text() + "\n[lost](quickstart.md#nowhere)\n")
    assert build(short_tree).returncode != 0


def test_a_version_is_kept_beside_the_others(short_tree: Path) -> None:
    for version in ("0.9", "1.0"):
        assert build(short_tree, "--version", version).returncode == 0
    names = [each["version"] for each in json.loads((short_tree / "site-versions/versions.json").read_text())]
    assert names == ["1.0", "0.9"]
    assert "url=1.0/" in (short_tree / "site-versions/index.html").read_text()
    assert (short_tree / "site-versions/0.9/quickstart.html").is_file()
