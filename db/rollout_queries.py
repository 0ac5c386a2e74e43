"""Read models of one rollout, printed by `gyre calls` and `gyre tree`."""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from db.models import (
    AttemptRow,
    BatchExecutionRow,
    BatchRow,
    ExecutionRow,
    ModelCallRow,
    RewardRow,
    TrajectoryRow,
    TreeNodeRow,
)
from db.queries import Record, records
from gyre.contracts.lifecycle import NodeKind


def outcome(session: Session, execution: str) -> Record:
    """Return status, disposition, reward and detail of a rollout, and how it was trained: batch_id,
    batch_status, version and advantage, which are None while it is in no batch."""
    query = (
        select(
            ExecutionRow.status,
            ExecutionRow.disposition,
            RewardRow.value.label("reward"),
            ExecutionRow.detail,
            BatchExecutionRow.batch_id,
            BatchRow.status.label("batch_status"),
            BatchRow.version,
            BatchExecutionRow.advantage,
        )
        .outerjoin(RewardRow, RewardRow.id == ExecutionRow.reward_id)
        .outerjoin(BatchExecutionRow, BatchExecutionRow.execution_id == ExecutionRow.id)
        .outerjoin(BatchRow, BatchRow.id == BatchExecutionRow.batch_id)
        .where(ExecutionRow.id == execution)
    )
    return dict(session.execute(query).mappings().one())


def attempts(session: Session, execution: str) -> list[Record]:
    """Return one row per attempt: id, number, status, end_reason, failure."""
    return records(
        session,
        select(AttemptRow.id, AttemptRow.number, AttemptRow.status, AttemptRow.end_reason, AttemptRow.failure)
        .where(AttemptRow.execution_id == execution)
        .order_by(AttemptRow.number),
    )


def calls(session: Session, execution: str) -> list[Record]:
    """Return one row per model call of a rollout, over all attempts, in order."""
    query = (
        select(
            ModelCallRow.id,
            AttemptRow.number.label("attempt"),
            ModelCallRow.index,
            ModelCallRow.status,
            ModelCallRow.role,
            ModelCallRow.dialect,
            ModelCallRow.finish_reason,
            ModelCallRow.num_input_tokens,
            ModelCallRow.num_reused_tokens,
            (ModelCallRow.num_input_tokens - ModelCallRow.num_reused_tokens).label("num_encoded_tokens"),
            ModelCallRow.num_cached_tokens,
            ModelCallRow.num_output_tokens,
            ModelCallRow.num_malformed_tool_calls,
            TreeNodeRow.versions,
            ModelCallRow.engine_ms,
            ModelCallRow.sampled_node_id,
            ModelCallRow.started_at,
            ModelCallRow.committed_at,
            ModelCallRow.delivered_at,
            ModelCallRow.failure,
        )
        .join(AttemptRow, AttemptRow.id == ModelCallRow.attempt_id)
        .outerjoin(TreeNodeRow, TreeNodeRow.id == ModelCallRow.sampled_node_id)
        .where(ModelCallRow.execution_id == execution)
        .order_by(AttemptRow.number, ModelCallRow.index)
    )
    return records(session, query)


def trajectories(session: Session, execution: str) -> list[Record]:
    """Return one row per selected path: path (its index), role, num_tokens, num_targets, batch_id, version,
    advantage, leaf_node_id, target_node_ids."""
    query = (
        select(
            TrajectoryRow.index.label("path"),
            TrajectoryRow.role,
            TrajectoryRow.num_tokens,
            TrajectoryRow.num_targets,
            TrajectoryRow.batch_id,
            BatchRow.version,
            BatchExecutionRow.advantage,
            TrajectoryRow.leaf_node_id,
            TrajectoryRow.target_node_ids,
        )
        .join(BatchRow, BatchRow.id == TrajectoryRow.batch_id)
        .outerjoin(
            BatchExecutionRow,
            and_(
                BatchExecutionRow.batch_id == TrajectoryRow.batch_id,
                BatchExecutionRow.execution_id == TrajectoryRow.execution_id,
            ),
        )
        .where(TrajectoryRow.execution_id == execution)
        .order_by(TrajectoryRow.index)
    )
    return records(session, query)


def tree(session: Session, execution: str, selected: Sequence[Record]) -> list[Record]:
    """Return one row per tree node of a rollout, parents first.

    Stored columns: id, attempt_id, index, call_id, parent_id, parent_offset, position, kind, num_tokens, role
    (of the call that introduced it), versions, finish_reason. Derived: reused_by counts the other calls whose
    input runs through the node. Derived from the ``selected`` paths (see `trajectories`): targets counts its
    trained tokens, target_of is the path that trains them, paths lists those that run through it, and leaf_of
    holds the rows of those that end here, without their node ids.
    """
    query = (
        select(
            TreeNodeRow.id,
            TreeNodeRow.attempt_id,
            TreeNodeRow.index,
            TreeNodeRow.call_id,
            TreeNodeRow.parent_id,
            TreeNodeRow.parent_offset,
            TreeNodeRow.position,
            TreeNodeRow.kind,
            TreeNodeRow.num_tokens,
            ModelCallRow.role,
            TreeNodeRow.versions,
            TreeNodeRow.finish_reason,
        )
        .join(AttemptRow, AttemptRow.id == TreeNodeRow.attempt_id)
        .join(ModelCallRow, ModelCallRow.id == TreeNodeRow.call_id)
        .where(AttemptRow.execution_id == execution)
        .order_by(AttemptRow.number, TreeNodeRow.index)
    )
    nodes = records(session, query)
    _count_reuse(nodes, session, execution)
    _mark_selected({node["id"]: node for node in nodes}, selected)
    return nodes


def _count_reuse(nodes: Sequence[Record], session: Session, execution: str) -> None:
    """Set ``reused_by`` of every node in one pass, from last to first, because children follow parents."""
    inputs = select(ModelCallRow.context_node_id).where(
        ModelCallRow.execution_id == execution, ModelCallRow.context_node_id.is_not(None)
    )
    through = Counter(session.scalars(inputs))
    for node in reversed(nodes):
        # The call that introduced a context node has it in its own input; that is not reuse.
        node["reused_by"] = max(0, through[node["id"]] - (node["kind"] == NodeKind.CONTEXT))
        through[node["parent_id"]] += through[node["id"]]


def _mark_selected(nodes: dict[str, Record], selected: Sequence[Record]) -> None:
    for node in nodes.values():
        node |= {"targets": 0, "target_of": None, "paths": list[int](), "leaf_of": list[Record]()}
    for path in selected:
        name = path["leaf_node_id"]
        known = {key: value for key, value in path.items() if not key.endswith(("node_id", "node_ids"))}
        nodes[name]["leaf_of"].append(known)
        while name is not None:
            nodes[name]["paths"].append(path["path"])
            name = nodes[name]["parent_id"]
        for target in path["target_node_ids"]:
            nodes[target] |= {"targets": nodes[target]["num_tokens"], "target_of": path["path"]}
