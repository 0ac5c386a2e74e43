"""A process that exposes weights: one JSON command per line, one JSON answer per line."""

import ctypes
import json
import sys

import torch

from gpu_workers.transfer import WeightSource


def weights(version: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(version)
    return {
        "b.weight": torch.randn(33, 17, generator=generator),
        "a.norm": torch.randn(5, generator=generator).to(torch.bfloat16),
        "c.scalar": torch.randn((), generator=generator),
    }


def main() -> None:
    source = WeightSource()
    for line in sys.stdin:
        command, *numbers = json.loads(line)
        answer: object = None
        if command == "expose":
            answer = source.expose(weights(numbers[0]), numbers[0]).model_dump()
        elif command == "release":
            source.release(numbers[0])
        elif command == "flip":
            byte = ctypes.c_uint8.from_address(numbers[0])
            byte.value ^= 1
        print(json.dumps(answer), flush=True)
    source.close()


if __name__ == "__main__":
    main()
