"""Which task comes next: every task once per epoch, in an order drawn from the run's seed."""

import random


def task_order(num_tasks: int, *, first: int, count: int, seed: int) -> list[int]:
    """Positions of the tasks of train groups ``first`` to ``first + count - 1``.

    A function of the group's number alone, so that a resumed run neither skips nor repeats a task.
    """
    order: list[int] = []
    for number in range(first, first + count):
        epoch, place = divmod(number, num_tasks)
        shuffled = list(range(num_tasks))
        random.Random(f"{seed}:{epoch}").shuffle(shuffled)
        order.append(shuffled[place])
    return order
