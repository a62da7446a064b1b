"""What the repository holds: nothing of one machine or registry, few binaries, tests in their places."""

import re
from collections.abc import Iterator
from pathlib import Path

from tests.architecture.source import ROOT, SRC, expect_none, tracked

BINARIES_MB = 30
# Folders of tests that cross the packages of src/antiphon; `testing` tests src/antiphon_testing.
CROSSING = set(
    """
    architecture benchmarks cluster contract deploy e2e fixtures models parameters recordings scripts support
    testing
    """.split()
)

# Written so that they do not find themselves.
REGISTRY = re.compile(r"python[h]osted\.org|pyp[i]\.org|npmj[s]\.(?:org|com)|deb\.debia[n]\.org")
# Patterns that begin with a character are found faster than those that begin with what is before it.
MACHINE = re.compile(r"/(?:(?<![\w.~-]/)|(?<=:-/))(?:(?:work|farm|root|opt|home|Users)\b|tmp/[a-z])")


def text_of(path: Path) -> str | None:
    data = path.read_bytes()
    return None if b"\0" in data else data.decode("utf-8", errors="replace")


def leaks(name: str, text: str) -> Iterator[str]:
    if not (REGISTRY.search(text) or MACHINE.search(text)):
        return
    for number, line in enumerate(text.splitlines(), 1):
        if REGISTRY.search(line):
            yield f"{name}:{number} names a registry's host: the user's configuration has it"
        if MACHINE.search(line):
            yield f"{name}:{number} names a path of one machine: {line.strip():.80}"


def strangers(folders: Iterator[Path], packages: Path) -> Iterator[str]:
    """Folders of tests that mirror no package and no module."""
    for folder in folders:
        mirrored = (packages / folder, (packages / folder).with_suffix(".py"))
        if folder.parts[0] not in CROSSING and not any(place.exists() for place in mirrored):
            yield f"tests/{folder} mirrors no src/antiphon/{folder}"


def test_no_file_names_a_registry_or_a_machine():
    named = ((path, text) for path in tracked() if (text := text_of(path)) is not None)
    expect_none(line for path, text in named for line in leaks(str(path.relative_to(ROOT)), text))


def test_committed_binaries_stay_small():
    sizes = {path: path.stat().st_size for path in tracked() if text_of(path) is None}
    assert sum(sizes.values()) < BINARIES_MB * 1_000_000, sizes


def test_tests_lie_where_their_code_lies():
    tests = ROOT / "tests"
    folders = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")} - {Path()}
    expect_none(strangers(iter(sorted(folders)), SRC / "antiphon"))


def test_a_leak_is_found():
    places = [
        "see /" + "work/main",
        "a = '/" + "home/ann/x'",
        "(/" + "tmp/half.gguf)",
        "${ROCM_PATH:-/" + "opt/rocm}",
        "https://files.python" + "hosted.org/a",
    ]
    assert [len(list(leaks("a.md", place))) for place in places] == [1, 1, 1, 1, 1]
    fine = "src/*work/x ./*opt ~/*home /v1/models /*tmp, https://host/*rooted, and /*workers".replace("*", "")
    assert list(leaks("a.md", fine)) == []


def test_a_test_without_code_is_found(tmp_path):
    (tmp_path / "http").mkdir()
    folders = iter([Path("http"), Path("contract/openai"), Path("htpt")])
    assert list(strangers(folders, tmp_path)) == ["tests/htpt mirrors no src/antiphon/htpt"]


def test_every_page_is_in_the_navigation_of_the_site():
    listed = set(re.findall(r"(\S+\.md)$", (ROOT / "mkdocs.yml").read_text("utf-8"), re.MULTILINE))
    pages = {page.name for page in (ROOT / "docs").glob("*.md")}
    assert pages <= listed, f"add to nav in mkdocs.yml: {sorted(pages - listed)}"


def test_no_test_file_is_imported():
    """Helpers of several files are in tests/support, or in a module of their folder."""
    pattern = re.compile(r"^\s*(?:from|import) (?:tests|benchmarks)[\w.]*\.test_\w+", re.MULTILINE)
    found = [path for path in tracked() if path.suffix == ".py" and pattern.search(path.read_text("utf-8"))]
    assert found == []
