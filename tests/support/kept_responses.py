"""Responses to keep."""

import json

from antiphon.domain.identity import Actor, ActorKind
from antiphon.domain.stored_responses import KeptResponse, StoredResponse, list_item_ids

NOW = 1_800_000_000


def make_actor(project="one"):
    return Actor(ActorKind.SERVICE_KEY, f"key_{project}", project=project)


def make_response(name, previous=None, text="hello", created=NOW):
    """`resp_NAME`, with the items `msg_NAME_in` and `msg_NAME`."""
    asked, answered = (
        json.dumps([{"type": "message", "id": f"msg_{name}{ending}", "text": text}]).encode()
        for ending in ("_in", "")
    )
    body = json.dumps({"id": f"resp_{name}"}).encode()
    return StoredResponse(
        f"resp_{name}", created, None if previous is None else f"resp_{previous}", asked, answered, body
    )


def keep(response, project="one", expires=NOW + 100):
    ids = (*list_item_ids(response.input), *list_item_ids(response.output))
    return KeptResponse(response, project, expires, ids)
