"""Two drivers that want one run directory, a step at a time: all orders of their steps with a few changes of turn."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations

from crashing_disk import Disk

from bigkernel.data.run_lock import Lock
from bigkernel.errors import RunLocked


class Turns:
    """Threads of which one goes on at a time, and hands over at these steps, counted over all of them.

    Who finds the other one in its way hands over too.
    """

    def __init__(self, disk: Disk, changes: Sequence[int]) -> None:
        self._changes, self._steps = set(changes), 0
        self._free = [threading.Semaphore(0), threading.Semaphore(0)]
        self._numbers: dict[int, int] = {}
        self._over = [False, False]
        self.errors: list[BaseException] = []
        disk.hook = self.step

    @property
    def steps(self) -> int:
        """Steps so far."""
        return self._steps

    def step(self, what: str = "", path: str = "") -> None:
        """A step of the thread that is running."""
        number = self._numbers.get(threading.get_ident())
        if number is None:
            return
        self._steps += 1
        other = 1 - number
        if (self._steps in self._changes or what == "wait") and not self._over[other]:
            self._free[other].release()
            self._free[number].acquire(timeout=60)

    def run(self, first: Callable[[], None], second: Callable[[], None]) -> None:
        """Run both to their ends, the first one first; raises what one of them has raised."""

        def work(number: int, task: Callable[[], None]) -> None:
            self._numbers[threading.get_ident()] = number
            self._free[number].acquire(timeout=60)
            try:
                task()
            except BaseException as error:
                self.errors.append(error)
            finally:
                self._over[number] = True
                self._free[1 - number].release()

        threads = [threading.Thread(target=work, args=each, daemon=True) for each in enumerate((first, second))]
        for thread in threads:
            thread.start()
        self._free[0].release()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive(), "nobody's turn"
        for error in self.errors:
            raise error


class Drivers:
    """Drivers that take the lock of a directory, work a step while they hold it, and give it back."""

    def __init__(self, turns: Turns, directory: str) -> None:
        self._turns, self._directory = turns, directory
        self._working: list[Lock] = []
        self.refused = self.worked = self.robbed = 0

    def work(self) -> None:
        """Take the lock and work; or be refused."""
        lock = Lock(self._directory)
        try:
            lock.acquire()
        except RunLocked:
            self.refused += 1
            return
        self._work(lock)

    def go_on(self, lock: Lock) -> None:
        """Work with a lock that was taken before; it may have been taken over since."""
        self._work(lock)

    def _work(self, lock: Lock) -> None:
        try:
            lock.require()
        except RunLocked:
            self.refused += 1
        else:
            self._working.append(lock)
            self._turns.step()
            holding = []
            for each in self._working:
                try:
                    each.require()
                    holding.append(each)
                except RunLocked:
                    continue
            assert len(holding) <= 1, "two drivers at work"
            self.worked += lock in holding
            self.robbed += lock not in holding  # it was taken over, and this driver stops
            self._working.remove(lock)
        lock.release()


def schedules(steps: int, most: int) -> Iterator[tuple[int, ...]]:
    """The steps at which turns change, up to so many of them."""
    for changes in range(most + 1):
        yield from combinations(range(1, steps + 1), changes)
