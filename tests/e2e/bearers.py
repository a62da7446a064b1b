"""A chat request, and the header of a key."""

CHAT = {"model": "cantor", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}


def bearer(token):
    return {"authorization": f"Bearer {token.strip()}"}
