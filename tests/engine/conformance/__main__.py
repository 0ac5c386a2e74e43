"""Run the conformance suite against any server of the engine protocol.

``python -m tests.engine.conformance URL [--extensions] [--model DIR] [--skip NAME ...]``

Prints one line per check and exits with 1 if any failed. Without ``--extensions`` only the surface shared
with SGLang is used, so that a real SGLang can be checked. Its ``sampling_seed`` takes effect in deterministic
mode only; otherwise skip ``seed_repeats`` and ``seeded_continuation``. With ``--model`` log-probabilities are
compared with those that transformers computes from that directory.
"""

import argparse
import sys
from pathlib import Path

from tests.engine.conformance import CHECKS, EXTENSIONS, EngineUnderTest, run


def main() -> int:
    parser = argparse.ArgumentParser(description="conformance to the engine protocol")
    parser.add_argument("url")
    parser.add_argument("--extensions", action="store_true", help="also check Gyre's own routes and fields")
    parser.add_argument("--model", type=Path, help="model directory, to recompute log-probabilities")
    parser.add_argument("--skip", nargs="*", default=[], help="names of checks to leave out")
    given = parser.parse_args()
    checks = CHECKS + (EXTENSIONS if given.extensions else [])
    with EngineUnderTest(given.url, given.model) as engine:
        return 1 if run(engine, [check for check in checks if check.__name__ not in given.skip]) else 0


if __name__ == "__main__":
    sys.exit(main())
