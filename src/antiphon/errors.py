"""Every failure that Antiphon names, as one tree, independent of any framework or dialect.

    AntiphonError                          status  code                         retryable
    ├── RequestError                       400     invalid_request
    │   ├── MalformedBody                  400     invalid_json
    │   ├── InvalidValue                   400     invalid_value
    │   ├── MissingParameter               400     missing_required_parameter
    │   ├── UnknownParameter               400     unknown_parameter
    │   ├── UnsupportedParameter           400     unsupported_parameter
    │   ├── ContextLengthExceeded          400     context_length_exceeded
    │   ├── PreviousResponseNotFound       400     previous_response_not_found
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
    │   ├── KnowledgeLimitReached          409     knowledge_limit_reached
    │   ├── BodyTooLarge                   413     body_too_large
    │   ├── UnsupportedMediaType           415     unsupported_media_type
    │   ├── HeadersTooLarge                431     headers_too_large
    │   ├── FeatureNotServed               501     not_implemented
    │   ├── Overloaded                     429     overloaded                   yes
    │   ├── RateLimited                    429     rate_limit_exceeded          yes
    │   └── BudgetExceeded                 429     insufficient_quota
    ├── EngineError                        500     engine_error
    │   ├── EngineBusy                     503     engine_busy                  yes
    │   ├── EngineUnavailable              503     engine_unavailable           yes
    │   │   ├── ModelNotLoaded             503     model_not_loaded             yes
    │   │   └── EngineLost                 503     engine_lost                  yes, once
    │   ├── EngineDied                     503     engine_died
    │   └── DeadlineExceeded               504     deadline_exceeded
    ├── ProviderError                      502     provider_error
    │   ├── ProviderFailed                 502     provider_failed              yes
    │   ├── ProviderUnavailable            503     provider_unavailable         yes
    │   ├── ProviderTimeout                504     provider_timeout             yes
    │   ├── ProviderRateLimited            429     provider_rate_limited        yes
    │   ├── ProviderRefused                400     provider_refused
    │   ├── ProviderModelMissing           404     provider_model_not_found
    │   ├── ProviderKeyRefused             502     provider_key_refused
    │   └── ProviderBroken                 502     provider_stream_broken
    ├── ServerBusy                         503     server_busy                  yes
    ├── StoreUnavailable                   503     store_unavailable            yes
    ├── KnowledgeUnavailable               503     knowledge_unavailable        yes
    │   └── KnowledgeTableDamaged          503     knowledge_table_damaged
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

`retryable` applies to a failure before the first token: the same request can be tried again, here or
elsewhere, and nothing is done twice. EngineDied is not retryable: the request was in the batch of the process
that died, and may be the cause.

A dialect gives an error its wire format. Between processes it travels as `ErrorReport`, and the receiver
raises it again.
"""

from dataclasses import dataclass
from typing import ClassVar

OVERFLOW_WORDS = "Input tokens exceed the configured limit"
"""OpenAI's words for a prompt that is too long. LangChain knows the error by them, because the text of
OpenAI's newer client has no code."""


class AntiphonError(Exception):
    """Base of all errors. `message` is for the caller: it names the problem and the remedy, and contains no
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
        """The request field at fault, in the caller's notation: `messages[0].content`."""
        self.retry_after = retry_after
        """Seconds after which the caller may try again."""
        self.cause = cause
        """More information for the log; it contains no text of a request or an answer."""


class RequestError(AntiphonError):
    """The request is wrong: a field, a credential or a path."""

    status = 400
    code = "invalid_request"


class MalformedBody(RequestError):
    """The body is not the JSON object that the route requires."""

    code = "invalid_json"


class InvalidValue(RequestError):
    """A known field has a value of the wrong type or out of range."""

    code = "invalid_value"


class MissingParameter(RequestError):
    """A required field is absent."""

    code = "missing_required_parameter"


class UnknownParameter(RequestError):
    """The field is unknown."""

    code = "unknown_parameter"


class UnsupportedParameter(RequestError):
    """Antiphon does not implement the field, or this model does not support it."""

    code = "unsupported_parameter"
    modality: str | None = None
    """The kind of content that this model does not take, by the words of profiles; set by the code that
    raises the error."""


class ContextLengthExceeded(RequestError):
    """The prompt and the requested tokens do not fit the model's context."""

    code = "context_length_exceeded"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after: float | None = None,
        cause: str | None = None,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        text = message if OVERFLOW_WORDS in message else f"{message} {OVERFLOW_WORDS}."
        super().__init__(text, param=param, retry_after=retry_after, cause=cause)
        self.lengths = lengths
        """The tokens of the prompt, at least, and the most that it can have; None if they are unknown."""


class PreviousResponseNotFound(RequestError):
    """The response that the request continues does not exist, has expired, or belongs to another project."""

    code = "previous_response_not_found"


class TemplateRefused(RequestError):
    """The chat template refused these messages, or needed too much time or memory for them."""

    code = "template_refused"


class AuthenticationFailed(RequestError):
    """The key is missing or not valid."""

    status = 401
    code = "invalid_api_key"


class PermissionDenied(RequestError):
    """The caller does not have the permission."""

    status = 403
    code = "permission_denied"


class ModelNotFound(RequestError):
    """There is no model with this name, or the caller's key does not include it."""

    status = 404
    code = "model_not_found"


class NotFound(RequestError):
    """The object does not exist, or the caller cannot see it."""

    status = 404
    code = "not_found"


class Conflict(RequestError):
    """The name or address is already in use, or the change contradicts the current state."""

    status = 409
    code = "conflict"


class KnowledgeLimitReached(RequestError):
    """The project's knowledge tables are full. Remove something first."""

    status = 409
    code = "knowledge_limit_reached"


class RouteNotFound(RequestError):
    """The path does not exist."""

    status = 404
    code = "route_not_found"


class MethodNotAllowed(RequestError):
    """The path takes other methods."""

    status = 405
    code = "method_not_allowed"
    allowed: tuple[str, ...] = ()
    """The methods that exist; set by the code that raises the error."""


class RequestTimedOut(RequestError):
    """The complete request did not arrive in time."""

    status = 408
    code = "request_timeout"


class BodyTooLarge(RequestError):
    """The body is larger than the limit in the settings."""

    status = 413
    code = "body_too_large"


class UnsupportedMediaType(RequestError):
    """The content type or encoding of the body is not supported."""

    status = 415
    code = "unsupported_media_type"


class HeadersTooLarge(RequestError):
    """The headers are larger than the limit."""

    status = 431
    code = "headers_too_large"


class FeatureNotServed(RequestError):
    """This server does not have this feature of the other product."""

    status = 501
    code = "not_implemented"


class Overloaded(RequestError):
    """The caller has too many waiting requests."""

    status = 429
    code = "overloaded"
    retryable = True


class RateLimited(RequestError):
    """A limit per minute, or of concurrent requests, has no room for this request.

    `retry_after`: seconds until it has room, if known.
    """

    status = 429
    code = "rate_limit_exceeded"
    retryable = True
    limit: str | None = None
    """Id of the limit that refuses; set by the code that raises the error."""
    statuses: tuple[object, ...] = ()
    """The status of each limit of the request (`domain.limits.LimitStatus`). The limit that refuses comes
    first. Set by the code that raises the error."""


class BudgetExceeded(RequestError):
    """A budget (a limit per day, week or month) has no room for this request.

    It is useless to try again before the limit resets.
    """

    status = 429
    code = "insufficient_quota"
    limit: str | None = None
    """As in RateLimited."""
    statuses: tuple[object, ...] = ()
    """As in RateLimited."""


class LargerThanLimit(RequestError):
    """This one request is larger than a limit. Ask for less; to wait does not help."""

    code = "larger_than_limit"
    limit: str | None = None
    """As in RateLimited."""
    statuses: tuple[object, ...] = ()
    """As in RateLimited."""


class EngineError(AntiphonError):
    """The engine failed in this generation."""

    status = 500
    code = "engine_error"


class EngineBusy(EngineError):
    """The engine's queue is full. Nothing was computed.

    `retry_after`: the estimated seconds until it has room.
    """

    status = 503
    code = "engine_busy"
    retryable = True


class EngineUnavailable(EngineError):
    """The engine starts, restarts, or has ended after several crashes. Nothing was computed."""

    status = 503
    code = "engine_unavailable"
    retryable = True


class ModelNotLoaded(EngineUnavailable):
    """The model is loaded on request, and cannot be loaded now: the memory is full, or the load failed."""

    code = "model_not_loaded"


class EngineLost(EngineUnavailable):
    """The engine's process ended while the request waited.

    The request may be tried once more: it was probably not in the batch. A request that ends two processes is
    probably their cause.
    """

    code = "engine_lost"


class EngineDied(EngineError):
    """The engine's process ended while it computed this request."""

    status = 503
    code = "engine_died"


class DeadlineExceeded(EngineError):
    """The request took too long. For a generation the limit is `request_timeout`."""

    status = 504
    code = "deadline_exceeded"


class ProviderError(AntiphonError):
    """A vendor did not serve the request. The message names the provider."""

    status = 502
    code = "provider_error"


class ProviderFailed(ProviderError):
    """The vendor failed, or its answer could not be read, before the first event."""

    code = "provider_failed"
    retryable = True


class ProviderUnavailable(ProviderError):
    """The vendor does not answer or is overloaded, or its route is not used for a while after failures."""

    status = 503
    code = "provider_unavailable"
    retryable = True


class ProviderTimeout(ProviderError):
    """The vendor did not begin its answer in time."""

    status = 504
    code = "provider_timeout"
    retryable = True


class ProviderRateLimited(ProviderError):
    """The vendor's own limits have no room. `Retry-After` is the vendor's."""

    status = 429
    code = "provider_rate_limited"
    retryable = True


class ProviderRefused(ProviderError):
    """The vendor refused the request. The message is the vendor's."""

    status = 400
    code = "provider_refused"


class ProviderModelMissing(ProviderError):
    """The vendor has no such model, or the server's key does not allow it."""

    status = 404
    code = "provider_model_not_found"


class ProviderKeyRefused(ProviderError):
    """The vendor refused the server's key. Only the operator can correct this."""

    code = "provider_key_refused"

    is_key_renewed = False
    """Whether the provider has read a new key since, so that the next request may succeed."""


class ProviderBroken(ProviderError):
    """The vendor's stream broke, stopped, or ended without a finish reason, after its first event."""

    code = "provider_stream_broken"


class ServerBusy(AntiphonError):
    """The server has too many bytes of requests, or its machine is too busy. Nothing was computed."""

    status = 503
    code = "server_busy"
    retryable = True


class StoreUnavailable(AntiphonError):
    """The database does not answer, or failed.

    Nothing was changed, unless the message says that a change is possible.
    """

    status = 503
    code = "store_unavailable"
    retryable = True


class KnowledgeUnavailable(AntiphonError):
    """The process of knowledge tables does not answer, or its disk is full.

    Nothing was changed, unless the message says that a change is possible.
    """

    status = 503
    code = "knowledge_unavailable"
    retryable = True


class KnowledgeTableDamaged(KnowledgeUnavailable):
    """The file of a knowledge table is damaged. Restore it from a copy, or delete the table.
    Other tables work."""

    code = "knowledge_table_damaged"
    retryable = False


class LimitsUnavailable(AntiphonError):
    """The limits cannot be checked. Nothing was computed."""

    status = 503
    code = "limits_unavailable"
    retryable = True


class LedgerFull(AntiphonError):
    """The ledger has no room to record this request. Nothing was computed."""

    status = 503
    code = "ledger_full"
    retryable = True


class IssuerUnavailable(AntiphonError):
    """The issuer of single sign-on does not answer, so the token cannot be checked."""

    status = 503
    code = "issuer_unavailable"
    retryable = True


class HubUnavailable(AntiphonError):
    """The hub of an adapter does not answer, fails, or refuses further requests. Nothing was changed."""

    status = 503
    code = "hub_unavailable"
    retryable = True


class InternalError(AntiphonError):
    """A bug of Antiphon. Report it with the request's id."""


class StartupError(AntiphonError):
    """The server cannot start; the process prints the message and ends with a non-zero status."""

    code = "startup_failed"


class SettingsError(StartupError):
    """A flag, environment variable or settings file is wrong."""

    code = "invalid_settings"


class ModelFileError(StartupError):
    """The model file is missing, incomplete, of another format, or its header contradicts itself."""

    code = "invalid_model_file"


class ModelFetchError(StartupError):
    """A model file could not be fetched from the hub, or could not be stored."""

    code = "model_fetch_failed"


class LibraryError(StartupError):
    """No usable engine library: not found, not loadable, or of an unknown ABI."""

    code = "engine_library_unusable"


class LoadError(StartupError):
    """The library refused the model, or there was too little memory."""

    code = "model_load_failed"


class DeviceMemoryExceeded(LoadError):
    """The memory of a device is too small for the layers that were assigned to it."""


class StoreRefused(StartupError):
    """The database's address is wrong, or its tables have another version."""

    code = "store_refused"


class AddressUnavailable(StartupError):
    """The address to listen on is in use or does not belong to this machine."""

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
    def from_error(error: AntiphonError) -> "ErrorReport":
        return ErrorReport(error.code, error.message, error.param, error.retry_after, error.cause)

    def to_exception(self) -> AntiphonError:
        """Builds an error of the class that has this code. An unknown code becomes an InternalError."""
        error_class = index_by_code().get(self.code, InternalError)
        return error_class(self.message, param=self.param, retry_after=self.retry_after, cause=self.cause)


def explain_extra(name: str) -> str:
    """Returns how to install an extra, for messages. Antiphon is in no package index."""
    return f"make serve EXTRAS={name} in a clone, otherwise the wheel with [{name}] (docs/install.md)"


def index_by_code() -> dict[str, type[AntiphonError]]:
    """Returns every error class by its code."""
    classes: dict[str, type[AntiphonError]] = {}
    pending: list[type[AntiphonError]] = [AntiphonError]
    while pending:
        cls = pending.pop()
        classes[cls.code] = cls
        pending.extend(cls.__subclasses__())
    classes["internal_error"] = InternalError
    return classes
