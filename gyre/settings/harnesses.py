"""What the gateway must know of a harness, from its catalogue file."""

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from gyre.contracts.errors import BadInput
from gyre.contracts.roles import RoleRule
from gyre.settings.problems import first_problem

CATALOGUE = Path(__file__).parents[2] / "sandbox" / "catalogue"


class HarnessFacts(BaseModel):
    """Two keys of a catalogue file; the others are about starting it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    roles: tuple[RoleRule, ...] = ()
    """What each model call is for: the first rule that holds, else ``main``."""
    early_start: bool = True
    """Whether it tries a call again whose stream broke; else a stream begins when its answer is there."""


def harness_facts(harness: str) -> HarnessFacts:
    """Raises BadInput when there is no such file or it is not valid."""
    path = CATALOGUE / f"{harness}.toml"
    try:
        return HarnessFacts.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise BadInput(f"harness {harness!r}: its catalogue file cannot be read: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"harness {harness!r}: its catalogue file is not TOML: {error}") from None
    except ValidationError as error:
        raise BadInput(f"harness {harness!r}: {first_problem(error)}") from None
