"""Prints the sizes of the code of this tree or another: `python scripts/figures.py [TREE]`.

Code lines are lines without blank ones, comments and docstrings. No figure is a gate.
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

from tests.architecture.source import Module  # noqa: E402

SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def list_docstring_lines(tree: ast.AST) -> set[int]:
    """Lists the line numbers of all docstrings."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def count_code_lines(module: Module) -> int:
    line_numbers: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in SKIPPED:
            line_numbers.update(range(token.start[0], token.end[0] + 1))
    return len(line_numbers - list_docstring_lines(module.tree))


def read_modules(tree: Path) -> tuple[Module, ...]:
    return tuple(
        Module(".".join(path.relative_to(tree / "src").with_suffix("").parts), path.read_text("utf-8"))
        for path in sorted((tree / "src").rglob("*.py"))
    )


def list_test_names(tree: Path) -> Iterator[str]:
    for path in (tree / "tests").rglob("*.py"):
        yield from re.findall(r"^\s*(?:async )?def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)


def format_spread(values: list[int]) -> str:
    return (
        f"median {median(values):.0f}, nine in ten {quantiles(values, n=10)[-1]:.0f}, largest {max(values)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path, nargs="?", default=ROOT)
    options = parser.parse_args()
    modules = read_modules(options.tree)
    functions = [node for module in modules for node in module.functions]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    tests = list(list_test_names(options.tree))
    print(f"code lines          {sum(map(count_code_lines, modules)):,}")
    print(f"modules             {len(modules)}")
    print(f"lines of a module   {format_spread([len(module.text.splitlines()) for module in modules])}")
    print(f"functions           {len(functions):,}; lines: {format_spread(lengths)}")
    print(f"tests               {len(tests):,}")


main()
