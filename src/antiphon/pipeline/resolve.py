"""From the name that a caller used to the model that serves it."""

from antiphon.domain.request import GenerationRequest
from antiphon.engines.registry import Model, Models


def resolve(models: Models, request: GenerationRequest) -> Model:
    """The model of the request, also under an alias. Raises ModelNotFound."""
    return models.get(request.model)
