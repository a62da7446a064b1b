"""A limit that somebody asks for: whether it means anything, and what becomes of it. Knows nobody's
rights."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from antiphon.domain.limits import Limit, Measure, Subject, Window, explain_too_large
from antiphon.errors import Conflict, InvalidValue, MissingParameter

MOST = 50
"""Limits of one subject: each is looked at for every request."""


@dataclass(frozen=True, slots=True)
class LimitRequest:
    """A limit that somebody asks for: as `domain.limits.Limit`. The target of one that comes with a new key
    is not known yet, and empty."""

    subject: Subject
    target: str
    measure: Measure
    amount: int
    window: Window | None = None
    models: str | None = None
    note: str = ""

    def to_limit(self, id_: str, target: str, created: int) -> Limit:
        """The limit that it becomes."""
        return Limit(**{**asdict(self), "id": id_, "target": target, "created": created})


def require_sound(wanted: LimitRequest, place: str = "") -> None:
    """Raises a RequestError for a limit that means nothing. `place`: where it stands in what was sent, as
    `limits[0].`."""
    window, models = f"{place}window", f"{place}models"
    if wanted.measure is Measure.CONCURRENT and wanted.window is not None:
        raise InvalidValue(f"concurrent requests are counted at once: leave {window} out", param=window)
    if wanted.measure is not Measure.CONCURRENT and wanted.window is None:
        raise MissingParameter(f"{window} is missing", param=window)
    require_bounded(wanted.measure, wanted.amount, place)
    if wanted.subject is Subject.MODEL and wanted.models is not None:
        raise InvalidValue(f"a limit of a model is of that one: leave {models} out", param=models)


def require_bounded(measure: Measure, amount: int, place: str = "") -> None:
    """Raises InvalidValue for more than can be counted exactly."""
    if (problem := explain_too_large(measure, amount)) is not None:
        raise InvalidValue(problem, param=f"{place}amount")


def require_sound_all(limits: Sequence[LimitRequest]) -> None:
    """The same for those that come with a new key, of which no two are one."""
    places: dict[tuple[object, ...], str] = {}
    for number, wanted in enumerate(limits):
        place = f"limits[{number}]"
        require_sound(wanted, f"{place}.")
        if (same := places.setdefault(_what(wanted), place)) != place:
            raise InvalidValue(f"{place} limits the same as {same}: say one amount", param=place)


def require_new(limit: Limit, there: Sequence[Limit]) -> None:
    """Raises Conflict where a subject cannot get this limit beside those that it has."""
    for each in there:
        if _what(each) == _what(limit):
            raise Conflict(f"there is such a limit already: change the amount of {each.id}")
    if len(there) >= MOST:
        raise Conflict(f"the {limit.subject} has {MOST} limits, which is the most: remove one first")


def _what(limit: Limit | LimitRequest) -> tuple[object, ...]:
    """What is limited of a subject, without how much."""
    return limit.measure, limit.window, limit.models
