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
        self.text = ""
        """The text so far."""
        self._arguments = ""
        self._position = 0
        """The end of what has been read; 0 before the text begins."""

    def read(self, arguments: str) -> str:
        """Reads more arguments. Returns the text that they add."""
        self._arguments += arguments
        if not self._position:
            opening = OPENING.match(self._arguments)
            if opening is None:
                return ""
            self._position = opening.end()
        if (whole := WHOLE.match(self._arguments, self._position)) is None:
            return ""
        self._position = whole.end()
        return self._add(_unescape(whole.group()))

    def finish(self) -> str:
        """Returns the text that is left when the arguments have ended."""
        if self._position:
            return ""
        return self._add(self._arguments)

    def _add(self, text: str) -> str:
        self.text += text
        return text


def _unescape(text: str) -> str:
    """Returns the characters of a part of a JSON text. Half of a surrogate pair becomes U+FFFD."""
    if "\\" not in text:
        return text
    characters: str = json.loads(f'"{text}"', strict=False)
    return characters.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
