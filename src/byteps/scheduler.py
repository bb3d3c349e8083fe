"""The communication scheduler for transfers of any kind: which bytes go next, and how many at once.

This is the native core that also decides what byteps's own workers and servers send. See docs/scheduler.md.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from types import MappingProxyType

from byteps import _native
from byteps.errors import SchedulerClosed

__all__ = ["Part", "Scheduler", "Task"]

POLICIES = MappingProxyType({"priority": 0, "fifo": 1, "stop-and-wait": 2})
"""The native core's numbers of the policies."""
_WHOLE = 2**64 - 1
_URGENCIES = range(-(2**31), 2**31)

_log = logging.getLogger("byteps.scheduler")


class Part:
    """A partition of a task, which ``start`` is to transfer. It holds its bytes' credit until ``finish()``.

    Attributes:
        task: What it belongs to.
        index: Its number within the task, from 0.
        offset: Where it begins within the task, in bytes.
        nbytes: Its length in bytes.
    """

    __slots__ = ("_finished", "_id", "_started", "index", "nbytes", "offset", "task")  # there may be many

    def __init__(self, task: Task, number: int, index: int, offset: int, nbytes: int) -> None:
        self.task = task
        self.index = index
        self.offset = offset
        self.nbytes = nbytes
        self._id = number
        self._started = self._finished = False

    def __repr__(self) -> str:
        return f"<part {self.index} of {self.task.name!r}: {self.nbytes} bytes from {self.offset}>"

    def slice(self, itemsize: int = 1) -> slice:
        """Its place in a buffer of the whole task: ``memory[part.slice()]`` is a view, not a copy.

        Args:
            itemsize: Bytes of each element of that buffer.

        Raises:
            ValueError: It begins or ends within an element: ``partition_bytes`` is no multiple of them.
        """
        if self.offset % itemsize or self.nbytes % itemsize:
            raise ValueError(
                f"{self!r} cuts through elements of {itemsize} bytes: make partition_bytes, and the task's "
                "length, a multiple of them"
            )
        return slice(self.offset // itemsize, (self.offset + self.nbytes) // itemsize)

    def finish(self, error: Exception | None = None) -> None:
        """The transfer is over: return the credit, and start what it was lacking for. Any thread.

        Args:
            error: Why it failed, if it did. The task then ends with this error, once those of its parts that
                are in flight have finished too; the others are not started any more.

        Raises:
            RuntimeError: It was finished before.
        """
        self.task._scheduler._finish(self, error)

    def park(self) -> None:
        """Return the credit early, as only others are waited for; ``finish()`` still follows. Any thread.

        Where transfers end only when every peer has begun its own, as sums do, peers that chose different
        orders could otherwise use up their credit on each other and wait for ever.
        """
        self.task._scheduler._park(self)


class Task:
    """Something to be transferred, as ``Scheduler.submit`` returns it.

    Attributes:
        name: What errors call it.
        nbytes: Its length in bytes.
        priority: Larger is more urgent.
        future: Done when all parts have finished, or failed with the first error; no part is in flight then,
            so that the memory is free. It cannot be cancelled.
    """

    __slots__ = (
        "_error",
        "_parts",
        "_scheduler",
        "_start",
        "_unfinished",
        "future",
        "name",
        "nbytes",
        "priority",
    )

    def __init__(
        self, scheduler: Scheduler, name: str, nbytes: int, start: Callable[[Part], None], priority: int
    ) -> None:
        self.name = name
        self.nbytes = nbytes
        self.priority = priority
        self.future: Future[None] = Future()
        self.future.set_running_or_notify_cancel()
        self._scheduler = scheduler
        self._start = start
        self._parts: list[Part] | None = None
        self._unfinished = 0
        self._error: BaseException | None = None

    def __repr__(self) -> str:
        return f"<task {self.name!r}: {self.nbytes} bytes, priority {self.priority}>"

    def ready(self) -> None:
        """Its bytes are there: cut it into parts, and start those whose turn it is. Any thread, once.

        Raises:
            RuntimeError: It was ready before.
            SchedulerClosed: The scheduler has been closed.
        """
        self._scheduler._ready(self)

    def _is_started(self) -> bool:
        return self._parts is not None and all(part._started for part in self._parts)

    def _resolve(self) -> None:
        if self._error is None:
            self.future.set_result(None)
        else:
            self.future.set_exception(self._error)


class Scheduler:
    """Starts transfers in order of urgency, with a bound on the bytes in flight.

    It has no thread, clock or socket: ``start`` is called by whoever calls ``ready``, ``finish``, ``park`` or
    ``set_credit``. Calls of ``start`` never overlap and come in the order of the schedule, whatever threads
    they are on; no lock is held, so that ``start`` may call anything here, ``part.finish()`` too. While it
    runs, other threads' calls return at once and leave their parts to it; it should hand its bytes over and
    return.

    Args:
        credit_bytes: Bytes that may be in flight. One part may be, even if it is larger.
        partition_bytes: The largest part. What is in flight is not called back, so an urgent task waits
            behind at most ``credit_bytes``, or one part.
        policy: ``"priority"``: the most urgent first, in order of ``ready()`` among equals. ``"fifo"``: in
            order of ``ready()``. ``"stop-and-wait"``: the most urgent first, one part at a time.

    Raises:
        ValueError: A size is not positive, or there is no such policy.
    """

    def __init__(self, *, credit_bytes: int, partition_bytes: int, policy: str = "priority") -> None:
        _check_positive("credit_bytes", credit_bytes)
        _check_positive("partition_bytes", partition_bytes)
        if policy not in POLICIES:
            raise ValueError(f"policy={policy!r}: the policies are {', '.join(POLICIES)}")
        self._native = _native.Scheduler(POLICIES[policy], credit_bytes)
        self._partition_bytes = partition_bytes
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._tasks: dict[Task, None] = {}  # in order of submission
        self._parts: dict[int, Part] = {}
        self._starting = False
        self._closed = False

    @property
    def in_flight_bytes(self) -> int:
        """Bytes that hold credit now."""
        with self._lock:
            return self._native.in_flight_bytes

    def submit(self, name: str, nbytes: int, start: Callable[[Part], None], *, priority: int = 0) -> Task:
        """Make a task known. It takes no part in the schedule until ``task.ready()``. Any thread.

        Args:
            name: What errors call it; need not be unique.
            nbytes: Its length; a task of 0 bytes has one empty part.
            start: Called with each part when its turn comes: begins the transfer, and sees to it that
                ``part.finish()`` is called when it is over. An exception counts as ``part.finish(error)``.
            priority: Larger is more urgent; a signed 32-bit number.

        Raises:
            ValueError: The length is negative, or the priority out of range.
            SchedulerClosed: The scheduler has been closed.
        """
        if nbytes < 0:
            raise ValueError(f"task {name!r}: nbytes={nbytes} is negative")
        if priority not in _URGENCIES:
            raise ValueError(f"task {name!r}: priority={priority} does not fit into 32 bits")
        task = Task(self, name, nbytes, start, priority)
        with self._lock:
            if self._closed:
                raise SchedulerClosed(f"task {name!r}: the scheduler was closed")
            self._tasks[task] = None
        return task

    def set_credit(self, credit_bytes: int) -> None:
        """Change how many bytes may be in flight, from now on. Any thread.

        Raises:
            ValueError: It is not positive.
        """
        _check_positive("credit_bytes", credit_bytes)
        with self._lock:
            self._native.set_credit(credit_bytes)
        self._start_parts()

    def set_partition(self, partition_bytes: int) -> None:
        """Change the largest part of tasks that get ready from now on. Any thread.

        Raises:
            ValueError: It is not positive.
        """
        _check_positive("partition_bytes", partition_bytes)
        with self._lock:
            self._partition_bytes = partition_bytes

    def close(self) -> None:
        """Start nothing any more. Any thread; calling it again does nothing.

        Tasks whose parts have not all been started fail with ``SchedulerClosed``, once those in flight have
        finished, which is still expected of them.
        """
        with self._lock:
            self._closed = True
            cut_short = [task for task in self._tasks if not task._is_started()]
            for task in cut_short:
                closed = SchedulerClosed(
                    f"task {task.name!r}: the scheduler was closed before all of it was sent"
                )
                self._fail(task, closed)
            ended = [task for task in cut_short if self._has_ended(task)]
        for task in ended:
            task._resolve()

    def _ready(self, task: Task) -> None:
        with self._lock:
            if self._closed:
                raise SchedulerClosed(f"task {task.name!r}: the scheduler was closed")
            if task._parts is not None:
                raise RuntimeError(f"task {task.name!r} was ready before: each task is transferred once")
            size = self._partition_bytes
            offsets = range(0, task.nbytes, size) if task.nbytes else [0]
            task._parts = [
                Part(task, next(self._numbers), index, offset, min(size, task.nbytes - offset))
                for index, offset in enumerate(offsets)
            ]
            task._unfinished = len(task._parts)
            for part in task._parts:
                self._parts[part._id] = part
                self._native.submit(part._id, task.priority, 0, part.nbytes, part.nbytes)
        self._start_parts()

    def _start_parts(self) -> None:
        """Start whatever there is credit for, unless somebody is at it, who will look again."""
        with self._lock:
            if self._starting:
                return
            self._starting = True
        try:
            while (part := self._next()) is not None:
                self._start(part)
        except BaseException:  # the caller is interrupted; whoever calls next goes on
            with self._lock:
                self._starting = False
            raise

    def _next(self) -> Part | None:
        """The next part to start. Without one, the caller is no longer the one who starts parts."""
        with self._lock:
            grant = self._native.next(_WHOLE)
            if grant is None:
                self._starting = False
                return None
            part = self._parts[grant[0]]
            part._started = True
            return part

    def _start(self, part: Part) -> None:
        try:
            part.task._start(part)
        except BaseException as error:
            if part._finished:
                _log.exception("starting %r raised after the part had been finished", part)
            else:
                self._finish(part, error)
            if not isinstance(error, Exception):
                raise

    def _finish(self, part: Part, error: BaseException | None) -> None:
        with self._lock:
            if part._finished:
                raise RuntimeError(f"{part!r} was finished before")
            self._forget(part)
            if error is not None:
                self._fail(part.task, error)
            ended = self._has_ended(part.task)
        if ended:
            part.task._resolve()
        self._start_parts()

    def _park(self, part: Part) -> None:
        with self._lock:
            self._native.park(part._id)
        self._start_parts()

    def _forget(self, part: Part) -> None:
        """The part is over, or will not be started. Holds the lock, as the next two do."""
        part._finished = True
        part.task._unfinished -= 1
        del self._parts[part._id]
        self._native.finish(part._id)

    def _fail(self, task: Task, error: BaseException) -> None:
        """The task ends with the first error once what is in flight of it has finished."""
        if task._error is None:
            task._error = error
        for part in task._parts or ():
            if not part._started and not part._finished:
                self._forget(part)

    def _has_ended(self, task: Task) -> bool:
        if task._unfinished:
            return False
        self._tasks.pop(task, None)
        return True


def _check_positive(name: str, value: int) -> None:
    if value <= 0:
        raise ValueError(f"{name}={value} must be positive")
