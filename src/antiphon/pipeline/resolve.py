"""From the name that a caller used to the model that serves it."""

from antiphon.domain.identity import Actor
from antiphon.engines.registry import Model, Models
from antiphon.errors import PermissionDenied


def resolve(models: Models, name: str, actor: Actor) -> Model:
    """The model of that name, also under an alias. Raises ModelNotFound, and PermissionDenied for a model
    that the actor's key is not for."""
    model = models.get(name, actor.may_use)
    authorize(actor, model, name)
    return model


def authorize(actor: Actor, model: Model, name: str) -> None:
    """Raises PermissionDenied for a model that the actor's key is not for, whatever the `name` that it was
    asked by; tells of no other."""
    if not actor.may_use(model.name):
        raise PermissionDenied(f"this key is not for the model {name}", param="model")


def authorize_name(actor: Actor, name: str, param: str) -> None:
    """Raises PermissionDenied where the actor's key is for no model of that name, whether there is one or
    not."""
    if not actor.may_use(name):
        raise PermissionDenied(f"this key is not for the model {name}", param=param)
