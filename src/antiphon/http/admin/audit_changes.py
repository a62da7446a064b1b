"""Describes the change of an audit entry for people: fields before and after, with dates and money."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime

from msgspec import Struct

from antiphon.domain.limits import Measure
from antiphon.domain.prices import format_money
from antiphon.domain.tenancy import AUDIT_SUBJECTS
from antiphon.store.base import AUDIT_ABOUT, AUDIT_BEFORE

TIME_FIELDS = frozenset({"archived", "created", "disabled", "expires", "revoked", "since", "until"})

PRICE_FIELDS = frozenset({"input", "output", "cached", "request"})

PATTERN_FIELDS = frozenset({"models", "endpoints"})

OMITTED_FIELDS = frozenset({"created", "creator", "digest", "family"})
"""Fields of a new row that the audit entry shows in fields of its own."""

FIELD_NAMES = {"logging": "recording"}


class AuditChange(Struct, frozen=True, kw_only=True):
    """One field of a change, in words. `before` is null for something new, `after` for something removed."""

    field: str
    before: str | None
    after: str | None


def list_changes(action: str, detail: Mapping[str, object]) -> list[AuditChange]:
    """Lists the changed fields of an audit entry. Entries of earlier releases have no `before`."""
    subject, before = _get_object(detail, AUDIT_ABOUT), _get_object(detail, AUDIT_BEFORE)
    context = {**detail, **subject}
    fields = [
        name for name in detail if name not in (AUDIT_ABOUT, AUDIT_BEFORE) and name not in OMITTED_FIELDS
    ]
    changes = []
    for name in fields:
        after_text: str | None = _format_value(name, detail[name], context)
        before_text = _format_value(name, before[name], context) if name in before else None
        if action.endswith(".remove"):
            before_text, after_text = after_text, None
        changes.append(AuditChange(field=FIELD_NAMES.get(name, name), before=before_text, after=after_text))
    return changes


def describe_subject(action: str, detail: Mapping[str, object]) -> str:
    """Describes the object of an entry: the subject and target of a limit, the models of a price. Empty for
    other objects, which have names."""
    # A new or removed object is in `detail` itself.
    subject = _get_object(detail, AUDIT_ABOUT) or {
        name: detail.get(name) for name in AUDIT_SUBJECTS.get(action.partition(".")[0], ())
    }
    return " ".join(str(value) for value in subject.values() if value)


def remove_context(detail: Mapping[str, object]) -> dict[str, object]:
    """Returns the new values of an audit entry, without its object and its old values."""
    return {name: value for name, value in detail.items() if name not in (AUDIT_ABOUT, AUDIT_BEFORE)}


def format_moment(seconds: int) -> str:
    """Formats a time of UTC."""
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):  # beyond the calendar
        return str(seconds)


def _get_object(detail: Mapping[str, object], name: str) -> Mapping[str, object]:
    value = detail.get(name)
    return value if isinstance(value, dict) else {}


def _format_value(name: str, value: object, context: Mapping[str, object]) -> str:
    """Formats the value of a field. `context`: the other fields of the changed object."""
    if name == "logging":
        return _format_recording(value)
    if name in PATTERN_FIELDS:
        return _format_patterns(value)
    if value is None or value == "":
        return "none"
    if isinstance(value, int) and not isinstance(value, bool):
        return _format_number(name, value, context)
    if name == "limits" and isinstance(value, list):
        return ", ".join(_format_limit(limit) for limit in value)
    return str(value)


def _format_number(name: str, value: int, context: Mapping[str, object]) -> str:
    if name in TIME_FIELDS:
        return format_moment(value)
    if name in PRICE_FIELDS:
        return f"{format_money(value)} {context.get('currency', '')}".strip()
    if name == "amount" and context.get("measure") == Measure.COST:
        return format_money(value)
    return f"{value:,}"


def _format_limit(limit: object) -> str:
    """Formats a limit of a new or a rotated key. The entry contains its row, or only its id."""
    if not isinstance(limit, dict):
        return str(limit)
    window = f" per {limit['window']}" if limit.get("window") else " at once"
    amount = limit.get("amount")
    number = _format_number("amount", amount, limit) if isinstance(amount, int) else str(amount)
    return f"{number} {str(limit.get('measure')).replace('_', ' ')}{window}"


def _format_patterns(value: object) -> str:
    """Formats the patterns of a key, which are stored as JSON, or the one pattern of a limit or price."""
    if value is None:
        return "all"
    if isinstance(value, str) and value.startswith("["):
        return ", ".join(json.loads(value)) or "nothing"
    return str(value)


def _format_recording(value: object) -> str:
    """Formats how a project's requests are recorded: for how many days, and without which data."""
    if not isinstance(value, str):
        return "off"
    policy = json.loads(value)
    redaction_note = f", without {', '.join(policy['redact'])}" if policy.get("redact") else ""
    return f"{policy['days']} days{redaction_note}"
