"""The certificates that the suite's clients trust: one, of which nobody has the key.

Each client of HTTP reads all certificates that the machine trusts, which takes 20 to 50 ms of CPU, and the
suite makes thousands of clients that speak only with loopback. Servers of TLS bring their own certificates.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

VARIABLE = "SSL_CERT_FILE"
"""OpenSSL and the clients read it, also in the processes that tests start."""
ONE = Path(__file__).parents[1] / "fixtures" / "nobody.pem"
_GIVEN = os.environ.get(VARIABLE)


def trust_nobody() -> None:
    os.environ[VARIABLE] = str(ONE)


@contextmanager
def trust_as_given() -> Iterator[None]:
    """For tests that install packages: what the machine trusts, in this context."""
    if _GIVEN is None:
        os.environ.pop(VARIABLE, None)
    else:
        os.environ[VARIABLE] = _GIVEN
    yield
    trust_nobody()
