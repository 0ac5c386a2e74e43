"""Read models of one rollout: what `gyre calls` and `gyre tree` print."""

from collections import Counter
from collections.abc import Sequence

from sqlalchemy import and_, select
from sqlalchemy.orm import Session

from db.models import Attempt, Batch, BatchExecution, Execution, ModelCall, Reward, Trajectory, TreeNode
from db.queries import Record, records
from gyre.contracts.lifecycle import NodeKind


def outcome(session: Session, execution: str) -> Record:
    """What became of a rollout: status, disposition, reward, detail, and in training batch_id,
    batch_status, version, advantage (None as long as it is in no batch)."""
    query = (
        select(
            Execution.status,
            Execution.disposition,
            Reward.value.label("reward"),
            Execution.detail,
            BatchExecution.batch_id,
            Batch.status.label("batch_status"),
            Batch.version,
            BatchExecution.advantage,
        )
        .outerjoin(Reward, Reward.id == Execution.reward_id)
        .outerjoin(BatchExecution, BatchExecution.execution_id == Execution.id)
        .outerjoin(Batch, Batch.id == BatchExecution.batch_id)
        .where(Execution.id == execution)
    )
    return dict(session.execute(query).mappings().one())


def attempts(session: Session, execution: str) -> list[Record]:
    """A row for each attempt: id, number, status, end_reason, failure."""
    return records(
        session,
        select(Attempt.id, Attempt.number, Attempt.status, Attempt.end_reason, Attempt.failure)
        .where(Attempt.execution_id == execution)
        .order_by(Attempt.number),
    )


def calls(session: Session, execution: str) -> list[Record]:
    """A row for each model call of a rollout, over all attempts, in order."""
    query = (
        select(
            ModelCall.id,
            Attempt.number.label("attempt"),
            ModelCall.index,
            ModelCall.status,
            ModelCall.role,
            ModelCall.dialect,
            ModelCall.finish_reason,
            ModelCall.num_input_tokens,
            ModelCall.num_reused_tokens,
            (ModelCall.num_input_tokens - ModelCall.num_reused_tokens).label("num_encoded_tokens"),
            ModelCall.num_cached_tokens,
            ModelCall.num_output_tokens,
            ModelCall.num_malformed_tool_calls,
            TreeNode.versions,
            ModelCall.engine_ms,
            ModelCall.sampled_node_id,
            ModelCall.started_at,
            ModelCall.committed_at,
            ModelCall.delivered_at,
            ModelCall.failure,
        )
        .join(Attempt, Attempt.id == ModelCall.attempt_id)
        .outerjoin(TreeNode, TreeNode.id == ModelCall.sampled_node_id)
        .where(ModelCall.execution_id == execution)
        .order_by(Attempt.number, ModelCall.index)
    )
    return records(session, query)


def trajectories(session: Session, execution: str) -> list[Record]:
    """A row for each selected path: path (its index), role, num_tokens, num_targets, batch_id, version,
    advantage, leaf_node_id, target_node_ids."""
    query = (
        select(
            Trajectory.index.label("path"),
            Trajectory.role,
            Trajectory.num_tokens,
            Trajectory.num_targets,
            Trajectory.batch_id,
            Batch.version,
            BatchExecution.advantage,
            Trajectory.leaf_node_id,
            Trajectory.target_node_ids,
        )
        .join(Batch, Batch.id == Trajectory.batch_id)
        .outerjoin(
            BatchExecution,
            and_(
                BatchExecution.batch_id == Trajectory.batch_id,
                BatchExecution.execution_id == Trajectory.execution_id,
            ),
        )
        .where(Trajectory.execution_id == execution)
        .order_by(Trajectory.index)
    )
    return records(session, query)


def tree(session: Session, execution: str, selected: Sequence[Record]) -> list[Record]:
    """A row for each tree node of a rollout, parents first.

    Its own columns are id, attempt_id, index, call_id, parent_id, parent_offset, position, kind, num_tokens,
    role (of the call that introduced it), versions, finish_reason. Counted are reused_by (other calls whose
    input runs through it) and, from the ``selected`` paths (see `trajectories`), targets (how many of its
    tokens are trained), target_of (the path that trains them), paths (those that run through it) and leaf_of
    (what is known of those that end here, without their node ids).
    """
    query = (
        select(
            TreeNode.id,
            TreeNode.attempt_id,
            TreeNode.index,
            TreeNode.call_id,
            TreeNode.parent_id,
            TreeNode.parent_offset,
            TreeNode.position,
            TreeNode.kind,
            TreeNode.num_tokens,
            ModelCall.role,
            TreeNode.versions,
            TreeNode.finish_reason,
        )
        .join(Attempt, Attempt.id == TreeNode.attempt_id)
        .join(ModelCall, ModelCall.id == TreeNode.call_id)
        .where(Attempt.execution_id == execution)
        .order_by(Attempt.number, TreeNode.index)
    )
    nodes = records(session, query)
    _count_reuse(nodes, session, execution)
    _mark_selected({node["id"]: node for node in nodes}, selected)
    return nodes


def _count_reuse(nodes: Sequence[Record], session: Session, execution: str) -> None:
    """From the last node to the first, so that each is looked at once: children come after parents."""
    inputs = select(ModelCall.context_node_id).where(
        ModelCall.execution_id == execution, ModelCall.context_node_id.is_not(None)
    )
    through = Counter(session.scalars(inputs))
    for node in reversed(nodes):
        # The input of the call that introduced a context runs through it too; that is no reuse.
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
