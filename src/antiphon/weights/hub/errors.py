"""Explains a failed fetch and its remedy: one sentence for each error of the library, network and disk. It
never quotes their own texts, which hold addresses that may be signed. It is imported only after a failure,
with the library."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from httpx2 import InvalidURL, ProxyError, TimeoutException, TransportError, UnsupportedProtocol
from huggingface_hub import errors as hub

from antiphon.weights.hub.reference import Reference

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
RESUMES = "what has arrived is kept, and the same command goes on from there"
MEND = "check ANTIPHON_HUB_ENDPOINT or HF_ENDPOINT"
NOT_OF_DISK = (hub.HfHubHTTPError, hub.OfflineModeIsEnabled, TransportError)
UNAUTHORIZED, FORBIDDEN, TOO_MANY, SERVER = 401, 403, 429, 500


@dataclass(frozen=True, slots=True)
class Attempt:
    """What was tried."""

    reference: Reference
    endpoint: str
    cache: Path
    has_token: bool
    is_here: bool
    """Whether the reference was fetched before."""
    is_caller: bool = False
    """Whether a caller of the server asked for it, who sees neither its environment nor its disk."""

    @property
    def page(self) -> str:
        return f"{self.endpoint}/{self.reference.repository}"

    @property
    def give(self) -> str:
        """How the reader gives a token, before the words for it."""
        return "send in hf_token" if self.is_caller else "set HF_TOKEN to"

    @property
    def resumes(self) -> str:
        return "nothing was kept; try again" if self.is_caller else RESUMES


def find_blame(problem: Exception, has_token: bool) -> str | None:
    """Returns what must be changed: `revision` or `token` of the request, the `disk`, or the `hub` if it is
    not available. Returns None for the model's name."""
    if isinstance(problem, hub.RevisionNotFoundError):
        return "revision"
    if isinstance(problem, TransportError) and not isinstance(problem, UnsupportedProtocol):
        return "hub"
    if isinstance(problem, OSError) and not isinstance(problem, NOT_OF_DISK):
        return "disk"
    status = problem.response.status_code if isinstance(problem, hub.HfHubHTTPError) else 0
    if status == TOO_MANY or status >= SERVER:
        return "hub"
    return "token" if has_token and status in (UNAUTHORIZED, FORBIDDEN) else None


def explain(problem: Exception, attempt: Attempt) -> str:
    """Returns the sentence that explains the problem and its remedy."""
    reference, endpoint = attempt.reference, attempt.endpoint
    match problem:
        case hub.GatedRepoError():
            return _explain_gated(attempt)
        case hub.RepositoryNotFoundError():
            return _explain_unknown(attempt)
        case hub.RevisionNotFoundError():
            return (
                f"{reference.repository} has no revision {reference.revision}; {attempt.page}/commits shows "
                "which there are"
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
            return f"{endpoint} is no address of a hub; {MEND}"
        case TransportError():
            return _explain_transport(problem, attempt)
        case OSError():
            return _explain_write_failure(problem, attempt)
    return f"{endpoint} does not speak as a hub does ({type(problem).__name__}); {MEND}"


def _explain_unknown(attempt: Attempt) -> str:
    none = " (none was sent)" if attempt.is_caller else " (none is set)"
    token_hint = "" if attempt.has_token else none
    return (
        f"there is no repository {attempt.page}, or it is private; check its name, or {attempt.give} a "
        f"token that may read it{token_hint}"
    )


def _explain_gated(attempt: Attempt) -> str:
    """Returns the message for a repository that requires accepted terms."""
    repository = attempt.reference.repository
    if attempt.has_token:
        return (
            f"{repository} is gated, and the token in use has no access to it; ask for it at {attempt.page} "
            f"with the token's account, or {attempt.give} another token"
        )
    return (
        f"{repository} is gated; accept its conditions at {attempt.page}, make a token at "
        f"{attempt.endpoint}/settings/tokens and {attempt.give} it"
    )


def _explain_status(status: int, attempt: Attempt) -> str:
    """Returns the message for an HTTP status of the hub."""
    reference, endpoint = attempt.reference, attempt.endpoint
    if status == UNAUTHORIZED and not attempt.has_token:
        return _explain_unknown(
            attempt
        )  # the hub does not tell strangers which private repositories there are
    if status == UNAUTHORIZED:
        return (
            f"{endpoint} refuses the token; {attempt.give} a valid one ({endpoint}/settings/tokens), or none "
            "for a public repository"
        )
    if status == FORBIDDEN:
        return f"{endpoint} forbids {reference}; {attempt.give} a token that may read {reference.repository}"
    if status == TOO_MANY:
        return (
            f"{endpoint} has had too many requests from here; wait some minutes, or {attempt.give} a token; "
            f"{attempt.resumes}"
        )
    if status >= SERVER:
        return f"{endpoint} fails with status {status}; try again later; {attempt.resumes}"
    return f"{endpoint} answers {status} for {reference}; {MEND}"


def _explain_transport(problem: TransportError, attempt: Attempt) -> str:
    """Returns the message for a failed connection to the hub."""
    endpoint, reference = attempt.endpoint, attempt.reference
    if isinstance(problem, ProxyError):
        return f"the proxy does not let {endpoint} be reached; check HTTPS_PROXY and NO_PROXY"
    how = (
        "does not answer in time"
        if isinstance(problem, TimeoutException)
        else "cannot be reached or hangs up"
    )
    if attempt.is_caller:
        return f"{endpoint} {how}; {attempt.resumes}"
    if attempt.is_here:
        return f"{endpoint} {how}; the copy of {reference} that was fetched before stays as it is"
    return f"{endpoint} {how}, and {reference} was not fetched before; check the network; {RESUMES}"


def _explain_write_failure(problem: OSError, attempt: Attempt) -> str:
    """Returns the message for a file that cannot be written to the cache."""
    reason = os.strerror(problem.errno) if problem.errno else type(problem).__name__
    if attempt.is_caller:
        return f"the server cannot keep {attempt.reference}: {reason}"
    if problem.errno in FULL:
        return (
            f"cannot write all of {attempt.reference} below {attempt.cache}: {reason}; make room (`antiphon "
            "models list` shows what is there), or set ANTIPHON_HUB_CACHE to a directory on a larger disk; "
            f"{RESUMES}"
        )
    return (
        f"cannot keep {attempt.reference} below {attempt.cache}: {reason}; mend that, or set "
        "ANTIPHON_HUB_CACHE to another directory"
    )
