"""A tiny agent: a shell, sub-agents, and a loop. Standard library only; Gyre knows nothing about it.

    OPENAI_BASE_URL=http://127.0.0.1:8377/v1 OPENAI_API_KEY=... python agent.py instruction.md

It uses OpenAI chat completions and ends when the model answers without a tool call. If the instruction starts
with a line like ``tools: agent``, the main agent has only the tools named there (shell, agent).

A sub-agent starts with fresh messages and only the shell; its requests carry AGENT_HEADER with its number.
A conversation of more than ``--compact-chars`` is compacted before its next turn: the model writes a summary,
and goes on with the instruction and that summary.
"""

import argparse
import http.client
import json
import os
import subprocess
import time

AGENT_HEADER = "x-tiny-agent"
SUMMARY_REQUEST = "Sum up what you need to go on: all but the task and your summary will be forgotten."
SUMMARY_HEAD = "\nSummary of the work so far: "
TOOLS_LINE = "tools:"


def _tool(name: str, description: str, parameter: str) -> dict:
    parameters = {
        "type": "object",
        "properties": {parameter: {"type": "string"}},
        "required": [parameter],
    }
    function = {"name": name, "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


TOOLS = {
    "shell": _tool("shell", "Run a shell command in the workspace.", "command"),
    "agent": _tool(
        "agent", "Let another agent do a task in the workspace; answers its last words.", "prompt"
    ),
}
COMMAND_LIMIT_S = 10
RETRY_BUDGET_S = 300
FIRST_WAIT_S, LONGEST_WAIT_S = 0.2, 10.0


class ModelClient:
    """Chat completions over one keep-alive connection, with retries while the server is down or busy."""

    def __init__(self, base_url: str, key: str, name: str) -> None:
        scheme, _, rest = base_url.partition("://")
        self._host, _, path = rest.partition("/")
        self._connect = http.client.HTTPSConnection if scheme == "https" else http.client.HTTPConnection
        self._path = "/" + path.rstrip("/") + "/chat/completions"
        self._headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        self._name = name
        self._connection: http.client.HTTPConnection | None = None

    def answer(self, messages: list[dict], tools: list[str], headers: dict[str, str]) -> dict:
        """Return the next assistant message. Raises SystemExit when the server refuses or stays down."""
        offered = [TOOLS[name] for name in tools]
        body = json.dumps({"model": self._name, "messages": messages, "tools": offered})
        wait_s, give_up = FIRST_WAIT_S, time.monotonic() + RETRY_BUDGET_S
        while True:
            problem = "no answer"
            try:
                status, text = self._post(body, headers)
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

    def _post(self, body: str, headers: dict[str, str]) -> tuple[int, bytes]:
        if self._connection is None:
            self._connection = self._connect(self._host)
        self._connection.request("POST", self._path, body, self._headers | headers)
        response = self._connection.getresponse()
        return response.status, response.read()


class Agent:
    """The main agent or a sub-agent."""

    def __init__(
        self, model: ModelClient, options: argparse.Namespace, tools: list[str], number: int = 0
    ) -> None:
        """Create an agent; ``number`` 0 is the main agent."""
        self._model, self._options, self._tools = model, options, tools
        self._headers = {AGENT_HEADER: str(number)} if number else {}
        self._num_agents = 0

    def work(self, instruction: str) -> str:
        """Work until an answer has no tool call or the turns are used up; return the final text."""
        messages = [_user(instruction)]
        for _ in range(self._options.max_turns):
            if len(messages) > 1 and _num_chars(messages) > self._options.compact_chars:
                messages = [_user(instruction + SUMMARY_HEAD + self._summary(messages))]
            message = self._answer(messages)
            messages.append(message)
            if not message.get("tool_calls"):
                return message.get("content") or ""
            for call in message["tool_calls"]:
                result = self._run(call)
                messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
        return f"error: stopped after {self._options.max_turns} turns"

    def _answer(self, messages: list[dict]) -> dict:
        return self._model.answer(messages, self._tools, self._headers)

    def _summary(self, messages: list[dict]) -> str:
        """Ask for a summary of a conversation; a tool call in its place is not run."""
        return self._answer([*messages, _user(SUMMARY_REQUEST)]).get("content") or ""

    def _run(self, call: dict) -> str:
        """Run a tool call; return its result, or what is wrong with it."""
        name = call["function"]["name"]
        if name not in self._tools:
            return f"error: there is no tool {name}; call {' or '.join(self._tools)}"
        (parameter,) = TOOLS[name]["function"]["parameters"]["required"]
        wanted = f'error: call {name} with {{"{parameter}": string}}'
        try:
            argument = json.loads(call["function"]["arguments"])[parameter]
        except (ValueError, KeyError, TypeError):
            return wanted
        if not isinstance(argument, str):
            return wanted
        return (
            run_shell(argument, self._options.output_chars) if name == "shell" else self._delegate(argument)
        )

    def _delegate(self, prompt: str) -> str:
        self._num_agents += 1
        return Agent(self._model, self._options, ["shell"], self._num_agents).work(prompt)


def _user(text: str) -> dict:
    return {"role": "user", "content": text}


def _num_chars(messages: list[dict]) -> int:
    """Count the characters of all texts and tool arguments."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    texts = sum(len(message.get("content") or "") for message in messages)
    return texts + sum(len(call["function"]["arguments"]) for call in calls)


def run_shell(command: str, output_chars: int) -> str:
    """Run a command; return its output, cut to ``output_chars``."""
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


def read_instruction(text: str) -> tuple[str, list[str]]:
    """Split an instruction into the task and the tools of its first line, by default all.

    Raises SystemExit for an unknown tool.
    """
    first, _, rest = text.partition("\n")
    if not first.startswith(TOOLS_LINE):
        return text, list(TOOLS)
    names = first.removeprefix(TOOLS_LINE).replace(",", " ").split()
    if unknown := [name for name in names if name not in TOOLS]:
        raise SystemExit(f"the instruction's first line: no tool {unknown[0]} (allowed: {', '.join(TOOLS)})")
    return rest, names


def main() -> None:
    parser = argparse.ArgumentParser(description="A tiny agent with a shell and sub-agents.")
    parser.add_argument("instruction", help="file with the task")
    parser.add_argument("--model", default="policy")
    parser.add_argument("--max-turns", type=int, default=8, help="turns per conversation")
    parser.add_argument(
        "--output-chars", type=int, default=2000, help="length at which a command's output is cut"
    )
    parser.add_argument(
        "--compact-chars", type=int, default=20000, help="length above which a conversation is compacted"
    )
    options = parser.parse_args()
    model = ModelClient(os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"], options.model)
    with open(options.instruction) as file:
        instruction, tools = read_instruction(file.read())
    Agent(model, options, tools).work(instruction)


if __name__ == "__main__":
    main()
