"""The admin API as part of the OpenAPI document."""

import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

import msgspec

from antiphon.dialects.describing import field_names
from antiphon.domain.limits import Subject
from antiphon.http.admin import (
    describe_usage,
    shapes,
    shapes_keys,
    shapes_limits,
    shapes_prices,
    shapes_recording,
    shapes_usage,
)
from antiphon.http.admin.pages import MOST, ROOT, USUAL
from antiphon.http.admin.recording import MOST as MOST_REQUESTS
from antiphon.http.admin.recording import USUAL as USUAL_REQUESTS

PLACES = (shapes, shapes_keys, shapes_limits, shapes_prices, shapes_recording, shapes_usage)
REF = "#/components/schemas/{name}"
PREFIX = "Admin"
PARAMETER = re.compile(r"\{(\w+)\}")
MADE = 201
GONE = 204

OPERATIONS: Mapping[tuple[str, str], tuple[str, str | None, str | None, int]] = MappingProxyType(
    {
        ("get", "/projects"): ("Projects that the caller may see", None, "ProjectPage", 200),
        ("post", "/projects"): ("Make a project", "NewProject", "ProjectCard", MADE),
        ("get", "/projects/{project}"): ("One project", None, "ProjectCard", 200),
        ("patch", "/projects/{project}"): ("Rename, note, archive", "ProjectChange", "ProjectCard", 200),
        ("get", "/projects/{project}/members"): ("Who is what in a project", None, "MemberPage", 200),
        ("put", "/projects/{project}/members/{user}"): ("Make a member", "Member", "MemberCard", 200),
        ("delete", "/projects/{project}/members/{user}"): ("End a membership", None, None, GONE),
        ("put", "/projects/{project}/recording"): ("Keep requests", "NewRecording", "ProjectCard", 200),
        ("delete", "/projects/{project}/recording"): ("Keep none any longer", None, "ProjectCard", 200),
        ("get", "/requests"): ("Kept requests of a project", None, "RequestPage", 200),
        ("get", "/requests/{request}"): ("One kept request", None, "RequestCard", 200),
        ("delete", "/requests"): ("Remove a project's kept requests", None, "Forgotten", 200),
        ("get", "/users"): ("Users that the caller may see", None, "UserPage", 200),
        ("post", "/users"): ("Make a user", "NewUser", "UserCard", MADE),
        ("get", "/users/{user}"): ("One user", None, "UserCard", 200),
        ("patch", "/users/{user}"): ("Rename, note, disable", "UserChange", "UserCard", 200),
        ("get", "/keys"): ("Keys that the caller may see", None, "KeyPage", 200),
        ("post", "/keys"): ("Make a key, shown this once", "NewKey", "NewKeyCard", MADE),
        ("get", "/keys/{key}"): ("One key", None, "KeyCard", 200),
        ("patch", "/keys/{key}"): (
            "Note, confine, end at another time or never",
            "KeyChange",
            "KeyCard",
            200,
        ),
        ("post", "/keys/{key}/rotate"): ("Make a successor", "Rotation", "NewKeyCard", MADE),
        ("post", "/keys/{key}/revoke"): ("End a key now", "Nothing", "KeyCard", 200),
        ("delete", "/keys/{key}"): ("End a key now", None, "KeyCard", 200),
        ("get", "/limits"): ("Limits that the caller may see", None, "LimitPage", 200),
        ("post", "/limits"): ("Set a limit or a budget", "NewLimit", "LimitCard", MADE),
        ("get", "/limits/{limit}"): ("One limit, and how it stands now", None, "StandingLimit", 200),
        ("patch", "/limits/{limit}"): ("Another amount, another note", "LimitChange", "LimitCard", 200),
        ("delete", "/limits/{limit}"): ("Remove a limit", None, None, GONE),
        ("get", "/prices"): ("All prices, also those that ended", None, "PricePage", 200),
        ("post", "/prices"): ("Add a price", "NewPrice", "PriceCard", MADE),
        ("get", "/prices/{price}"): ("One price", None, "PriceCard", 200),
        ("patch", "/prices/{price}"): ("Note, end at another time", "PriceChange", "PriceCard", 200),
        ("delete", "/prices/{price}"): ("End a price now", None, "PriceCard", 200),
        ("get", "/usage"): ("What was used, summed", None, "UsageReport", 200),
        ("get", "/usage/entries"): ("What was used, one by one", None, "EntryPage", 200),
        ("get", "/audit"): ("The latest changes first", None, "AuditPage", 200),
    }
)
"""Summary, body, answer and status, by method and path below the root."""


def paths() -> dict[str, dict[str, Any]]:
    """The operations, by path."""
    described: dict[str, dict[str, Any]] = {}
    for (method, path), said in OPERATIONS.items():
        described.setdefault(ROOT + path, {})[method] = _operation(path, *said)
    return described


def schemas() -> dict[str, Any]:
    """The schemas that they name."""
    template = REF.format(name=f"{PREFIX}{{name}}")
    known: list[type] = []
    for place in PLACES:
        known += [*place.REQUESTS.values(), *place.ANSWERS]
    _, found = msgspec.json.schema_components(known, ref_template=template)
    return {f"{PREFIX}{name}": schema for name, schema in found.items()}


@cache
def fields() -> frozenset[str]:
    """Names of the fields and parameters of requests."""
    shaped = [shape for place in PLACES for shape in place.REQUESTS.values()]
    described = [item for operations in paths().values() for item in operations.values()]
    return (
        field_names(shaped)
        | {"id"}
        | {each["name"] for item in described for each in item.get("parameters", ())}
    )


def _operation(path: str, summary: str, body: str | None, answer: str | None, status: int) -> dict[str, Any]:
    content = {} if answer is None else {"application/json": {"schema": _ref(answer)}}
    described: dict[str, Any] = {
        "summary": summary,
        "tags": ["admin"],
        "responses": {
            str(status): {"description": "Done" if answer is None else "The answer", "content": content}
        },
    }
    named = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in PARAMETER.findall(path)
    ]
    if path in describe_usage.DESCRIPTIONS:
        described["description"] = describe_usage.DESCRIPTIONS[path]
        named += describe_usage.queries(path)
        content |= describe_usage.files()
    elif path == "/requests":
        named += _of_requests(answer == "RequestPage")
    elif answer is not None and answer.endswith("Page"):
        named += _paging(path)
    if named:
        described["parameters"] = named
    if body is not None:
        described["requestBody"] = {"required": True, "content": {"application/json": {"schema": _ref(body)}}}
    return described


def _paging(path: str) -> list[dict[str, Any]]:
    limit = {"type": "integer", "minimum": 1, "maximum": MOST, "default": USUAL}
    named: list[dict[str, Any]] = [{"name": "limit", "in": "query", "schema": limit}]
    if path == "/audit":
        named.append(
            {"name": "before", "in": "query", "schema": {"type": "string", "pattern": "^[0-9]{1,18}$"}}
        )
        named.append({"name": "target", "in": "query", "schema": {"type": "string"}})
    else:
        named.append({"name": "after", "in": "query", "schema": {"type": "string"}})
    if path == "/limits":
        subject = {"type": "string", "enum": [*Subject]}
        named.append({"name": "subject", "in": "query", "schema": subject})
        named.append({"name": "target", "in": "query", "schema": {"type": "string"}})
    return named


def _of_requests(is_page: bool) -> list[dict[str, Any]]:
    """What a query says of kept requests, of which a page holds fewer."""
    named: list[dict[str, Any]] = [
        {"name": "project", "in": "query", "required": True, "schema": {"type": "string"}}
    ]
    if is_page:
        limit = {"type": "integer", "minimum": 1, "maximum": MOST_REQUESTS, "default": USUAL_REQUESTS}
        named.append({"name": "limit", "in": "query", "schema": limit})
        named.append({"name": "after", "in": "query", "schema": {"type": "string"}})
    return named


def _ref(name: str) -> dict[str, str]:
    return {"$ref": REF.format(name=PREFIX + name)}
