"""Run one target for some seconds, say what failed, and keep it in a folder: TARGET SECONDS [SEED] [FOLDER]."""

import sys
from pathlib import Path

from tests.security.fuzz.harness import CORPUS, fuzz, keep
from tests.security.fuzz.targets import TARGETS

name, seconds, *rest = sys.argv[1:]
target = TARGETS[name]
outcome = fuzz(target, float(seconds), seed=1000 * int(rest[0] if rest else 0))
print(f"{name}: {outcome.num} inputs, {len(outcome.failures)} failures")
for cause, (kind, content) in outcome.failures.items():
    print(f"  {cause}: {kind}, {len(content)} bytes")
for path in keep(target, outcome, Path(rest[1]) if len(rest) > 1 else CORPUS):
    print(f"  kept {path}")
