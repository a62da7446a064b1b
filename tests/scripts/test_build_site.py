"""scripts/build_site.py: the site has every page, no broken link, and a list for programs. A browser shows
its pages without an error."""

import json
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.browser import Browser, open_browser

ROOT = Path(__file__).parents[2]
REPOSITORY = "https://git.example.org/antiphon"
BUILDER = ROOT / ".venvs/site/bin/zensical"

EXTERNAL = re.compile(r'<(?:script|link|img)[^>]*(?:src|href)="https?://(?!127\.)[^"]*"')


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the site is made from, built."""
    tree = tmp_path_factory.mktemp("site")
    for name in ("docs", "scripts", "benchmarks"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    shutil.copy(ROOT / "mkdocs.yml", tree)
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tree)
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
    pages = [path.name for path in ROOT.glob("*.md")]
    for page in (
        *pages,
        "benchmarks/RESULTS.md",
        "docs/decisions/README.md",
        "docs/quickstart.md",
        "docs/faq.md",
    ):
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / page).write_text(f"# {page}\n\nA short page.\n")
    for name in ("logo.svg", "favicon.svg", "site.css"):
        shutil.copy(ROOT / "docs" / name, tmp_path / "docs")
    (tmp_path / "docs/faq.md").write_text("# Questions\n\n[found](quickstart.md)\n")
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    configuration = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[0]
    navigation = "\nnav:\n  - Start:\n      - Antiphon: index.md\n      - Quickstart: quickstart.md\n"
    (tmp_path / "mkdocs.yml").write_text(configuration + navigation)
    return tmp_path


def test_a_broken_link_ends_the_build(short_tree: Path) -> None:
    """The next test builds the same pages without it."""
    page = short_tree / "docs/faq.md"
    page.write_text(page.read_text() + "\n[lost](quickstart.md#nowhere)\n")
    done = build(short_tree)
    assert done.returncode != 0 and "anchor does not exist" in done.stderr


async def test_a_version_is_kept_beside_the_others(short_tree: Path, browser: Browser) -> None:
    kept = short_tree / "site-versions/0.9/quickstart.html"
    kept.parent.mkdir(parents=True)
    kept.write_text("As it was.")
    assert build(short_tree, "--version", "1.0", "--repository", REPOSITORY).returncode == 0
    names = [each["version"] for each in json.loads((short_tree / "site-versions/versions.json").read_text())]
    assert names == ["1.0", "0.9"]
    assert "url=1.0/" in (short_tree / "site-versions/index.html").read_text()
    assert kept.read_text() == "As it was."
    assert f'href="{REPOSITORY}"' in (short_tree / "site-versions/1.0/index.html").read_text()
    with serve_folder(short_tree / "site-versions") as url:
        await browser.open(f"{url}/1.0/quickstart.html")
        await browser.wait_for("document.querySelectorAll('.md-version__item').length === 2")


# --- in a browser ---


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves files, and writes no log."""

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serves a folder's files on loopback."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(folder)))
    with server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
async def chromium() -> AsyncIterator[Browser]:
    async with open_browser() as browser:
        yield browser


@pytest.fixture
def browser(chromium: Browser) -> Iterator[Browser]:
    chromium.problems.clear()
    yield chromium
    assert chromium.problems == []


@pytest.fixture(scope="module")
def url(site: Path) -> Iterator[str]:
    with serve_folder(site) as address:
        yield address


@pytest.mark.parametrize("page", ["decisions/index", "404"])
async def test_a_page_of_each_kind_is_shown(url: str, browser: Browser, page: str) -> None:
    """The next tests open others. A page takes half a second of CPU time; `make soak` opens all of them."""
    await browser.open(f"{url}/{page}.html")
    assert await browser.run("document.querySelector('.md-logo img').naturalWidth") > 0


def list_html(site: Path) -> list[str]:
    return sorted(page.relative_to(site).as_posix() for page in site.rglob("*.html"))


@pytest.mark.soak
async def test_every_page_is_shown(url: str, site: Path, browser: Browser) -> None:
    for page in list_html(site):
        await browser.open(f"{url}/{page}")
        assert browser.problems == [], page


async def test_names_of_settings_stay_on_one_line(url: str, browser: Browser) -> None:
    await browser.open(f"{url}/configuration.html")
    names = "[...document.querySelectorAll('td:nth-child(-n + 2) code')]"
    lines = await browser.run(f"{names}.map((each) => each.getClientRects().length)")
    assert len(lines) > 100 and set(lines) == {1}


async def test_guides_are_grouped(url: str, browser: Browser) -> None:
    await browser.open(f"{url}/models.html")
    shown = await browser.run("document.querySelector('.md-sidebar--primary').innerText")
    groups = re.findall(r"(?m)^(Models|Team|Knowledge|Operate)$", shown)
    assert list(dict.fromkeys(groups)) == ["Models", "Team", "Knowledge", "Operate"]
