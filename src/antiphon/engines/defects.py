"""Handles defects in Antiphon's own code that occur in the work on one sequence. A defect ends that sequence
and no other."""

import logging
from collections.abc import Callable
from typing import ParamSpec, TypeVar

from antiphon.errors import AntiphonError, EngineError, InternalError
from antiphon.telemetry.logs import describe_exception

log = logging.getLogger(__name__)

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def guard(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **named_arguments: Arguments.kwargs
) -> Result | AntiphonError:
    """Calls a function for one sequence. Returns its result, or the error that ends the sequence.

    A defect becomes an InternalError with its type and place, but without its message, which may contain a
    caller's text. The HTTP layer logs the error under the request's id, and tells the caller that id.
    """
    try:
        return work(*arguments, **named_arguments)
    except AntiphonError as error:
        return error
    except Exception as defect:  # noqa: BLE001 - it ends one sequence, and the engine goes on
        location = describe_exception(defect)
        log.error("a defect ends a sequence: %s", location)  # noqa: TRY400 - without the message
        return InternalError(location)


def build_batch_error(status: int) -> EngineError:
    """Logs that llama_decode failed with this status. Returns the error for the sequences of its batch."""
    log.error("llama_decode failed with %d", status)
    message = "the engine's library failed at this batch; see the server's log"
    return EngineError(message, cause=f"llama_decode failed with {status}")


def log_thread_end(thread_name: str, defect: Exception) -> None:
    """Logs the defect that ended a thread which serves all sequences: its type and place, without the
    message."""
    log.error("%s failed: %s", thread_name, describe_exception(defect))
