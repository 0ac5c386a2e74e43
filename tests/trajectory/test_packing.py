"""Micro-steps: each trajectory once, budgets kept, shared tokens counted once, in any order of arrival."""

import random
from collections import Counter, defaultdict

from hypothesis import given
from hypothesis import strategies as st

from gyre.contracts.lifecycle import MicroStepKind
from gyre.trajectory.extraction import ExtractionNode, extract
from gyre.trajectory.layout import head, lay_out, segments_to
from gyre.trajectory.packing import Item, Packed, pack
from tests.trajectory.test_extraction import trees

budgets = st.integers(5, 60)
ALL_EXECUTIONS = {f"e{number}" for number in range(4)}


def items_of(execution: str, nodes: list[ExtractionNode]) -> list[Item]:
    """Extract the trajectories of a tree, with node ids that differ between executions."""
    by_id = {node.id: node for node in nodes}
    found = list[Item]()
    for index, path in enumerate(extract(nodes, max_paths=len(nodes), seed="s")):
        last = by_id[path.target_ids[-1]]
        computed = head(segments_to(path.leaf_id, by_id), last.position + last.num_tokens - 1)
        segments = [(f"{execution}/{name}", count) for name, count in computed]
        found.append(Item(f"{execution}/{index}", execution, segments))
    return found


@st.composite
def batches(draw: st.DrawFn) -> list[Item]:
    made = draw(st.lists(trees(), min_size=1, max_size=4))
    return [item for number, nodes in enumerate(made) for item in items_of(f"e{number}", nodes)]


def unique_tokens(step: Packed, items: list[Item]) -> int:
    """Count the distinct (node, offset) of a step."""
    named = {item.trajectory_id: item for item in items}
    segments = [segment for name in step.trajectory_ids for segment in named[name].segments]
    return len({(node, offset) for node, count in segments for offset in range(count)})


def of_kind(steps: list[Packed], kind: MicroStepKind) -> list[Packed]:
    return [step for step in steps if step.kind is kind]


@given(batches(), budgets)
def test_each_trajectory_is_in_one_grad_step(items: list[Item], budget: int) -> None:
    steps = pack(items, budget=budget, scored=ALL_EXECUTIONS)
    grad = Counter(t for s in of_kind(steps, MicroStepKind.GRAD) for t in s.trajectory_ids)
    assert grad == Counter(item.trajectory_id for item in items)
    kinds = [step.kind for step in steps]
    assert kinds == sorted(kinds, key=[MicroStepKind.SCORE, MicroStepKind.GRAD].index)


@given(batches(), budgets)
def test_num_tokens_counts_unique_ones_within_the_budget(items: list[Item], budget: int) -> None:
    named = {item.trajectory_id: item for item in items}
    for step in pack(items, budget=budget, scored=ALL_EXECUTIONS):
        assert step.num_tokens == unique_tokens(step, items)
        assert step.num_tokens == lay_out([named[t].segments for t in step.trajectory_ids]).num_tokens
        assert step.num_tokens <= budget or len(step.trajectory_ids) == 1


@given(batches(), budgets)
def test_an_execution_in_several_steps_is_scored_first(items: list[Item], budget: int) -> None:
    owner = {item.trajectory_id: item.execution_id for item in items}
    places, scored = defaultdict[str, set[int]](set), Counter[str]()
    for number, step in enumerate(pack(items, budget=budget, scored=ALL_EXECUTIONS)):
        for name in step.trajectory_ids:
            if step.kind is MicroStepKind.SCORE:
                scored[name] += 1
            else:
                places[owner[name]].add(number)
    cut = {execution for execution, found in places.items() if len(found) > 1}
    assert scored == Counter(name for name, execution in owner.items() if execution in cut)
    for execution in cut:
        whole = Packed(MicroStepKind.GRAD, tuple(n for n, e in owner.items() if e == execution), 0)
        assert unique_tokens(whole, items) > budget, "an execution that fits is not cut"


@given(batches(), budgets, st.sets(st.sampled_from(sorted(ALL_EXECUTIONS))))
def test_only_executions_that_may_be_clipped_are_scored(
    items: list[Item], budget: int, scored: set[str]
) -> None:
    owner = {item.trajectory_id: item.execution_id for item in items}
    everything, found = (pack(items, budget=budget, scored=who) for who in (ALL_EXECUTIONS, scored))
    assert of_kind(found, MicroStepKind.GRAD) == of_kind(everything, MicroStepKind.GRAD)
    cut = {name for step in of_kind(everything, MicroStepKind.SCORE) for name in step.trajectory_ids}
    seen = Counter(name for step in of_kind(found, MicroStepKind.SCORE) for name in step.trajectory_ids)
    assert seen == Counter(name for name in cut if owner[name] in scored)


@given(batches(), budgets)
def test_the_longest_comes_first(items: list[Item], budget: int) -> None:
    """Replicas work on neighboring steps at a time, and wait for the longest of them."""
    steps = pack(items, budget=budget, scored=ALL_EXECUTIONS)
    for kind in MicroStepKind:
        lengths = [step.num_tokens for step in of_kind(steps, kind)]
        assert lengths == sorted(lengths, reverse=True)


def test_pieces_of_executions_that_are_cut_share_a_micro_step() -> None:
    items = [Item(f"{e}/{size}", e, [(f"{e}{size}", size)]) for e in ("a", "b") for size in (7, 3)]
    steps = pack(items, budget=8, scored=("a", "b"))
    both = [("a/7",), ("b/7",), ("a/3", "b/3")]
    for kind in MicroStepKind:
        assert [step.trajectory_ids for step in of_kind(steps, kind)] == both


@given(batches(), budgets, st.randoms())
def test_steps_do_not_depend_on_arrival_order(items: list[Item], budget: int, order: random.Random) -> None:
    shuffled = list(items)
    order.shuffle(shuffled)
    assert pack(shuffled, budget=budget, scored=ALL_EXECUTIONS) == pack(
        items, budget=budget, scored=ALL_EXECUTIONS
    )


def test_siblings_stay_together_when_an_execution_is_cut() -> None:
    """Two trunks with two branches each, interleaved, make one piece per trunk."""
    items = [Item(f"t{i}", "e", [("root", 2), (f"trunk{i % 2}", 20), (f"branch{i}", 4)]) for i in range(4)]
    steps = [set(s.trajectory_ids) for s in pack(items, budget=30, scored=())]
    assert sorted(map(sorted, steps)) == [["t0", "t2"], ["t1", "t3"]]


def test_a_node_counts_once_however_paths_leave_it() -> None:
    ends = [10, 6, 10]
    items = [Item(f"t{i}", "e", [("n", end), (f"m{i}", 1)]) for i, end in enumerate(ends)]
    (step,) = pack(items, budget=100, scored=())
    assert step.num_tokens == 10 + 3
