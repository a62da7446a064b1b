"""Imports go one way: layers, siblings, cycles, third-party borders."""

import ast
import sys
from collections.abc import Iterable, Iterator
from functools import cache

from tests.architecture.borders import BORDERS
from tests.architecture.source import Module, covers, expect_none, imports, modules

# The longest place that covers a module decides its layer. `antiphon` alone is the package's own `__init__`.
LAYERS = {
    "antiphon": 0,
    "antiphon.errors": 0,
    "antiphon.locked_directory": 0,
    "antiphon.regular_files": 0,
    "antiphon.task_group": 0,
    "antiphon.validation_messages": 0,
    "antiphon.bodies": 1,
    "antiphon.domain": 1,
    "antiphon.settings": 1,
    "antiphon.wire": 1,
    "antiphon.processes.sandbox": 1,
    "antiphon.engines.base": 2,
    "antiphon.engines.defects": 2,
    "antiphon.engines.registry": 2,
    "antiphon.engines.route_state": 2,
    "antiphon.engines.sampling": 2,
    "antiphon.dialects.base": 2,
    "antiphon.dialects.calls": 2,
    "antiphon.dialects.http_types": 2,
    "antiphon.dialects.services": 2,
    "antiphon.retrieval.base": 2,
    "antiphon.retrieval.knowledge": 2,
    "antiphon.store.base": 2,
    "antiphon.auth.base": 2,
    "antiphon.auth.secrets": 2,
    "antiphon.limits.base": 2,
    "antiphon.ledger.base": 2,
    "antiphon.constraints": 2,
    "antiphon.media": 2,
    "antiphon.memory": 2,
    "antiphon.processes.ipc": 2,
    "antiphon.telemetry": 2,
    "antiphon.pipeline": 3,
    "antiphon.rendering": 3,
    "antiphon.engines": 3,
    "antiphon.retrieval": 3,
    "antiphon.store": 3,
    "antiphon.auth": 3,
    "antiphon.services": 3,
    "antiphon.limits": 3,
    "antiphon.ledger": 3,
    "antiphon.weights": 3,
    "antiphon_testing": 3,
    "antiphon.console": 4,
    "antiphon.http": 4,
    "antiphon.dialects": 4,
    "antiphon.processes": 5,
    "antiphon.assembly": 5,
    "antiphon.cli": 6,
    "antiphon.__main__": 6,
}
IMPLEMENTATIONS = 3

SERVED = (
    "antiphon.assembly.__main__",
    "antiphon.engines.host.__main__",
    "antiphon.processes.coordinator.__main__",
    "antiphon.processes.knowledge.__main__",
    "antiphon.processes.supervisor",
    "antiphon.processes.sandbox",
)
"""What a server's processes begin with."""
SUPERVISED = frozenset({"msgspec"})  # settings are decoded with it; nothing else may reach the supervisor


@cache
def layer(name: str) -> int | None:
    if name == "antiphon":
        return LAYERS[name]
    found = max(
        (place for place in LAYERS if place != "antiphon" and covers(place, name)), key=len, default=None
    )
    return None if found is None else LAYERS[found]


def sibling(name: str) -> str:
    """The unit of the third layer that a module belongs to: a package, or one of the engines."""
    parts = name.split(".")
    return ".".join(parts[: 3 if parts[1:2] == ["engines"] else 2])


def is_other_product(name: str, target: str) -> bool:
    """Whether a dialect imports something that only another one has, or shared code that of any."""
    if not (covers("antiphon.dialects", name) and covers("antiphon.dialects", target)):
        return False
    ours, theirs = ((*each.split("."), "")[2] for each in (name, target))
    shared = ("", "base", "calls", "common", "http_types", "services")
    return theirs not in shared and ours != theirs


def edges(module: Module, known: frozenset[str]) -> Iterator[tuple[ast.stmt, str]]:
    """The project's own modules that a module names."""
    for node, name in imports(module):
        if covers("antiphon", name):
            yield node, name if name in known else name.rpartition(".")[0]


def wrong_ways(found: Iterable[Module]) -> Iterator[str]:
    found = list(found)
    known = frozenset(module.name for module in found)
    for module in found:
        here = layer(module.name)
        if here is None:
            yield f"{module.name} has no layer: give it one in LAYERS"
            continue
        for node, target in edges(module, known):
            there = layer(target)
            if there is None or there > here:
                yield module.at(node, f"(layer {here}) imports {target} (layer {there})")
            elif there == here == IMPLEMENTATIONS and sibling(target) != sibling(module.name):
                yield module.at(node, f"imports its sibling {target}: only assembly knows both")
            elif is_other_product(module.name, target):
                yield module.at(node, f"imports another product's {target}: share it in dialects.common")


def cycles(found: Iterable[Module]) -> list[str]:
    """What is left when modules that import nothing that is left are taken away, again and again."""
    found = list(found)
    known = frozenset(module.name for module in found)
    left = {module.name: {target for _, target in edges(module, known)} & known for module in found}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    return sorted(left)


def trespasses(module: Module) -> Iterator[str]:
    for node, name in imports(module):
        place = max((place for place in BORDERS if covers(place, name)), key=len, default=None)
        top = name.partition(".")[0]
        if place is not None and not module.within(*BORDERS[place]):
            yield module.at(node, f"imports {place}, whose home is {', '.join(BORDERS[place])}")
        elif place is None and top != "antiphon" and top not in sys.stdlib_module_names:
            yield module.at(node, f"imports {top}: a new dependency needs a home in BORDERS")


def reach(start: str, found: Iterable[Module]) -> set[str]:
    """The third-party packages that importing `start` can bring in, however late."""
    by_name = {module.name: module for module in found}
    seen: set[str] = set()
    todo = [start]
    outside: set[str] = set()
    while todo:
        name = todo.pop()
        if name in seen or name not in by_name:
            continue
        seen.add(name)
        todo += [target for _, target in edges(by_name[name], frozenset(by_name))]
        tops = {target.partition(".")[0] for _, target in imports(by_name[name])}
        outside |= tops - sys.stdlib_module_names - {"antiphon"}
    return outside


def test_imports_go_one_way():
    expect_none(wrong_ways(modules()))


def test_no_imports_in_a_circle():
    expect_none(cycles(modules()))


def test_third_party_packages_stay_in_their_homes():
    expect_none(line for module in modules() for line in trespasses(module))


def test_the_supervisor_reaches_no_framework():
    assert reach("antiphon.processes.supervisor", modules()) <= SUPERVISED


def test_what_serves_reaches_no_hub():
    signing_keys = "antiphon.auth.signing_keys"  # asks the issuer of single sign-on, where one is set
    others = [module for module in modules() if module.name != signing_keys]
    assert {"huggingface_hub", "httpx2"} & {
        name for start in SERVED for name in reach(start, others)
    } == set()
    assert "huggingface_hub" not in reach(signing_keys, modules())
    assert "huggingface_hub" in reach("antiphon.weights.hub.download", modules())


def test_only_the_job_of_the_sandbox_reaches_document_readers():
    readers = {"pypdfium2", "docx", "pptx", "openpyxl", "lxml"}
    for start in (*SERVED, "antiphon.retrieval.ingest.document_reader", "antiphon.retrieval.ingest.split"):
        assert readers & reach(start, modules()) == set()
    assert readers <= reach("antiphon.retrieval.ingest.reading_job", modules())


def test_an_import_upward_or_sideways_is_found():
    found = [
        Module("antiphon.domain.events", "from antiphon.http import app"),
        Module("antiphon.http.application", ""),
        Module("antiphon.rendering.renderer", "def late():\n    from antiphon.engines.llama import model"),
        Module("antiphon.engines.host.server", "import antiphon.engines.llama.model"),
        Module("antiphon.engines.llama.model", "from antiphon.engines.base import TokenEngine"),
        Module("antiphon.surprise", ""),
    ]
    assert [line.partition(" ")[0] for line in wrong_ways(found)] == [
        "antiphon.domain.events:1",
        "antiphon.rendering.renderer:2",
        "antiphon.engines.host.server:1",
        "antiphon.surprise",
    ]


def test_a_circle_is_found_even_for_types():
    found = [
        Module("antiphon.a", "if TYPE_CHECKING:\n    from antiphon.b import thing"),
        Module("antiphon.b", "from antiphon import a"),
        Module("antiphon.c", "import antiphon.a"),
        Module("antiphon.d", "import json"),
    ]
    assert cycles(found) == ["antiphon.a", "antiphon.b", "antiphon.c"]


def test_a_trespass_is_found():
    text = "import ctypes.util\nfrom urllib import request, parse\nimport pandas\nfrom http import HTTPStatus"
    found = list(trespasses(Module("antiphon.pipeline.run", text)))
    assert [line.split()[2].rstrip(",:") for line in found] == ["ctypes", "urllib.request", "pandas"]
    assert list(trespasses(Module("antiphon.store.schema", "import sqlite3"))) == []


def test_a_framework_behind_a_helper_is_found():
    found = [
        Module("antiphon.processes.supervisor", "from antiphon.telemetry import logs"),
        Module("antiphon.telemetry", ""),
        Module("antiphon.telemetry.logs", "def late():\n    import starlette"),
    ]
    assert reach("antiphon.processes.supervisor", found) == {"starlette"}
