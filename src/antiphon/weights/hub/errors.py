"""Explains errors of the library, network and disk during a download, each with a remedy.

The messages do not quote the original errors, because these contain addresses that can be signed. The module
is imported only after a failure, with the library.
"""

import errno
import os
from pathlib import Path

from httpx2 import InvalidURL, ProxyError, TimeoutException, TransportError, UnsupportedProtocol
from huggingface_hub import errors as hub

from antiphon.domain.values import Struct
from antiphon.weights.hub.reference import Reference

DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
RESUMES = "the incomplete file is kept, and the same command continues the download"
CHECK_ADDRESS = "check ANTIPHON_HUB_ENDPOINT or HF_ENDPOINT"
HUB_ERRORS = (hub.HfHubHTTPError, hub.OfflineModeIsEnabled, TransportError)
UNAUTHORIZED, FORBIDDEN, TOO_MANY, SERVER = 401, 403, 429, 500


class Attempt(Struct, frozen=True):
    """The failed download."""

    reference: Reference
    endpoint: str
    cache: Path
    has_token: bool
    is_cached: bool
    """Whether the cache has the file."""
    is_caller: bool = False
    """Whether a caller of the server requested the file. Callers learn nothing about the server's environment
    and disk."""

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{self.reference.repository}"

    @property
    def token_advice(self) -> str:
        """The start of the advice to use a token."""
        return "send in hf_token" if self.is_caller else "set HF_TOKEN to"

    @property
    def retry_advice(self) -> str:
        return "nothing was stored; try again" if self.is_caller else RESUMES


def find_cause(problem: Exception, has_token: bool) -> str | None:
    """Returns the cause of an error: the request's `revision` or `token`, the `disk`, or the `hub` if that is
    unavailable. Returns None if the cause is the model's name."""
    if isinstance(problem, hub.RevisionNotFoundError):
        return "revision"
    if isinstance(problem, TransportError) and not isinstance(problem, UnsupportedProtocol):
        return "hub"
    if isinstance(problem, OSError) and not isinstance(problem, HUB_ERRORS):
        return "disk"
    status = problem.response.status_code if isinstance(problem, hub.HfHubHTTPError) else 0
    if status == TOO_MANY or status >= SERVER:
        return "hub"
    return "token" if has_token and status in (UNAUTHORIZED, FORBIDDEN) else None


def explain(problem: Exception, attempt: Attempt) -> str:
    """Returns the message that explains the problem and its remedy."""
    reference, endpoint = attempt.reference, attempt.endpoint
    match problem:
        case hub.GatedRepoError():
            return _explain_gated(attempt)
        case hub.RepositoryNotFoundError():
            return _explain_unknown(attempt)
        case hub.RevisionNotFoundError():
            return (
                f"{reference.repository} has no revision {reference.revision}; {attempt.page}/commits lists "
                "the revisions"
            )
        case hub.DisabledRepoError():
            return f"the hub has disabled {attempt.page}; look for the model in another repository"
        case hub.OfflineModeIsEnabled():
            return (
                f"{reference} was not fetched before, and HF_HUB_OFFLINE is set; unset it to fetch the file"
            )
        case hub.HfHubHTTPError():
            return _explain_status(problem.response.status_code, attempt)
        case InvalidURL() | UnsupportedProtocol():
            return f"{endpoint} is not the address of a hub; {CHECK_ADDRESS}"
        case TransportError():
            return _explain_transport(problem, attempt)
        case OSError():
            return _explain_write_failure(problem, attempt)
    return f"{endpoint} does not answer like a hub ({type(problem).__name__}); {CHECK_ADDRESS}"


def _explain_unknown(attempt: Attempt) -> str:
    no_token = " (none was sent)" if attempt.is_caller else " (none is set)"
    token_hint = "" if attempt.has_token else no_token
    return (
        f"there is no repository {attempt.page}, or it is private; check its name, or "
        f"{attempt.token_advice} a token that can read it{token_hint}"
    )


def _explain_gated(attempt: Attempt) -> str:
    """Returns the message for a repository that requires accepted terms."""
    repository = attempt.reference.repository
    if attempt.has_token:
        return (
            f"{repository} is gated, and the token in use has no access to it; ask for access at "
            f"{attempt.page} with the token's account, or {attempt.token_advice} another token"
        )
    return (
        f"{repository} is gated; accept its conditions at {attempt.page}, make a token at "
        f"{attempt.endpoint}/settings/tokens and {attempt.token_advice} it"
    )


def _explain_status(status: int, attempt: Attempt) -> str:
    """Returns the message for an HTTP status of the hub."""
    reference, endpoint = attempt.reference, attempt.endpoint
    if status == UNAUTHORIZED and not attempt.has_token:
        # Without a token, the hub does not reveal which private repositories exist.
        return _explain_unknown(attempt)
    if status == UNAUTHORIZED:
        return (
            f"{endpoint} refuses the token; {attempt.token_advice} a valid one ({endpoint}/settings/tokens), "
            "or none for a public repository"
        )
    if status == FORBIDDEN:
        repository = reference.repository
        return f"{endpoint} forbids {reference}; {attempt.token_advice} a token that can read {repository}"
    if status == TOO_MANY:
        return (
            f"{endpoint} received too many requests from this server; wait some minutes, or "
            f"{attempt.token_advice} a token; {attempt.retry_advice}"
        )
    if status >= SERVER:
        return f"{endpoint} fails with status {status}; try again later; {attempt.retry_advice}"
    return f"{endpoint} answers {status} for {reference}; {CHECK_ADDRESS}"


def _explain_transport(problem: TransportError, attempt: Attempt) -> str:
    """Returns the message for a failed connection to the hub."""
    endpoint, reference = attempt.endpoint, attempt.reference
    if isinstance(problem, ProxyError):
        return f"the proxy refuses the connection to {endpoint}; check HTTPS_PROXY and NO_PROXY"
    problem_text = (
        "does not answer in time"
        if isinstance(problem, TimeoutException)
        else "cannot be reached or hangs up"
    )
    if attempt.is_caller:
        return f"{endpoint} {problem_text}; {attempt.retry_advice}"
    if attempt.is_cached:
        return f"{endpoint} {problem_text}; the copy of {reference} in the cache stays as it is"
    return f"{endpoint} {problem_text}, and {reference} was not fetched before; check the network; {RESUMES}"


def _explain_write_failure(problem: OSError, attempt: Attempt) -> str:
    """Returns the message for a file that cannot be written to the cache."""
    reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
    if attempt.is_caller:
        return f"the server cannot store {attempt.reference}: {reason}"
    if problem.errno in DISK_FULL:
        return (
            f"cannot write all of {attempt.reference} below {attempt.cache}: {reason}; remove files "
            "(`antiphon models list` shows them), or set ANTIPHON_HUB_CACHE to a directory on a larger disk; "
            f"{RESUMES}"
        )
    return (
        f"cannot store {attempt.reference} below {attempt.cache}: {reason}; correct this, or set "
        "ANTIPHON_HUB_CACHE to another directory"
    )
