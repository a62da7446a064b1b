"""msgspec's complaints about a value that does not fit, taken apart and put in words: where, and what would
have been taken. Text only; what came and what to do is for those who say it.
"""

import re
from dataclasses import dataclass

COMPLAINT = re.compile(r"^(?P<said>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
EXPECTED = re.compile(
    r"^Expected `(?P<types>[^`]*)`(?P<bound> of length)?(?: (?P<sign>[<>]=?) (?P<limit>\S+))?"
)
STEP = re.compile(r"([^.\[\]]+)|\[(\d+)\]")

WORDS = {
    "str": "a text",
    "int": "an integer",
    "float": "a number",
    "bool": "true or false",
    "array": "a list",
    "object": "an object",
}
SIGNS = {">=": "of at least", "<=": "of at most", ">": "above", "<": "below"}


@dataclass(frozen=True, slots=True)
class Complaint:
    """One of them."""

    said: str
    path: str
    """From the top, as `server.port` or `models[0].name`; empty for the top itself."""

    @property
    def missing(self) -> str:
        """The path of the required field that is absent; empty when that is not the complaint."""
        return self._parse_name("Object missing required field")

    @property
    def unknown(self) -> str:
        """The path of the field that nobody knows; empty when that is not the complaint."""
        return self._parse_name("Object contains unknown field")

    @property
    def chooses(self) -> bool:
        """Whether one of some words would have been taken."""
        return self.said.startswith("Invalid enum value")

    @property
    def taken(self) -> str:
        """What would have been taken: `a number of at most 2`."""
        match = EXPECTED.match(self.said)
        if match is None:
            within = "out of range" in self.said
            return "a number within its range" if within else "one of the values that are taken"
        words = [WORDS.get(name, name) for name in match["types"].split(" | ") if name != "null"]
        taken = " or ".join(words)
        if match["sign"] is None:
            return taken
        limit = match["limit"].removesuffix(".0")
        if match["bound"] is None:
            return f"{taken} {SIGNS[match['sign']]} {limit}"
        if match["sign"] == ">=" and limit == "1":
            return f"{taken} that is not empty"
        counted = "characters" if "str" in match["types"] else "items"
        return f"{taken} {SIGNS[match['sign']]} {limit} {counted}"

    def _parse_name(self, beginning: str) -> str:
        if not self.said.startswith(beginning):
            return ""
        name = self.said.split("`")[1]
        return f"{self.path}.{name}" if self.path else name


def read(text: str) -> Complaint:
    """The complaint that the text of msgspec's error is."""
    match = COMPLAINT.match(text)
    return Complaint(match["said"], match["path"] or "") if match else Complaint(text, "")


def came(value: object, path: str) -> object:
    """What stands at the path of a value; None when nothing does."""
    for name, index in STEP.findall(path):
        if isinstance(value, dict):
            value = value.get(name)
        elif isinstance(value, (list, tuple)):
            value = value[int(index)]
    return value
