"""Every failure that Antiphon names, as one tree, independent of any framework or dialect.

    AntiphonError                          status  code                         retryable
    ├── RequestError                       400     invalid_request
    │   ├── MalformedBody                  400     invalid_json
    │   ├── InvalidValue                   400     invalid_value
    │   ├── MissingParameter               400     missing_required_parameter
    │   ├── UnknownParameter               400     unknown_parameter
    │   ├── UnsupportedParameter           400     unsupported_parameter
    │   ├── ContextLengthExceeded          400     context_length_exceeded
    │   ├── TemplateRefused                400     template_refused
    │   ├── LargerThanLimit                400     larger_than_limit
    │   ├── AuthenticationFailed           401     invalid_api_key
    │   ├── PermissionDenied               403     permission_denied
    │   ├── ModelNotFound                  404     model_not_found
    │   ├── RouteNotFound                  404     route_not_found
    │   ├── NotFound                       404     not_found
    │   ├── MethodNotAllowed               405     method_not_allowed
    │   ├── RequestTimedOut                408     request_timeout
    │   ├── Conflict                       409     conflict
    │   ├── BodyTooLarge                   413     body_too_large
    │   ├── UnsupportedMediaType           415     unsupported_media_type
    │   ├── HeadersTooLarge                431     headers_too_large
    │   ├── Overloaded                     429     overloaded                   yes
    │   ├── RateLimited                    429     rate_limit_exceeded          yes
    │   └── BudgetExceeded                 429     insufficient_quota
    ├── EngineError                        500     engine_error
    │   ├── EngineBusy                     503     engine_busy                  yes
    │   ├── EngineUnavailable              503     engine_unavailable           yes
    │   │   └── EngineLost                 503     engine_lost                  yes, once
    │   ├── EngineDied                     503     engine_died
    │   └── DeadlineExceeded               504     deadline_exceeded
    ├── ServerBusy                         503     server_busy                  yes
    ├── StoreUnavailable                   503     store_unavailable            yes
    ├── LimitsUnavailable                  503     limits_unavailable           yes
    ├── LedgerFull                         503     ledger_full                  yes
    ├── IssuerUnavailable                  503     issuer_unavailable           yes
    ├── HubUnavailable                     503     hub_unavailable              yes
    ├── InternalError                      500     internal_error
    └── StartupError                       (the process ends with a non-zero status and one line)
        ├── SettingsError                          invalid_settings
        ├── ModelFileError                         invalid_model_file
        ├── ModelFetchError                        model_fetch_failed
        ├── LibraryError                           engine_library_unusable
        ├── LoadError                              model_load_failed
        ├── StoreRefused                           store_refused
        └── AddressUnavailable                     address_unavailable

`retryable` is said of a failure before the first token: the same request may be tried again, here or
elsewhere, without
doing anything twice. EngineDied is not: the request was in the batch of the process that died, and may be
what killed it.
A dialect gives an error its wire shape; a process border carries it as `ErrorReport` and raises it again on
the other side.
"""

from dataclasses import dataclass
from typing import ClassVar


class AntiphonError(Exception):
    """Base of all errors. `message` is for the caller: it names the thing and says what to do, and holds no
    secret."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        cause: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        """The request field that is at fault, as the caller spelt it: `messages[0].content`."""
        self.retry_after = retry_after
        """Seconds after which the caller may try again."""
        self.cause = cause
        """For the log alone, where `message` is not all; it holds no words of a request or an answer."""


class RequestError(AntiphonError):
    """The caller can mend it: a field, a credential, a path."""

    status = 400
    code = "invalid_request"


class MalformedBody(RequestError):
    """The body is not the JSON object that the route takes."""

    code = "invalid_json"


class InvalidValue(RequestError):
    """A known field holds a value of the wrong type or out of range."""

    code = "invalid_value"


class MissingParameter(RequestError):
    """A required field is absent."""

    code = "missing_required_parameter"


class UnknownParameter(RequestError):
    """A field that nobody knows; refused, since dropping it would be a silent lie."""

    code = "unknown_parameter"


class UnsupportedParameter(RequestError):
    """A field of the dialect that is not built, or that this model cannot do."""

    code = "unsupported_parameter"


class ContextLengthExceeded(RequestError):
    """Prompt and requested tokens do not fit the model's context."""

    code = "context_length_exceeded"


class TemplateRefused(RequestError):
    """The chat template refused these messages, or passed a limit while rendering them."""

    code = "template_refused"


class AuthenticationFailed(RequestError):
    """No credential, or one that is not accepted; the sentence is the same for all."""

    status = 401
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    """The caller is known, or local, and may not do this."""

    status = 403
    code = "permission_denied"


class ModelNotFound(RequestError):
    """No model of that name that this caller may use."""

    status = 404
    code = "model_not_found"


class NotFound(RequestError):
    """No such thing, or none that this caller may know of."""

    status = 404
    code = "not_found"


class Conflict(RequestError):
    """Something of that name or address is there already, or the change contradicts what is."""

    status = 409
    code = "conflict"


class RouteNotFound(RequestError):
    """No such path."""

    status = 404
    code = "route_not_found"


class MethodNotAllowed(RequestError):
    """The path exists, with other methods."""

    status = 405
    code = "method_not_allowed"
    allowed: tuple[str, ...] = ()
    """Those methods; set by whoever raises it."""


class RequestTimedOut(RequestError):
    """The request did not arrive whole in time."""

    status = 408
    code = "request_timeout"


class BodyTooLarge(RequestError):
    """The body passes the limit of the settings; refused before it is read whole."""

    status = 413
    code = "body_too_large"


class UnsupportedMediaType(RequestError):
    """The content type or encoding of the body is not taken."""

    status = 415
    code = "unsupported_media_type"


class HeadersTooLarge(RequestError):
    """The headers pass the limit; refused before they are complete."""

    status = 431
    code = "headers_too_large"


class Overloaded(RequestError):
    """This caller has more waiting than the server is willing to queue for one."""

    status = 429
    code = "overloaded"
    retryable = True


class RateLimited(RequestError):
    """A limit of a minute, or of requests at once, has no room for this request. `retry_after`: when it has,
    as far as is known."""

    status = 429
    code = "rate_limit_exceeded"
    retryable = True
    limit: str | None = None
    """Id of the limit that says no; set by whoever raises it."""
    standings: tuple[object, ...] = ()
    """How the request's limits stand (`domain.limits.Standing`), the one that says no first; set likewise."""


class BudgetExceeded(RequestError):
    """A limit of a day, week or month has no room for this request; trying again before it resets is no
    use."""

    status = 429
    code = "insufficient_quota"
    limit: str | None = None
    """As of RateLimited."""
    standings: tuple[object, ...] = ()
    """As of RateLimited."""


class LargerThanLimit(RequestError):
    """The request alone takes more than a limit has, so waiting is no use: it has to ask for less."""

    code = "larger_than_limit"
    limit: str | None = None
    """As of RateLimited."""
    standings: tuple[object, ...] = ()
    """As of RateLimited."""


class EngineError(AntiphonError):
    """The engine could not finish this generation."""

    status = 500
    code = "engine_error"


class EngineBusy(EngineError):
    """The engine's queue is full; nothing of the request was begun. `retry_after` is an estimate of when it
    is not."""

    status = 503
    code = "engine_busy"
    retryable = True


class EngineUnavailable(EngineError):
    """The engine is not there now (starting, restarting, given up); nothing of the request was begun."""

    status = 503
    code = "engine_unavailable"
    retryable = True


class EngineLost(EngineUnavailable):
    """The engine's process ended while this request waited for it. Worth one more try: it was not in the
    batch, as far
    as was heard, but a request that ends two processes is no accident."""

    code = "engine_lost"


class EngineDied(EngineError):
    """The engine's process ended while this request was in its batch."""

    status = 503
    code = "engine_died"


class DeadlineExceeded(EngineError):
    """The request's deadline passed before it finished."""

    status = 504
    code = "deadline_exceeded"


class ServerBusy(AntiphonError):
    """The server holds as many bytes of requests as it may, or its machine is too busy; nothing was begun."""

    status = 503
    code = "server_busy"
    retryable = True


class StoreUnavailable(AntiphonError):
    """The database does not answer, or failed; nothing was changed, or the message says it may be."""

    status = 503
    code = "store_unavailable"
    retryable = True


class LimitsUnavailable(AntiphonError):
    """Nobody can say whether a limit has room, and the operator lets nothing pass then; nothing was begun."""

    status = 503
    code = "limits_unavailable"
    retryable = True


class LedgerFull(AntiphonError):
    """There is no room to write down what this request takes, so it was not begun."""

    status = 503
    code = "ledger_full"
    retryable = True


class IssuerUnavailable(AntiphonError):
    """The keys with which tokens of single sign-on are checked cannot be had; nothing was begun."""

    status = 503
    code = "issuer_unavailable"
    retryable = True


class HubUnavailable(AntiphonError):
    """The hub that an adapter comes from is away, fails, or was asked too often; nothing was changed."""

    status = 503
    code = "hub_unavailable"
    retryable = True


class InternalError(AntiphonError):
    """A defect of ours; the caller gets the request id and no detail."""


class StartupError(AntiphonError):
    """The server cannot start; the process prints the sentence and ends with a non-zero status."""

    code = "startup_failed"


class SettingsError(StartupError):
    """A flag, environment variable or settings file is wrong."""

    code = "invalid_settings"


class ModelFileError(StartupError):
    """The model file is missing, cut short, of another format, or its header contradicts itself."""

    code = "invalid_model_file"


class ModelFetchError(StartupError):
    """A model file could not be had from the hub, or not be kept here."""

    code = "model_fetch_failed"


class LibraryError(StartupError):
    """No usable engine library: not found, not loadable, or of an unknown ABI."""

    code = "engine_library_unusable"


class LoadError(StartupError):
    """The library refused the model, or memory did not suffice."""

    code = "model_load_failed"


class StoreRefused(StartupError):
    """The database's address is wrong, or its tables are of another version."""

    code = "store_refused"


class AddressUnavailable(StartupError):
    """The address to listen on is taken or not of this machine."""

    code = "address_unavailable"


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """An error as plain values, for another process."""

    code: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    cause: str | None = None

    @staticmethod
    def of(error: AntiphonError) -> "ErrorReport":
        return ErrorReport(error.code, error.message, error.param, error.retry_after, error.cause)

    def to_exception(self) -> AntiphonError:
        """Builds the error of its own class; an unknown code becomes an InternalError."""
        found = index_by_code().get(self.code, InternalError)
        return found(self.message, param=self.param, retry_after=self.retry_after, cause=self.cause)


def index_by_code() -> dict[str, type[AntiphonError]]:
    """Every error class by its code."""
    found: dict[str, type[AntiphonError]] = {}
    pending: list[type[AntiphonError]] = [AntiphonError]
    while pending:
        cls = pending.pop()
        found[cls.code] = cls
        pending.extend(cls.__subclasses__())
    found["internal_error"] = InternalError
    return found
