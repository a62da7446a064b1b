"""What becomes of a request for vectors, told once: resolve → authorize → attempt → meter, as in `run`. No
stage is another's: what is tried again, and how a request ended, is said where generations have it said."""

from dataclasses import replace
from functools import partial

from antiphon.domain.context import Context
from antiphon.domain.embedding import EmbeddingRequest, Embeddings
from antiphon.engines.base import TextEmbedding
from antiphon.engines.registry import Models
from antiphon.errors import UnsupportedParameter
from antiphon.pipeline.attempt import patiently
from antiphon.pipeline.meter import OK, ending
from antiphon.pipeline.resolve import resolve
from antiphon.telemetry.logs import record
from antiphon.telemetry.metrics import Metrics


async def embed(
    models: Models, request: EmbeddingRequest, context: Context, metrics: Metrics, patience: float
) -> Embeddings:
    """The vectors; tried again while nothing was begun and the failure allows it. Cancelling ends the work.

    Raises ModelNotFound, PermissionDenied for a model that the caller's key is not for, and
    UnsupportedParameter for one that makes none.
    """
    model = resolve(models, request.model, context.actor)
    request = replace(request, model=model.name)
    engine = model.engine
    if not isinstance(engine, TextEmbedding):
        raise UnsupportedParameter(
            f"{request.model} makes no vectors; name an embedding model", param="model"
        )
    began, found = context.clock.monotonic(), None
    status = OK
    try:
        found = await patiently(engine, partial(engine.embed, request, context), context, patience)
    except BaseException as error:
        status = ending(error, context)
        raise
    finally:
        seconds = context.clock.monotonic() - began
        tokens = 0 if found is None else found.prompt_tokens
        metrics.embedded(request.model, status, tokens, seconds)
        record(
            "embedding",
            request_id=context.request_id,
            actor=context.actor.id,
            model=request.model,
            status=status,
            inputs=len(request.inputs),
            prompt_tokens=tokens,
            total_ms=round(seconds * 1000, 1),
        )
    return found
