"""An OpenID Connect issuer for tests: its keys, tokens and documents."""

import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from antiphon.auth.signing_keys import DISCOVERY
from antiphon.errors import IssuerUnavailable

ADDRESS = "https://issuer.example"
AUDIENCE = "antiphon"
KEYS = ADDRESS + "/keys"


class SigningKey:
    """A key pair of the issuer and its algorithm."""

    def __init__(self, kid, algorithm="ES256"):
        self.kid, self.algorithm = kid, algorithm
        self.private, public = _elliptic() if algorithm == "ES256" else _rsa()
        self.public = json.loads(public) | {"kid": kid, "use": "sig", "alg": algorithm}


def _elliptic():
    private = ec.generate_private_key(ec.SECP256R1())
    return private, jwt.algorithms.ECAlgorithm.to_jwk(private.public_key())


def _rsa():
    private = rsa.generate_private_key(65537, 2048)
    return private, jwt.algorithms.RSAAlgorithm.to_jwk(private.public_key())


class Issuer:
    """Serves its discovery document and keys; `fetched_urls` records the requests."""

    def __init__(self, *keys, address=ADDRESS):
        self.address = address
        self.keys = list(keys) or [SigningKey("one")]
        self.fetched_urls = []
        self.is_down = False

    def documents(self):
        keys = self.address + "/keys"
        return {
            self.address + DISCOVERY: {"issuer": self.address, "jwks_uri": keys},
            keys: {"keys": [key.public for key in self.keys]},
        }

    async def fetch(self, url):
        self.fetched_urls.append(url)
        if self.is_down:
            raise IssuerUnavailable("away")
        return json.dumps(self.documents()[url]).encode()

    def token(self, now, key=None, headers=None, **changes):
        """Issues a token for ann that is valid for an hour; a claim of None is omitted."""
        claims = {
            "iss": self.address,
            "aud": AUDIENCE,
            "sub": "1234",
            "email": "ann@example.org",
            "name": "Ann",
            "iat": int(now),
            "exp": int(now) + 3600,
        } | changes
        payload = {name: value for name, value in claims.items() if value is not None}
        key = key or self.keys[0]
        return jwt.encode(payload, key.private, key.algorithm, {"kid": key.kid} | (headers or {}))


@contextmanager
def listening(issuer):
    """Answers for the issuer on a free port of this machine."""

    class Answering(BaseHTTPRequestHandler):
        def do_GET(self):
            issuer.fetched_urls.append(self.path)
            found = issuer.documents().get(issuer.address + self.path)
            self.send_response(404 if found is None else 200)
            self.end_headers()
            self.wfile.write(json.dumps(found).encode())

        def log_message(self, *said):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answering)
    issuer.address = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield issuer
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
