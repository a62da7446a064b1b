"""What a schema asks for and does not get: each keyword that is not kept, by name, place and reason."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from antiphon.errors import InvalidValue, UnsupportedParameter

Place = tuple["Place", str] | None
"""Where a schema is in its document: the place of the schema around it, and the step from there. Linked,
since a text of each would grow with the length of names."""

MAX_STEP, MAX_PLACE = 64, 200
"""Characters of one step, and of a place, that are shown."""


def show(place: Place) -> str:
    """A place as a pointer."""
    steps: list[str] = []
    while place is not None:
        place, step = place
        steps.append(step[:MAX_STEP])
    return "/".join(["#", *reversed(steps)])[:MAX_PLACE]


@dataclass(frozen=True, slots=True)
class Relaxation:
    """One keyword that is not kept."""

    keyword: str
    place: Place
    reason: str


class Relaxations:
    """What was not kept of one schema, each keyword once."""

    def __init__(self) -> None:
        self._found: dict[str, Relaxation] = {}

    def add(self, keyword: str, place: Place, reason: str) -> None:
        """Notes a keyword, at the first place where it is not kept."""
        self._found.setdefault(keyword, Relaxation(keyword, place, reason))

    def get(self) -> tuple[Relaxation, ...]:
        """All of them."""
        return tuple(self._found.values())


def refuse(relaxations: Iterable[Relaxation], field: str) -> None:
    """Raises UnsupportedParameter for the first, if there is one."""
    for each in relaxations:
        raise UnsupportedParameter(
            f"the keyword {each.keyword[:MAX_STEP]} at {show(each.place)} of {field} is not supported: "
            f"{each.reason}",
            param=field,
        )


def reject(keyword: str, place: Place, field: str, problem: str) -> NoReturn:
    """Raises InvalidValue for a value that no schema may have."""
    raise InvalidValue(f"{keyword} at {show(place)} of {field} {problem}", param=field)
