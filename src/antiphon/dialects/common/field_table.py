"""Tables of the known fields of a dialect. A field is supported, ignored for a reason, or refused.

The supported fields are those of the wire types that have a description. The others are listed.

A refused field is accepted with a value that means the default behaviour (`accepted_values`). A field in no
table is unknown and refused. Null always means absent. Each dialect has one table. Decoding uses it, and the
docs and the OpenAPI document contain it.
"""

import dataclasses
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from inspect import get_annotations
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.bodies.strict_json import MAX_SHOWN_KEY, sanitize_key
from antiphon.domain.fields import Need
from antiphon.errors import AntiphonError, UnknownParameter, UnsupportedParameter

INDEX = re.compile(r"\[\d+\]")


NO_MEMORY = "a text completion has no messages to choose from; send messages to chat/completions"
NO_RETRIEVAL = "a text completion has no question; send messages to chat/completions"

MOST_NAMES = 32
"""The most fields in `x-antiphon-ignored`. With names of 64 characters the header has 2 KB."""


class FieldSupport(StrEnum):
    """How the server treats a field."""

    SUPPORTED = "supported"
    IGNORED = "ignored"
    REFUSED = "refused"


@dataclasses.dataclass(frozen=True, slots=True)
class RequestField:
    """A field in one or several objects of a request."""

    name: str
    scopes: frozenset[str]
    """The objects that contain the field."""
    support: FieldSupport
    description: str
    """What the field does, why it is ignored, or what to use instead."""
    accepted_values: tuple[object, ...] = ()
    """Accepted values of a refused field. They mean the default behaviour."""
    opaque: bool = False
    """Whether the field is removed before decoding, whatever its value is."""
    need: Need = Need.NOTHING
    """The part of an engine or a model that the field needs."""


def declare_supported(scopes: Iterable[str], **description: str) -> tuple[RequestField, ...]:
    """Declares fields that have an effect, each with its description."""
    return tuple(
        RequestField(name, frozenset(scopes), FieldSupport.SUPPORTED, text)
        for name, text in description.items()
    )


def declare_ignored(name: str, scopes: Iterable[str], description: str) -> RequestField:
    """Declares a field that is accepted and has no effect."""
    return RequestField(name, frozenset(scopes), FieldSupport.IGNORED, description)


def declare_echoed(scopes: Iterable[str], description: str, *names: str) -> tuple[RequestField, ...]:
    """Declares fields that repeat part of an earlier answer. They are ignored with any value."""
    known_scopes = frozenset(scopes)
    return tuple(
        RequestField(name, known_scopes, FieldSupport.IGNORED, description, opaque=True) for name in names
    )


def declare_refused(
    name: str, scopes: Iterable[str], description: str, *accepted_values: object
) -> RequestField:
    return RequestField(name, frozenset(scopes), FieldSupport.REFUSED, description, accepted_values)


Table = Mapping[str, RequestField]


@dataclasses.dataclass(slots=True)
class FieldReport:
    """The ignored fields of one body, from all of its objects."""

    takes_unknown: bool = False
    """Whether an unknown field is reported instead of refused."""
    paths: list[str] = dataclasses.field(default_factory=list)
    hosted_tools: list[str] = dataclasses.field(default_factory=list)
    """Those of `paths` that are tools which a vendor runs."""
    ends_unknown: bool = False
    """Whether the last message ends with a block that is left out."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the fields without duplicates, as many as fit a header."""
        if not self.paths:
            return ()
        names = list(dict.fromkeys(INDEX.sub("[]", path) for path in self.paths))
        omission_note = (f"and {len(names) - MOST_NAMES} more",) if len(names) > MOST_NAMES else ()
        return (*names[:MOST_NAMES], *omission_note)


def _list_described(shape: type[Struct], scope: str, others: Collection[str]) -> Iterator[RequestField]:
    """Yields the fields of a wire type: first its own, then inherited ones. Raises TypeError for a field that
    has no description and is not one of the `others`."""
    fields = {field.name: field for field in msgspec.structs.fields(shape)}
    for name in dict.fromkeys(name for each in shape.__mro__ for name in get_annotations(each)):
        if name not in fields or fields[name].encode_name in others:
            continue
        description, need = "", Need.NOTHING
        for item in getattr(fields[name].type, "__metadata__", ()):
            if isinstance(item, Need):
                need = item
            elif isinstance(item, str):
                description = item
        if not description:
            raise TypeError(f"{shape.__name__}.{name} has no description")
        scopes = frozenset({scope})
        yield RequestField(fields[name].encode_name, scopes, FieldSupport.SUPPORTED, description, need=need)


class FieldTable:
    """The field tables of one dialect, by object."""

    def __init__(
        self,
        shapes: Mapping[str, type[Struct] | None],
        others: Sequence[RequestField],
        endpoints: tuple[str, ...],
    ) -> None:
        """`shapes`: the wire type of each object; None if all of its fields are in `others`. `others`: the
        ignored and refused fields, and those of no wire type. `endpoints`: the scopes that are endpoints. The
        error for a field that another endpoint has names this endpoint."""
        self.tables: dict[str, Table] = {}
        for scope, shape in shapes.items():
            listed = {field.name: field for field in others if scope in field.scopes}
            supported = [field for field in listed.values() if field.support is FieldSupport.SUPPORTED]
            if shape is not None:
                supported += _list_described(shape, scope, listed)
            self.tables[scope] = {field.name: field for field in supported} | listed
        self.schemas: Mapping[str, Table] = {
            shape.__name__: self.tables[scope] for scope, shape in shapes.items() if shape is not None
        }
        """The tables by the names of the wire types, for the OpenAPI document."""
        self._endpoints = endpoints

    def filter(
        self, fields: dict[str, Any], scope: str, prefix: str = "", report: FieldReport | None = None
    ) -> dict[str, Any]:
        """Returns the fields to decode. `prefix`: the path of the object. `report` collects ignored fields.

        Raises UnsupportedParameter for a refused field. Raises UnknownParameter for an unknown field, unless
        `report` accepts unknown fields.
        """
        table = self.tables[scope]
        accepted_fields: dict[str, Any] = {}
        for name, value in fields.items():
            if (field := table.get(name)) is None:
                if report is None or not report.takes_unknown:
                    raise self._build_unknown_error(name, scope, prefix)
                report.paths.append(f"{prefix}{sanitize_key(name)}")
                continue
            if value is None:
                continue
            if field.support is FieldSupport.REFUSED:
                _require_accepted(field, value, prefix)
                continue
            if field.support is FieldSupport.IGNORED and report is not None:
                report.paths.append(f"{prefix}{name}")
            if not field.opaque:
                accepted_fields[name] = value
        return accepted_fields

    def _build_unknown_error(self, name: str, scope: str, prefix: str) -> AntiphonError:
        """Returns the error for an unknown field. The error names another endpoint that has this field, or
        the most similar known field."""
        shown_name = sanitize_key(name)
        other_endpoints = [
            str(endpoint)
            for endpoint in self._endpoints
            if endpoint != scope and name in self.tables[endpoint]
        ]
        if other_endpoints and scope in self._endpoints:
            hint = f"; it belongs to {other_endpoints[0]}"
        else:
            hint = _suggest_nearest(name, self.tables[scope])
        return UnknownParameter(f"unknown field {prefix}{shown_name}{hint}", param=f"{prefix}{shown_name}")


def _require_accepted(field: RequestField, value: object, prefix: str) -> None:
    """Raises UnsupportedParameter unless the value of the refused field is accepted."""
    if any(_are_equal_json(value, accepted_value) for accepted_value in field.accepted_values):
        return
    raise UnsupportedParameter(
        f"{prefix}{field.name} is not supported: {field.description}", param=f"{prefix}{field.name}"
    )


def _are_equal_json(value: object, accepted_value: object) -> bool:
    """Whether two values are equal as JSON. True is not equal to 1, but 0.0 is equal to 0."""
    return value == accepted_value and isinstance(value, bool) == isinstance(accepted_value, bool)


def _suggest_nearest(name: str, names: Iterable[str]) -> str:
    """Returns the end of a sentence that suggests the most similar known name; empty if there is none."""
    if len(name) > MAX_SHOWN_KEY:
        return ""
    matches = difflib.get_close_matches(name, list(names), n=1, cutoff=0.75)
    return f"; did you mean {matches[0]}?" if matches else ""
