"""Finds projects, users, keys, limits and prices of a running server by what people call them: a name, an
e-mail address, a key's prefix, a note, or the id.

The admin API takes ids only. An id is used as it is. Any other text is looked up in the lists that the caller
can see. A text that fits several objects is refused with their ids.
"""

import difflib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from antiphon.cli.output import FORBIDDEN, CallFailed, Card, note
from antiphon.domain.limits import Subject
from antiphon.domain.tenancy import DEFAULT_PROJECT
from antiphon.errors import SettingsError

if TYPE_CHECKING:
    from antiphon.cli.admin_client import Admin

SHOWN = 10
"""Most candidates that an error lists."""

GENERATED = "[0-9a-z]{19}"
"""The end of an id that the server generates."""

SECRET = re.compile(r"(ak_[0-9a-z]{12})_[A-Za-z0-9_-]{43}")
"""A key itself. Its beginning is public."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """A kind of object with its ids, and the fields that people know it by."""

    noun: str
    fields: Sequence[str]
    """The first one is shown."""
    id_pattern: str
    has_ended: Callable[[Card], bool] = field(default=lambda _: False)
    """Whether an object has ended. An object that has not is preferred."""
    label: Sequence[str] = ("name",)
    """The fields that tables show beside the id."""

    def is_id(self, text: str) -> bool:
        """Whether the text is an id of this kind."""
        return re.fullmatch(self.id_pattern, text) is not None

    def fits(self, card: Card, text: str) -> bool:
        """Whether the text is the id or one of the other fields of an object. E-mail addresses fit in any
        case."""
        if text == card.get("id"):
            return True
        values = {name: card.get(name) for name in self.fields}
        return any(
            value == (text.lower() if name == "email" else text) for name, value in values.items() if value
        )

    def describe(self, card: Card) -> str:
        """Describes an object by its id and its other fields."""
        known = ", ".join(str(card.get(name)) for name in self.fields if card.get(name))
        return f"{card.get('id')} ({known})" if known else str(card.get("id"))


PROJECT = ObjectKind("project", ("name",), f"{DEFAULT_PROJECT}|proj_{GENERATED}")
USER = ObjectKind("user", ("name", "email"), f"user_{GENERATED}")
KEY = ObjectKind(
    "key",
    ("prefix", "note"),
    "key_[0-9a-z]{12}",
    lambda card: _has_ended(card, "expires_at"),
    ("prefix", "note"),
)
LIMIT = ObjectKind("limit", ("note",), f"limit_{GENERATED}")
PRICE = ObjectKind("price", ("models", "note"), f"price_{GENERATED}", lambda card: _has_ended(card, "until"))

OWNERS = {Subject.PROJECT: PROJECT, Subject.USER: USER, Subject.KEY: KEY}
"""The kinds that limits are for. A model is named by its own name."""

WITHOUT_NAMES = (LIMIT, PRICE)
"""The kinds that the audit knows by their ids alone, since their notes and patterns repeat."""


def find_id(server: "Admin", kind: ObjectKind, text: str) -> str:
    """Returns the id of the object that a text names, and prints which one it took. Raises CallFailed and
    SettingsError."""
    _refuse_secret(text)
    if kind.is_id(text):
        return text
    cards = server.list(f"{kind.noun}s")
    found = _list_fitting(kind, cards, text)
    if not found:
        raise CallFailed(f"there is no {kind.noun} {text!r} that you can see{_suggest(kind, cards, text)}")
    return _take([(kind, card) for card in found], text)


def find_used_id(server: "Admin", kind: ObjectKind, text: str) -> str:
    """Returns the id of the object that a text names. A text that names none is returned as it is: entries
    can have other values than ids of objects. Raises CallFailed and SettingsError."""
    _refuse_secret(text)
    if kind.is_id(text):
        return text
    if found := _list_fitting(kind, server.list(f"{kind.noun}s"), text):
        return _take([(kind, card) for card in found], text)
    note(f"took {text!r} as it is: no {kind.noun} that you can see is called that")
    return text


def find_optional_id(server: "Admin", kind: ObjectKind, text: str | None) -> str | None:
    """Returns the id of the object that a text names; None without a text. Raises CallFailed and
    SettingsError."""
    return None if text is None else find_id(server, kind, text)


def find_target(server: "Admin", subject: Subject | None, text: str) -> str:
    """Returns the target of limits that a text names: an id, or a model's name. Without a subject it is any
    project, user, key or model. Raises CallFailed and SettingsError."""
    if subject is Subject.MODEL:
        return text
    if subject is not None:
        return find_id(server, OWNERS[subject], text)
    return _find_owner(server, text, "a model's name")


def find_audited_id(server: "Admin", text: str) -> str:
    """Returns the id of the project, user or key that a text names. Any other text is returned as it is.
    Raises CallFailed and SettingsError."""
    if any(kind.is_id(text) for kind in WITHOUT_NAMES):
        return text
    return _find_owner(server, text, "what the audit calls it")


def fetch_names(server: "Admin", kinds: Iterable[ObjectKind]) -> dict[str, str]:
    """Returns the names of all objects of some kinds, by their ids. Objects that the caller may not list have
    no name. Raises CallFailed."""
    names: dict[str, str] = {}
    for kind in kinds:
        try:
            cards = server.list(f"{kind.noun}s")
        except CallFailed as problem:
            if problem.status != FORBIDDEN:
                raise
            continue
        for card in cards:
            names[str(card.get("id"))] = " ".join(str(card[name]) for name in kind.label if card.get(name))
    return names


def add_names(row: Mapping[str, str], names: Mapping[str, str], *columns: str) -> dict[str, str]:
    """Returns a row of a table with a column of names beside each of some columns of ids."""
    named: dict[str, str] = {}
    for column, text in row.items():
        named[column] = text
        if column in columns:
            named[f"{column}_name"] = names.get(text) or "-"
    return named


def _find_owner(server: "Admin", text: str, otherwise: str) -> str:
    """Returns the id of the project, user or key that a text names; the text itself if it names none.
    `otherwise`: what the text then is."""
    _refuse_secret(text)
    kinds = tuple(OWNERS.values())
    if any(kind.is_id(text) for kind in kinds):
        return text
    found = [
        (kind, card) for kind in kinds for card in _list_fitting(kind, server.list(f"{kind.noun}s"), text)
    ]
    if found:
        return _take(found, text)
    note(f"took {text!r} as {otherwise}: no project, user or key that you can see is called that")
    return text


def _has_ended(card: Card, name: str) -> bool:
    """Whether an object was revoked, or ended at the time in a field."""
    end = card.get(name)
    return card.get("revoked_at") is not None or (isinstance(end, int) and end <= time.time())


def _list_fitting(kind: ObjectKind, cards: Sequence[Card], text: str) -> list[Card]:
    """Returns the objects that a text names. Objects that ended count only if no other one fits."""
    fitting = [card for card in cards if kind.fits(card, text)]
    return [card for card in fitting if not kind.has_ended(card)] or fitting


def _take(found: Sequence[tuple[ObjectKind, Card]], text: str) -> str:
    """Returns the id of the only object, and prints it. Raises CallFailed for several objects."""
    described = [f"{kind.noun} {kind.describe(card)}" for kind, card in found]
    if len(found) > 1:
        more = f" and {len(found) - SHOWN} more" if len(found) > SHOWN else ""
        raise CallFailed(
            f"{text!r} fits {len(found)} objects, so name one by its id: {'; '.join(described[:SHOWN])}{more}"
        )
    note(f"took the {described[0]}")
    return str(found[0][1].get("id"))


def _suggest(kind: ObjectKind, cards: Sequence[Card], text: str) -> str:
    """Returns a suggestion for a text that names no object."""
    names = [str(card.get(name)) for card in cards for name in kind.fields if card.get(name)]
    close = difflib.get_close_matches(text, names, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; antiphon {kind.noun}s list shows them"


def _refuse_secret(text: str) -> None:
    """Raises SettingsError for a key itself, which belongs in no command line."""
    if (secret := SECRET.fullmatch(text)) is not None:
        raise SettingsError(
            f"this is the key itself, and others can read command lines: name it by its prefix, {secret[1]}"
        )
