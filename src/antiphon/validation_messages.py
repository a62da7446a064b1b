"""Parses msgspec's validation errors, and describes them for people: the path and the expected value."""

import re
from dataclasses import dataclass

MESSAGE = re.compile(r"^(?P<text>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
EXPECTED = re.compile(
    r"^Expected `(?P<types>[^`]*)`(?P<bound> of length)?(?: (?P<sign>[<>]=?) (?P<limit>\S+))?"
    r"(?: matching regex '(?P<pattern>.*)')?"
)
STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

TYPE_NAMES = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "datetime": "a time, as 2099-01-31T12:00:00Z",
    "object": "an object",
}
COMPARISONS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


@dataclass(frozen=True, slots=True)
class ValidationProblem:
    """One validation error."""

    text: str
    path: str
    """From the top, as `server.port` or `models[0].name`; empty for the top itself."""

    @property
    def missing_field(self) -> str:
        """The path of the required field that is absent; empty for other errors."""
        return self._parse_field_path("Object missing required field")

    @property
    def unknown_field(self) -> str:
        """The path of the unknown field; empty for other errors."""
        return self._parse_field_path("Object contains unknown field")

    @property
    def is_choice(self) -> bool:
        """Whether the field takes only certain words, and the value is none of them."""
        return self.text.startswith("Invalid enum value")

    @property
    def is_pattern(self) -> bool:
        """Whether the field takes only texts of a pattern, and the value is none of them."""
        return "matching regex" in self.text

    @property
    def expected_value(self) -> str:
        """The expected value, as in `a number of at most 2`."""
        match = EXPECTED.match(self.text)
        if match is None:
            is_range = "out of range" in self.text
            return "a number within its range" if is_range else "one of the accepted values"
        type_names = [TYPE_NAMES.get(name, name) for name in match["types"].split(" | ") if name != "null"]
        expected = " or ".join(type_names)
        if match["pattern"] is not None:
            return f"{expected} that matches {match['pattern']}"
        if match["sign"] is None:
            return expected
        limit = match["limit"].removesuffix(".0")
        if match["bound"] is None:
            return f"{expected} {COMPARISONS[match['sign']]} {limit}"
        if match["sign"] == ">=" and limit == "1":
            return f"{expected} that is not empty"
        unit = "characters" if "str" in match["types"] else "items"
        return f"{expected} {COMPARISONS[match['sign']]} {limit} {unit}"

    def _parse_field_path(self, error_text: str) -> str:
        """Returns the path of the field that the message quotes; empty for an error of another kind."""
        if not self.text.startswith(error_text):
            return ""
        name = self.text.split("`")[1]
        return f"{self.path}.{name}" if self.path else name


def parse_message(text: str) -> ValidationProblem:
    """Parses the text of msgspec's error."""
    match = MESSAGE.match(text)
    return ValidationProblem(match["text"], match["path"] or "") if match else ValidationProblem(text, "")


def find_value(value: object, path: str) -> object:
    """Returns the value at a path inside `value`; None if there is none."""
    for name, index in STEP.findall(path):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, (list, tuple)):
            value = value[int(index)]
    return value
