"""Checks that every server of the engine protocol must pass. The tests run them; so can people.

__main__.py    run the checks against a URL
checks.py      the surface shared with SGLang
client.py      client that parses like the gateway
extensions.py  Gyre's own routes and fields
"""

from tests.engine.conformance.checks import CHECKS, Check, run
from tests.engine.conformance.client import EngineUnderTest, WireAnswer
from tests.engine.conformance.extensions import EXTENSIONS

__all__ = ["CHECKS", "EXTENSIONS", "Check", "EngineUnderTest", "WireAnswer", "run"]
