"""AdamW over Megatron's ``main_grad``: one implementation for every device.

bfloat16 parameters have float32 masters. State is kept by parameter name and in the parameter's shape, so
that it maps to Hugging Face names as the weights do, whatever the parallel layout.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from gyre.settings.runfile import OptimizerSection

STATE = ("exp_avg", "exp_avg_sq")
MASTER = "master"


class MainGradAdamW:
    """Owns the masters and moments of the named parameters."""

    def __init__(self, parameters: Mapping[str, Any], section: OptimizerSection) -> None:
        self._parameters = dict(parameters)
        self._masters = {name: _master(p) for name, p in self._parameters.items()}
        self._adamw = torch.optim.AdamW(
            self._masters.values(),
            lr=section.lr,
            betas=(section.beta1, section.beta2),
            eps=section.eps,
            weight_decay=section.weight_decay,
            foreach=True,
        )
        self.steps = 0

    def step(self, scale: float) -> None:
        """Update the parameters with ``main_grad * scale``; ``main_grad`` is scaled in place."""
        for name, parameter in self._parameters.items():
            self._masters[name].grad = parameter.main_grad.mul_(scale).to(self._masters[name].dtype)
        self._adamw.step()
        self._adamw.zero_grad(set_to_none=True)
        self.steps += 1
        for name, parameter in self._parameters.items():
            if self._masters[name] is not parameter:  # wider parameters are their own masters
                parameter.data.copy_(self._masters[name])

    def state(self) -> dict[str, dict[str, Tensor]]:
        """Return ``{"exp_avg": {name: tensor}, ...}``, with masters if there are any; empty before a step."""
        if self.steps == 0:
            return {}
        found = {
            kind: {name: self._adamw.state[master][kind] for name, master in self._masters.items()}
            for kind in STATE
        }
        if any(self._masters[name] is not p for name, p in self._parameters.items()):
            found[MASTER] = {name: master.data for name, master in self._masters.items()}
        return found

    def load(self, state: Mapping[str, Mapping[str, Tensor]], steps: int) -> None:
        """Restore a saved state, or start afresh from the parameters if ``state`` is empty."""
        self._adamw.state.clear()
        self.steps = steps
        for name, parameter in self._parameters.items():
            master = self._masters[name]
            source = state[MASTER][name] if MASTER in state else parameter.detach()
            master.data.copy_(source)
            if state:
                moments = {kind: state[kind][name].to(master.device, master.dtype) for kind in STATE}
                moments = {kind: moment.clone() for kind, moment in moments.items()}
                self._adamw.state[master] = {"step": torch.tensor(float(steps)), **moments}


def _master(parameter: torch.nn.Parameter) -> torch.nn.Parameter:
    if parameter.dtype != torch.bfloat16:
        return parameter
    return torch.nn.Parameter(parameter.detach().float().clone())
