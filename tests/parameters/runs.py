"""Every case at every spot that has its field. It imports the modules of cases, which register them."""

from importlib import import_module
from pathlib import Path

from tests.parameters.registry import CASES

for file in sorted(Path(__file__).parent.glob("cases_*.py")):
    import_module(f"{__package__}.{file.stem}")

RUNS = [(spot, each) for each in CASES for spot in each.spots if spot.supports(each.field)]
