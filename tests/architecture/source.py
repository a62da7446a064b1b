"""The source as data: modules with their syntax trees. Reads text only; imports nothing of what it reads."""

import ast
import gc
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src"
TOOLS = set("__pycache__ .hypothesis .mypy_cache .pytest_cache .ruff_cache".split())
UNTRACKED = TOOLS | set(".git .venv .venvs node_modules dist".split())

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Module:
    """One module: its dotted name and its text."""

    name: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def nodes(self) -> tuple[ast.AST, ...]:
        """All of the tree. Many tests look at them, and a walk takes longer than what they look for."""
        return tuple(ast.walk(self.tree))

    @cached_property
    def functions(self) -> list[Function]:
        return [node for node in self.nodes if isinstance(node, Function)]

    def within(self, *places: str) -> bool:
        return any(covers(place, self.name) for place in places)

    def at(self, node: ast.AST, what: str) -> str:
        return f"{self.name}:{getattr(node, 'lineno', 1)} {what}"


def covers(place: str, name: str) -> bool:
    """Whether `name` is the module or package `place`, or lies in it."""
    return name == place or name.startswith(place + ".")


@lru_cache
def modules() -> tuple[Module, ...]:
    """Every module under src, parsed. The collector never looks at the million nodes of their trees: later
    tests of this process would pay for that."""
    found = tuple(Module(dotted(path), path.read_text("utf-8")) for path in sorted(SRC.rglob("*.py")))
    gc.collect()
    gc.disable()
    try:
        for module in found:
            _ = module.functions
        gc.freeze()
    finally:
        gc.enable()
    return found


def dotted(path: Path) -> str:
    parts = path.relative_to(SRC).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(module: Module) -> Iterator[tuple[ast.stmt, str]]:
    """Every imported name, TYPE_CHECKING and late imports included: `from a import b` is `a.b`."""
    for node in module.nodes:
        if isinstance(node, ast.Import):
            yield from ((node, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, module.at(node, "imports relatively")
            yield from ((node, f"{node.module}.{alias.name}") for alias in node.names)


def expect_none(found: Iterable[str]) -> None:
    """Fails with every finding on a line of its own."""
    lines = list(found)
    assert not lines, "\n".join(["", *lines])


def tracked() -> list[Path]:
    """The files under version control, or, in an unpacked archive, all that no tool has made."""
    if shutil.which("git") and (ROOT / ".git").exists():
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=False)
        if listed.returncode == 0:
            return [path for name in listed.stdout.decode().split("\0") if (path := ROOT / name).is_file()]
    return [path for path in ROOT.rglob("*") if path.is_file() and not UNTRACKED & set(path.parts)]
