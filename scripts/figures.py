"""Sizes and names of the code, of this tree or another: `python scripts/figures.py [TREE] [--names]`.

Code lines are lines without blank ones, comments and docstrings. `--names` also prints each participle and
each class name that several classes share.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.architecture import words  # noqa: E402
from tests.architecture.source import Module  # noqa: E402

SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines of all strings that stand alone as a statement."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def code_lines(module: Module) -> int:
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in SKIPPED:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - docstring_lines(module.tree))


def read_modules(tree: Path) -> tuple[Module, ...]:
    return tuple(
        Module(".".join(path.relative_to(tree / "src").with_suffix("").parts), path.read_text("utf-8"))
        for path in sorted((tree / "src").rglob("*.py"))
    )


def test_names(tree: Path) -> Iterator[str]:
    for path in (tree / "tests").rglob("*.py"):
        yield from re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)


def spread(values: list[int]) -> str:
    return (
        f"median {median(values):.0f}, nine in ten {quantiles(values, n=10)[-1]:.0f}, largest {max(values)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, nargs="?", default=ROOT)
    parser.add_argument("--names", action="store_true")
    asked = parser.parse_args()
    modules = read_modules(asked.tree)
    functions = [node for module in modules for node in module.functions]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    bare = [line for module in modules for line in words.participles(module)]
    twice = words.duplicates(modules)
    tests = list(test_names(asked.tree))
    print(f"code lines          {sum(map(code_lines, modules)):,}")
    print(f"modules             {len(modules)}")
    print(f"lines of a module   {spread([len(module.text.splitlines()) for module in modules])}")
    print(f"functions           {len(functions):,}; lines: {spread(lengths)}")
    print(f"participles         {len(bare)} functions and modules")
    print(f"duplicate classes   {len(twice)} names for {sum(map(len, twice.values()))} classes")
    long = sum(len(name) > 60 for name in tests)
    longest = max(map(len, tests))
    print(f"tests               {len(tests):,}; names over 60 characters: {long}, longest {longest}")
    if asked.names:
        print(*bare, *(f"{name}: {', '.join(places)}" for name, places in sorted(twice.items())), sep="\n")


main()
