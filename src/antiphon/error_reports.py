"""Errors as values, for process borders: which one, and what it says."""

from dataclasses import dataclass

from antiphon.errors import AntiphonError, InternalError


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as it crosses a process border: values only."""

    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    cause: str | None = None

    @staticmethod
    def of(error: AntiphonError) -> "ErrorReport":
        return ErrorReport(error.code, error.message, error.param, error.retry_after, error.cause)

    def exception(self) -> AntiphonError:
        """The error this reports, of its own class; an unknown code becomes an InternalError."""
        found = classes_by_code().get(self.code, InternalError)
        return found(self.message, param=self.param, retry_after=self.retry_after, cause=self.cause)


def classes_by_code() -> dict[str, type[AntiphonError]]:
    """Every class of the tree under its code."""
    found: dict[str, type[AntiphonError]] = {}
    pending: list[type[AntiphonError]] = [AntiphonError]
    while pending:
        cls = pending.pop()
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    found["internal_error"] = InternalError
    return found
