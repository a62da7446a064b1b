"""Finds names that are a bare past participle, where a verb or a noun is meant."""

import ast
import re
from collections.abc import Iterator

from tests.architecture.source import Function, Module

# They end like a participle and are a verb, a noun or an adjective of the field.
NOT_PARTICIPLES = frozenset({"bed", "embed", "exceed", "feed", "need", "proceed", "seed", "speed", "succeed"})

# Participles without `ed`. Those that are spelled like their verb (read, run, set, cut) are not told apart.
IRREGULAR = frozenset(
    """
    begun bent born borne bought bound broken brought built caught chosen come cost dealt done drawn
    driven eaten fallen fed felt flown forgotten fought found frozen given gone grown heard held hidden
    hung kept knelt known laid learnt led left lent lost made meant met paid proven risen said seen sent
    shaken shorn shown slept sold sought spelt spent spoken spun stolen stood struck stuck sunk sworn
    swung taken taught thought thrown told torn understood withdrawn withheld won worn woven wound
    written
    """.split()
) - {"come", "cost", "bound", "wound", "left"}


def is_participle(name: str) -> bool:
    """Whether a name is one word, a participle. Leading underscores do not count, nor does a class's case."""
    word = name.strip("_")
    if not re.fullmatch(r"[a-z]+", word) or word in NOT_PARTICIPLES:
        return False
    return word.endswith("ed") or word in IRREGULAR


def participles(module: Module) -> Iterator[str]:
    """Functions, methods, properties and the module itself, that a bare participle names. What an interface
    asks for by name is none of its own."""
    if is_participle(module.name.rsplit(".", 1)[-1]):
        yield f"{module.name} is named by a participle"
    for function in module.functions:
        if is_participle(function.name) and "override" not in list_marks(function):
            kind = "a property is a noun" if is_property(function) else "a function is a verb"
            yield module.at(function, f"{function.name} is a participle: {kind}")


def is_property(function: Function) -> bool:
    """Whether it is read like a value."""
    return bool(list_marks(function) & {"property", "cached_property", "setter"})


def list_marks(function: Function) -> set[str]:
    """The names of its decorators, without their modules."""
    return {
        mark.attr if isinstance(mark, ast.Attribute) else mark.id
        for mark in function.decorator_list
        if isinstance(mark, ast.Name | ast.Attribute)
    }


def class_names(modules: tuple[Module, ...]) -> dict[str, list[str]]:
    """Each class name with the modules that define it."""
    found: dict[str, list[str]] = {}
    for module in modules:
        for node in module.nodes:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(module.name)
    return found


def duplicates(modules: tuple[Module, ...]) -> dict[str, list[str]]:
    """The class names that stand for several classes."""
    return {name: places for name, places in class_names(modules).items() if len(places) > 1}


EXPLAINED = re.compile(r"(?:^|[.:;]\s+|\n\s*)`(\w+)`:")
"""A sentence of a docstring that explains a parameter."""


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
