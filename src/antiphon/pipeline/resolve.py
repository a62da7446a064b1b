"""Finds the model of a name in a request, and checks that the actor may use it."""

from antiphon.domain.identity import Actor
from antiphon.engines.registry import Model, ModelRegistry
from antiphon.errors import PermissionDenied


def resolve(models: ModelRegistry, name: str, actor: Actor) -> Model:
    """Returns the model of a name or alias. Raises ModelNotFound, and PermissionDenied if the actor's key
    does not allow the model."""
    model = models.get(name, actor.may_use, actor.project)
    authorize(actor, model, name)
    return model


def authorize(actor: Actor, model: Model, name: str) -> None:
    """Raises PermissionDenied if the actor's key does not allow the model. The error repeats only the
    caller's `name`."""
    if not actor.may_use(model.name):
        raise PermissionDenied(f"this key may not use the model {name}", param="model")


def authorize_name(actor: Actor, name: str, param: str) -> None:
    """Raises PermissionDenied if the actor's key does not allow this name, whether the model exists or
    not."""
    if not actor.may_use(name):
        raise PermissionDenied(f"this key may not use the model {name}", param=param)
