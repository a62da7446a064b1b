"""A process that ends keys while the test does; started by tests/services/test_changes.py.

`python -m tests.services.racer URL`: for each id that it reads it revokes the key, and prints how that ended.
"""

import asyncio
import sys

from antiphon.errors import RequestError
from tests.support.tenancy import ADMIN, node


def say(word: str) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


async def main(url: str) -> None:
    with node(url, feed=False) as racer:
        await racer.changes.load()
        say("ready")
        while id_ := (await asyncio.to_thread(sys.stdin.readline)).strip():
            try:
                await racer.tenants.revoke_key(ADMIN, id_)
                say("revoked")
            except RequestError as refused:
                say(type(refused).__name__)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
