"""Order of tasks: each task once per pass over the tasks, in an order drawn from the run's seed."""

import random


def task_order(num_tasks: int, *, first: int, count: int, seed: int) -> list[int]:
    """Return the positions of the tasks of train groups ``first`` to ``first + count - 1``.

    Each depends on its group's number alone, so a resumed run neither skips nor repeats a task.
    """
    order: list[int] = []
    for number in range(first, first + count):
        lap, place = divmod(number, num_tasks)
        shuffled = list(range(num_tasks))
        random.Random(f"{seed}:{lap}").shuffle(shuffled)
        order.append(shuffled[place])
    return order
