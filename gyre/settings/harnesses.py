"""Facts about a harness that the gateway needs, from the harness's catalogue file."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gyre.contracts.errors import BadInput
from gyre.contracts.roles import RoleRule
from gyre.settings.problems import first_problem

CATALOGUE = Path(__file__).parents[2] / "sandbox" / "catalogue"


class HarnessFacts(BaseModel):
    """Two keys of a catalogue file. The others are about starting the harness."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    roles: tuple[RoleRule, ...] = ()
    """Rules for the role of each model call, in order; see ``gyre/rules/call_roles.py``."""
    early_start: bool = True
    """Whether the harness retries a call whose stream broke, so that a stream may begin before its answer is
    complete."""


def harness_facts(harness: str) -> HarnessFacts:
    """Read a harness's catalogue file. Raises BadInput if there is no such file or it is invalid."""
    path = CATALOGUE / f"{harness}.toml"
    try:
        return HarnessFacts.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadInput(f"harness {harness!r}: its catalogue file cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"harness {harness!r}: its catalogue file is not TOML: {error}") from None
    except ValidationError as error:
        raise BadInput(f"harness {harness!r}: {first_problem(error)}") from None
