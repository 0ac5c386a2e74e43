"""The call path over the wire: commit before content, limits, errors, crash of the gateway."""

import hashlib
import json
import signal
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest

from db import attempts
from db.models import QueryGroupRow, RunConfigRow
from db.session import transaction
from gateway.encoding import Encoder
from gateway.service import call_seed
from gyre.contracts.engine import GenerateRequest
from gyre.contracts.lifecycle import EndReason, Purpose
from gyre.contracts.tokens import attempt_token
from gyre.trajectory.arrays import Ids, unpack_ids, unpack_logprobs
from tests.gateway.conftest import EXECUTION, World, gateway_process, gateway_thread, sse_events, wait_until
from tests.gateway.scripted_engine import Part, ScriptedEngine
from tests.gateway.wire import DIALECTS, PATHS, refusal_in, request_in, text_in

CHAT = "/v1/chat/completions"
MESSAGES = "/v1/messages"


def chat(*texts: str, **more: object) -> dict:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    return {"model": "m", "messages": messages, **more}


def by_seed(request: GenerateRequest, prompt: str) -> str:
    """Answer with the seed: siblings differ, a repeated call does not."""
    return f"answer {request.sampling_params.sampling_seed % 100_000}"


def said(response: httpx.Response) -> str:
    """Return the text of an OpenAI answer."""
    return response.json()["choices"][0]["message"]["content"]


def abandon(world: World, body: dict, path: str = CHAT) -> None:
    """Send a request and disconnect while it is in flight."""
    raw = json.dumps(body).encode()
    known = len(world.calls())
    with socket.create_connection(("127.0.0.1", world.port)) as connection:
        head = f"POST {path} HTTP/1.1\r\nhost: g\r\nauthorization: Bearer {world.token}\r\n"
        connection.sendall(f"{head}content-length: {len(raw)}\r\n\r\n".encode() + raw)
        wait_until(lambda: len(world.calls()) > known)


def test_record_is_what_the_engine_returned(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    engine.script = lambda request, prompt: Part("hello", version=3)
    http.post(CHAT, json=chat("hi", temperature=0.1, max_tokens=77, stream=False)).raise_for_status()
    (call,), (context, sampled) = gateway.calls(), gateway.nodes()
    sent = engine.requests[0]
    assert unpack_ids(context.token_ids).tolist() == sent.input_ids
    assert call.input_sha256 == hashlib.sha256(np.array(sent.input_ids, "<i4").tobytes()).hexdigest()
    assert call.output_sha256 == hashlib.sha256(sampled.token_ids + sampled.logprobs).hexdigest()
    assert sampled.versions == [[3, sampled.num_tokens]]
    assert len(unpack_logprobs(sampled.logprobs)) == sampled.num_tokens
    assert call.requested == {"temperature": 0.1, "max_tokens": 77, "model": "m", "stream": False}
    assert sent.sampling_params.temperature == 0.7
    assert sent.sampling_params.max_new_tokens == 77
    assert sent.sampling_params.sampling_seed == call_seed(EXECUTION, 1, 0)
    wait_until(lambda: gateway.calls()[0].delivered_at)


def test_greedy_groups_sample_at_temperature_0(world: World, engine: ScriptedEngine) -> None:
    with transaction(world.database) as session:
        session.get_one(QueryGroupRow, "run/r/group/0").purpose = Purpose.GREEDY
    with gateway_thread(world), httpx.Client(base_url=world.url) as client:
        client.post(f"/t/{world.token}{CHAT}", json=chat("hi")).raise_for_status()
    assert engine.requests[0].sampling_params.temperature == 0


@pytest.mark.parametrize("dialect", DIALECTS)
def test_stream_and_whole_leave_equal_records(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, dialect: str
) -> None:
    """Reported elsewhere: calls with ``stream=true`` had no token ids."""
    for stream in (False, True):
        path, body = request_in(dialect, "hi", max_tokens=50, stream=stream)
        http.post(path, json=body).raise_for_status()
    first, second = gateway.calls()
    assert first.request_key == second.request_key
    assert first.response | {"tool_calls": []} == second.response
    assert (first.input_sha256, first.num_output_tokens) == (second.input_sha256, second.num_output_tokens)


def test_content_comes_after_the_commit(http: httpx.Client, gateway: World, engine: ScriptedEngine) -> None:
    """The start event and pings come while the engine samples; blocks come only after the commit."""
    statuses: list[str] = []
    engine.gate.clear()
    with http.stream("POST", MESSAGES, json=chat("hi", max_tokens=50, stream=True)) as response:
        for line in response.iter_lines():
            if line.startswith("event: message_start"):
                engine.gate.set()
            if line.startswith("event: content_block_start"):
                statuses.append(gateway.calls()[0].status)
    assert statuses == ["committed"]


def test_first_event_has_the_right_usage(http: httpx.Client, engine: ScriptedEngine) -> None:
    """Reported elsewhere: ``message_start`` said 0 input tokens, which broke context tracking."""
    response = http.post(MESSAGES, json=chat("hi", max_tokens=50, stream=True))
    start = sse_events(response.text)[0]
    assert start["message"]["usage"]["input_tokens"] == len(engine.requests[0].input_ids)


def test_count_tokens_makes_no_node(http: httpx.Client, gateway: World, engine: ScriptedEngine) -> None:
    """Reported elsewhere: ``count_tokens`` was not served. It must not leave a trace in the training data."""
    counted = http.post(f"{MESSAGES}/count_tokens", json=chat("how long?")).json()
    assert gateway.calls() == gateway.nodes() == []
    http.post(MESSAGES, json=chat("how long?", max_tokens=9)).raise_for_status()
    assert counted == {"input_tokens": len(engine.requests[0].input_ids)}


def test_failed_calls_leave_no_node(http: httpx.Client, gateway: World, engine: ScriptedEngine) -> None:
    """Reported elsewhere: a rejected request changed the path that later requests saw."""
    engine.script = lambda request, prompt: Part(status=400, message="input does not fit")
    assert http.post(CHAT, json=chat("hi")).status_code == 400
    (call,) = gateway.calls()
    assert (call.status, call.failure) == ("failed", "input does not fit")
    assert gateway.nodes() == []
    engine.script = lambda request, prompt: "fine"
    assert said(http.post(CHAT, json=chat("hi"))) == "fine"
    assert [c.status for c in gateway.calls()] == ["failed", "committed"]


def test_engine_failures_are_retried_with_the_same_seed(http: httpx.Client, engine: ScriptedEngine) -> None:
    """Reported elsewhere: an engine that failed during a call lost it."""
    engine.script = lambda r, p: Part(status=500) if len(engine.requests) < 3 else "at last"
    assert said(http.post(CHAT, json=chat("hi"))) == "at last"
    assert len({r.sampling_params.sampling_seed for r in engine.requests}) == 1


def test_aborted_request_continues_from_what_was_sampled(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    parts = [Part("one ", finish="abort", version=1), Part("", finish="abort"), Part("two", version=2)]
    engine.script = lambda request, prompt: parts[len(engine.requests) - 1]
    assert said(http.post(CHAT, json=chat("hi", max_tokens=20))) == "one two"
    first, _, last = engine.requests
    assert len(last.input_ids) == len(first.input_ids) + 4
    assert last.sampling_params.max_new_tokens == 16
    assert last.sampling_params.sampling_seed == first.sampling_params.sampling_seed
    assert gateway.nodes()[1].versions == [[1, 4], [2, 4]]


def test_engine_away_for_too_long_is_an_error(world: World, engine: ScriptedEngine) -> None:
    world.boot_options = {"hold_s": 0.3, "ping_s": 0.05}
    engine.script = lambda request, prompt: Part(status=503)
    with gateway_thread(world), httpx.Client(base_url=f"{world.url}/t/{world.token}", timeout=30) as client:
        assert client.post(CHAT, json=chat("hi")).status_code == 503
        assert client.post(MESSAGES, json=chat("hi", max_tokens=5)).status_code == 529
        stream = client.post(MESSAGES, json=chat("hi", max_tokens=5, stream=True)).text
    assert "event: ping" in stream
    assert sse_events(stream)[-1]["error"]["type"] == "overloaded_error"
    assert {c.status for c in world.calls()} == {"failed"}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_bad_tokens_are_401(gateway: World, dialect: str) -> None:
    path, body = request_in(dialect, "hi")
    tokens = [
        "",
        "gy-",
        "x",
        "gy-AAA.AAA",
        "gy-é.x",
        gateway.token[:-2],
        attempt_token(b"no", gateway.attempt),
    ]
    tokens.append(attempt_token(b"secret of the run", "run/r/group/0/rollout/0/attempt/9"))
    for token in tokens:
        headers = {"authorization": f"Bearer {token}".encode()} if token else {}
        answer = httpx.post(gateway.url + path, json=body, headers=headers)
        assert answer.status_code == 401, token
        assert refusal_in(answer.json())[0] in ("authentication_error", "UNAUTHENTICATED")


def test_token_as_x_api_key_and_in_the_url(gateway: World) -> None:
    assert httpx.get(f"{gateway.url}/t/{gateway.token}/v1/models").json()["data"][0]["object"] == "model"
    assert httpx.get(f"{gateway.url}/v1/models", headers={"x-api-key": gateway.token}).status_code == 200
    assert httpx.get(f"{gateway.url}/v1/models").status_code == 401
    assert httpx.head(f"{gateway.url}/api/hello").status_code == 200
    assert httpx.head(f"{gateway.url}/t/{gateway.token}/api/hello").status_code == 200


def test_google_keys_are_tokens_and_get_googles_shapes(gateway: World) -> None:
    for address in (f"/v1beta/models?key={gateway.token}", f"/v1/models?key={gateway.token}"):
        assert "models" in httpx.get(gateway.url + address).json()
    for version in ("v1", "v1beta"):
        url = f"{gateway.url}/{version}/models/m:generateContent"
        answer = httpx.post(
            url, json=request_in("google", "hi")[1], headers={"x-goog-api-key": gateway.token}
        )
        assert text_in("google", answer.json()) == "done"
    refused = httpx.get(f"{gateway.url}/v1beta/models")
    assert (refused.status_code, refused.json()["error"]["status"]) == (401, "UNAUTHENTICATED")


@pytest.mark.parametrize(
    ("path", "headers", "kind"),
    [
        ("/v1/v1/messages", {"anthropic-version": "2023-06-01"}, ("type", "not_found_error")),
        ("/t/secret/chat/completions", {}, ("type", "invalid_request_error")),
        ("/v1beta/v1beta/models/m:generateContent", {}, ("status", "NOT_FOUND")),
    ],
)
def test_an_unknown_path_is_refused_in_its_dialect(
    gateway: World, path: str, headers: dict[str, str], kind: tuple[str, str]
) -> None:
    """A wrong base URL gets a helpful sentence, which does not repeat the token."""
    refused = httpx.post(gateway.url + path, json={}, headers=headers)
    error = refused.json()["error"]
    assert (refused.status_code, error[kind[0]]) == (404, kind[1])
    assert "served are /v1/messages" in error["message"]
    assert "secret" not in refused.text


@pytest.mark.parametrize("path", ["/v1/responses", "/t/x/v1/responses"])
def test_websocket_probes_get_405(gateway: World, path: str) -> None:
    """Codex' own provider tries a websocket first, and falls back to POST."""
    key = {"sec-websocket-key": "AAAAAAAAAAAAAAAAAAAAAA==", "sec-websocket-version": "13"}
    headers = {"connection": "Upgrade", "upgrade": "websocket", **key}
    assert httpx.get(gateway.url + path, headers=headers).status_code == 405


def test_unix_socket_serves_the_same(gateway: World) -> None:
    transport = httpx.HTTPTransport(uds=str(gateway.folder / "g.sock"))
    with httpx.Client(transport=transport, base_url="http://gateway") as client:
        answer = client.post(f"/t/{gateway.token}{CHAT}", json=chat("hi"))
    assert said(answer) == "done"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_sealed_attempt_is_410(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, dialect: str
) -> None:
    """Reported elsewhere: an agent went on calling the model while its work was scored."""
    engine.gate.clear()
    path, body = request_in(dialect, "first")
    abandon(gateway, body, path)
    with transaction(gateway.database) as session:
        attempts.seal(session, gateway.attempt, EndReason.EXITED)
    engine.gate.set()
    for text in ("first", "second"):
        answer = http.post(path, json=request_in(dialect, text)[1])
        assert answer.status_code == 410
        assert "sealed" in answer.json()["error"]["message"]
    wait_until(lambda: [c.status for c in gateway.calls()] == ["failed"])
    assert gateway.nodes() == []


def test_sampling_for_a_sealed_attempt_is_cancelled(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """A call is sampled while it is recorded. If that fails, the engine is not kept busy."""
    http.post("/v1/messages/count_tokens", json=chat("hi")).raise_for_status()
    engine.gate.clear()
    with transaction(gateway.database) as session:
        attempts.seal(session, gateway.attempt, EndReason.EXITED)
    assert http.post(CHAT, json=chat("hi")).status_code == 410
    wait_until(lambda: len(engine.left) == len(engine.requests))
    assert gateway.calls() == []


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"messages": 3}',
        b'{"messages": []}',
        b'{"messages": [3]}',
        b'{"messages": [{"role": "king", "content": "x"}]}',
        b'{"messages": [{"role": "assistant", "content": [{"type": "image"}]}]}',
        b'{"messages": [{"role": "user", "content": 7}]}',
        b'{"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}',
        b'{"messages": [{"role": "user", "content": "x"}], "tools": [{"name": "x"}]}',
        b"\xff\xfe",
    ],
)
def test_bad_bodies_get_one_sentence(http: httpx.Client, dialect: str, body: bytes) -> None:
    """Each body is wrong in every dialect, for one reason or another."""
    answer = http.post(PATHS[dialect], content=body)
    kind, sentence = refusal_in(answer.json())
    assert (answer.status_code, kind) in [(400, "invalid_request_error"), (400, "INVALID_ARGUMENT")]
    assert sentence


def limited(world: World, **changes: dict[str, int]) -> None:
    with transaction(world.database) as session:
        row = session.get_one(RunConfigRow, ("r", 0))
        row.resolved = {name: part | changes.get(name, {}) for name, part in row.resolved.items()}


def test_limits_of_an_attempt(world: World, engine: ScriptedEngine) -> None:
    limited(world, limits={"calls": 3, "concurrent_calls": 1, "body_bytes": 2000})
    with gateway_thread(world), httpx.Client(base_url=f"{world.url}/t/{world.token}", timeout=30) as client:
        assert client.post(MESSAGES, json=chat("x" * 3000)).json()["error"]["type"] == "request_too_large"
        assert client.post(CHAT, json=chat("x" * 3000)).status_code == 413
        engine.gate.clear()
        abandon(world, chat("one"))
        refused = client.post(CHAT, json=chat("two"))
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        engine.gate.set()
        wait_until(lambda: world.calls()[0].status == "committed")
        for text in ("two", "three"):
            assert client.post(CHAT, json=chat(text)).status_code == 200
        assert client.post(MESSAGES, json=chat("four")).json()["error"]["type"] == "rate_limit_error"


def test_full_context_is_refused_in_the_words_of_each_dialect(world: World, engine: ScriptedEngine) -> None:
    """Reported elsewhere: a context overflow ended the training."""
    limited(world, model={"context_tokens": 100})
    with gateway_thread(world), httpx.Client(base_url=f"{world.url}/t/{world.token}", timeout=30) as client:
        refused = client.post(MESSAGES, json=chat("x" * 100, max_tokens=5))
        assert refused.status_code == 400
        assert "prompt is too long: 119 tokens > 99 maximum" in refused.json()["error"]["message"]
        refused = client.post(CHAT, json=chat("x" * 100))
        assert refused.json()["error"]["code"] == "context_length_exceeded"
        client.post(CHAT, json=chat("x" * 60)).raise_for_status()
    sent = engine.requests[0]
    assert len(sent.input_ids) + sent.sampling_params.max_new_tokens == 100


def test_killed_gateway_repeats_the_call(world: World, engine: ScriptedEngine) -> None:
    """After a kill -9 during a call, its retry has the same index, seed and tokens, and no row is doubled.

    Reported elsewhere: reused indexes held the data of other samples.
    """
    engine.script = by_seed
    with gateway_process(world) as process, httpx.Client(base_url=f"{world.url}/t/{world.token}") as client:
        committed = said(client.post(CHAT, json=chat("hi"), timeout=60))
        wait_until(lambda: world.calls()[0].delivered_at)
        engine.gate.clear()
        abandon(world, chat("hi", committed, "and now?"))
        process.send_signal(signal.SIGKILL)
        process.wait()
    engine.gate.set()
    with gateway_process(world), httpx.Client(base_url=f"{world.url}/t/{world.token}") as client:
        answer = said(client.post(CHAT, json=chat("hi", committed, "and now?"), timeout=60))
        wait_until(lambda: world.calls()[1].delivered_at)
    assert answer == f"answer {call_seed(EXECUTION, 1, 1) % 100_000}"
    assert [(c.index, c.status) for c in world.calls()] == [(0, "committed"), (1, "committed")]
    assert len(world.leaves()) == 1
    assert {r.sampling_params.sampling_seed for r in engine.requests[1:]} == {call_seed(EXECUTION, 1, 1)}


def test_a_bug_fails_its_call_and_leaves_nothing_in_flight(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """An id that no tokenizer has makes parsing fail in an unforeseen way."""
    engine.script = lambda request, prompt: Part(ids=[1 << 40])
    answer = http.post(CHAT, json=chat("hi"))
    assert (answer.status_code, answer.json()["error"]["message"]) == (500, "internal error of the gateway")
    (call,) = gateway.calls()
    assert (call.status, call.lease_owner, call.failure) == ("failed", None, "internal error of the gateway")


def test_parallel_conversations_do_not_mix(
    http: httpx.Client, gateway: World, engine: ScriptedEngine
) -> None:
    """Eight conversations of three turns run at once, and each answer sees only its own.

    Reported elsewhere: sub-agents contaminated each other's conversation.
    """
    engine.script = lambda request, prompt: f"re {prompt.split('user')[1][1:3]} {prompt.count('user')}"

    def converse(name: str) -> list[str]:
        texts = [f"{name}?"]
        for _ in range(3):
            texts += [said(http.post(CHAT, json=chat(*texts))), f"{name}!"]
        return texts[1::2]

    names = [f"{i:02d}" for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(converse, names))
    assert answers == [[f"re {name} {turn}" for turn in (1, 2, 3)] for name in names]
    assert len(gateway.leaves()) == 8
    assert sum(call.num_reused_tokens == 0 for call in gateway.calls()) == 8


def test_a_call_encodes_its_new_text_only(
    http: httpx.Client, gateway: World, engine: ScriptedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In twenty turns of a tool loop, only the new result is encoded, however long the conversation is."""
    encoded: list[int] = []
    encode = Encoder.encode

    def counted(self: Encoder, text: str) -> Ids:
        encoded.append(len(text))
        return encode(self, text)

    monkeypatch.setattr(Encoder, "encode", counted)
    engine.script = lambda request, prompt: '<tool_call>{"name": "f", "arguments": {}}</tool_call>'
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages: list[dict] = [{"role": "user", "content": "x" * 2000}]
    sizes = [100 + 37 * turn % 900 for turn in range(20)]
    for size in sizes:
        answer = http.post(CHAT, json={"model": "m", "messages": messages, "tools": tools}).json()
        message = answer["choices"][0]["message"]
        result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "y" * size}
        messages += [message, result]
    first, *later = encoded
    assert first > 2000
    assert len({count - size for count, size in zip(later, sizes, strict=False)}) == 1
    assert later[0] - sizes[0] < 100
    recorded = [call.num_input_tokens - call.num_reused_tokens for call in gateway.calls()]
    assert len({tokens - size for tokens, size in zip(recorded[1:], sizes, strict=False)}) == 1
    last, nodes = gateway.calls()[-1], gateway.nodes()
    assert sum(node.num_tokens for node in nodes) == last.num_input_tokens + last.num_output_tokens
