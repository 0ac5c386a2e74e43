"""The surroundings of a measured gateway: Postgres, a run with its attempts, an instant engine.

Postgres is the embedded one with its own settings, so a commit is on the disk before it counts.
"""

import json
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import psycopg
from sqlalchemy import insert
from sqlalchemy.orm import Session
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from app.stack import postgres
from benchmarks.gateway_conversation import ANSWER, source_text
from db import migrate
from db.models import AttemptRow, CellRow, ExecutionRow, QueryGroupRow, RunConfigRow, RunRow, TaskRow
from db.session import connect, transaction
from gyre.contracts.boot import GatewayAddress, GatewayBoot, gateway_of
from gyre.contracts.ids import AttemptId, RunId, attempt_id, cell_id, execution_id, group_id, task_id
from gyre.contracts.tokens import attempt_of_token, attempt_token
from gyre.host.ports import HOST, accepts, choose_port

RUN, SECRET = RunId("bench"), b"secret of the benchmark"
GROUP_SIZE = 8
VOCABULARY = 8_192
READY_S = 300.0
"""LiteLLM takes minutes to load on a busy machine."""
QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""How Qwen's tokenizers split text into words before they merge bytes."""
CHAT_TEMPLATE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\nYou may call one or more functions to assist with the user query.\\n\\n\
You are provided with function signatures within <tools></tools> XML tags:\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n\\nFor each function call, return a json object with function name and \
arguments within <tool_call></tool_call> XML tags:\\n<tool_call>\\n{\\"name\\": <function-name>, \
\\"arguments\\": <args-json-object>}\\n</tool_call><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>assistant\\n' + message.content }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or messages[loop.index0 - 1].role != "tool" %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != "tool" %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
"""Qwen3's ChatML with tools, without its reasoning sections."""


def build_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE of 8,192 tokens in Qwen's form on this repository's sources."""
    core = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(QWEN_SPLIT), "isolated")
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    core.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=special,
        show_progress=False,
    )
    core.train_from_iterator(source_text().splitlines(keepends=True), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id}))
    return tokenizer


class Stack:
    """Servers in a folder; the block that opened it ends them."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self._stack = folder, stack
        self.model = folder / "model"
        self.tokenizer = build_tokenizer(self.model)
        self.backend_port = choose_port(set())
        self.gateways: list[GatewayAddress] = []
        self.boot_files: list[Path] = []
        self._num_attempts = 0
        self.dsn, self.postgres = self._start_postgres()
        self.backend = self._start_backend()
        self.database = connect(self.dsn)
        stack.callback(self.database.dispose)
        with transaction(self.database) as session:
            _add_run(session, self.model, f"http://{HOST}:{self.backend_port}")

    def attempts(self, batch: int = 4096) -> Iterator[str]:
        """Yield tokens of open attempts, which are added as they are needed."""
        while True:
            first, self._num_attempts = self._num_attempts, self._num_attempts + batch
            with transaction(self.database) as session:
                names = _add_attempts(session, range(first, self._num_attempts))
            yield from (attempt_token(SECRET, name) for name in names)

    def attempt_of(self, token: str) -> AttemptId:
        """Return the attempt of a token."""
        attempt = attempt_of_token(SECRET, token)
        assert attempt is not None, "a token of this run"
        return attempt

    @contextmanager
    def serving(self, num_processes: int) -> Iterator[list[psutil.Process]]:
        """Run this many gateways until the block ends; ``gateways`` and ``boot_files`` list them."""
        boots = [self._gateway_boot(index) for index in range(num_processes)]
        self.gateways = [GatewayAddress(url=f"http://{HOST}:{b.port}", socket=b.socket) for b in boots]
        self.boot_files = [self.folder / f"gateway-{boot.port}.json" for boot in boots]
        with ExitStack() as stack:
            processes: list[psutil.Process] = []
            for boot, path in zip(boots, self.boot_files, strict=True):
                path.write_text(boot.model_dump_json())
                command = [sys.executable, "-m", "benchmarks.gateway_process", "--boot", str(path)]
                process = self.process(f"gateway-{boot.port}", command, boot.port)
                processes.append(stack.enter_context(process))
            yield processes

    def port_of(self, token: str) -> int:
        """Return the port that serves the attempt with this token, by the product's own rule."""
        return int(gateway_of(self.attempt_of(token), self.gateways).url.rpartition(":")[2])

    def _gateway_boot(self, index: int) -> GatewayBoot:
        return GatewayBoot(
            run=RUN,
            services={"postgres_dsn": self.dsn},
            state_dir=str(self.folder),
            host="bench",
            port=choose_port({self.backend_port}),
            socket=str(self.folder / f"gateway-{index}.sock"),
        )

    @contextmanager
    def process(self, name: str, command: list[str], port: int, **options: Any) -> Iterator[psutil.Process]:
        """Run a process that listens on ``port`` until the block ends; its output goes to ``<name>.log``."""
        log = self.folder / f"{name}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, **options)
        try:
            _wait(lambda: accepts(port), process, log)
            yield psutil.Process(process.pid)
        finally:
            _end(process)

    def _start_backend(self) -> psutil.Process:
        text, _, call = ANSWER.partition("\n<tool_call>\n")
        ids = [*self.tokenizer.encode(ANSWER, add_special_tokens=False), self.tokenizer.eos_token_id]
        answer = {"ids": ids, "text": text, "arguments": json.loads(call.split("\n")[0])["arguments"]}
        path = self.folder / "answer.json"
        path.write_text(json.dumps(answer))
        command = [sys.executable, "-m", "benchmarks.gateway_backend", str(self.backend_port), str(path)]
        return self._stack.enter_context(self.process("backend", command, self.backend_port))

    def _start_postgres(self) -> tuple[str, psutil.Process]:
        password, port = secrets.token_hex(8), choose_port({self.backend_port})
        postgres.initialise(self.folder / "postgres", password)
        dsn, log = f"postgresql://gyre:{password}@{HOST}:{port}/postgres", self.folder / "postgres.log"
        spec = postgres.server(self.folder / "postgres", log, port, dsn)
        with log.open("wb") as output:
            process = subprocess.Popen(
                spec.command, **spec.credentials._asdict(), cwd="/", stdout=output, stderr=output
            )
        self._stack.callback(_end, process, spec.stop_signal, spec.stop_grace_s)
        _wait(spec.healthy, process, log)
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("CREATE DATABASE gyre")
        dsn = f"{dsn.rpartition('/')[0]}/gyre"
        migrate.upgrade(dsn)
        return dsn, psutil.Process(process.pid)


@contextmanager
def running(folder: Path) -> Iterator[Stack]:
    """Yield a running stack, and end it with the block."""
    with ExitStack() as stack:
        yield Stack(folder, stack)


def cpu_s(process: psutil.Process) -> float:
    """Return user and system seconds of a process and its living children."""
    total = 0.0
    for member in [process, *process.children(recursive=True)]:
        try:
            times = member.cpu_times()
        except psutil.NoSuchProcess:
            continue
        total += times.user + times.system
    return total


def _add_run(session: Session, model: Path, engine_url: str) -> None:
    resolved = {
        "model": {"path": str(model), "context_tokens": 200_000},
        "sampling": {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "max_tokens": 4_096},
        "limits": {"calls": 2_000, "concurrent_calls": 16, "body_bytes": 32 << 20},
        "harness": {"name": "claude-code"},
    }
    session.add(RunRow(id=RUN, secret=SECRET))
    session.flush()
    session.add(RunConfigRow(run_id=RUN, revision=0, resolved=resolved, fingerprint="-"))
    session.add(TaskRow(id=task_id(RUN, "t"), run_id=RUN, name="t", split="train", path="-", sha256="-"))
    session.add(CellRow(id=cell_id(RUN, 0), run_id=RUN, index=0, capacity=1_152, engine_url=engine_url))


def _add_attempts(session: Session, numbers: range) -> list[str]:
    """Add an open attempt per number, ``GROUP_SIZE`` executions per group."""
    groups = sorted({number // GROUP_SIZE for number in numbers})
    task, size = task_id(RUN, "t"), GROUP_SIZE
    session.execute(
        insert(QueryGroupRow),
        [
            {
                "id": group_id(RUN, g),
                "run_id": RUN,
                "index": g,
                "task_id": task,
                "size": size,
                "policy_version": 0,
            }
            for g in groups
        ],
    )
    executions = [(execution_id(group_id(RUN, n // GROUP_SIZE), n % GROUP_SIZE), n) for n in numbers]
    session.execute(
        insert(ExecutionRow),
        [
            {"id": name, "group_id": group_id(RUN, n // GROUP_SIZE), "run_id": RUN, "index": n % GROUP_SIZE}
            for name, n in executions
        ],
    )
    names = [attempt_id(name, 1) for name, _ in executions]
    session.execute(
        insert(AttemptRow),
        [
            {
                "id": attempt,
                "execution_id": execution,
                "run_id": RUN,
                "number": 1,
                "host": "bench",
                "status": "open",
            }
            for attempt, (execution, _) in zip(names, executions, strict=True)
        ],
    )
    return list(names)


def _wait(ready: Callable[[], bool], process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_S
    while not ready():
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{log.stem} did not come up: {log.read_text()[-2000:]}")
        time.sleep(0.1)


def _end(process: "subprocess.Popen[bytes]", number: int = signal.SIGTERM, grace_s: float = 20) -> None:
    process.send_signal(number)
    try:
        process.wait(grace_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
