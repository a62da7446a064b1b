"""Checks what schemas of MaskBench keep: each of its valid and invalid instances, against the masks.

    git clone https://github.com/guidance-ai/jsonschemabench
    python benchmarks/mask_bench.py jsonschemabench/maskbench/data [--count 6000] [--seed 0] [--model NAME]

The data is not part of this project. `--count` schemas are drawn by `--seed`. An instance is written as
Antiphon writes JSON, and split into the longest tokens of the model (default: smollm2). A mask is
computed before each token, as the server does. Instances whose objects have their keys in another order than
the schema's are valid, but no text of these masks: MaskBench has few of them.

Prints how many schemas are taken (exactly, or with named relaxations), how many valid instances are refused,
how many invalid ones are accepted where nothing is named, and the names of both.
"""

import argparse
import json
import os
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from statistics import mean, quantiles
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from antiphon.constraints.checking_process import check_constraint
from antiphon.constraints.json_schema.lowering import relax_schema
from antiphon.constraints.mask_workers import build_token_table
from antiphon.constraints.matching import CompilerVocabulary, Matcher
from antiphon.domain.request import Constraint, ConstraintKind
from antiphon.errors import AntiphonError, InvalidValue, UnsupportedParameter
from benchmarks.masks import read_vocabulary
from benchmarks.model_files import find_model

FIELD = "schema"


def follow(matcher: Matcher, tokens: list[int], times: list[float]) -> str:
    """Follows a text with a mask before each token. Returns "accepted", "refused", or the error of a
    limit."""
    try:
        for token in tokens:
            began = time.thread_time()
            mask = matcher.compute_mask()
            times.append((time.thread_time() - began) * 1e6)
            if not mask[token // 8] >> token % 8 & 1:
                return "refused"
            matcher.consume([token])
        matcher.compute_mask()
    except AntiphonError as error:
        return f"failed: {error.message} ({error.cause})"
    return "accepted" if matcher.is_complete else "refused"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("--count", type=int, default=6000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="smollm2", help="a name of benchmarks/model_files.py, or a path")
    parser.add_argument("--names", type=Path, help="a file for the names of schemas that are not kept")
    options = parser.parse_args()
    vocabulary = CompilerVocabulary(build_token_table(read_vocabulary(find_model(options.model))))
    files = sorted(options.data.glob("*.json"))
    Random(options.seed).shuffle(files)
    found: Counter[str] = Counter()
    compile_times: list[float] = []
    check_times: list[float] = []
    mask_times: list[float] = []
    names: list[str] = []
    for path in files[: options.count]:
        task: dict[str, Any] = json.loads(path.read_text())
        began = time.thread_time()
        try:
            schema, relaxed = relax_schema(task["schema"], FIELD)
            constraint = Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(schema), field=FIELD)
            grammar = check_constraint(constraint, vocabulary)
        except (InvalidValue, UnsupportedParameter) as refusal:
            found["schemas refused"] += 1
            names.append(f"{path.name}: refused: {refusal.message}")
            continue
        finally:
            check_times.append((time.thread_time() - began) * 1e3)
        kind = "relaxed" if relaxed else "exact"
        found[f"schemas {kind}"] += 1
        for number, test in enumerate(task.get("tests", [])):
            began = time.thread_time()
            matcher = Matcher(grammar, vocabulary)
            compile_times.append((time.thread_time() - began) * 1e3)
            tokens = vocabulary.spell(json.dumps(test["data"], ensure_ascii=False))
            result = follow(matcher, tokens, mask_times)
            label = f"{'valid' if test['valid'] else 'invalid'} of {kind}"
            found[label] += 1
            if result.startswith("failed"):
                found[f"{label}, failed"] += 1
            if result != ("accepted" if test["valid"] else "refused"):
                found[f"{label}, {result.partition(':')[0]}"] += not result.startswith("failed")
                if test["valid"] or kind == "exact" or result.startswith("failed"):
                    names.append(f"{path.name} test {number}: {label}, {result}")
    for name, count in sorted(found.items()):
        print(f"{name}: {count}")
    for label, times in {
        "ms to check": check_times,
        "ms to compile": compile_times,
        "us for a mask": mask_times,
    }.items():
        parts = quantiles(times, n=1000)
        print(
            f"{label}: mean {mean(times):.2f}, median {parts[499]:.2f}, p99 {parts[989]:.1f}, "
            f"p99.9 {parts[998]:.1f}, worst {max(times):.0f}"
        )
    print(f"vocabulary {vocabulary.size}, load average {os.getloadavg()[0]:.1f}")
    if options.names:
        options.names.write_text("".join(f"{name}\n" for name in names))


if __name__ == "__main__":
    main()
