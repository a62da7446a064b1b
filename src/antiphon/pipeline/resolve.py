"""From the name that a caller used to the model that serves it."""

from antiphon.domain.identity import Actor
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.pipeline.authorize import authorize


def resolve(models: ModelRegistry, name: str, actor: Actor) -> Model:
    """The model of that name, also under an alias. Raises ModelNotFound, and PermissionDenied for a model
    that the actor's key is not for."""
    model = models.get(name, actor.may_use)
    authorize(actor, model, name)
    return model
