"""Which model of a server a chat or a measurement asks: one that can chat. Works with any OpenAI-compatible
server: one that says nothing of its models is believed to have such."""

from antiphon.cli.client import CallFailed, Card, Client

ABSENT = (404, 405)
"""What a server answers about a model that it lacks, or where it tells of single ones nothing."""


def first(client: Client) -> str:
    """The first model that generates. Raises CallFailed."""
    names = client.models()
    if not names:
        raise CallFailed(f"{client.url} has no model")
    for name in names:
        if not _told(client, name).embeds:
            return name
    raise CallFailed(f"{client.url} has no model that chats: {', '.join(names)} make vectors of texts")


def named(client: Client, name: str) -> str:
    """The model of this name, listed or an alias. Raises CallFailed."""
    try:
        card = client.card(name)
    except CallFailed as problem:
        if problem.status not in ABSENT:
            raise
        if name not in (names := client.models()):
            has = ", ".join(names) or "none"
            raise CallFailed(f"there is no model {name!r}; the server has: {has}") from None
        return name
    if card.embeds:
        raise CallFailed(f"{name} makes vectors of texts and cannot chat; name a model that generates")
    return name


def _told(client: Client, name: str) -> Card:
    """What the server says of a model that it lists; nothing, where it has no such page."""
    try:
        return client.card(name)
    except CallFailed as problem:
        if not problem.status:
            raise
        return Card()
