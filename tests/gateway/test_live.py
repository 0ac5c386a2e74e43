"""Live streaming sends text while it is sampled and calls after the commit, and records the same."""

import json
from collections.abc import Iterator

import httpx
import pytest

from db.models import RunConfigRow
from db.session import transaction
from gateway.dialects import AnthropicMessages, Dialect, GoogleGenerate, OpenAIChat, OpenAIResponses, Reply
from gyre.contracts.errors import EngineFailed
from gyre.trajectory.arrays import unpack_logprobs
from tests.gateway.conftest import World, gateway_thread, wait_until
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.test_clients import ARGUMENTS, CALL, ClientAnswer, talking
from tests.gateway.wire import DIALECTS, request_in

THOUGHT = "<think>\nI must look.\n</think>\n\n"
LONG = f"{THOUGHT}Äpfel and \U0001f34e, one by one.\n" + CALL.rpartition("look.\n")[2]


BEGUN = {
    "anthropic": b"text_delta",
    "openai": b'"content":"L',
    "responses": b"output_text.delta",
    "google": b'"text":"L',
}
"""Part of the first text event. How the text is split into events is a matter of timing."""


def set_live(world: World, live: bool) -> None:
    with transaction(world.database) as session:
        row = session.get_one(RunConfigRow, ("r", 0))
        row.resolved = {**row.resolved, "gateway": {"live": live}}


@pytest.fixture
def live(world: World) -> Iterator[World]:
    set_live(world, True)
    with gateway_thread(world):
        yield world


@pytest.mark.parametrize("dialect", DIALECTS)
def test_text_comes_before_the_commit_and_calls_after_it(
    live: World, engine: ScriptedEngine, dialect: str
) -> None:
    engine.script = lambda request, prompt: CALL
    engine.tail.clear()
    path, body = request_in(dialect, "go", stream=True)
    seen, early = b"", b""
    with httpx.stream("POST", f"{live.url}/t/{live.token}{path}", json=body, timeout=30) as response:
        for piece in response.iter_bytes():
            seen += piece
            if BEGUN[dialect] in seen and not early:
                early = seen
                assert [call.status for call in live.calls()] == ["in_flight"]
                engine.tail.set()
    assert b"bash" not in early
    assert b"bash" in seen
    assert b"tool_call>" not in seen


@pytest.mark.parametrize("dialect", DIALECTS)
def test_clients_read_live_streams(live: World, engine: ScriptedEngine, dialect: str) -> None:
    engine.script = lambda request, prompt: LONG if prompt.count("<tool_response>") < 1 else "Done."
    with talking(dialect, live.url, live.token) as talk:
        said = talk.ask("go", stream=True)
        done = talk.answer("ok", stream=True)
    assert (said.reasoning, said.calls) == ("I must look.", [("bash", ARGUMENTS)])
    assert said.text == "Äpfel and \U0001f34e, one by one."
    assert (done.text, done.reason) == ("Done.", talk.ends["stop"])
    assert len(live.leaves()) == 1


@pytest.mark.parametrize("dialect", DIALECTS)
def test_live_streamed_and_whole_leave_equal_records(
    world: World, engine: ScriptedEngine, dialect: str
) -> None:
    """Reported elsewhere: streamed calls had no token ids."""
    engine.script = lambda request, prompt: LONG
    for live, stream in ((True, True), (False, True), (False, False)):
        set_live(world, live)
        with gateway_thread(world):
            path, body = request_in(dialect, "go", max_tokens=300, stream=stream)
            httpx.post(f"{world.url}/t/{world.token}{path}", json=body, timeout=30).raise_for_status()
            wait_until(lambda: all(call.delivered_at for call in world.calls()))
    assert [request.stream for request in engine.requests] == [True, False, False]
    calls, sampled = world.calls(), [node for node in world.nodes() if node.kind == "sampled"]
    for index in (1, 2):
        assert sampled[index].token_ids == sampled[0].token_ids
        assert sampled[index].versions == sampled[0].versions
        assert calls[index].input_sha256 == calls[0].input_sha256
        assert calls[index].finish_reason == calls[0].finish_reason
        same = [{**call.response, "tool_calls": len(call.response["tool_calls"])} for call in calls]
        assert same[index] == same[0]
    for call, node in zip(calls, sampled, strict=True):
        seed, count = call.sampling["sampling_seed"], node.num_tokens
        expected = [-((seed + call.num_input_tokens + i) % 97) / 50 for i in range(count)]
        assert unpack_logprobs(node.logprobs).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_live_and_committed_streams_read_the_same(world: World, engine: ScriptedEngine, dialect: str) -> None:
    """The vendor's client reads equal reasoning, text, calls, finish reason and usage."""
    engine.script = lambda request, prompt: LONG
    heard: list[ClientAnswer] = []
    for live in (True, False):
        set_live(world, live)
        with gateway_thread(world), talking(dialect, world.url, world.token) as talk:
            heard.append(talk.ask("go", stream=True))
    assert heard[0] == heard[1]
    assert (heard[0].reasoning, heard[0].calls) == ("I must look.", [("bash", ARGUMENTS)])
    assert min(heard[0].usage) > 0


def test_a_stream_that_breaks_or_moves_continues_where_it_was(live: World, engine: ScriptedEngine) -> None:
    """Tokens that were sent are not sampled again, and the client only waits."""
    parts = [
        Part("one two three", cut_after=4, version=1),
        Part(status=503),
        Part("two ", finish="abort", version=1),
        Part("three", version=2),
    ]
    engine.script = lambda request, prompt: parts[len(engine.requests) - 1]
    with talking("anthropic", live.url, live.token) as talk:
        assert talk.ask("go", stream=True).text == "one two three"
    first, *_, third, last = engine.requests
    assert len(third.input_ids) == len(first.input_ids) + 4
    assert last.input_ids[: len(third.input_ids)] == third.input_ids
    assert live.nodes()[1].versions == [[1, 8], [2, 6]]


def shorter(count: int) -> bytes:
    """Build an event that replaces all tokens by ``count`` others."""
    meta = {
        "id": "-",
        "finish_reason": None,
        "prompt_tokens": 1,
        "completion_tokens": count,
        "cached_tokens": 0,
        "output_token_logprobs": [[-1.0, 5, None]] * count,
        "weight_versions": [[1, count]],
    }
    return json.dumps({"output_ids": [5] * count, "meta_info": meta}).encode()


BREAKS = {
    "an error": b'{"error": {"message": "out of memory"}}',
    "no JSON": b"{",
    "parts that disagree": shorter(1).replace(b"[[1, 1]]", b"[[1, 2]]"),
    "fewer tokens": shorter(1),
    "other tokens": shorter(9),
}


@pytest.mark.parametrize("cut_by", BREAKS.values(), ids=BREAKS)
def test_an_event_without_progress_is_a_break(live: World, engine: ScriptedEngine, cut_by: bytes) -> None:
    """The tokens before it stay; only the rest is sampled again."""
    parts = [Part("one two three", cut_after=8, cut_by=cut_by, version=1), Part("three", version=1)]
    engine.script = lambda request, prompt: parts[len(engine.requests) - 1]
    with talking("anthropic", live.url, live.token) as talk:
        assert talk.ask("go", stream=True).text == "one two three"
    first, second = engine.requests
    assert len(second.input_ids) == len(first.input_ids) + 8
    assert live.calls()[0].response["text"] == "one two three"


@pytest.mark.parametrize("dialect", [AnthropicMessages(), OpenAIChat(), OpenAIResponses(), GoogleGenerate()])
def test_a_stream_never_contradicts_itself(dialect: Dialect) -> None:
    stream = dialect.stream(Reply("c", "m", 3, 0))
    stream.start()
    assert b"one two" in stream.live("", "one two")
    for changed in ("one", "one tow three"):
        with pytest.raises(EngineFailed, match="had begun to say"):
            stream.live("", changed)
    assert b"one" not in stream.live("", "one two three")


def is_abandoned(world: World) -> bool:
    """Return whether no client waits for any call of the attempt."""
    live = world.apps[0].service.attempts.get(world.attempt)
    assert live is not None
    return not any(call.connected for calls in live.open_calls.values() for call in calls)


def test_an_abandoned_live_stream_is_replayed_in_full(live: World, engine: ScriptedEngine) -> None:
    engine.script = lambda request, prompt: CALL
    engine.tail.clear()
    path, body = request_in("anthropic", "go", max_tokens=300, stream=True)
    with httpx.stream("POST", f"{live.url}/t/{live.token}{path}", json=body) as response:
        for piece in response.iter_bytes():
            if b"text_delta" in piece:
                break
    # Until the gateway notices that the client left, what it writes counts as delivered.
    wait_until(lambda: is_abandoned(live))
    engine.tail.set()
    wait_until(lambda: live.calls()[0].status == "committed")
    replayed = httpx.post(f"{live.url}/t/{live.token}{path}", json=body | {"stream": False}).json()
    assert [block["type"] for block in replayed["content"]] == ["thinking", "text", "tool_use"]
    assert replayed["content"][2]["input"] == ARGUMENTS
    assert len(live.calls()) == len(engine.requests) == 1
