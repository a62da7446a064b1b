"""What is installed is what was locked, and nothing of it runs when Python starts."""

import ast
import json
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.architecture.source import ROOT, SRC, Module, expect_none, imports, modules

LOCKS = ROOT / "requirements"
ENTRY = re.compile(r"([a-z0-9][a-z0-9.-]*)==([a-z0-9.!+-]+)( ; [^\\]+)?( --hash=sha256:[0-9a-f]{64})+")
NPM = ROOT / "tests" / "contract"
CLIENTS = ("fireworks", "fireworks-client", "jamai", "sgp", "sdks", "pydantic-ai", "vendors", "node")
"""Groups and locks of what tests/contract speaks with from environments of their own."""

# Each with its reason, and only as long as it holds paths and no code.
PATH_FILES = {"antiphon.pth": "the editable install: the project's own src"}

DOCUMENTED = {
    "msgspec": "its Struct is made to be subclassed",
    "jinja2": "extensions, environments and visitors are its documented interface",
}
"""Packages whose classes can be extended under any release."""


def entries(lock: str) -> list[str]:
    """A lock's logical lines."""
    return [" ".join(line.split()) for line in lock.replace("\\\n", " ").splitlines() if line.strip()]


def loose(lock: str) -> Iterator[str]:
    """What is not one exact version with its hashes: an option, an address, a range, a bare name."""
    yield from (f"is not locked: {entry:.80}" for entry in entries(lock) if not ENTRY.fullmatch(entry))


def pins(lock: str) -> dict[str, set[str]]:
    """The versions that each name is locked at: more than one where Python versions differ."""
    found: dict[str, set[str]] = {}
    for entry in entries(lock):
        name, version, *_ = re.split(r"==| ", entry)
        found.setdefault(name, set()).add(version)
    return found


def unmet(requirements: list[str], lock: str) -> Iterator[str]:
    locked = pins(lock)
    for requirement in map(Requirement, requirements):
        versions = locked.get(canonicalize_name(requirement.name), set())
        if not versions or not all(requirement.specifier.contains(version) for version in versions):
            yield f"{requirement} is locked at {versions or 'nothing'}: run `make lock`"


def opened(module: Module) -> Iterator[str]:
    """The packages whose insides a module depends on: it extends their classes, or imports private names."""
    for _, target in imports(module):
        if any(part.startswith("_") for part in target.split(".")[1:]):
            yield target.partition(".")[0]
    tops = {target.rpartition(".")[2]: target.partition(".")[0] for _, target in imports(module)}
    for node in module.nodes:
        for base in node.bases if isinstance(node, ast.ClassDef) else ():
            yield tops.get(ast.unparse(base).partition(".")[0].partition("[")[0], "")


def unbounded(used: Iterable[str], requirements: list[str]) -> Iterator[str]:
    asked = {str(canonicalize_name(each.name)): each.specifier for each in map(Requirement, requirements)}
    for package in sorted(set(used) & asked.keys() - DOCUMENTED.keys() - sys.stdlib_module_names):
        if not any(each.operator in ("<", "<=", "==", "~=") for each in asked[package]):
            yield f"{package} is extended in src, so pyproject.toml must cap its version"


def loose_npm(lock: dict[str, Any]) -> Iterator[str]:
    """What npm would fetch without comparing it, or from an address that stands in its lock."""
    for path, entry in lock["packages"].items():
        if path and not str(entry.get("integrity", "")).startswith("sha512-"):
            yield f"{path} has no digest: run `make lock`"
        if "resolved" in entry or entry.get("hasInstallScript"):
            yield f"{path} names an address, or runs a script when it is installed"


def path_files(folder: Path) -> Iterator[str]:
    for path in sorted(folder.glob("*.pth")):
        text = path.read_text("utf-8")
        if path.name not in PATH_FILES:
            yield f"{path.name} was installed: Python reads it at every start"
        elif re.search(r"^import\s", text, re.MULTILINE):
            yield f"{path.name} runs code at every start"


def _lock(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text("utf-8")


def test_every_lock_entry_has_hashes_and_no_address():
    expect_none(
        f"{path.name}: {line}" for path in LOCKS.glob("*.txt") for line in loose(path.read_text("utf-8"))
    )


def test_the_locks_hold_what_the_project_asks_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    groups = project["dependency-groups"]
    runtime = project["project"]["dependencies"] + project["build-system"]["requires"]
    expect_none(unmet(runtime, _lock("serve")))
    expect_none(unmet(runtime + groups["test"], _lock("test")))
    for tool in ("lock", "pip"):
        expect_none(unmet(groups[tool], _lock(tool)))
    expect_none(unmet(groups["native"], _lock("native")))
    expect_none(unmet(groups["native-build"], _lock("native-build")))
    for client in (*CLIENTS, "release"):
        expect_none(unmet(groups[client], _lock(client)))
    extras = project["project"]["optional-dependencies"]
    assert extras.pop("testing") == ["antiphon-testing"], "which is of this repository"
    for extra, requirements in extras.items():
        expect_none(unmet(requirements, _lock(extra)))
    assert groups["build"] == project["build-system"]["requires"]
    assert groups["native"] == extras["native"]


def test_packages_whose_insides_are_extended_have_an_upper_bound():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    used = [package for module in modules() for package in opened(module)]
    assert {"aiohttp"} <= set(used)
    extras = [each for listed in project["optional-dependencies"].values() for each in listed]
    expect_none(unbounded(used, project["dependencies"] + extras))
    assert list(unbounded(["rich", "msgspec"], ["rich>=15", "msgspec>=0.22"])) == [
        "rich is extended in src, so pyproject.toml must cap its version"
    ]
    assert list(unbounded(["rich"], ["rich>=15,<16"])) == []


def test_the_runtime_is_tested_in_the_versions_it_is_served_with():
    tested = pins(_lock("test"))
    for lock in ("serve", "documents", "oidc", "postgresql", "prices", "redis"):
        served = pins(_lock(lock))
        assert {name: versions for name, versions in served.items() if tested.get(name) != versions} == {}


def test_the_cluster_has_the_versions_of_the_runtime():
    asked = tomllib.loads((LOCKS / "cluster" / "pyproject.toml").read_text("utf-8"))
    expect_none(unmet(asked["project"]["dependencies"], _lock("cluster")))
    served, there = pins(_lock("serve")), pins(_lock("cluster"))
    assert {
        name: versions for name, versions in there.items() if served.get(name, versions) != versions
    } == {}
    assert not there.keys() & set(asked["tool"]["uv"]["exclude-dependencies"])


@pytest.mark.parametrize("folder", ["node", "agents"])
def test_every_npm_package_has_a_digest_and_no_address(folder):
    lock = json.loads((NPM / folder / "package-lock.json").read_text("utf-8"))
    package = json.loads((NPM / folder / "package.json").read_text("utf-8"))
    asked: dict[str, str] = {}
    for kind in ("dependencies", "optionalDependencies"):
        assert lock["packages"][""].get(kind) == package.get(kind)
        asked |= package.get(kind, {})
    expect_none(loose_npm(lock))
    assert {name: lock["packages"][f"node_modules/{name}"]["version"] for name in asked} == asked
    good = {"version": "1.0.0", "integrity": "sha512-" + "a" * 86 + "=="}
    bad = [good | {"integrity": "sha1-a"}, {"version": "1.0.0"}, good | {"resolved": "https://host/a.tgz"}]
    assert [len(list(loose_npm({"packages": {"": {}, "a": entry}}))) for entry in [good, *bad]] == [
        0,
        1,
        1,
        1,
    ]


def test_nothing_installed_runs_when_python_starts():
    places = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    expect_none(line for place in places for line in path_files(place))
    assert [path.read_text("utf-8").strip() for place in places for path in place.glob("antiphon.pth")] == [
        str(SRC)
    ]


def test_a_loose_entry_is_found():
    digest = " \\\n    --hash=sha256:" + "0" * 64
    good = f"anyio==4.16.0{digest}{digest}\nnumpy==2.4.6 ; python_full_version < '3.12'{digest}\n"
    assert list(loose(good)) == []
    bad = [
        "anyio==4.16.0",
        f"anyio>=4{digest}",
        "--index-url https://host/simple",
        f"a @ https://host/a.whl{digest}",
    ]
    assert [len(list(loose(entry))) for entry in bad] == [1, 1, 1, 1]
    assert [
        len(list(unmet([asked], good))) for asked in ("anyio>=4", "anyio>=5", "rich", "Anyio==4.16.0")
    ] == [0, 1, 1, 0]


def test_a_path_file_that_runs_code_is_found(tmp_path):
    (tmp_path / "antiphon.pth").write_text("import os; os.system('true')\n")
    (tmp_path / "helpful.pth").write_text("a\n")
    assert [line.split()[0] for line in path_files(tmp_path)] == ["antiphon.pth", "helpful.pth"]
