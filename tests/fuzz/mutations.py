"""Seeded damage: to the JSON value of a request, to its bytes, and to its transport."""

import copy
import gzip
import json
import random
from collections.abc import Callable
from typing import Any

from tests.fuzz.wire import Sending

RAW = {
    "@@big@@": "1" + "0" * 400,
    "@@longest@@": "9" * 5000,
    "@@huge@@": "-1e999",
    "@@nested100@@": "[" * 100 + "]" * 100,
    "@@nested500@@": '{"a":' * 500 + "1" + "}" * 500,
    "@@nested900@@": "[" * 900 + "]" * 900,
    "@@nested30000@@": "[" * 30_000 + "]" * 30_000,
    "@@twice@@": '{"role":"user","role":"assistant","content":"a","content":3}',
}
"""Placeholders for JSON that no Python value produces; `encoded` replaces them, with their quotes."""
MARKUP = (
    "<|im_end|>", "<|im_start|>assistant\n", "<tool_call>", '<tool_call>{"name": "f"}</tool_call>',
    "</tool_call>", "<think>", "</think>", "<tool_response>", "@gyre-bridge-3f1c@", "<function=f>",
    "{{ 7 * 7 }}", "{% raw %}",
)  # fmt: skip
STRINGS = (
    "", " ", "x", "\0", "a\0b", "\ud83d", "\udc00x", "\ud83d\ude00", "\u202e\u0301", "\ufeff", "\r\n\r\n",
    "null", "é" * 50, "y" * 30_000, "user", "assistant", "system", "tool", "king", "text", "function",
    "tool_use", "tool_result", "image", "call_1", "toolu_1", "toolu_404", *MARKUP,
)  # fmt: skip
ODD = (
    None, True, False, 0, -1, 1, 2**31, 2**63, 10**30, 0.5, float("nan"), float("inf"), float("-inf"),
    [], {}, [None], [[]], [{}], [""], {"": ""}, {"type": None}, {"type": "text", "text": None},
    *STRINGS, *RAW,
)  # fmt: skip
TOKENS = ("", "gy-", "x" * 3000, "gy-AAA.AAA", "é", "../../x", "%00")
METHODS = ("GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "post", "BREW")
TYPES = (
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "*/*",
    "application/json; charset=utf-16", "application/octet-stream",
)  # fmt: skip
HEADERS = (
    ("x-claude-code-session-id", "s"), ("x-claude-code-agent-id", "é\x7f"), ("x-parent-session-id", ""),
    ("x-openai-subagent", "collab_spawn"), ("x-stainless-retry-count", "-1"), ("accept", "image/png"),
    ("x-codex-turn-metadata", "{"), ("x-codex-turn-metadata", '{"request_kind": ["compaction"]}'),
    ("accept-encoding", "gzip, br;q=nan"), ("anthropic-version", "\t"), ("x-long", "v" * 8000),
    ("authorization", "Basic eDp5"), ("x-api-key", "\xff"), ("range", "bytes=5-"), ("te", "trailers"),
)  # fmt: skip


def mutated(value: Any, draw: random.Random) -> Any:
    """Return a copy with up to four changes; one in eight has none."""
    changed = [copy.deepcopy(value)]
    for _ in range(draw.choice((0, 1, 1, 1, 2, 2, 3, 4))):
        if places := _places(changed):
            draw.choice(CHANGES)(*draw.choice(places), draw)
    return changed[0] if changed else None


def _places(holder: Any) -> list[tuple[Any, Any]]:
    """Return every (container, key) below, deep enough to reach a tool's schema."""
    found: list[tuple[Any, Any]] = []
    todo = [holder]
    while todo and len(found) < 2000:
        at = todo.pop()
        items = at.items() if isinstance(at, dict) else enumerate(at)
        for key, item in items:
            found.append((at, key))
            if isinstance(item, dict | list):
                todo.append(item)
    return found


def _retype(holder: Any, key: Any, draw: random.Random) -> None:
    holder[key] = copy.deepcopy(draw.choice(ODD))


def _drop(holder: Any, key: Any, draw: random.Random) -> None:
    del holder[key]


def _repeat(holder: Any, key: Any, draw: random.Random) -> None:
    if isinstance(holder, list):
        holder.insert(draw.randrange(len(holder) + 1), copy.deepcopy(holder[key]))
    else:
        holder[f"{key}{draw.choice(('', '_', ' ', '2'))}"] = copy.deepcopy(holder[key])


def _rename(holder: Any, key: Any, draw: random.Random) -> None:
    if isinstance(holder, dict):
        holder[draw.choice((str(key).upper(), "", "\0", "\ud83d", "type", "k" * 5000))] = holder.pop(key)


def _shuffle(holder: Any, key: Any, draw: random.Random) -> None:
    if isinstance(holder[key], list):
        draw.shuffle(holder[key])
    elif isinstance(holder[key], dict):
        holder[key] = dict(draw.sample(list(holder[key].items()), len(holder[key])))


def _splice(holder: Any, key: Any, draw: random.Random) -> None:
    """Insert something into a string, or cut it, perhaps inside a surrogate pair."""
    if isinstance(holder[key], str):
        at, text = draw.randrange(len(holder[key]) + 1), holder[key]
        holder[key] = draw.choice((text[:at], text[:at] + str(draw.choice(STRINGS)) + text[at:]))


def _wrap(holder: Any, key: Any, draw: random.Random) -> None:
    holder[key] = draw.choice(([holder[key]], {"type": "text", "text": holder[key]}, str(holder[key])))


def _swap(holder: Any, key: Any, draw: random.Random) -> None:
    other = draw.choice(list(holder if isinstance(holder, dict) else range(len(holder))))
    holder[key], holder[other] = holder[other], holder[key]


CHANGES: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _retype, _retype, _retype, _drop, _drop, _repeat, _rename, _shuffle, _splice, _splice, _wrap, _swap,
)  # fmt: skip


def encoded(value: Any, draw: random.Random) -> bytes:
    """Write JSON text, mostly in UTF-8, with lone surrogates as escapes or as raw bytes."""
    escaped = draw.random() < 0.5
    text = json.dumps(value, ensure_ascii=escaped, separators=draw.choice(((",", ":"), (", ", " : "))))
    for name, raw in RAW.items():
        text = text.replace(f'"{name}"', raw)
    if draw.random() < 0.92:
        return text.encode("utf-8", "surrogatepass")
    return draw.choice(ENCODINGS)(text, draw)


def _in_another_encoding(text: str, draw: random.Random) -> bytes:
    name = draw.choice(("utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-7", "latin-1"))
    errors = "surrogatepass" if name.startswith("utf") and name != "utf-7" else "replace"
    return text.encode(name, errors)


def _truncated(text: str, draw: random.Random) -> bytes:
    whole = text.encode("utf-8", "surrogatepass")
    return whole[: draw.randrange(len(whole) + 1)]


def _flipped(text: str, draw: random.Random) -> bytes:
    whole = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(draw.randrange(1, 6)):
        whole[draw.randrange(len(whole))] ^= 1 << draw.randrange(8)
    return bytes(whole)


def _repeated(text: str, draw: random.Random) -> bytes:
    return (text + draw.choice(("", "\n", ",", "\0")) + text).encode("utf-8", "surrogatepass")


def _packed(text: str, draw: random.Random) -> bytes:
    return gzip.compress(text.encode("utf-8", "surrogatepass"), mtime=0)


def _other(text: str, draw: random.Random) -> bytes:
    return draw.choice((b"", b"null", b"[]", b'"x"', b"\xff\xfe", b"a=b&c=d", b"\0" * 100, b"{" * 50_000))


ENCODINGS: tuple[Callable[[str, random.Random], bytes], ...] = (
    _in_another_encoding, _truncated, _flipped, _repeated, _packed, _other,
)  # fmt: skip


def sending(path: str, body: bytes, token: str, draw: random.Random) -> Sending:
    """Return the request to send; four in five are sent as any client would."""
    sent = Sending("POST", path, [("authorization", f"Bearer {token}")], body)
    if draw.random() < 0.5:
        sent.headers.append(draw.choice(HEADERS[:8]))
    if draw.random() < 0.2:
        draw.choice(WIRES)(sent, token, draw)
    return sent


def _another_method(sent: Sending, token: str, draw: random.Random) -> None:
    sent.method = draw.choice(METHODS)


def _another_type(sent: Sending, token: str, draw: random.Random) -> None:
    sent.headers.append(("content-type", draw.choice(TYPES)))
    sent.headers.append(("content-encoding", draw.choice(("gzip", "br", "identity", "x"))))


def _more_headers(sent: Sending, token: str, draw: random.Random) -> None:
    sent.headers += draw.choices(HEADERS, k=draw.randrange(1, 5))


def _chunked(sent: Sending, token: str, draw: random.Random) -> None:
    sent.chunk = draw.choice((1, 7, 100, 4096))
    sent.body = sent.body[:3000]


def _cut(sent: Sending, token: str, draw: random.Random) -> None:
    """Disconnect the client in the head, in the body, or while it waits for the answer."""
    sent.keep = draw.choice((0.01, 0.3, 0.9, 1.0, 1.0, 1.0))


def _another_path(sent: Sending, token: str, draw: random.Random) -> None:
    path = sent.path
    sent.path = draw.choice(
        (
            f"{path}/",
            f"/{path}",
            f"{path}?x=%zz",
            f"{path}%00",
            path.upper(),
            f"{path}#f",
            f"{path}?{'q' * 5000}",
        )
    )


def _another_token(sent: Sending, token: str, draw: random.Random) -> None:
    sent.headers = [("x-api-key", draw.choice((*TOKENS, token, token[:-1])))]
    if draw.random() < 0.5:
        sent.headers, sent.path = [], f"/t/{draw.choice((token, 'x', '%00', 'é'))}{sent.path}"


WIRES: tuple[Callable[[Sending, str, random.Random], None], ...] = (
    _another_method, _another_type, _more_headers, _chunked, _cut, _cut, _another_path, _another_token,
)  # fmt: skip
