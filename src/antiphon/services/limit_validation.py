"""Checks requested limits. It does not check permissions."""

from collections.abc import Sequence

from antiphon.domain.limits import Limit, Measure, Subject, Window, explain_too_large
from antiphon.domain.values import Struct, asdict
from antiphon.errors import Conflict, InvalidValue, MissingParameter

MAX_LIMITS = 50
"""The most limits of one target. Every request checks each of them."""


class LimitRequest(Struct, frozen=True):
    """A requested limit, with the fields of `domain.limits.Limit`. The target is empty for a limit of a new
    key."""

    subject: Subject
    target: str
    measure: Measure
    amount: int
    window: Window | None = None
    models: str | None = None
    note: str = ""

    def to_limit(self, id_: str, target: str, created: int) -> Limit:
        """Returns the limit with an id, a target and a time of creation."""
        return Limit(**{**asdict(self), "id": id_, "target": target, "created": created})


def require_valid(request: LimitRequest, path: str = "") -> None:
    """Raises a RequestError if the limit is invalid. `path` is the limit's path in the request body, such as
    `limits[0].`."""
    window, models = f"{path}window", f"{path}models"
    if request.measure is Measure.CONCURRENT and request.window is not None:
        raise InvalidValue(
            f"concurrent requests are not counted over a time: leave {window} out", param=window
        )
    if request.measure is not Measure.CONCURRENT and request.window is None:
        raise MissingParameter(f"{window} is missing", param=window)
    require_countable(request.measure, request.amount, path)
    if request.subject is Subject.MODEL and request.models is not None:
        raise InvalidValue(f"a limit of a model already names it: leave {models} out", param=models)


def require_countable(measure: Measure, amount: int, path: str = "") -> None:
    """Raises InvalidValue if the amount is too large to be counted exactly."""
    if (problem := explain_too_large(measure, amount)) is not None:
        raise InvalidValue(problem, param=f"{path}amount")


def require_all_valid(limits: Sequence[LimitRequest]) -> None:
    """Raises a RequestError if a limit of a new key is invalid, or if two of them limit the same quantity."""
    paths: dict[tuple[object, ...], str] = {}
    for number, limit in enumerate(limits):
        path = f"limits[{number}]"
        require_valid(limit, f"{path}.")
        if (earlier_path := paths.setdefault(_get_quantity(limit), path)) != path:
            raise InvalidValue(
                f"{path} and {earlier_path} limit the same quantity; send only one of them", param=path
            )


def require_unique(limit: Limit, existing: Sequence[Limit]) -> None:
    """Raises Conflict if the target already has a limit of the same quantity, or too many limits. `existing`:
    the limits of the target."""
    for existing_limit in existing:
        if _get_quantity(existing_limit) == _get_quantity(limit):
            raise Conflict(f"there is such a limit already: change the amount of {existing_limit.id}")
    if len(existing) >= MAX_LIMITS:
        raise Conflict(f"the {limit.subject} has {MAX_LIMITS} limits, which is the most: remove one first")


def _get_quantity(limit: Limit | LimitRequest) -> tuple[object, ...]:
    """Returns the measure, window and models of a limit. Two limits of one target with the same values would
    limit the same quantity."""
    return limit.measure, limit.window, limit.models
