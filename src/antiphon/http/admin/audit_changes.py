"""What an entry of the audit changed, as people write it: fields before and after, with dates and money."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from antiphon.domain.limits import Measure
from antiphon.domain.prices import format_money
from antiphon.store.base import AUDIT_ABOUT, AUDIT_BEFORE

TIMES = frozenset({"archived", "created", "disabled", "expires", "revoked", "since", "until"})
PRICES = frozenset({"input", "output", "cached", "request"})
PATTERNS = frozenset({"models", "endpoints"})
HIDDEN = frozenset({"created", "creator", "digest", "family"})
"""Fields of a new row that its entry tells by other means."""
RENAMED = {"logging": "recording"}


class AuditChange(Struct, frozen=True, kw_only=True):
    """One field of a change, in words. `before` is null for something new, `after` for something removed."""

    field: str
    before: str | None
    after: str | None


def list_changes(action: str, detail: Mapping[str, object]) -> list[AuditChange]:
    """Lists the changed fields of an audit entry. Entries of earlier releases have no `before`."""
    about, before = _read_object(detail, AUDIT_ABOUT), _read_object(detail, AUDIT_BEFORE)
    known = {**detail, **about}
    fields = [name for name in detail if name not in (AUDIT_ABOUT, AUDIT_BEFORE) and name not in HIDDEN]
    changes = []
    for name in fields:
        after: str | None = _format_value(name, detail[name], known)
        earlier = _format_value(name, before[name], known) if name in before else None
        if action.endswith(".remove"):
            earlier, after = after, None
        changes.append(AuditChange(field=RENAMED.get(name, name), before=earlier, after=after))
    return changes


def describe_subject(detail: Mapping[str, object]) -> str:
    """Describes what an entry is about, beside its id: the limit of a project, the price of a model. Empty if
    the entry does not say it."""
    return " ".join(str(value) for value in _read_object(detail, AUDIT_ABOUT).values() if value)


def hide_context(detail: Mapping[str, object]) -> dict[str, object]:
    """Returns the values that the change set."""
    return {name: value for name, value in detail.items() if name not in (AUDIT_ABOUT, AUDIT_BEFORE)}


def format_moment(seconds: int) -> str:
    """Formats a time of UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(seconds)


def _read_object(detail: Mapping[str, object], name: str) -> Mapping[str, object]:
    found = detail.get(name)
    return found if isinstance(found, dict) else {}


def _format_value(name: str, value: object, known: Mapping[str, object]) -> str:
    """Formats the value of a field. `known`: the other fields of the thing."""
    if name == "logging":
        return _format_recording(value)
    if name in PATTERNS:
        return _format_patterns(value)
    if value is None or value == "":
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return _format_number(name, value, known)
    if name == "limits" and isinstance(value, list):
        return ", ".join(_format_limit(each) for each in value)
    return str(value)


def _format_number(name: str, value: int, known: Mapping[str, object]) -> str:
    if name in TIMES:
        return format_moment(value)
    if name in PRICES:
        return f"{format_money(value)} {known.get('currency', '')}".strip()
    if name == "amount" and known.get("measure") == Measure.COST:
        return format_money(value)
    return f"{value:,}"


def _format_limit(limit: object) -> str:
    """Formats a limit of a new or a rotated key: its row, or its id."""
    if not isinstance(limit, dict):
        return str(limit)
    window = f" per {limit['window']}" if limit.get("window") else " at once"
    amount = limit.get("amount")
    number = _format_number("amount", amount, limit) if isinstance(amount, int) else str(amount)
    return f"{number} {str(limit.get('measure')).replace('_', ' ')}{window}"


def _format_patterns(value: object) -> str:
    """Formats patterns of a key, which the database has as JSON, or the one pattern of a limit or price."""
    if value is None:
        return "all"
    if isinstance(value, str) and value.startswith("["):
        return ", ".join(json.loads(value)) or "nothing"
    return str(value)


def _format_recording(value: object) -> str:
    """Formats how a project's requests are kept."""
    if not isinstance(value, str):
        return "off"
    policy = json.loads(value)
    redacted = f", without {', '.join(policy['redact'])}" if policy.get("redact") else ""
    return f"{policy['days']} days{redacted}"
