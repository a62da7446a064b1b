r"""Reads the text out of a custom tool's arguments while the model writes them: `{"input": "TEXT"}`.

An escape is read when it is whole, and a surrogate when its pair is there. Arguments of another form are the
text themselves.
"""

import json
import re

from antiphon.dialects.responses.tools import INPUT

OPENING = re.compile(rf'\s*\{{\s*"{INPUT}"\s*:\s*"')

HIGH, LOW, ANY = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}", r"\\u[0-9a-fA-F]{4}"

WHOLE = re.compile(
    rf'(?:[^"\\]|{HIGH}{LOW}|{HIGH}(?=[^\\]|\\[^u]|(?!{LOW}){ANY})|(?!{HIGH}){ANY}|\\["\\/bfnrt])*+'
)
"""Matches the characters of a JSON text that are whole: neither half of an escape nor of a pair."""


class CustomInputReader:
    """Reads one call's arguments."""

    def __init__(self) -> None:
        self._texts: list[str] = []
        self._rest = ""
        """The arguments that have not been read: all of them before the text begins."""
        self._has_begun = False

    @property
    def text(self) -> str:
        """The text so far."""
        return "".join(self._texts)

    def read(self, arguments: str) -> str:
        """Reads more arguments. Returns the text that they add."""
        self._rest += arguments
        if not self._has_begun:
            opening = OPENING.match(self._rest)
            if opening is None:
                return ""
            self._has_begun = True
            self._rest = self._rest[opening.end() :]
        if (whole := WHOLE.match(self._rest)) is None:
            return ""
        self._rest = self._rest[whole.end() :]
        return self._add(_unescape(whole.group()))

    def finish(self) -> str:
        """Returns the text that is left when the arguments have ended."""
        return "" if self._has_begun else self._add(self._rest)

    def _add(self, text: str) -> str:
        self._texts.append(text)
        return text


def _unescape(text: str) -> str:
    """Returns the characters of a part of a JSON text. Half of a surrogate pair becomes U+FFFD."""
    if "\\" not in text:
        return text
    characters: str = json.loads(f'"{text}"', strict=False)
    return characters.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
