"""Makes calls with scale-gp, unchanged, as `tests.contract.sdk_calls` says: `SGPClient.completions.create`,
`AsyncSGPClient.beta.chat.completions.create`. A line of standard input also has the `options` of the clients.
The response format "Person" is a class, which is the only kind that the client takes as an argument.
"""

from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tests.contract.sdk_calls import Owners, serve_calls


class Person(BaseModel):
    """What an answer tells of somebody."""

    model_config = ConfigDict(extra="forbid")
    name: Annotated[str, Field(max_length=9)]
    age: Annotated[int, Field(le=120)]


def make_owners(told: dict[str, Any]) -> Owners:
    """Both clients with these options."""
    return make_clients(**told["options"])


@cache
def make_clients(**options: Any) -> Owners:
    """Clients that keep their connections."""
    import scale_gp

    return {name: getattr(scale_gp, name)(**options) for name in ("SGPClient", "AsyncSGPClient")}


def prepare(given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call."""
    return given | ({"response_format": Person} if given.get("response_format") == "Person" else {})


if __name__ == "__main__":
    serve_calls(make_owners, prepare)
