"""Makes calls with fireworks-ai, unchanged, as `tests.contract.sdk_calls` says. A line of standard input also
has a `base_url` and a `line`:

- `client`, which has fireworks.client: `Completion.create`, `ChatCompletion.acreate`, `Model.list`,
  `Fireworks.completions.create`;
- `sdk`: `Fireworks.completions.create`, `AsyncFireworks.chat.completions.create`.
"""

from functools import cache
from typing import Any

from tests.contract.sdk_calls import Owners, serve_calls

KEY = "none"


def make_owners(told: dict[str, Any]) -> Owners:
    """What the line offers to call."""
    return {"client": client_line, "sdk": sdk_line}[told["line"]](told["base_url"])


def client_line(base_url: str) -> Owners:
    """What fireworks-ai 0.15 offers to call, by its names there."""
    from fireworks import client

    client.api_key, client.base_url = KEY, base_url
    names = {name: getattr(client, name) for name in ("Completion", "ChatCompletion", "Model")}
    return names | make_clients(client, base_url)


def sdk_line(base_url: str) -> Owners:
    """The two clients of the current fireworks-ai; answers that are not of its types are errors."""
    import fireworks

    return make_clients(fireworks, base_url, max_retries=0, timeout=50, _strict_response_validation=True)


@cache
def make_clients(module: Any, base_url: str, **options: Any) -> Owners:
    """Clients that keep their connections."""
    names = ("Fireworks", "AsyncFireworks")
    return {name: getattr(module, name)(api_key=KEY, base_url=base_url, **options) for name in names}


if __name__ == "__main__":
    serve_calls(make_owners)
