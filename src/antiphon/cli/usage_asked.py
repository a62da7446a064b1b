"""What the options of `antiphon usage` ask for. Whatever would not act is refused here, by its name and in
the words that were typed, before anything is sent.
"""

from collections.abc import Sequence

from antiphon.cli import moments
from antiphon.domain.reports import TAG, Bucket, Field, dimension
from antiphon.errors import SettingsError

SHAPES = ("table", "csv", "json")
LINES = "jsonl"
"""What the server calls lines of JSON."""
LATEST = 253_370_764_800
"""The Unix second in which the year 9999 begins: calendars end with it."""


def written(shape: str | None, entries: bool) -> str:
    """As what the server is asked, or `table`. Raises SettingsError."""
    if entries and shape is None:
        raise SettingsError("--entries is for files: say --format csv or --format json beside it")
    if entries and shape == "table":
        raise SettingsError("--format table shows sums, not --entries: say --format csv or --format json")
    if shape is not None and shape not in SHAPES:
        raise SettingsError(f"--format {shape}: it must be {' or '.join(SHAPES[entries:])}")
    return LINES if entries and shape == "json" else shape or "table"


def single(by: str | None, most: int | None) -> None:
    """Raises SettingsError for what says how sums are made, where there are none."""
    if by is not None:
        raise SettingsError(
            f"--by {by} is for sums; --entries gives every generation by itself: leave one out"
        )
    if most is not None:
        raise SettingsError(
            f"--limit {most} is for sums; --entries gives all of them: choose fewer by --since, --until and "
            "--only"
        )


def stretch(since: str, until: str | None) -> tuple[int, int]:
    """The Unix seconds in which it begins and ends. Raises SettingsError."""
    begins = _second("--since", since)
    ends = moments.now() + 1 if until is None else _second("--until", until)
    if begins >= ends:
        before = "lie before now" if until is None else f"lie before --until {until}"
        raise SettingsError(f"--since {since} must {before}")
    return begins, ends


def _second(option: str, text: str) -> int:
    try:
        second = moments.ago(text)
    except SettingsError as problem:
        raise SettingsError(f"{option}: {problem.message}") from None
    if not 0 <= second < LATEST:
        beyond = "before 1970, when nothing was used" if second < 0 else "beyond the year 9998"
        raise SettingsError(f"{option} {text} lies {beyond}")
    return second


def chosen(project: str | None, only: Sequence[str]) -> dict[str, str]:
    """The conditions by name. Raises SettingsError."""
    said = {} if project is None else {Field.PROJECT.value: project}
    for text in only:
        name, equals, value = text.partition("=")
        if not equals:
            raise SettingsError(f"--only {text}: it takes NAME=VALUE")
        if name in said:
            also = "--project" if project is not None and name == Field.PROJECT else "--only"
            raise SettingsError(f"--only {text}: {also} says {name} already, and there is one of it")
        _require_condition(name, text)
        said[name] = value
    return said


def _require_condition(name: str, text: str) -> None:
    of = dimension(name)
    if isinstance(of, Bucket):
        raise SettingsError(f"--only {text}: a time is chosen by --since and --until")
    if of is None:
        known = ", ".join([*Field, f"{TAG}NAME"])
        raise SettingsError(f"--only {text}: there is no {name or 'name'} to choose by; known: {known}")
