"""The query parameters of a list. Every parameter has an effect or is refused."""

from collections.abc import Iterable, Sequence

from antiphon.bodies.strict_json import sanitize_key
from antiphon.errors import InvalidValue, MissingParameter, UnknownParameter

QUERY = "query"
"""The start of a query parameter's path, such as `query.page`."""


TRUE, FALSE = ("true", "1"), ("false", "0")


class ListQuery:
    """The query parameters of one request. An empty parameter counts as absent."""

    def __init__(
        self, parameters: Iterable[tuple[str, str]], *known_names: str, repeated: tuple[str, ...] = ()
    ) -> None:
        """Raises a RequestError for an unknown parameter, and for one that is sent twice unless it is in
        `repeated`."""
        self._values: dict[str, list[str]] = {}
        for name, value in parameters:
            shown_name = sanitize_key(name)
            if name not in (*known_names, *repeated):
                raise UnknownParameter(f"unknown query parameter {shown_name}", param=f"{QUERY}.{shown_name}")
            if name in self._values and name not in repeated:
                raise InvalidValue(
                    f"{shown_name} is in the query twice; send it once", param=f"{QUERY}.{shown_name}"
                )
            self._values.setdefault(name, []).append(value)

    def get_all(self, name: str) -> list[str]:
        """Returns all values of a parameter, without empty ones."""
        return [value for value in self._values.get(name, ()) if value]

    def get(self, name: str) -> str:
        """Returns the value of a parameter; empty if there is none."""
        return next(iter(self.get_all(name)), "")

    def require(self, name: str) -> str:
        """Returns the value of a parameter. Raises MissingParameter if there is none."""
        if not (value := self.get(name)):
            raise MissingParameter(f"{name} is missing in the query", param=f"{QUERY}.{name}")
        return value

    def read_number(self, name: str, default: int, minimum: int, maximum: int) -> int:
        """Returns a whole number. Raises InvalidValue."""
        text = self.get(name) or str(default)
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(maximum))
        if not is_number or not minimum <= int(text) <= maximum:
            raise InvalidValue(
                f"{name} must be a whole number of {minimum} to {maximum}", param=f"{QUERY}.{name}"
            )
        return int(text)

    def read_switch(self, name: str, default: bool) -> bool:
        """Returns the value of a boolean parameter. Raises InvalidValue."""
        text = self.get(name).lower()
        if text and text not in (*TRUE, *FALSE):
            raise InvalidValue(f"{name} must be true or false", param=f"{QUERY}.{name}")
        return text in TRUE if text else default

    def read_word(self, name: str, default: str, words: Sequence[str]) -> str:
        """Returns one of the words. Raises InvalidValue."""
        text = self.get(name) or default
        if text not in words:
            raise InvalidValue(
                f"{name} must be {', '.join(words[:-1])} or {words[-1]}", param=f"{QUERY}.{name}"
            )
        return text
