"""No parameter is dead on vLLM: the fields of OpenAI's chat and text completions make their differences."""

import pytest

from tests.cluster.conftest import Cluster
from tests.parameters.registry import Asker, Case
from tests.parameters.runs import RUNS
from tests.parameters.spots import Spot

pytestmark = pytest.mark.cluster

URLS = ("/v1/completions", "/v1/chat/completions")
OTHERS = {
    ("/v1/chat/completions", "rag_params"): "it needs a knowledge table, which no engine sees",
}
"""Cases that do not fit here."""

MINE = [
    (spot, each)
    for spot, each in RUNS
    if each.server == "cantor"
    and spot.dialect == "openai"
    and spot.url in URLS
    and (spot.url, each.field) not in OTHERS
]
IDS = [f"{at} {spot.id} {each.field}".replace("/", " ") for at, (spot, each) in enumerate(MINE)]


@pytest.fixture(scope="session")
def asker(cluster: Cluster):
    with cluster.server.client() as client:
        client.timeout = 600
        yield Asker(client)


@pytest.mark.parametrize(("spot", "each"), MINE, ids=IDS)
def test_the_field_makes_its_difference(spot: Spot, each: Case, asker: Asker):
    answers = [asker.ask(spot.url, body) for body in each.bodies(spot, asker)]
    each.check(*answers)
    for same in answers:
        # a server that ignores the field gives one answer to all
        with pytest.raises((AssertionError, LookupError, TypeError, ValueError)):
            each.check(*[same] * len(answers))
