"""``python -m tests.replay.export RUN``: write one history per workflow of a run as golden files.

Run it after a change of workflow code that no run in flight can meet; otherwise use ``patched``.
"""

import asyncio
import json
import re
import socket
import sys
from pathlib import Path

from app import stack
from gyre.durable import client as durable
from gyre.settings.state import state_dir
from workflows.registry import WORKFLOWS

LONGEST = 200
"""Most events of a history to commit. A small run's histories contain everything that a large one's do."""
HISTORIES = Path(__file__).parent / "histories"


async def export(address: str, run: str) -> None:
    """Write one closed history per workflow type, the longest that is short enough to commit.

    This machine's name is replaced.
    """
    client = await durable.connect(address)
    HISTORIES.mkdir(exist_ok=True)
    for kind in (workflow.__name__ for workflow in WORKFLOWS):
        query = f"GyreRun = '{run}' AND WorkflowType = '{kind}' AND ExecutionStatus != 'Running'"
        found = [history async for history in client.list_workflows(query, limit=100).map_histories()]
        short = [history for history in found if len(history.events) <= LONGEST] or found
        longest = max(short, key=lambda history: len(history.events))
        text = re.sub(re.escape(socket.gethostname().split(".")[0]), "localhost", longest.to_json())
        (HISTORIES / f"{kind}.json").write_text(json.dumps(json.loads(text), indent=1) + "\n")
        print(f"{kind}: {len(longest.events)} events of {longest.workflow_id}")


if __name__ == "__main__":
    asyncio.run(export(stack.services_of(state_dir(), sys.argv[1]).temporal_address, sys.argv[1]))
