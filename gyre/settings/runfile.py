"""The run file: one TOML document written by hand, validated at the edge, resolved to one JSON.

Every key has a unit in its name and a reason in its docstring. Relative paths are relative to the
file. ``FROZEN`` names what may not change when a run is resumed.
"""

import hashlib
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gyre.contracts.errors import BadInput
from gyre.contracts.ids import RUN_NAME
from gyre.contracts.json_text import canonical_json
from gyre.settings.problems import first_problem
from gyre.settings.services import Services

LONGEST_S = 30 * 24 * 3600
"""As long as the embedded Temporal keeps a history; also far below what a time-out can hold."""
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Folder = Annotated[Path, Field(strict=False)]
"""TOML has no type for a path: a string is taken."""
ROUNDING = 1e-9
MOST_BYTES = 1 << 50
"""Of memory or disk; no machine has more, and it is far below what an rlimit can hold."""


class Section(BaseModel):
    # Strict: neither `true` nor "3" is a number. A whole number is still taken where a float is meant.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class RunSection(Section):
    name: str
    """Unique among the runs of one Postgres; also the Temporal workflow id's tail."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    updates: int = Field(default=20, ge=1, le=1_000_000)
    control: Literal["none", "permuted"] = "none"
    """``permuted`` trains on rewards shuffled between executions: a control that must not help."""

    @field_validator("name")
    @classmethod
    def _name_is_a_slug(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError("a name must be 1 to 40 of a-z, 0-9 and '-', not starting with '-'")
        return name


class ModelSection(Section):
    path: Folder
    """A Hugging Face directory: config.json, safetensors, tokenizer with a chat template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """In bfloat16 engine and trainer differ by about 0.01 a token, so that an execution of ten targets
    can pass the clip's 0.005 by rounding alone; from a hundred targets on it averages out."""
    context_tokens: int = Field(default=2048, ge=16, le=1 << 24)


class TasksSection(Section):
    train: Folder
    """A folder of Harbor-format task folders."""
    heldout: Folder | None = None


class HarnessSection(Section):
    name: str = "tiny"
    """A file of the catalogue, ``sandbox/catalogue``, without its ending."""
    options: dict[str, str] = Field(default_factory=dict[str, str])
    """Passed to the adapter's command line template."""


class SamplingSection(Section):
    """Sampling belongs to the run: what the harness asks for is recorded and ignored."""

    temperature: float = Field(default=1.0, gt=0, le=100)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, le=1 << 24)
    """The likeliest tokens that are sampled from; -1 for all of them."""
    max_tokens: int = Field(default=512, ge=1, le=1 << 24)
    """Upper bound for one call; a smaller bound of the harness is honoured."""

    @field_validator("top_k")
    @classmethod
    def _all_or_some(cls, top_k: int) -> int:
        if top_k != -1 and top_k < 1:
            raise ValueError("top_k must be -1 (all tokens) or at least 1")
        return top_k


class ScheduleSection(Section):
    group_size: int = Field(default=8, ge=2, le=4096)
    """N, executions of one task."""
    groups_per_batch: int = Field(default=8, ge=1, le=65_536)
    """B, groups per update."""
    updates_per_burst: int = Field(default=1, ge=1, le=1024)
    """mu, consecutive updates between two publications."""
    extra_dispatch: float = Field(default=0.0, ge=0, le=1024)
    """phi, extra dispatch in batches; phi*B must be whole."""
    max_concurrent: int = Field(default=8, ge=1, le=65_536)
    """Executions one cell serves at once (C_e)."""
    supply_fraction: float = Field(default=1.0, gt=0)
    """rho_min: ready groups, in batches, that admission asks for; at most phi + mu are ever dispatched."""
    supply_hold_s: float = Field(default=0.0, ge=0, le=LONGEST_S)
    """tau: how long the supply must hold without a break."""
    max_trajectories: int = Field(default=5, ge=1, le=65_536)
    """J_max, trajectories taken from one execution."""
    history_steps: int = Field(default=20, ge=1, le=1000)
    """Decisions after which the run's workflow continues in a new history."""

    @model_validator(mode="after")
    def _whole_extra_dispatch(self) -> "ScheduleSection":
        extra = self.extra_dispatch * self.groups_per_batch
        if abs(extra - round(extra)) > ROUNDING:
            raise ValueError("extra_dispatch * groups_per_batch must be a whole number")
        return self

    @model_validator(mode="after")
    def _supply_can_be_met(self) -> "ScheduleSection":
        most = self.extra_dispatch + self.updates_per_burst
        if self.supply_fraction > most + ROUNDING:
            raise ValueError(
                f"supply_fraction must not exceed extra_dispatch + updates_per_burst, which is {most:g}: "
                "more groups are never dispatched, so no update would begin"
            )
        return self


class OptimizerSection(Section):
    lr: float = Field(default=3e-4, gt=0, le=10)
    beta1: float = Field(default=0.9, ge=0, lt=1)
    beta2: float = Field(default=0.95, ge=0, lt=1)
    eps: float = Field(default=1e-8, gt=0, le=1)
    weight_decay: float = Field(default=0.0, ge=0)
    clip_norm: float = Field(default=1.0, gt=0)
    micro_step_tokens: int = Field(default=8192, ge=16, le=1 << 24)
    """Token budget of one packed micro-step."""


class LossSection(Section):
    form: Literal["capped", "truncated"] = "capped"
    weight_cap: float = Field(default=5.0, gt=0)
    clip_low: float = Field(default=0.995, ge=0)
    clip_high: float = Field(default=1.005, ge=0)
    normalise_std: bool = True
    """Divide advantages by the group's standard deviation."""
    placeholder_in_baseline: bool = False
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Of the estimate of KL(theta || behaviour) that is added per target; 0 leaves it out."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Of the entropy (nats) that is subtracted per target; 0 leaves it out."""

    @property
    def regularised(self) -> bool:
        """Has a term that needs neither an advantage nor an unclipped execution."""
        return self.kl_coefficient > 0 or self.entropy_coefficient > 0

    def trains(self, advantage: float) -> bool:
        """Whether an execution with it can have a gradient."""
        return self.regularised or advantage != 0

    def clips(self, advantage: float) -> bool:
        """Whether an execution with it may be clipped, which takes the sums over all of its targets."""
        return self.form == "capped" and advantage != 0

    @model_validator(mode="after")
    def _clips_in_order(self) -> "LossSection":
        if self.clip_low > self.clip_high:
            raise ValueError("clip_low must not exceed clip_high")
        return self


class LimitsSection(Section):
    """Time limits per stage and one for everything, in seconds; and how often to try again."""

    provision_s: Seconds = 60
    harness_s: Seconds = 600
    snapshot_s: Seconds = 60
    evaluate_s: Seconds = 60
    total_s: Seconds = 1800
    attempts: int = Field(default=3, ge=1, le=1000)
    evaluations: int = Field(default=3, ge=1, le=1000)
    """Evaluator attempts before the execution is excluded."""
    memory_bytes: int = Field(default=2 << 30, ge=1 << 20, le=MOST_BYTES)
    processes: int = Field(default=256, ge=8, le=1 << 22)
    workspace_bytes: int = Field(default=1 << 30, ge=1 << 10, le=MOST_BYTES)
    calls: int = Field(default=2000, ge=1, le=1_000_000)
    concurrent_calls: int = Field(default=16, ge=1, le=65_536)
    body_bytes: int = Field(default=32 << 20, ge=1 << 10, le=1 << 30)


class GatewaySection(Section):
    processes: int = Field(default=1, ge=1, le=64)
    """On each host; all calls of an attempt go to one of them.

    One carries about a thousand executions; two add less to each of their calls.
    """
    live: bool = False
    """Send text while it is sampled, for people who watch; calls come once they are in the record.

    Off, all content comes from the record: harnesses try a stream again that broke before its first block,
    but some fail for good when it breaks later. What is recorded is the same either way.
    """


class CellsSection(Section):
    count: int = Field(default=1, ge=1, le=1)
    device: Literal["cpu", "cuda"] = "cpu"
    data_parallel: int = Field(default=1, ge=1, le=4096)
    tensor_parallel: int = Field(default=1, ge=1, le=4096)
    engine_max_batch: int = Field(default=32, ge=1, le=65_536)
    publish: Literal["retract", "in_place"] = "retract"
    """What a publication does to KV of requests in flight: recompute, or keep."""


class HeldoutSection(Section):
    samples: int = Field(default=0, ge=0, le=4096)
    """Rollouts of each held-out task before and after training, at the run's temperature."""
    greedy: bool = False
    """One more rollout of each held-out task at temperature 0."""


class RunFile(Section):
    run: RunSection
    model: ModelSection
    tasks: TasksSection
    harness: HarnessSection = HarnessSection()
    sampling: SamplingSection = SamplingSection()
    schedule: ScheduleSection = ScheduleSection()
    optimizer: OptimizerSection = OptimizerSection()
    loss: LossSection = LossSection()
    limits: LimitsSection = LimitsSection()
    gateway: GatewaySection = GatewaySection()
    cells: CellsSection = CellsSection()
    heldout: HeldoutSection = HeldoutSection()
    services: Services | None = None

    def resolved(self) -> dict[str, Any]:
        """What is stored with the run: everything but the services' addresses and secrets."""
        return self.model_dump(mode="json", exclude={"services"})

    def fingerprint(self) -> str:
        """SHA-256 of the frozen keys; live keys and volatile fields do not enter it."""
        return fingerprint_of(self.resolved())


FROZEN = (
    "run.name", "run.seed", "run.control", "model", "tasks", "harness.name",
    "sampling.temperature", "schedule.group_size", "loss",
)  # fmt: skip
"""What a resumed run must have unchanged."""


def frozen_values(resolved: dict[str, Any]) -> dict[str, Any]:
    """The frozen keys of a resolved run file, flat: ``{"model.path": ...}``."""
    values: dict[str, Any] = {}
    for key in FROZEN:
        section, _, name = key.partition(".")
        part: dict[str, Any] = resolved[section]
        values |= {f"{section}.{k}": v for k, v in part.items() if not name or k == name}
    return values


def fingerprint_of(resolved: dict[str, Any]) -> str:
    return hashlib.sha256(canonical_json(frozen_values(resolved)).encode()).hexdigest()


def frozen_differences(stored: dict[str, Any], given: dict[str, Any]) -> list[str]:
    """A line for each frozen key that changed: ``model.path: was 'a', now 'b'``.

    A key that is younger than the stored run had its default.
    """
    old, new = frozen_values(RunFile.model_validate(stored).resolved()), frozen_values(given)
    keys = sorted(old.keys() | new.keys())
    return [f"{k}: was {old.get(k)!r}, now {new.get(k)!r}" for k in keys if old.get(k) != new.get(k)]


def load_run_file(path: Path) -> RunFile:
    """Read and validate a run file. Raises BadInput with the key, the value and what is allowed."""
    try:
        document = tomllib.loads(path.read_text())
    except FileNotFoundError:
        raise BadInput(f"run file {path}: no such file") from None
    except IsADirectoryError:
        raise BadInput(f"run file {path}: it is a folder; name the TOML file in it") from None
    except OSError as error:
        raise BadInput(f"run file {path}: {error.strerror}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(f"run file {path}: {error}") from None
    try:
        parsed = RunFile.model_validate(document)
    except ValidationError as error:
        raise BadInput(f"run file {path}: {_problem(error)}") from None
    # Not of the schema: the rows of a run that began before this was asked for are still read.
    longest, context = parsed.sampling.max_tokens, parsed.model.context_tokens
    if longest >= context:
        raise BadInput(
            f"run file {path}: sampling.max_tokens = {longest}: it must be below "
            f"model.context_tokens = {context}, which holds the prompt too"
        )
    return _absolute(parsed, path.resolve().parent)


def _problem(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    if first["type"] != "extra_forbidden":
        return first_problem(error)
    section = RunFile.model_fields.get(str(first["loc"][0]))
    known = _known_keys(section.annotation if section and len(first["loc"]) > 1 else RunFile)
    return f"{first_problem(error)} (allowed: {', '.join(known)})"


def _known_keys(annotation: Any) -> list[str]:
    models = [part for part in (annotation, *get_args(annotation)) if hasattr(part, "model_fields")]
    return sorted(models[0].model_fields if models else RunFile.model_fields)


def _absolute(parsed: RunFile, base: Path) -> RunFile:
    model = parsed.model.model_copy(update={"path": base / parsed.model.path})
    heldout = parsed.tasks.heldout
    tasks = parsed.tasks.model_copy(
        update={"train": base / parsed.tasks.train, "heldout": base / heldout if heldout else None}
    )
    return parsed.model_copy(update={"model": model, "tasks": tasks})
