"""The loss through the model: weights of executions, masking, KL and entropy with their gradients."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gpu_workers.trainer.batch import needing_gradient
from gpu_workers.trainer.data import TargetPath
from gpu_workers.trainer.replica import Replica
from gyre.settings.runfile import LossSection
from gyre.trajectory.extraction import ExtractionNode
from tests.trainer.models import paths_of, random_nodes, separated
from tests.trainer.test_trees import gradients, largest_error

TEMPERATURE = 0.9
EVERY_TERM = LossSection(form="truncated", kl_coefficient=0.3, entropy_coefficient=0.2)
SECTIONS = pytest.mark.parametrize(
    "section",
    [
        LossSection(form="truncated"),
        LossSection(form="truncated", kl_coefficient=0.3),
        LossSection(form="truncated", entropy_coefficient=0.2),
        EVERY_TERM,
    ],
    ids=["policy", "kl", "entropy", "all"],
)


def two_turns(advantage: float = 0.7) -> TargetPath:
    """Make the path of a prompt, an answer, tool output and an answer."""
    nodes = [ExtractionNode("0", None, 0, 0, 6, False, "main")]
    for index, (length, sampled) in enumerate([(4, True), (5, False), (3, True)], start=1):
        last = nodes[-1]
        position = last.position + last.num_tokens
        nodes.append(ExtractionNode(str(index), last.id, last.num_tokens, position, length, sampled, "main"))
    (path,) = paths_of(nodes, np.random.default_rng(3), advantage=advantage)
    return path


def definition(replica: Replica, path: TargetPath, section: LossSection) -> torch.Tensor:
    """Compute the loss of an execution with one path from the logits of all its tokens, masked at the end."""
    packed = replica.pack([path])
    every = replace(packed.row, rows=torch.arange(len(packed.row.tokens)), targets=packed.row.tokens)
    distribution = (replica.policy(every) / TEMPERATURE).log_softmax(-1)
    places = torch.arange(len(path.tokens) - 1)
    logprobs = distribution[places, torch.from_numpy(path.tokens[1:])]
    sampled, behaviour = torch.zeros(len(places), dtype=torch.bool), torch.zeros(len(places)).double()
    sampled[path.targets - 1] = True
    behaviour[path.targets - 1] = torch.from_numpy(path.behaviour).double()
    weights = (logprobs.detach() - behaviour).exp().clamp(max=section.weight_cap)
    q = (behaviour - logprobs).exp()
    terms = -path.advantage * weights * logprobs + section.kl_coefficient * (q - 1 - q.log())
    terms = terms + section.entropy_coefficient * (distribution.exp() * distribution).sum(-1)
    return (terms * sampled).sum() / sampled.sum()


@SECTIONS
def test_text_of_the_environment_is_in_no_term(replica: Replica, section: LossSection) -> None:
    """Tool output that is not masked in every term leaks into returns or KL. In the definition, the mask
    alone removes what was not sampled."""
    path = two_turns()
    assert len(path.targets) == 7 < len(path.tokens) - 6
    found = gradients(replica, [path], section, TEMPERATURE)
    replica.begin()
    definition(replica, path, section).backward()
    assert largest_error(found, replica.gradients() or {}) < 1e-9
    totals = replica.accumulate([path], {}, section, TEMPERATURE).totals
    assert totals.num_targets == 7


@SECTIONS
def test_the_number_of_branches_is_no_weight(replica: Replica, section: LossSection) -> None:
    """An execution with three equal answers must not weigh more than an execution with one of them."""
    once = two_turns()
    answers = [[*once.segments[:-1], (f"answer {i}", 2)] for i in range(3)]
    three = [replace(once, execution_id="f", segments=s, num_execution_targets=21) for s in answers]
    assert len(replica.pack(three).row.tokens) == len(once.tokens) - 1 + 2 * 2
    alone = gradients(replica, [once], section, TEMPERATURE)
    branched = gradients(replica, three, section, TEMPERATURE)
    assert largest_error(branched, alone) < 1e-9
    both = gradients(replica, [once, *three], section, TEMPERATURE)
    assert largest_error(both, {name: 2 * tensor for name, tensor in alone.items()}) < 1e-9


def test_a_tree_has_the_terms_and_statistics_of_its_paths(replica: Replica) -> None:
    rng = np.random.default_rng(1)
    paths = paths_of(random_nodes(rng, 12), rng)
    flat = gradients(replica, separated(paths), EVERY_TERM, TEMPERATURE)
    assert largest_error(gradients(replica, paths, EVERY_TERM, TEMPERATURE), flat) < 1e-9
    one, other = (replica.accumulate(p, {}, EVERY_TERM, TEMPERATURE) for p in (paths, separated(paths)))
    assert one.num_path_tokens == other.num_tokens == sum(len(path.tokens) - 1 for path in paths)
    assert one.num_tokens < other.num_tokens
    assert one.totals.num_targets == other.totals.num_targets == sum(len(path.targets) for path in paths)
    assert one.totals.num_capped == other.totals.num_capped > 0
    for kind in ("ratio", "k3", "entropy"):
        assert getattr(one.totals, kind) == pytest.approx(getattr(other.totals, kind), rel=1e-9)
    assert one.sums["e"] == pytest.approx(other.sums["e"], rel=1e-9)


@pytest.mark.parametrize("advantage", [0.0, 2.0], ids=["no advantage", "clipped"])
def test_other_terms_apply_without_a_policy_term(replica: Replica, advantage: float) -> None:
    """Every log-probability is far above the behaviour's, so a positive advantage is clipped."""
    section = LossSection(kl_coefficient=0.3, entropy_coefficient=0.2)
    path = replace(two_turns(advantage), behaviour=np.full(7, -30.0, np.float32))
    known = replica.score([path], section, TEMPERATURE).sums
    assert needing_gradient([path], known, LossSection()) == ([path] if not advantage else [])
    assert needing_gradient([path], known, section) == [path]
    found = gradients(replica, [path], section, TEMPERATURE)
    replica.begin()
    definition(replica, replace(path, advantage=0.0), section).backward()
    assert largest_error(found, replica.gradients() or {}) < 1e-9
