"""Tool calls: the tools of tools.txt under many names and invented ones, a request, the call, its result."""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from models.cantor.corpus.composed import compose
from models.cantor.corpus.grammar import HERE, Choice, draw, load_words, parse
from models.cantor.corpus.skills import COMMON, invented
from models.cantor.corpus.values import draw_value, type_of

WORDS = load_words()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tool: its names, descriptions, parameters (names, kind of value) and what users say."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    requests: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One tool as shown, a request for it and the arguments the request gives."""

    function: dict[str, object]
    request: str
    arguments: Mapping[str, object]


def load_kinds(path: Path = HERE / "tools.txt") -> list[Kind]:
    """Every kind of tools.txt."""
    rows: list[tuple[str, list[str], list[str]]] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("@"):
            rows.append((line[2:], [], []))
        elif line.startswith("$"):
            rows[-1][1].append(line[2:])
        elif line.startswith("?"):
            rows[-1][2].append(line[2:])
    return [_kind(*row) for row in rows]


def _kind(head: str, parameters: list[str], requests: list[str]) -> Kind:
    names, descriptions = head.split(" : ")
    pairs = (row.rsplit(" ", 1) for row in parameters)
    return Kind(
        tuple(names.split("|")),
        tuple(descriptions.split("|")),
        tuple((tuple(aliases.split("|")), kind) for aliases, kind in pairs),
        tuple(parse(row) for row in requests),
    )


def make_task(kind: Kind, rng: random.Random) -> Task:
    """A tool of a kind under drawn names, and a request for it."""
    name = kind.names[0] if rng.random() < 0.4 else rng.choice(kind.names)
    names, values, properties = {}, {}, {}
    for aliases, value_kind in kind.parameters:
        alias = aliases[0] if rng.random() < 0.45 else rng.choice(aliases)
        names[aliases[0]] = alias
        values[aliases[0]] = draw_value(value_kind, rng)
        properties[alias] = _property(value_kind, alias, rng)
    request = draw(rng.choice(kind.requests), rng, {})
    for key, value in values.items():
        request = request.replace("{" + key + "}", str(value))
    arguments = {names[key]: value for key, value in values.items()}
    return Task(_function(name, rng.choice(kind.descriptions), properties, rng), request, arguments)


def _property(kind: str, name: str, rng: random.Random) -> dict[str, object]:
    schema = type_of(kind)
    if rng.random() < 0.3:
        schema["description"] = rng.choice(
            (
                f"The {name.replace('_', ' ')}",
                f"The {name.replace('_', ' ')} to use",
                name.replace("_", " ").capitalize(),
            )
        )
    return schema


def _function(
    name: str, text: str, properties: Mapping[str, object], rng: random.Random
) -> dict[str, object]:
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.8:
        function["description"] = text if rng.random() < 0.8 else text.rstrip(".")
    function["parameters"] = {"type": "object", "properties": properties, "required": list(properties)}
    return function


VERBS = (
    "get",
    "set",
    "make",
    "find",
    "open",
    "close",
    "start",
    "stop",
    "add",
    "remove",
    "send",
    "check",
    "update",
    "create",
    "show",
    "move",
    "load",
    "save",
    "print",
    "share",
    "lock",
    "paint",
    "order",
    "clean",
    "mark",
    "count",
)
FIELDS = (
    "name",
    "id",
    "size",
    "colour",
    "level",
    "path",
    "title",
    "mode",
    "count",
    "speed",
    "date",
    "city",
    "text",
    "owner",
    "label",
    "page",
    "room",
    "limit",
    "key",
    "tag",
    "code",
    "price",
    "user",
    "color",
    "kind",
    "number",
)
NOUNS = tuple(word for word in COMMON if word.isalpha())


def invent_task(rng: random.Random) -> Task:
    """A tool that exists nowhere, so that names and arguments are read from the prompt."""
    verb = rng.choice(VERBS)
    noun = rng.choice(NOUNS) if rng.random() < 0.8 else invented(rng).lower()
    chosen = rng.sample(FIELDS, rng.choice((0, 1, 1, 1, 2, 2, 3)))
    kinds = [rng.choice(("int:0:999", "word", "word", "name", "phrase", "colour", "city")) for _ in chosen]
    values = {field: draw_value(kind, rng) for field, kind in zip(chosen, kinds, strict=True)}
    properties = {field: _property(kind, field, rng) for field, kind in zip(chosen, kinds, strict=True)}
    words = [
        rng.choice(
            (
                f"{field} {value}",
                f"{field} {value}",
                f"the {field} {value}",
                f"{field} = {value}",
                f"{field}: {value}",
                f'{field} "{value}"',
            )
        )
        for field, value in values.items()
    ]
    said = " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
    link = rng.choice((" with ", " with ", ", ", " using ", " for ")) if said else ""
    start = rng.choice(
        (
            f"{verb} the {noun}",
            f"please {verb} the {noun}",
            f"{verb} {noun}",
            f"can you {verb} the {noun}",
            f"I want to {verb} the {noun}",
            f"call {verb}_{noun}",
            f"use the tool {verb}_{noun}",
        )
    )
    request = (
        start[0].upper()
        + start[1:]
        + link
        + said
        + rng.choice((".", "", "?" if start.startswith("can") else "."))
    )
    text = rng.choice(
        (f"{verb.capitalize()} the {noun}.", f"{verb.capitalize()} {noun}.", f"Tool for the {noun}.")
    )
    return Task(_function(f"{verb}_{noun}", text, properties, rng), request, values)


def composed_task(rng: random.Random) -> Task:
    """A tool put together from roles, and a request for it."""
    made = compose(rng)
    return Task(_function(made.name, made.description, made.properties, rng), made.request, made.arguments)


def call_text(task: Task) -> str:
    """The assistant's turn that calls a tool."""
    call = json.dumps({"name": task.function["name"], "arguments": task.arguments})
    return f"<tool_call>{call}</tool_call>"


STATES = (
    "ok",
    "done",
    "sunny",
    "rain",
    "cloudy",
    "ready",
    "open",
    "closed",
    "running",
    "sent",
    "saved",
    "found",
    "cold",
    "warm",
    "on",
    "off",
    "full",
    "empty",
    "late",
    "on time",
)


def result_of(rng: random.Random) -> tuple[str, str]:
    """What a tool gives back, and the answer that tells it."""
    roll = rng.random()
    if roll < 0.3:
        state = rng.choice(STATES)
        return state, f"The result is: {state}."
    if roll < 0.5:
        number = rng.randint(0, 9999)
        return str(number), f"The result is: {number}."
    keys = rng.sample(
        (
            "status",
            "temperature",
            "result",
            "price",
            "time",
            "count",
            "value",
            "id",
            "state",
            "total",
            "wind",
            "name",
            "balance",
        ),
        rng.randint(1, 2),
    )
    pairs = {
        key: rng.choice((rng.choice(STATES), rng.randint(0, 999), str(draw_value("word", rng))))
        for key in keys
    }
    return json.dumps(pairs), "The result is: " + ", ".join(
        f"{key} {value}" for key, value in pairs.items()
    ) + "."
