"""Tools put together from acts, things and roles, with requests for them: more than any memory can hold.

What a parameter means is read from its name and type, its value from the request; both are copied.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from models.cantor.corpus.grammar import HERE, lines_of
from models.cantor.corpus.naming import parameter_name, schema_of, tool_name
from models.cantor.corpus.noise import aside
from models.cantor.corpus.values import draw_value, spelled


@dataclass(frozen=True, slots=True)
class Act:
    """Verbs of one meaning, and what they are done to."""

    verbs: tuple[str, ...]
    things: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Role:
    """A kind of parameter: its names, the kind of its value, the ways in which a request gives it."""

    names: tuple[str, ...]
    kind: str
    phrases: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Composed:
    """A tool's name, description and properties, a request for it and the arguments the request gives."""

    name: str
    description: str
    properties: dict[str, object]
    request: str
    arguments: Mapping[str, object]
    act: Act
    verb: str
    thing: str
    roles: Mapping[str, Role]
    """Of the parameters that requests give, by name."""


def load_acts(path: Path = HERE / "acts.txt") -> list[Act]:
    """Every act, one `verb|verb : thing, thing` a line."""
    pairs = (line.split(" : ") for line in lines_of(path))
    return [Act(tuple(verbs.split("|")), tuple(things.split(", "))) for verbs, things in pairs]


def load_roles(path: Path = HERE / "roles.txt") -> list[Role]:
    """Every role, one `@ name|name : kind : phrase|phrase` a line."""
    rows = (line[2:].split(" : ", 2) for line in lines_of(path))
    return [Role(tuple(names.split("|")), kind, tuple(ways.split("|"))) for names, kind, ways in rows]


def load_thesaurus(path: Path = HERE / "thesaurus.txt") -> dict[str, tuple[str, ...]]:
    """Other words for a thing, one `thing = word|word` a line."""
    pairs = (line.split(" = ") for line in lines_of(path))
    return {thing: tuple(words.split("|")) for thing, words in pairs}


ACTS, ROLES, THESAURUS = load_acts(), load_roles(), load_thesaurus()
OTHER_WORDS = 0.3  # share of requests that call a thing by another word
FRAMES = (
    *("{}", "{}", "{}", "{}", "Please {}", "please {}", "Can you {}", "Could you {}", "I want to {}"),
    *("I need to {}", "I would like to {}", "I'd like to {}", "Could you please {}", "Go and {}"),
    *("Help me {}", "You should {}", "Now {}", "Next, {}", "Would you {}", "Hey, {}", "Let's {}"),
)


def compose(rng: random.Random, like: Composed | None = None, *, bare: bool = False) -> Composed:
    """One tool and one request; with one given, another act on its thing or its act on another thing. `bare`:
    it takes nothing."""
    act = rng.choice(ACTS)
    verb, thing = rng.choice(act.verbs), rng.choice(act.things)
    if like is not None and rng.random() < 0.5:
        act, verb = like.act, like.verb
        thing = rng.choice([other for other in act.things if other != like.thing])
    elif like is not None:
        act = rng.choice([other for other in ACTS if not set(other.verbs) & set(like.act.verbs)])
        verb, thing = rng.choice(act.verbs), like.thing
    properties: dict[str, object] = {}
    given: dict[str, Role] = {}
    for alias, role in () if bare else _roles(rng).items():
        name = parameter_name(alias, rng)
        if name in properties:
            name = alias
        unsaid = like is None and len(given) > 0 and rng.random() < 0.12
        properties[name] = schema_of(role.kind, name, alias, rng, optional=unsaid)
        if not unsaid:
            given[name] = role
    name = tool_name(_name(verb, thing, rng), rng)
    text = _description(act, verb, thing, rng)
    return once_more(Composed(name, text, properties, "", {}, act, verb, thing, given), rng)


def once_more(made: Composed, rng: random.Random) -> Composed:
    """The same tool with another request and its arguments."""
    phrases: list[str] = []
    arguments: dict[str, object] = {}
    for name, role in made.roles.items():
        value = arguments[name] = draw_value(role.kind, rng)
        phrases.append(rng.choice(role.phrases).strip().replace("{}", spelled(value, rng)))
    verb = made.verb if rng.random() < 0.7 else rng.choice(made.act.verbs)
    thing = rng.choice(THESAURUS.get(made.thing, (made.thing,))) if rng.random() < OTHER_WORDS else made.thing
    return replace(made, request=aside(_request(verb, thing, phrases, rng), rng), arguments=arguments)


def _roles(rng: random.Random) -> dict[str, Role]:
    """Roles under different names and of different kinds."""
    chosen: dict[str, Role] = {}
    kinds: set[str] = set()
    for role in rng.sample(ROLES, rng.choice((0, 1, 1, 1, 1, 2, 2, 2, 3))):
        name = rng.choice(role.names) if rng.random() < 0.6 else role.names[0]
        head = role.kind.partition(":")[0]
        if name not in chosen and (head in ("int", "enum") or head not in kinds):
            chosen[name] = role
            kinds.add(head)
    return chosen


def _name(verb: str, thing: str, rng: random.Random) -> str:
    first, second = verb.replace(" ", "_"), thing.replace(" ", "_")
    return rng.choice(
        (
            *(f"{first}_{second}", f"{first}_{second}", f"{first}_{second}", f"{second}_{first}", second),
            *(f"{first}_the_{second}", f"{first}{second.capitalize()}", f"{first}-{second}"),
        )
    )


def _description(act: Act, verb: str, thing: str, rng: random.Random) -> str:
    verb = verb if rng.random() < 0.5 else rng.choice(act.verbs)
    return rng.choice(
        (
            *(f"{verb.capitalize()} a {thing}.", f"{verb.capitalize()} the {thing}.", f"{verb} {thing}"),
            *(f"Use this to {verb} a {thing}.", f"{verb.capitalize()} the {thing} of the user."),
            *(f"{thing.capitalize()}: {verb}.", f"{verb.capitalize()} the given {thing}."),
        )
    )


def _request(verb: str, thing: str, said: list[str], rng: random.Random) -> str:
    """A sentence; a value in quotation marks or after a colon comes last."""
    said = sorted(said, key=lambda text: (text.startswith(":"), '"' in text, rng.random()))
    text = f"{verb} {rng.choice(('a', 'the', 'the', 'a', 'my', ''))} {thing}".replace("  ", " ")
    for part in said:
        text += part if part.startswith((",", ":")) else f" {part}"
    text = rng.choice(FRAMES).format(text)
    text = text[0].upper() + text[1:]
    ends = ("?", "?", "") if text.startswith(("Can", "Could", "Would")) else (".", ".", "", " please.")
    return text + (rng.choice(ends) if text[-1] not in ".!?" else "")
