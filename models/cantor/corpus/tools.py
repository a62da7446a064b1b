"""Tool calls: the tools of tools_*.txt under many names and invented ones, a request, the call."""

import json
import random
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from models.cantor.corpus.composed import FRAMES, Composed, compose, once_more
from models.cantor.corpus.grammar import HERE, Choice, draw, parse
from models.cantor.corpus.material import COMMON, invented
from models.cantor.corpus.naming import IMPERATIVES, described, parameter_name, schema_of, tool_name
from models.cantor.corpus.noise import aside
from models.cantor.corpus.values import Value, draw_value, spelled

GIVEN = re.compile(r"\{(\w+)(?:=(\w+))?\}")  # {x}: the value of x; {x=on}: x is "on", and nothing is said
FRAMED = 0.3  # share of requests that may be put into a longer sentence
ASKED = ("Can", "Could", "Would")
TRIES = 4  # requests drawn for a tool that has to have what they give
NEAR = (1, 1, 1, 2, 2, 3, 4, 6)  # how far apart in a file kinds stand that are alike
LITERALS: Mapping[str, bool] = {"true": True, "false": False}


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tool: its names, descriptions, parameters (names, kind of value) and what users say."""

    names: tuple[str, ...]
    descriptions: tuple[str, ...]
    parameters: tuple[tuple[tuple[str, ...], str], ...]
    requests: tuple[Choice, ...]


@dataclass(frozen=True, slots=True)
class Task:
    """One tool as shown, a request for it and the arguments the request gives; what it was made of."""

    function: dict[str, object]
    request: str
    arguments: Mapping[str, object]
    kind: Kind | None = None
    made: Composed | None = None
    names: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Of a kind's parameters that the tool has: its name for each, and the kind of value."""


class Kinds:
    """Every kind of tools_*.txt."""

    def __init__(self, folder: Path = HERE) -> None:
        self.all = [kind for path in sorted(folder.glob("tools_*.txt")) for kind in load_kinds(path)]
        self.place = {id(kind): at for at, kind in enumerate(self.all)}

    def near(self, kind: Kind, rng: random.Random) -> Kind:
        """Another kind of the same field of life."""
        at = self.place[id(kind)] + rng.choice((-1, 1)) * rng.choice(NEAR)
        return self.all[at % len(self.all)]


def load_kinds(path: Path) -> list[Kind]:
    """Every kind of a file."""
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
    """A tool of a kind under drawn names, and a request; what the request leaves out is left out."""
    request = draw(rng.choice(kind.requests), rng, {})
    given = _given(request)
    properties: dict[str, object] = {}
    names: dict[str, tuple[str, str]] = {}
    for aliases, value_kind in kind.parameters:
        key = aliases[0]
        if key not in given and rng.random() < 0.5:
            continue  # a tool that lacks what is not needed
        alias = key if rng.random() < 0.4 else rng.choice(aliases)
        name = parameter_name(alias, rng)
        if name in properties:
            name = f"{name}_{key}"
        properties[name] = schema_of(value_kind, name, alias, rng, optional=key not in given)
        names[key] = (name, value_kind)
    alias = kind.names[0] if rng.random() < 0.4 else rng.choice(kind.names)
    function = _function(
        tool_name(alias, rng), described(rng.choice(kind.descriptions), rng), properties, rng
    )
    return _asked(Task(function, request, {}, kind, names=names), rng)


def _given(request: str) -> dict[str, str | None]:
    """The parameters that a request gives; those it sets without saying them, with the value."""
    return {match[1]: match[2] for match in GIVEN.finditer(request)}


def _asked(task: Task, rng: random.Random) -> Task:
    """The same tool, the request with values in it, and the arguments."""
    given = _given(task.request)
    arguments: dict[str, Value] = {}
    spoken: dict[str, str] = {}
    for key, (name, value_kind) in task.names.items():
        if key in given:
            set_to = given[key]
            value = draw_value(value_kind, rng) if set_to is None else LITERALS.get(set_to, set_to)
            arguments[name], spoken[key] = value, "" if set_to else spelled(value, rng)
    request = GIVEN.sub(lambda match: spoken[match[1]], task.request)
    return replace(task, request=aside(_framed(_tidy(request), rng), rng), arguments=arguments)


def again(task: Task, rng: random.Random) -> Task | None:
    """Another request for the same tool; None where none was found."""
    if task.made is not None:
        made = once_more(task.made, rng)
        return replace(task, request=made.request, arguments=made.arguments, made=made)
    if task.kind is not None:
        for _ in range(TRIES):
            request = draw(rng.choice(task.kind.requests), rng, {})
            if _given(request).keys() <= task.names.keys():
                return _asked(replace(task, request=request), rng)
    return None


def _tidy(request: str) -> str:
    """One space where several came together, and none before a mark at the end."""
    request = " ".join(request.split(" ")) if "  " not in request else re.sub(" +", " ", request)
    return re.sub(r" ([.?])$", r"\1", request.strip())


def _framed(request: str, rng: random.Random) -> str:
    """A request that begins with what is to be done, asked more politely now and then."""
    verb, _, rest = request.partition(" ")
    if rng.random() > FRAMED or verb.lower() not in IMPERATIVES or not request.endswith("."):
        return request
    frame = rng.choice(FRAMES)
    framed = frame.format(f"{verb.lower()} {rest[:-1]}")
    framed = framed[0].upper() + framed[1:]
    return framed + ("?" if frame.startswith(ASKED) else rng.choice((".", ".", " please.", "")))


def _function(
    name: str, text: str, properties: Mapping[str, object], rng: random.Random
) -> dict[str, object]:
    function: dict[str, object] = {"name": name}
    if rng.random() < 0.93:
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
    properties: dict[str, object] = {
        field: schema_of(kind, field, field, rng) for field, kind in zip(chosen, kinds, strict=True)
    }
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


def composed_task(rng: random.Random, like: Composed | None = None) -> Task:
    """A tool put together from roles, and a request for it; one much like another, if that is given."""
    made = compose(rng, like)
    function = _function(made.name, made.description, made.properties, rng)
    return Task(function, made.request, made.arguments, made=made)


def bare_task(rng: random.Random, like: Composed | None = None) -> Task:
    """A tool that takes nothing, mostly under a name without meaning: its description says what it does."""
    made = compose(rng, like, bare=True)
    words = [invented(rng).lower() for _ in range(rng.choice((1, 1, 2)))]
    name = "_".join(words) if rng.random() < 0.6 else made.name
    function = {"name": name, "description": made.description}
    schema = {"type": "object", "properties": {}, "required": []}
    return Task({**function, "parameters": schema}, made.request, {}, made=made)


def call_text(task: Task) -> str:
    """The assistant's turn that calls a tool."""
    call = json.dumps({"name": task.function["name"], "arguments": task.arguments})
    return f"<tool_call>{call}</tool_call>"
