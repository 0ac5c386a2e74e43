"""List of all workflows, and their sandbox, for workers and replayers."""

from temporalio.worker.workflow_sandbox import SandboxedWorkflowRunner, SandboxRestrictions

from workflows.cell import Cell
from workflows.evaluation import Evaluation
from workflows.query_group import QueryGroup
from workflows.rollout import Rollout
from workflows.training_burst import TrainingBurst
from workflows.training_run import TrainingRun

WORKFLOWS = [TrainingRun, QueryGroup, Rollout, Evaluation, TrainingBurst, Cell]

PASSED_THROUGH = ("gyre.contracts", "gyre.durable", "gyre.rules", "workflows")
"""Modules imported once per process instead of once per workflow: they hold no state of their own."""


def runner() -> SandboxedWorkflowRunner:
    """Build Temporal's sandbox, with our pure modules passed through."""
    return SandboxedWorkflowRunner(
        restrictions=SandboxRestrictions.default.with_passthrough_modules(*PASSED_THROUGH)
    )
