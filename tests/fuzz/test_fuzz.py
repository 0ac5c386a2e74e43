"""Ten thousand mutated requests in every dialect: no 5xx, no hang, no row that breaks an invariant.

`make test` sends a share of them, from a fixed seed. `make soak` sends all from a fresh seed, which
GYRE_FUZZ_SEED can repeat. The mutation of a request follows from (seed, dialect, number).
"""

import json
import os
import random
import secrets
import zlib
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert

from db import attempts
from db.models import ExecutionRow, ModelCallRow
from db.session import transaction
from gateway.live_attempt import load_attempt
from gyre.contracts.ids import AttemptId, ExecutionId, attempt_id
from gyre.contracts.tokens import attempt_token
from tests.fuzz.corpus import DIALECTS, Body, DialectCorpus
from tests.fuzz.invariants import violations
from tests.fuzz.mutations import encoded, mutated, sending
from tests.fuzz.speech import REFUSED, CarelessPolicy
from tests.fuzz.wire import BOUND_S, Received, Sending, exchange
from tests.gateway.conftest import SECRET, World, gateway_thread, wait_until
from tests.gateway.scripted_engine import ScriptedEngine
from tests.gateway.test_live import set_live

SHARE, ALL = 300, 10_000
"""Requests per dialect; to a gateway that streams live, a fifth of these."""
FIXED_SEED = 20
NUM_CLIENTS = 4
CALLS_OF_AN_ATTEMPT = 150
LONGEST_CONVERSATION = 10


@dataclass
class Client:
    """Sends its share of the requests one after the other, and collects what is wrong with the answers."""

    world: World
    corpus: DialectCorpus
    seed: int
    number: int
    """Number of this client; its requests are number, number + NUM_CLIENTS, ..."""
    statuses: Counter[int] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    token: str = ""
    conversation: tuple[str, Body] | None = None

    def run(self, total: int) -> None:
        for count, number in enumerate(range(self.number, total, NUM_CLIENTS)):
            if count % CALLS_OF_AN_ATTEMPT == 0:
                # Two clients share an attempt, as parallel sub-agents do.
                self.token = attempt_of(self.world, f"{self.corpus.name}-{self.number // 2}-{count}")
            self._one(number)

    def _one(self, number: int) -> None:
        draw = random.Random(f"{self.seed}:{self.corpus.name}:{number}")
        path, body = self._next_request(draw)
        changed = mutated(body, draw)
        sent = sending(path, encoded(changed, draw), self.token, draw)
        # A client that went away sends the same request again: a retry, which joins the call or replays it.
        repeats = 2 if sent.keep is not None else draw.choice((1,) * 15 + (2,))
        for _ in range(repeats):
            try:
                received = exchange(self.world.port, sent)
            except TimeoutError:
                self._report(number, sent, f"no answer within {BOUND_S:.0f} s")
                continue
            if received is not None:
                self.statuses[received.status] += 1
                if problem := wrong(self.corpus, sent, received):
                    self._report(number, sent, problem)
                self._remember(path, changed, received)
            elif sent.keep is None:
                self._report(number, sent, "the connection was closed without an answer")
            sent.keep = None

    def _next_request(self, draw: random.Random) -> tuple[str, Body]:
        """Continue the conversation in half of all cases, else start one."""
        if self.conversation is not None and draw.random() < 0.5:
            return self.conversation
        return draw.choice(self.corpus.requests)

    def _remember(self, path: str, body: Any, received: Received) -> None:
        if received.status != 200 or not is_json(received.body):
            return
        try:
            follow = self.corpus.follow(body, json.loads(received.body))
        except (KeyError, TypeError, IndexError, AttributeError):
            return  # a count, or a body that was mutated beyond a conversation
        short = len(json.dumps(follow)) < 100_000 and follow_length(follow) <= LONGEST_CONVERSATION
        self.conversation = (path, follow) if short else None

    def _report(self, number: int, sent: Sending, problem: str) -> None:
        head = f"seed {self.seed}, {self.corpus.name}, request {number}: {problem}"
        self.problems.append(f"{head}\n    {sent.raw()[:1500]!r}")


def follow_length(body: Body) -> int:
    """Count the messages of a conversation, whichever field of the dialect has them."""
    return max((len(value) for value in body.values() if isinstance(value, list)), default=0)


def wrong(corpus: DialectCorpus, sent: Sending, received: Received) -> str | None:
    """Return what is wrong with an answer, or None."""
    if not received.whole:
        return f"status {received.status}: the answer was cut off"
    if received.status >= 500 or b"internal error" in received.body:
        return f"status {received.status}: {received.body[:300]!r}"
    if received.status == 200 and "event-stream" in received.content_type:
        return broken_stream(corpus, received.body)
    if received.status == 200 and sent.method != "HEAD" and not is_json(received.body):
        return f"an answer that is not JSON: {received.body[:300]!r}"
    if received.status < 400 or sent.method == "HEAD" or received.status in WITHOUT_DIALECT:
        return None
    return unclear(corpus, received.body)


def broken_stream(corpus: DialectCorpus, body: bytes) -> str | None:
    for line in body.split(b"\n"):
        data = line.removeprefix(b"data: ")
        if data != line and data != b"[DONE]" and not is_json(data):
            return f"an event that is not JSON: {line[:300]!r}"
    last = body.rstrip().split(b"\n\n")[-1]
    ended = any(end in last for end in corpus.ends)
    refused = corpus.fails in last and REFUSED.encode() in last
    return None if ended or refused else f"the stream ends with {last[:300]!r}"


def is_json(body: bytes) -> bool:
    """Check for standard JSON: without NaN and Infinity, which other languages do not read."""
    try:
        json.loads(body, parse_constant=int)
    except ValueError:
        return False
    return True


WITHOUT_DIALECT = (404, 405, 307)
"""Statuses that the router answers, which knows no dialect. The HTTP server answers 400 without JSON."""


def unclear(corpus: DialectCorpus, body: bytes) -> str | None:
    """Return why a refusal is not one clear sentence in the dialect's shape, or None."""
    if body == b"Invalid HTTP request received.":
        return None
    try:
        sentence = corpus.sentence(json.loads(body))
    except (ValueError, KeyError, TypeError, AssertionError) as error:
        return f"a refusal of another shape ({type(error).__name__}): {body[:300]!r}"
    if not sentence or len(sentence) > 1000 or "\n" in sentence or "Traceback" in sentence:
        return f"a refusal that is not one sentence: {sentence[:300]!r}"
    return None


def attempt_of(world: World, name: str) -> str:
    """Return the token of an attempt with its own execution, opened at the first request for it."""
    index = zlib.crc32(name.encode()) >> 1
    execution = ExecutionId(f"run/r/group/0/rollout/{index}")
    values = {"id": execution, "group_id": "run/r/group/0", "run_id": "r", "index": index}
    with transaction(world.database) as session:
        session.execute(insert(ExecutionRow).values(**values, status="pending").on_conflict_do_nothing())
        attempts.open_attempt(session, execution, 1, "here")
    return attempt_token(SECRET, attempt_id(execution, 1))


def settled(world: World) -> bool:
    in_flight = select(ModelCallRow.id).where(ModelCallRow.status == "in_flight").limit(1)
    return world.read(lambda s: s.scalar(in_flight)) is None


def fuzz(world: World, engine: ScriptedEngine, corpus: DialectCorpus, total: int, seed: int) -> Counter[int]:
    """Send ``total`` requests; fail with what was wrong, in a form that can be sent again."""
    engine.script, engine.requests = CarelessPolicy(), deque(maxlen=1)
    clients = [Client(world, corpus, seed, number) for number in range(NUM_CLIENTS)]
    with gateway_thread(world):
        with ThreadPoolExecutor(NUM_CLIENTS) as pool:
            list(pool.map(lambda client: client.run(total), clients))
        wait_until(lambda: settled(world))
    problems = [problem for client in clients for problem in client.problems]
    statuses = sum((client.statuses for client in clients), Counter[int]())
    with transaction(world.database) as session:
        problems += violations(session, "r")
    assert not problems, f"{len(problems)} problems of {total}, {statuses}:\n" + "\n".join(problems[:10])
    return statuses


def readable_again(world: World) -> int:
    """Load every attempt as a restarted gateway would; return the number of tree nodes."""
    with transaction(world.database) as session:
        names = session.scalars(select(ModelCallRow.attempt_id).distinct()).all()
        return sum(len(load_attempt(session, AttemptId(name)).record.tree) for name in names)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_share_of_mutated_requests(world: World, engine: ScriptedEngine, dialect: str) -> None:
    statuses = fuzz(world, engine, DIALECTS[dialect], SHARE, FIXED_SEED)
    # If all mutations were refused, or none, the test would prove nothing.
    assert statuses[200] > SHARE / 6
    assert statuses[400] > SHARE / 6
    assert readable_again(world) > SHARE / 10


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_share_of_mutated_requests_with_live_streams(
    world: World, engine: ScriptedEngine, dialect: str
) -> None:
    set_live(world, True)
    fuzz(world, engine, DIALECTS[dialect], SHARE // 5, FIXED_SEED + 1)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("live", [False, True], ids=["committed", "live"])
@pytest.mark.parametrize("dialect", DIALECTS)
def test_ten_thousand_mutated_requests(
    world: World, engine: ScriptedEngine, dialect: str, live: bool
) -> None:
    seed = int(os.environ.get("GYRE_FUZZ_SEED") or secrets.randbelow(1 << 32))
    set_live(world, live)
    total = ALL // 5 if live else ALL
    statuses = fuzz(world, engine, DIALECTS[dialect], total, seed)
    print(f"\n{dialect}: seed {seed}, {total} requests, answers by status {dict(sorted(statuses.items()))}")
    assert readable_again(world) > total / 10
