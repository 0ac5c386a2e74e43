"""Rows of a rollout with a tree of any shape, as a recorder and an opened batch leave them."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import insert, update
from sqlalchemy.orm import Session

from db.models import AttemptRow, ModelCallRow, TrajectoryRow, TreeNodeRow

SAMPLING = {"temperature": 1.0}


@dataclass
class Grown:
    """An attempt of an execution, built call by call; `write` inserts its rows."""

    execution: str
    number: int = 1
    calls: list[dict[str, Any]] = field(default_factory=list)
    nodes: list[dict[str, Any]] = field(default_factory=list)
    trajectories: list[dict[str, Any]] = field(default_factory=list)

    @property
    def attempt(self) -> str:
        return f"{self.execution}/attempt/{self.number}"

    def call(
        self,
        after: int | None,
        num_context: int,
        num_sampled: int,
        *,
        offset: int | None = None,
        role: str = "main",
        finish: str = "stop",
        version: int = 0,
        **columns: Any,
    ) -> int:
        """Add a committed call that follows ``offset`` tokens of node ``after`` (None: all of them).

        With ``num_context`` 0 it is a sibling: its answer directly follows ``after``. Return the index of the
        sampled node.
        """
        name = self._call(role, status="committed", finish_reason=finish, **columns)
        if num_context:
            after, offset = self._node(name, after, offset, num_context, "context"), None
        self.calls[-1]["context"] = after
        sampled = self._node(name, after, offset, num_sampled, "sampled")
        self.nodes[-1] |= {"versions": [[version, num_sampled]], "finish_reason": finish}
        self.calls[-1] |= {
            "sampled": sampled,
            "num_output_tokens": num_sampled,
            "num_input_tokens": self.nodes[-1]["position"],
            "num_reused_tokens": self.nodes[-1]["position"] - num_context,
        }
        return sampled

    def failed(self, failure: str) -> None:
        """Add a failed call."""
        self._call("main", status="failed", failure=failure)

    def in_flight(self) -> None:
        """Add a call that has not ended."""
        self._call("main", status="in_flight")

    def select(self, batch: str, leaf: int, targets: list[int], role: str = "main") -> None:
        """Add a trajectory to node ``leaf`` that trains nodes ``targets``."""
        index = len(self.trajectories)
        self.trajectories.append(
            {
                "id": f"{self.execution}/trajectory/{index}",
                "execution_id": self.execution,
                "batch_id": batch,
                "index": index,
                "leaf_node_id": self._name(leaf),
                "role": role,
                "num_tokens": self.nodes[leaf]["position"] + self.nodes[leaf]["num_tokens"],
                "num_targets": sum(self.nodes[t]["num_tokens"] for t in targets),
                "target_node_ids": [self._name(t) for t in targets],
            }
        )

    def write(self, session: Session) -> None:
        """Insert the attempt and all its rows."""
        session.add(
            AttemptRow(
                id=self.attempt,
                execution_id=self.execution,
                run_id=self.execution.split("/group")[0].removeprefix("run/"),
                number=self.number,
                host="here",
                status="sealed",
                end_reason="exited",
            )
        )
        session.flush()
        # Calls and nodes refer to each other, so the calls get their nodes last.
        links = [(call["id"], call.pop("context", None), call.pop("sampled", None)) for call in self.calls]
        for table, rows in (
            (ModelCallRow, self.calls),
            (TreeNodeRow, self.nodes),
            (TrajectoryRow, self.trajectories),
        ):
            names = {name for row in rows for name in row}
            if rows:
                session.execute(insert(table), [{name: row.get(name) for name in names} for row in rows])
        for name, context, sampled in links:
            if sampled is not None:
                ends = {"context_node_id": self._name(context), "sampled_node_id": self._name(sampled)}
                session.execute(update(ModelCallRow).where(ModelCallRow.id == name).values(**ends))

    def _call(self, role: str, **columns: Any) -> str:
        index = len(self.calls)
        name = f"{self.attempt}/call/{index}"
        at = {"committed_at": "2026-01-01T00:00:02Z"} if columns["status"] == "committed" else {}
        self.calls.append(
            {
                "id": name,
                "attempt_id": self.attempt,
                "execution_id": self.execution,
                "run_id": self.execution.split("/group")[0].removeprefix("run/"),
                "index": index,
                "dialect": "anthropic",
                "role": role,
                "request_key": f"k{index}",
                "requested": {},
                "sampling": SAMPLING,
                "num_input_tokens": 0,
                "num_reused_tokens": 0,
                "num_output_tokens": 0,
                "num_malformed_tool_calls": 0,
                **at,
                **columns,
            }
        )
        return name

    def _node(self, call: str, after: int | None, offset: int | None, size: int, kind: str) -> int:
        parent = None if after is None else self.nodes[after]
        taken = 0 if parent is None else (parent["num_tokens"] if offset is None else offset)
        index = len(self.nodes)
        self.nodes.append(
            {
                "id": self._name(index),
                "attempt_id": self.attempt,
                "index": index,
                "call_id": call,
                "parent_id": None if parent is None else parent["id"],
                "parent_offset": taken,
                "position": 0 if parent is None else parent["position"] + taken,
                "kind": kind,
                "num_tokens": size,
                "token_ids": np.arange(size, dtype="<i4").tobytes(),
                "logprobs": np.zeros(size, dtype="<f4").tobytes() if kind == "sampled" else None,
            }
        )
        return index

    def _name(self, index: int) -> str:
        return f"{self.attempt}/node/{index}"
