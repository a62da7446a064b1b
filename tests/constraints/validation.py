"""Whether a text is what a schema asks for, by the jsonschema package and by checks of its formats."""

import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, time
from typing import Any
from urllib.parse import urlsplit

from jsonschema import Draft202012Validator, FormatChecker, ValidationError
from jsonschema.validators import extend, validator_for

LABEL = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){LABEL}(\.{LABEL})*")
CLOCK = r"T\d+(H(\d+M(\d+S)?)?|M(\d+S)?|S)"
DURATION = re.compile(rf"P(\d+W|(\d+(Y(\d+M(\d+D)?)?|M(\d+D)?|D))({CLOCK})?|{CLOCK})")
"""RFC 3339, appendix A."""
URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(%[0-9A-Fa-f]{2}|[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=-])*")


def _zoned(read: Callable[[str], Any]) -> Callable[[str], bool]:
    return lambda text: read(text).tzinfo is not None


def _is_uri(text: str) -> bool:
    return bool(URI.fullmatch(text)) and urlsplit(text).scheme != ""


ASSERTED: dict[str, Callable[[str], object]] = {
    "date-time": _zoned(datetime.fromisoformat),
    "time": _zoned(time.fromisoformat),
    "duration": DURATION.fullmatch,
    "hostname": HOSTNAME.fullmatch,
    "uri": _is_uri,
}
"""Formats that the package asserts only with more packages beside it."""

FORMATS = FormatChecker(("date", "email", "ipv4", "ipv6", "uuid"))
for _name, _check in ASSERTED.items():
    FORMATS.checks(_name, ValueError)(
        lambda value, true=_check: not isinstance(value, str) or bool(true(value))
    )


def check_pattern(_validator: Any, pattern: str, instance: Any, _schema: Any) -> Iterator[ValidationError]:
    """A pattern by the rules of ECMA-262, which JSON Schema names: \\d and \\w are of ASCII there."""
    if isinstance(instance, str) and not re.search(pattern, instance, re.ASCII):
        yield ValidationError(f"{instance!r} does not match {pattern!r}")


def accepts(schema: Any, text: str) -> bool:
    """Whether the text is JSON that the schema takes by its own draft, formats included."""
    checker = extend(validator_for(schema, default=Draft202012Validator), {"pattern": check_pattern})
    return bool(checker(schema, format_checker=FORMATS).is_valid(json.loads(text)))
