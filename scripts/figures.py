"""Prints the sizes of the code of this tree or another: `python scripts/figures.py [TREE]`.

Code lines are lines without blank ones, comments and docstrings. No figure is a gate.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
from collections import Counter
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

GLUED = 3
"""Constants between definitions from which a module looks like two."""


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
    source = tree / "src" if (tree / "src").is_dir() else tree
    return tuple(
        Module(".".join(path.relative_to(source).with_suffix("").parts), path.read_text("utf-8"))
        for path in sorted(source.rglob("*.py"))
    )


def count_private_with_one_caller(module: Module) -> int:
    """Counts the private functions and methods that their module names once."""
    named = Counter[str]()
    for node in module.nodes:
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name):
                named[name] += 1
    return sum(named[node.name] == 1 for node in module.functions if re.match(r"_[^_]", node.name))


def count_constants_between(module: Module) -> int:
    """Counts the constants after a module's first function or class and before its last."""
    kinds = [
        isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) for node in module.tree.body
    ]
    if not any(kinds):
        return 0
    first, last = kinds.index(True), len(kinds) - kinds[::-1].index(True)
    between = module.tree.body[first:last]
    return sum(isinstance(node, ast.Assign | ast.AnnAssign) for node in between)


def count_naming(modules: tuple[Module, ...], word: str, besides: str = "") -> int:
    """Counts the modules that have a word, without those whose names have `besides`."""
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    return sum(
        bool(pattern.search(module.text)) for module in modules if not besides or besides not in module.name
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
    one_caller = sum(map(count_private_with_one_caller, modules))
    print(f"private, one caller {one_caller:,}: {one_caller / len(functions):.0%} of all functions")
    glued = sum(count_constants_between(module) >= GLUED for module in modules)
    print(f"glued modules       {glued}, which have {GLUED} or more constants between definitions")
    print(f"knowing `min_p`     {count_naming(modules, 'min_p')} modules")
    outside = count_naming(modules, "empower", besides="dialects.empower")
    print(f"naming Empower      {outside} modules outside its folder, which a new dialect would edit")
    tables = sum(node.name == "list_tables" for node in functions)
    print(f"`list_tables`       {tables} definitions")
    print(f"tests               {len(tests):,}")


main()
