"""A tiny agent: one tool, ``shell``, and a loop. Standard library only; Gyre knows nothing about it.

    OPENAI_BASE_URL=http://127.0.0.1:8377/v1 OPENAI_API_KEY=... python agent.py instruction.md

It speaks OpenAI chat completions and ends when the model answers without a tool call.
"""

import argparse
import http.client
import json
import os
import subprocess
import time

TOOL = {
    "type": "function",
    "function": {
        "name": "shell",
        "description": "Run a shell command in the workspace.",
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "string"}},
            "required": ["command"],
        },
    },
}
COMMAND_LIMIT_S = 10
RETRY_BUDGET_S = 300
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0


class Model:
    """Chat completions over one kept connection, tried again while the server is away or busy."""

    def __init__(self, base_url: str, key: str, name: str) -> None:
        scheme, _, rest = base_url.partition("://")
        self._host, _, path = rest.partition("/")
        self._connect = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._path = "/" + path.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._name = name
        self._connection: http.client.HTTPConnection | None = None

    def answer(self, messages: list[dict]) -> dict:
        """The assistant message that follows. Raises SystemExit when the server will not answer."""
        body = json.dumps({"model": self._name, "messages": messages, "tools": [TOOL]})
        wait_s, give_up = FIRST_WAIT_S, time.monotonic() + RETRY_BUDGET_S
        while True:
            problem = "no answer"
            try:
                status, text = self._post(body)
                if status == 200:
                    return json.loads(text)["choices"][0]["message"]
                problem = f"{status} {text[:300]!r}"
                if status != 429 and status < 500:
                    raise SystemExit(f"the model refused: {problem}")
            except (OSError, http.client.HTTPException) as error:
                self._connection, problem = None, repr(error)
            if time.monotonic() > give_up:
                raise SystemExit(f"the model is unreachable: {problem}")
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, LONGEST_WAIT_S)

    def _post(self, body: str) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect(self._host)
        self._connection.request("POST", self._path, body, self._headers)
        response = self._connection.getresponse()
        return response.status, response.read()


def run_tool(call: dict, output_chars: int) -> str:
    """What the shell printed, cut to its first characters; or what is wrong with the call."""
    try:
        command = json.loads(call["function"]["arguments"])["command"]
    except (ValueError, KeyError, TypeError):
        return 'error: call shell with {"command": string}'
    if call["function"]["name"] != "shell" or not isinstance(command, str):
        return 'error: call shell with {"command": string}'
    process = subprocess.Popen(
        ["/bin/sh", "-c", command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=COMMAND_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        output, _ = process.communicate()
        return output.decode(errors="replace")[:output_chars] + "\nerror: stopped after 10 s"
    text = output.decode(errors="replace")[:output_chars]
    return text if process.returncode == 0 else f"{text}exit {process.returncode}"


def main() -> None:
    parser = argparse.ArgumentParser(description="A tiny agent with a shell.")
    parser.add_argument("instruction", help="file with the task")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--max-turns", type=int, default=8)
    parser.add_argument("--output-chars", type=int, default=200)
    options = parser.parse_args()
    model = Model(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], options.model)
    with open(options.instruction) as file:
        messages: list[dict] = [{"role": "user", "content": file.read()}]
    for _ in range(options.max_turns):
        message = model.answer(messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return
        for call in message["tool_calls"]:
            result = run_tool(call, options.output_chars)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


if __name__ == "__main__":
    main()
