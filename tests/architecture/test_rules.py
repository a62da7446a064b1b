"""What no module does, whoever writes it; the few places that may are listed with the reason."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import Function, Module, expect_none, modules

# The borders where anything may arrive and must become one of our errors, a log line or a restart.
BROAD_EXCEPT = {
    "antiphon.http.application": "the edge: whatever a handler raises becomes an error envelope",
    "antiphon.constraints.guide": "the matcher is native code: its failure ends one sequence",
    "antiphon.engines.defects": "the engine adapter: one request's failure must not end the others",
    "antiphon.engines.host": "the engine adapter: one request's failure must not end the others",
    "antiphon.engines.llama": "the engine adapter: one request's failure must not end the others",
    "antiphon.engines.sampling.sampler": "the engine adapter: one row's failure must not end the others",
    "antiphon.engines.vendors": "the engine adapter: foreign errors are mapped by one table",
    "antiphon.engines.vllm.adapters": "the border around vLLM, which raises plain exceptions",
    "antiphon.engines.vllm.launch": "the border around vLLM's start",
    "antiphon.engines.vllm.tokenizer": "the border around tokenizers, which raises plain exceptions",
    "antiphon.processes.knowledge.server": "the border around the index: one call fails, others go on",
    "antiphon.services.knowledge.documents": "the border around one job: it fails, others go on",
    "antiphon.pipeline.late_settlements": "the border around one settlement: it fails, others go on",
    "antiphon.ledger.drain": "the drain: its thread outlives whatever a spool or a database does to it",
    "antiphon.telemetry.logs": "a library's record that cannot be printed must not fail a request",
    "antiphon.weights.hub.download": "an error of the thread that asks is raised in the thread that waits",
    "antiphon.processes.supervisor": "it outlives everything it starts",
    "antiphon.processes.engine_hosts": "the supervisor outlives a host that cannot be started",
    "antiphon.processes.reload": "the supervisor outlives a reload, whatever stops it",
    "antiphon.assembly.reload": "an HTTP process outlives a reload that it cannot prepare",
}
# JSON and TOML from outside have no type before they are decoded.
WIRE = (
    "antiphon.bodies",
    "antiphon.domain.fields",  # the types of requests
    "antiphon.settings",
    "antiphon.dialects",
    "antiphon.http",
    "antiphon.engines.vendors",
    "antiphon.processes.ipc.frames",
    "antiphon.engines.host.frames",
    "antiphon.weights.convert",  # JSON and tensors that others wrote
)
# Where the contracts are: every public name in them is explained.
SEAMS = (
    "antiphon.errors",
    "antiphon.settings",
    "antiphon.domain",
    "antiphon.engines.base",
    "antiphon.dialects.base",
    "antiphon.dialects.services",
    "antiphon.store.base",
    "antiphon.auth.base",
    "antiphon.retrieval.base",
)
RUNS_CODE = {"eval", "exec", "compile", "__import__"}
EXPLAINED = re.compile(r"(?:^|[.:;]\s+|\n\s*)`(\w+)`:")
"""A sentence of a docstring that explains a parameter."""


def broad_excepts(module: Module) -> Iterator[str]:
    """Handlers of everything. One that ends by raising the same again hides nothing."""
    if module.within(*BROAD_EXCEPT):
        return
    for node in module.nodes:
        if not isinstance(node, ast.ExceptHandler):
            continue
        kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
        broad = any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in kinds)
        last = node.body[-1]
        if broad and not (isinstance(last, ast.Raise) and last.exc is None):
            yield module.at(node, "catches everything: name the errors, or leave it to the border")


def forbidden(module: Module) -> Iterator[str]:
    for node in module.nodes:
        match node:
            case ast.Global():
                yield module.at(node, "has a global: give the state an owner")
            case ast.Assert():
                yield module.at(node, "asserts: `python -O` removes it, so raise")
            case ast.Name(id="__debug__"):
                yield module.at(node, "asks for __debug__: `python -O` runs other code")
            case ast.Name(id=name) if name in RUNS_CODE:
                yield module.at(node, f"uses {name}: text never becomes code")
            case ast.Name(id="Any") | ast.Attribute(attr="Any") if not module.within(*WIRE):
                yield module.at(node, "uses Any outside wire decoding")
            case ast.Call(func=ast.Attribute(attr="create_task", value=owner)) if not _is_group(owner):
                yield module.at(node, "starts a task without a group, which nobody awaits or cancels")
            case ast.Call(func=ast.Name(id="create_task" | "ensure_future")):
                yield module.at(node, "starts a task without a group, which nobody awaits or cancels")
            case ast.Call(func=ast.Attribute(attr="ensure_future")):
                yield module.at(node, "starts a task without a group, which nobody awaits or cancels")


def _is_group(owner: ast.expr) -> bool:
    """Task groups are told by their name: `group`, `self._group`, `readers_group`."""
    return ast.unparse(owner).rpartition(".")[2].endswith(("group", "tasks"))


def unexplained(module: Module) -> Iterator[str]:
    if not ast.get_docstring(module.tree):
        yield f"{module.name} has no docstring: say what it does and what it does not"
    if not module.within(*SEAMS):
        return
    for node in module.tree.body:
        if not isinstance(node, ast.ClassDef | Function) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield module.at(node, f"{node.name} is part of a contract and has no docstring")


def loose_values(module: Module) -> Iterator[str]:
    """Values of the domain that could change under their readers, or grow attributes."""
    if not module.within("antiphon.domain"):
        return
    for node in module.nodes:
        if not isinstance(node, ast.ClassDef):
            continue
        options = {ast.unparse(each) for each in node.keywords}
        if {ast.unparse(base) for base in node.bases} & {"Struct", "Value"} and "frozen=True" not in options:
            yield module.at(node, "is a domain value: frozen=True")
        for mark in node.decorator_list:
            text = ast.unparse(mark)
            if "dataclass" in text and not ("frozen=True" in text and "slots=True" in text):
                yield module.at(node, "is a domain value: frozen=True, slots=True")


def unknown_parameters(module: Module) -> Iterator[str]:
    """Parameters that a docstring explains and its function lacks. Keywords of ** can have any name."""
    for function in module.functions:
        arguments = function.args
        if arguments.kwarg is not None:
            continue
        known = {each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
        known |= {arguments.vararg.arg} if arguments.vararg is not None else set()
        for match in EXPLAINED.finditer(ast.get_docstring(function) or ""):
            if match[1] not in known:
                yield module.at(function, f"{function.name} has no parameter {match[1]}")


def violations(module: Module) -> list[str]:
    checks = (broad_excepts, forbidden, unexplained, loose_values, unknown_parameters)
    return [line for check in checks for line in check(module)]


def test_no_module_does_what_none_may():
    expect_none(line for module in modules() for line in violations(module))


def _found(name: str, body: str) -> list[str]:
    return [line.split(" ", 1)[1] for line in violations(Module(name, f'"""Doc."""\n{body}'))]


def test_swallowing_everything_is_found():
    for kind in ("", " Exception", " (OSError, BaseException) as error"):
        text = f"try:\n    a()\nexcept{kind}:\n    b()"
        assert _found("antiphon.pipeline.run", text) == [
            "catches everything: name the errors, or leave it to the border"
        ]
        assert _found("antiphon.processes.supervisor", text) == []
        assert _found("antiphon.pipeline.run", text + "\n    raise") == []
    assert _found("antiphon.pipeline.run", "try:\n    a()\nexcept OSError:\n    b()") == []


def test_forbidden_words_are_found():
    for text in (
        "def f():\n    global state",
        "assert a",
        "if __debug__:\n    b = 1",
        "eval('1')",
        "from typing import Any\ndef f(a: Any): ...",
        "import typing\na: typing.Any = 1",
        "asyncio.create_task(f())",
        "asyncio.get_running_loop().create_task(f())",
        "asyncio.ensure_future(f())",
        "create_task(f())",
    ):
        assert len(_found("antiphon.pipeline.run", text)) == 1, text
    for text in ("group.create_task(f())", "self._group.create_task(f())", "re.compile('a')"):
        assert _found("antiphon.pipeline.run", text) == [], text
    assert _found("antiphon.dialects.openai", "from typing import Any\ndef f(a: Any): ...") == []


def test_what_is_unexplained_or_loose_is_found():
    assert len(violations(Module("antiphon.pipeline.run", "a = 1"))) == 1
    assert len(_found("antiphon.errors", "class Broken(Exception): ...\nclass _Hidden: ...")) == 1
    loose = '@dataclass(frozen=True)\nclass Usage:\n    """Tokens."""'
    assert _found("antiphon.domain.events", loose) == ["is a domain value: frozen=True, slots=True"]
    assert _found("antiphon.domain.events", loose.replace(")", ", slots=True)", 1)) == []
    assert _found("antiphon.pipeline.run", loose) == []
    loose = 'class Usage(Value):\n    """Tokens."""'
    assert _found("antiphon.domain.events", loose) == ["is a domain value: frozen=True"]
    assert _found("antiphon.domain.events", loose.replace(")", ", frozen=True)", 1)) == []


def test_an_unknown_parameter_is_found():
    explains = '"""Opens it. `{}`: the time in seconds."""'
    text = (
        f"def load(timeout): {explains.format('within')}\ndef save(timeout): {explains.format('timeout')}\n"
    )
    assert list(unknown_parameters(Module("antiphon.x", text))) == [
        "antiphon.x:1 load has no parameter within"
    ]
