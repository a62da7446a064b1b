"""How long a server with keys takes to refuse one: the same for a key that nobody has and for one that is
nearly right, ended or revoked. Measured over the wire, by turns in random order, and compared by ranks: the
chance that one kind takes longer than the other, which is a half where nobody can tell them apart."""

import random
import sys
import time
from contextlib import suppress

import pytest

from antiphon.auth.secrets import generate_key
from antiphon.domain.tenancy import KeyKind
from antiphon.domain.values import replace
from antiphon.errors import InvalidValue
from tests.support.http_server import request_bytes, serving_edge
from tests.support.keyed_server import OPERATOR, keyed

FEW, MANY = 250, 10_000
NOISE = 5.0
"""Standard deviations of that chance that pass for chance itself."""
ENDED_S = 5e-6
"""Seconds that a key that has ended may take longer or shorter: who sends one has all of it, and a lookup
that finds something may be tenths of a microsecond apart from one that does not. On a quiet machine ranks
tell even that."""
ROUNDS = 20
"""Times that the leaking server is measured at most: the noisier the machine, the more values it takes."""
LEAK_S = 150e-6
"""By how much longer the leaking server takes; a refusal takes a tenth to a third of a millisecond."""


def chance(one, other):
    """That a value of the one is above one of the other, by their ranks; ties count a half."""
    ranked = sorted([(value, 0) for value in one] + [(value, 1) for value in other])
    ranks = sum(rank for rank, (_, of) in enumerate(ranked, 1) if of == 0)
    return (ranks - len(one) * (len(one) + 1) / 2) / (len(one) * len(other))


def bound(count):
    """How far that chance is from a half at most, of so many values each that are drawn alike."""
    return NOISE * ((2 * count + 1) / (12 * count * count)) ** 0.5


async def refused_keys(server):
    """Keys that are refused, each made when it is asked for, by kind."""
    key = await server.token(KeyKind.SERVICE, project="default")
    ended = {}
    for name in ("revoked", "expired", "archived", "disabled"):
        other = await server.tenants.add_project(OPERATOR, name, "")
        user = await server.tenants.add_user(OPERATOR, name, None, "")
        said = {"user": user.id} if name == "disabled" else {"project": other.id}
        kind = KeyKind.ACCESS_TOKEN if name == "disabled" else KeyKind.SERVICE
        make = make_expiring if name == "expired" else type(server).token
        ended[name] = await make(server, kind, **said)
        if name == "revoked":
            keys = server.tenants.list_keys(OPERATOR)
            await server.tenants.revoke_key(OPERATOR, next(k.id for k in keys if k.project == other.id))
        elif name == "archived":
            await server.tenants.change_project(OPERATOR, other.id, None, None, True)
        elif name == "disabled":
            await server.tenants.change_user(OPERATOR, user.id, lambda each: each, True)
    kinds = {
        "wrong": generate_key,
        "of a right name": lambda: key[:16] + generate_key()[16:],
        "right but for the last character": lambda: key[:-1] + random.choice("ABCDEF".replace(key[-1], "")),
    }
    return kinds | {name: lambda secret=secret: secret for name, secret in ended.items()}


async def make_expiring(server, kind, **said):
    """A key that ends with the next second. It cannot be made once that has come."""
    while True:
        with suppress(InvalidValue):
            return await server.token(kind, expires=int(server.edge.clock.wall()) + 1, **said)


async def measured(server, kinds, count):
    """Seconds of `count` refusals of each kind, by turns, on one connection. The requests are made before."""
    turns = []
    for _ in range(count):
        turns += random.sample([(name, request_of(make())) for name, make in kinds.items()], len(kinds))
    found: dict[str, list[float]] = {name: [] for name in kinds}
    async with server.line() as line:
        for name, request in turns:
            began = time.perf_counter()
            await line.send(request)
            answer = await line.reply()
            found[name].append(time.perf_counter() - began)
            assert answer.status == 401, name
    return found


def request_of(key):
    return request_bytes("/v1/models", headers={"x-api-key": key})


async def compare(server, count):
    kinds = await refused_keys(server)
    while (await server.asked(kinds["expired"](), "/v1/models")).status == 200:
        pass  # its second has not passed
    await measured(server, kinds, 20)  # what is made once is made by now
    found = await measured(server, kinds, count)
    wrong = found.pop("wrong")
    assert len(found) == 6
    told = {name: chance(seconds, wrong) - 0.5 for name, seconds in found.items()}
    sys.stdout.write(f"{count} each, bound {bound(count):.4f}: {told}\n")
    near = {name: told.pop(name) for name in ("of a right name", "right but for the last character")}
    assert max(map(abs, near.values())) < bound(count), near
    for name in told:
        longer = chance([each - ENDED_S for each in found[name]], wrong) - 0.5
        shorter = 0.5 - chance([each + ENDED_S for each in found[name]], wrong)
        assert max(longer, shorter) < bound(count), (name, told)


async def test_a_nearly_right_or_ended_key_takes_the_same_time(tmp_path):
    async with keyed(tmp_path) as server:
        await compare(server, FEW)


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_nor_over_many_thousands(tmp_path):
    async with keyed(tmp_path) as server:
        await compare(server, MANY)


class Leaking:
    """A verifier that takes longer for a key whose begin somebody has."""

    def __init__(self, begin):
        self._begin = begin

    async def verify(self, token, chosen):
        until = time.perf_counter() + LEAK_S
        while token.startswith(self._begin) and time.perf_counter() < until:
            pass


async def test_a_server_that_told_them_apart_would_be_found_out(tmp_path):
    async with keyed(tmp_path) as server:
        kinds = await refused_keys(server)
        near = kinds["of a right name"]()
        slow: list[float] = []
        wrong: list[float] = []
        edge = replace(server.edge, verifiers=(Leaking(near[:16]), *server.edge.verifiers))
        async with serving_edge(edge) as (port, connections):
            leaking = replace(server, port=port, edge=edge, connections=connections)
            for _ in range(ROUNDS):
                found = await measured(leaking, {"wrong": generate_key, "near": lambda: near}, FEW)
                slow, wrong = slow + found["near"], wrong + found["wrong"]
                if chance(slow, wrong) - 0.5 > bound(len(slow)):
                    return
    raise AssertionError(f"{len(slow)} each tell nothing")


def test_ranks_of_values_that_are_known():
    assert chance([3, 4], [1, 2]) == 1.0
    assert chance([1, 4], [2, 3]) == 0.5
    assert bound(10_000) < 0.03 < bound(250)
