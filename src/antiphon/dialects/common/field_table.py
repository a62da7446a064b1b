"""What becomes of each field that a dialect knows: supported; accepted and ignored, with the reason; or
refused as not built, except where its value asks for what happens anyway (`harmless`). A field that is in no
table is unknown and refused. In all of them null means absent.

A dialect's table is the one place that says so: decoding obeys it, the docs and the OpenAPI document print
it.
"""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from antiphon.dialects.common.needs import NEEDS, Need
from antiphon.dialects.common.strict_json import MAX_SHOWN_KEY, shown_key
from antiphon.errors import AntiphonError, UnknownParameter, UnsupportedParameter

INDEX = re.compile(r"\[\d+\]")

END_USER = (
    "Names an end user, in the records of usage; where keys are off there are none, and the header "
    "x-antiphon-ignored names it."
)
TAGS = (
    "Up to 16 pairs of texts, of 64 and 512 characters, that stand in the records of usage; where keys are "
    "off there are none, and the header x-antiphon-ignored names it."
)
"""What two fields say in every dialect that has them."""

MOST_NAMED = 32
"""Fields without effect that an answer names; with names of 64 characters two kilobytes of a header."""


class FieldSupport(StrEnum):
    """What becomes of a field."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class Field:
    """One field in one or several places."""

    name: str
    places: frozenset[str]
    """The objects that it belongs to."""
    standing: FieldSupport
    says: str
    """What it does; or why it does nothing; or what to do without it."""
    harmless: tuple[object, ...] = ()
    """Values of a refused field that are taken, since they ask for what happens anyway."""
    opaque: bool = False
    """Whether the field is ignored whatever it holds, so that decoding does not see it."""

    @property
    def needs(self) -> Need:
        """By which kind of engine or model it is supported."""
        return NEEDS.get(self.name, Need.NOTHING)


def supported(places: Iterable[str], **says: str) -> tuple[Field, ...]:
    """Fields that act, by name."""
    return tuple(Field(name, frozenset(places), FieldSupport.SUPPORTED, text) for name, text in says.items())


def ignored(name: str, places: Iterable[str], says: str) -> Field:
    """A field that is taken and does nothing."""
    return Field(name, frozenset(places), FieldSupport.IGNORED, says)


def echoed(places: Iterable[str], says: str, *names: str) -> tuple[Field, ...]:
    """Fields that only repeat what a server said: ignored, whatever they hold."""
    known = frozenset(places)
    return tuple(Field(name, known, FieldSupport.IGNORED, says, opaque=True) for name in names)


def refused(name: str, places: Iterable[str], says: str, *harmless: object) -> Field:
    """A field that is not built."""
    return Field(name, frozenset(places), FieldSupport.REFUSED, says, harmless)


Table = Mapping[str, Field]


@dataclasses.dataclass(slots=True)
class Report:
    """The fields of one body that have no effect, in whichever of its objects they are."""

    takes_unknown: bool = False
    """Whether unknown fields are reported; they are refused otherwise."""
    paths: list[str] = dataclasses.field(default_factory=list)

    @property
    def names(self) -> tuple[str, ...]:
        """Each field once, whichever message it belongs to, and no more of them than a header can hold."""
        if not self.paths:
            return ()
        names = list(dict.fromkeys(INDEX.sub("[]", path) for path in self.paths))
        more = (f"and {len(names) - MOST_NAMED} more",) if len(names) > MOST_NAMED else ()
        return (*names[:MOST_NAMED], *more)


class FieldTable:
    """All tables of one dialect, by place."""

    def __init__(self, fields: Iterable[Field], places: Iterable[str], endpoints: tuple[str, ...]) -> None:
        """`endpoints`: places whose fields a caller may mistake for each other's."""
        known = tuple(fields)
        self.tables: Mapping[str, Table] = {
            place: {field.name: field for field in known if place in field.places} for place in places
        }
        self._endpoints = endpoints

    def sift(
        self, given: dict[str, Any], place: str, where: str = "", report: Report | None = None
    ) -> dict[str, Any]:
        """The fields that decoding shall see. `where` is the path of the object. `report` gets the fields
        that are ignored.

        Raises UnsupportedParameter for what is not built and UnknownParameter for what nobody knows, unless
        `report` takes it.
        """
        table = self.tables[place]
        kept: dict[str, Any] = {}
        for name, value in given.items():
            if (field := table.get(name)) is None:
                if report is None or not report.takes_unknown:
                    raise self._unknown(name, place, where)
                report.paths.append(f"{where}{shown_key(name)}")
                continue
            if value is None:
                continue
            if field.standing is FieldSupport.REFUSED:
                _require_harmless(field, value, where)
                continue
            if field.standing is FieldSupport.IGNORED and report is not None:
                report.paths.append(f"{where}{name}")
            if not field.opaque:
                kept[name] = value
        return kept

    def _unknown(self, name: str, place: str, where: str) -> AntiphonError:
        shown = shown_key(name)
        elsewhere = [str(other) for other in self._endpoints if other != place and name in self.tables[other]]
        if elsewhere and place in self._endpoints:
            hint = f"; it belongs to {elsewhere[0]}"
        else:
            hint = _nearest(name, self.tables[place])
        return UnknownParameter(f"unknown field {where}{shown}{hint}", param=f"{where}{shown}")


def _require_harmless(field: Field, value: object, where: str) -> None:
    if any(_same(value, harmless) for harmless in field.harmless):
        return
    raise UnsupportedParameter(
        f"{where}{field.name} is not supported: {field.says}", param=f"{where}{field.name}"
    )


def _same(value: object, harmless: object) -> bool:
    """Equality of JSON values: true is not 1, but 0.0 is 0."""
    return value == harmless and isinstance(value, bool) == isinstance(harmless, bool)


def _nearest(name: str, known: Iterable[str]) -> str:
    if len(name) > MAX_SHOWN_KEY:
        return ""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.75)
    return f"; did you mean {close[0]}?" if close else ""
