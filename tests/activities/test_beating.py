"""An activity that blocks its thread is heard of from another."""

import threading
import time

from temporalio.testing import ActivityEnvironment

from activities.beating import beating


def test_heartbeats_come_while_the_block_works_and_end_with_it() -> None:
    enough, beats = threading.Event(), []
    environment, threads = ActivityEnvironment(), threading.active_count()

    def heard(*_: object) -> None:
        beats.append(threading.get_ident())
        if len(beats) == 4:
            enough.set()

    def block() -> None:
        with beating(0.01):
            assert enough.wait(30)

    environment.on_heartbeat = heard
    environment.run(block)
    assert threading.get_ident() not in beats
    assert threading.active_count() == threads
    told = len(beats)
    time.sleep(0.1)
    assert len(beats) == told
