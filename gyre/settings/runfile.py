"""The run file: one TOML document written by hand, validated at the edge, resolved to one JSON document.

Every key with a unit has it in its name. Paths are relative to the file. ``FROZEN`` names the keys that may
not change when a run is resumed.
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
"""Longest duration in seconds: as long as the embedded Temporal keeps a history."""
Seconds = Annotated[float, Field(gt=0, le=LONGEST_S)]
Folder = Annotated[Path, Field(strict=False)]
"""A path, given as a string because TOML has no type for it."""
ROUNDING = 1e-9
"""Tolerance of checks on products and sums of floats."""
MOST_BYTES = 1 << 50
"""Largest amount of memory or disk: no machine has more, and an rlimit can hold it."""


class Section(BaseModel):
    """Base of the run file's sections."""

    # Strict: neither `true` nor "3" is a number. An integer is still accepted for a float.
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class RunSection(Section):
    """The run itself."""

    name: str
    """Name that is unique in one Postgres; the Temporal workflow id is ``run/<name>``."""
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    """Seed of the order of tasks and of the choice of trajectories."""
    updates: int = Field(default=20, ge=1, le=1_000_000)
    """Number of policy updates after which the run is finished."""
    control: Literal["none", "permuted"] = "none"
    """``permuted`` shuffles rewards between executions: a control run, which must not improve the policy."""

    @field_validator("name")
    @classmethod
    def _name_is_a_slug(cls, name: str) -> str:
        if not RUN_NAME.fullmatch(name):
            raise ValueError("a name must be 1 to 40 characters a-z, 0-9 and '-', not starting with '-'")
        return name


class ModelSection(Section):
    """The policy to train."""

    path: Folder
    """Hugging Face directory with config.json, safetensors and a tokenizer that has a chat template."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of engine and trainer.

    In bfloat16 their log-probabilities of a token differ by rounding, with a standard deviation sigma that
    grows with depth (measured: 0.011 at 4 layers, 0.063 at 12). More targets do not average it out: the mean
    of the log ratio drifts to -sigma^2/2. So rounding alone can pass ``loss.clip_low``, which clips only
    executions of negative advantage; with few targets it can pass either clip.
    """
    context_tokens: int = Field(default=2048, ge=16, le=1 << 24)
    """Most tokens of one call, prompt and answer together."""


class TasksSection(Section):
    """Folders of task folders in Harbor's format."""

    train: Folder
    """Folder of the tasks to train on."""
    heldout: Folder | None = None
    """Folder of the tasks to evaluate before and after training; none by default."""


class HarnessSection(Section):
    """The agent program."""

    name: str = "tiny"
    """Name of a file in ``sandbox/catalogue``, without its extension."""
    options: dict[str, str] = Field(default_factory=dict[str, str])
    """Values for the command line template in the catalogue file."""


class SamplingSection(Section):
    """Sampling parameters. The run decides them; those that a harness requests are recorded and ignored."""

    temperature: float = Field(default=1.0, gt=0, le=100)
    """Divisor of the logits."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Probability mass of the likeliest tokens to sample from. Below 1 it biases the gradient."""
    top_k: int = Field(default=-1, le=1 << 24)
    """Number of likeliest tokens to sample from, or -1 for all. A limit biases the gradient."""
    max_tokens: int = Field(default=512, ge=1, le=1 << 24)
    """Most tokens that one call samples. A harness may request fewer."""

    @field_validator("top_k")
    @classmethod
    def _all_or_some(cls, top_k: int) -> int:
        if top_k != -1 and top_k < 1:
            raise ValueError("top_k must be -1 (all tokens) or at least 1")
        return top_k


class ScheduleSection(Section):
    """Dispatch and training. Symbols are those of QwenGyre (arXiv 2609.33848)."""

    group_size: int = Field(default=8, ge=2, le=4096)
    """N: executions per group, all of one task."""
    groups_per_batch: int = Field(default=8, ge=1, le=65_536)
    """B: groups per update."""
    updates_per_burst: int = Field(default=1, ge=1, le=1024)
    """mu: consecutive updates between two publications of weights."""
    extra_dispatch: float = Field(default=0.0, ge=0, le=1024)
    """phi: batches dispatched beyond the next burst. phi * B must be a whole number."""
    max_concurrent: int = Field(default=8, ge=1, le=65_536)
    """C_e: executions that one cell serves at once."""
    supply_fraction: float = Field(default=1.0, gt=0)
    """rho_min: ready groups, in batches, that must be there before a cell switches to training. At most
    phi + mu, because more are never outstanding."""
    supply_hold_s: float = Field(default=0.0, ge=0, le=LONGEST_S)
    """tau: seconds for which the supply must hold without a break."""
    max_trajectories: int = Field(default=5, ge=1, le=65_536)
    """J_max: most trajectories taken from one execution."""
    history_steps: int = Field(default=20, ge=1, le=1000)
    """Decisions after which the run's workflow continues as new."""

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
                "more groups are never dispatched, so no update would start"
            )
        return self


class OptimizerSection(Section):
    """AdamW and the size of a micro-step."""

    lr: float = Field(default=3e-4, gt=0, le=10)
    """Learning rate, which is constant."""
    beta1: float = Field(default=0.9, ge=0, lt=1)
    """Decay of the mean of gradients."""
    beta2: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean of squared gradients."""
    eps: float = Field(default=1e-8, gt=0, le=1)
    """Term that keeps the update's denominator from zero."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled weight decay."""
    clip_norm: float = Field(default=1.0, gt=0)
    """Norm to which a longer gradient is scaled down."""
    micro_step_tokens: int = Field(default=8192, ge=16, le=1 << 24)
    """Token budget of one packed micro-step."""


class LossSection(Section):
    """The loss; gpu_workers/trainer/loss.py has its formula."""

    form: Literal["capped", "truncated"] = "capped"
    """``capped`` clips executions by their ratio to the behavior policy. ``truncated`` clips by the ratio to
    the policy before the update, so with one update per batch it never clips."""
    weight_cap: float = Field(default=5.0, gt=0)
    """Largest importance weight of a token."""
    clip_low: float = Field(default=0.995, ge=0)
    """Mean probability ratio of an execution below which a negative advantage is not trained."""
    clip_high: float = Field(default=1.005, ge=0)
    """Mean probability ratio of an execution above which a positive advantage is not trained."""
    normalise_std: bool = True
    """Whether advantages are divided by the group's standard deviation of rewards."""
    placeholder_in_baseline: bool = False
    """Whether a placeholder counts in its group's baseline, with a reward of 0."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Coefficient of the estimate of KL(theta || behavior) added per target; 0 leaves it out."""
    entropy_coefficient: float = Field(default=0.0, ge=0)
    """Coefficient of the entropy in nats subtracted per target; 0 leaves it out."""

    @property
    def regularised(self) -> bool:
        """Whether a term of the loss acts on executions that are clipped or have no advantage."""
        return self.kl_coefficient > 0 or self.entropy_coefficient > 0

    def trains(self, advantage: float) -> bool:
        """Return whether an execution of this advantage can have a gradient."""
        return self.regularised or advantage != 0

    def clips(self, advantage: float) -> bool:
        """Return whether an execution of this advantage can be clipped, which takes sums over its targets."""
        return self.form == "capped" and advantage != 0

    @model_validator(mode="after")
    def _clips_in_order(self) -> "LossSection":
        if self.clip_low > self.clip_high:
            raise ValueError("clip_low must not exceed clip_high")
        return self


class LimitsSection(Section):
    """Time limits in seconds, budgets of attempts and calls, and the size of a sandbox."""

    provision_s: Seconds = 60
    """Limit for making an attempt's workspace."""
    harness_s: Seconds = 600
    """Limit of one attempt's harness. Work that is left then is scored."""
    snapshot_s: Seconds = 60
    """Limit for saving an attempt's workspace."""
    evaluate_s: Seconds = 60
    """Limit of one try of the evaluator."""
    total_s: Seconds = 1800
    """Limit of all attempts of an execution together; time without a worker does not count."""
    attempts: int = Field(default=3, ge=1, le=1000)
    """Failed attempts of an execution after which no other is started."""
    evaluations: int = Field(default=3, ge=1, le=1000)
    """Tries of the evaluator after which an execution without a valid reward is excluded."""
    memory_bytes: int = Field(default=2 << 30, ge=1 << 20, le=MOST_BYTES)
    """Memory of a sandbox."""
    processes: int = Field(default=256, ge=8, le=1 << 22)
    """Processes and threads of a sandbox at one time."""
    workspace_bytes: int = Field(default=1 << 30, ge=1 << 10, le=MOST_BYTES)
    """Disk space of a workspace."""
    calls: int = Field(default=2000, ge=1, le=1_000_000)
    """Model calls of one attempt."""
    concurrent_calls: int = Field(default=16, ge=1, le=65_536)
    """Model calls of one attempt at one time."""
    body_bytes: int = Field(default=32 << 20, ge=1 << 10, le=1 << 30)
    """Size of one request to the gateway."""


class GatewaySection(Section):
    """The processes that harnesses call."""

    processes: int = Field(default=1, ge=1, le=64)
    """Gateway processes per host. One serves about a thousand executions; two add less to each call. All
    calls of an attempt go to the same process."""
    live: bool = False
    """Whether text is streamed while it is sampled, for people who watch.

    If not, streams are read from the record. Harnesses retry a stream that broke before its first block, but
    some fail for good if it breaks later. The record is the same either way, and tool calls are always sent
    from it.
    """


class CellsSection(Section):
    """The cells, each of which is an engine and a trainer on the same devices."""

    count: int = Field(default=1, ge=1, le=1)
    """Number of cells."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Kind of device that engine and trainer run on."""
    data_parallel: int = Field(default=1, ge=1, le=4096)
    """Replicas of the model in a cell's trainer."""
    tensor_parallel: int = Field(default=1, ge=1, le=4096)
    """Ranks that share one replica."""
    engine_max_batch: int = Field(default=32, ge=1, le=65_536)
    """Requests that an engine decodes at once."""
    publish: Literal["retract", "in_place"] = "retract"
    """Treatment of the KV of requests in flight at a publication: ``retract`` recomputes it, ``in_place``
    keeps it."""


class HeldoutSection(Section):
    """Evaluation on the held-out tasks before and after training."""

    samples: int = Field(default=0, ge=0, le=4096)
    """Rollouts per held-out task, sampled at the run's temperature."""
    greedy: bool = False
    """Whether each held-out task gets one more rollout, at temperature 0."""


class RunFile(Section):
    """A whole run file."""

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
    """Addresses of Temporal, Postgres and S3; without them they are embedded."""

    def resolved(self) -> dict[str, Any]:
        """Return the document that is stored with the run: everything but the services."""
        return self.model_dump(mode="json", exclude={"services"})

    def fingerprint(self) -> str:
        """Return the SHA-256 of the frozen keys."""
        return fingerprint_of(self.resolved())


FROZEN = (
    "run.name", "run.seed", "run.control", "model", "tasks", "harness.name",
    "sampling.temperature", "schedule.group_size", "loss",
)  # fmt: skip
"""Sections and keys that must not change when a run is resumed."""


def frozen_values(resolved: dict[str, Any]) -> dict[str, Any]:
    """Return the frozen keys of a resolved run file as a flat table: ``{"model.path": ...}``."""
    values: dict[str, Any] = {}
    for key in FROZEN:
        section, _, name = key.partition(".")
        part: dict[str, Any] = resolved[section]
        values |= {f"{section}.{k}": v for k, v in part.items() if not name or k == name}
    return values


def fingerprint_of(resolved: dict[str, Any]) -> str:
    """Return the SHA-256 of the frozen keys of a resolved run file."""
    return hashlib.sha256(canonical_json(frozen_values(resolved)).encode()).hexdigest()


def frozen_differences(stored: dict[str, Any], resumed: dict[str, Any]) -> list[str]:
    """Return one line per frozen key that changed: ``model.path: was 'a', now 'b'``.

    A key that did not exist yet when the stored run began had its default.
    """
    old, new = frozen_values(RunFile.model_validate(stored).resolved()), frozen_values(resumed)
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
    # Not in the schema, which must still read the rows of runs that began before this check existed.
    longest, context = parsed.sampling.max_tokens, parsed.model.context_tokens
    if longest >= context:
        raise BadInput(
            f"run file {path}: sampling.max_tokens = {longest}: it must be below "
            f"model.context_tokens = {context}, which includes the prompt"
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
