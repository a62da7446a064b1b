"""The size of modules and functions: the ruler, not the aim."""

import ast
from collections.abc import Iterator
from statistics import median, quantiles

from tests.architecture.source import Function, Module, expect_none, modules

MODULE = 600
FUNCTION = 60
HANDLER = 25
NESTING = 3
PARAMETERS = 6
MEDIAN = 10
NINE_IN_TEN = 30

Block = (
    ast.For | ast.AsyncFor | ast.While | ast.If | ast.With | ast.AsyncWith | ast.Try | ast.TryStar | ast.Match
)


def lines(function: Function) -> int:
    return (function.end_lineno or function.lineno) - function.lineno + 1


def nesting(node: ast.AST) -> int:
    """How deep blocks lie in blocks. An `elif` is no deeper than its `if`; an inner function starts anew."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function | ast.Lambda | ast.ClassDef):
            continue
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child) + (isinstance(child, Block) and not is_elif))
    return deepest


def parameters(function: Function) -> int:
    """How many, without the object itself."""
    given = function.args
    names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    stars = [star for star in (given.vararg, given.kwarg) if star]
    return len(names) + len(stars) - (names[:1] in (["self"], ["cls"]))


def is_command(module: Module, function: Function) -> bool:
    """A command's parameters are its flags, and a command has as many as it needs."""
    return module.within("antiphon.cli") and any(
        isinstance(mark, ast.Call)
        and isinstance(mark.func, ast.Attribute)
        and mark.func.attr in ("command", "callback")
        for mark in function.decorator_list
    )


def is_handler(module: Module, function: Function) -> bool:
    """A handler takes the framework's `Request` first."""
    first = [arg for arg in function.args.args if arg.arg != "self"][:1]
    return module.within("antiphon.http") and any(
        isinstance(arg.annotation, ast.Name) and arg.annotation.id == "Request" for arg in first
    )


def overruns(module: Module) -> Iterator[str]:
    if (length := len(module.text.splitlines())) > MODULE:
        yield f"{module.name} has {length} lines, more than {MODULE}: it holds two things"
    for function in module.functions:
        allowed = HANDLER if is_handler(module, function) else FUNCTION
        if (length := lines(function)) > allowed:
            yield module.at(function, f"{function.name} has {length} lines, more than {allowed}")
        if (depth := nesting(function)) > NESTING:
            yield module.at(function, f"{function.name} nests {depth} deep, more than {NESTING}")
        if (count := parameters(function)) > PARAMETERS and not is_command(module, function):
            yield module.at(function, f"{function.name} has {count} parameters, more than {PARAMETERS}")


def test_everything_is_within_its_budget():
    expect_none(line for module in modules() for line in overruns(module))


def test_the_usual_function_is_short(record_property):
    lengths = [lines(function) for module in modules() for function in module.functions]
    middle, ninth = median(lengths), quantiles(lengths, n=10)[-1]
    record_property("function lines: median, nine in ten", (middle, ninth))
    assert middle <= MEDIAN and ninth <= NINE_IN_TEN


def _function(text: str) -> Function:
    (found,) = Module("antiphon.x", text).functions[:1]
    return found


def test_nesting_counts_blocks_in_blocks():
    deep = "def f():\n for a in b:\n  if a:\n   with a:\n    try: pass\n    finally: pass\n"
    flat = (
        "def f():\n if a: pass\n elif b: pass\n elif c: pass\n elif d: pass\n else:\n  if e: pass\n  return\n"
    )
    inner = "def f():\n if a:\n  if b:\n   def g():\n    if c:\n     if d: pass\n"
    assert [nesting(_function(text)) for text in (deep, flat, inner)] == [4, 2, 2]


def test_parameters_count_all_kinds_but_not_the_object():
    assert parameters(_function("def f(self, a, /, b, *c, d, **e): ...")) == 5
    assert parameters(_function("def f(a, b): ...")) == 2


def test_an_overrun_is_found():
    long = "def f():\n" + "    a = 1\n" * 60 + "def g(a, b, c, d, e, f, h): ...\n" + "\n" * 600
    handler = "async def show(request: Request):\n" + "    a = 1\n" * 25
    command = "@app.command()\ndef serve(a, b, c, d, e, f, g): ...\n"
    assert len(list(overruns(Module("antiphon.pipeline.run", long)))) == 3
    assert len(list(overruns(Module("antiphon.http.admin", handler)))) == 1
    assert list(overruns(Module("antiphon.pipeline.run", handler + "\n"))) == []
    assert list(overruns(Module("antiphon.cli.main", command))) == []
    assert len(list(overruns(Module("antiphon.http.admin", command)))) == 1
