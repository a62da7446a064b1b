"""Defects in Antiphon's own code that occur while it works on one sequence. Each defect ends that sequence
and no other."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from antiphon.errors import AntiphonError, EngineError, InternalError
from antiphon.telemetry.logs import describe_exception

log = logging.getLogger(__name__)

Given = ParamSpec("Given")
Result = TypeVar("Result")


def guard(work: Callable[Given, Result], *given: Given.args, **named: Given.kwargs) -> Result | AntiphonError:
    """Calls a function for one sequence. Returns its result, or the error that ends the sequence.

    A defect becomes an InternalError with its type and place, but without its message, which may contain a
    caller's text. The HTTP layer logs the error under the request's id, and tells the caller that id.
    """
    try:
        return work(*given, **named)
    except AntiphonError as error:
        return error
    except Exception as defect:  # noqa: BLE001 - it ends one sequence, and the engine goes on
        location = describe_exception(defect)
        log.error("a sequence is ended by a defect: %s", location)  # noqa: TRY400 - without the message
        return InternalError(location)


def build_batch_error(status: int) -> EngineError:
    """The error for the sequences of a batch in which the library failed with this status; the failure is
    logged."""
    log.error("llama_decode failed with %d", status)
    message = "the engine's library failed at this batch; the server's log says how"
    return EngineError(message, cause=f"llama_decode failed with {status}")


def log_thread_end(what: str, defect: Exception) -> None:
    """Logs the defect that ended a thread of all sequences: its type and place, without the message. `what`
    names the thread."""
    log.error("%s failed: %s", what, describe_exception(defect))
