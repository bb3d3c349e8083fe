"""Native part of byteps."""

from typing import Any, TypeAlias

from numpy.typing import NDArray
from typing_extensions import Buffer

# numpy arrays are declared as buffers for Python 3.12 and later only.
_Buffer: TypeAlias = Buffer | NDArray[Any]

def reduce(
    dtype: int,
    op: int,
    contributions: list[_Buffer],
    out: _Buffer,
    *,
    prescale: float = 1.0,
    postscale: float = 1.0,
    divisor: int = 1,
) -> None:
    """Reduce equally long contiguous buffers into `out`, as a server would.

    Args:
        dtype: A `DType`, the type of the elements of all buffers.
        op: A `ReduceOp`.
        contributions: At least one C-contiguous buffer; all as long as `out`.
        out: A writable C-contiguous buffer; may be one of the contributions.
        prescale: Factor on each contribution, applied in the accumulation type.
        postscale: Factor on the result, applied in the accumulation type before rounding.
        divisor: The number of contributions for an average, otherwise 1.

    Raises:
        ValueError: Unknown numbers, sizes that differ, no contribution, or a divisor of zero.
        BufferError: A buffer is not contiguous, or `out` is read-only.
        TypeError: An object has no buffer.
    """

def instruction_set() -> str:
    """What sums here: "avx512", "avx2" or "baseline"."""

class Link:
    """A connection to one peer that nobody has adopted yet."""

def socket_link(fd: int) -> Link:
    """Adopt a connected stream socket, authenticated by the caller. The link closes it."""

def create_shared_memory(ring_bytes: int) -> list[int]:
    """Descriptors of memory for two processes: the memory, and four events.

    Args:
        ring_bytes: How much is under way each way at most; rounded up to whole pages.

    Raises:
        OSError: There is no memory, or no descriptor left.
    """

class SumMemory:
    """Memory in which a server's lane sums, and which others may only read."""

    def descriptor(self) -> int:
        """For whoever may read it. It stays the memory's."""

def shared_memory_link(
    descriptors: list[int], is_first: bool, lifeline: int, sums: SumMemory | None = None
) -> Link:
    """Adopt one end of shared memory and a connection to the other end, all authenticated by the caller.

    Args:
        descriptors: From `create_shared_memory`, or as the other end received them, and one of memory that
            the first end lends from, if it does. The link closes them.
        is_first: One of the two ends says so.
        lifeline: A connected socket that carries nothing any more. The link closes it.
        sums: At the first end, the memory that it lends from: what is sent out of that is not copied.

    Raises:
        OSError, ValueError: It cannot be used; the descriptors stay the caller's.
    """

def inproc_links(capacity_bytes: int = 262144) -> tuple[Link, Link]:
    """Two connected links within this process."""

_NodePlan: TypeAlias = tuple[int, int, float, float, int, bool, list[int], int, list[int]]
"""dtype, op, prescale, postscale, divisor, whether the sum goes on to a server, places of those who take part
on this node, whose turn it is to own the first partition, and all ranks that take part."""

_InstalledTensor: TypeAlias = tuple[
    int, int, int, float, float, list[tuple[int, int, int, list[int]]], list[int], int
]
"""id, dtype, op, prescale, postscale, partitions as (index, lane, bytes, who contributes for each rank),
members, divisor of an average."""

class UcxPort:
    """One end of a link through UCX before the other is known."""

    def address(self) -> bytes:
        """What the other end needs to reach this one."""

    def connect(self, lifeline: int, address: bytes, timeout_s: float) -> Link:
        """The link, once both ends have heard of each other through it: both call this at the same time.

        Args:
            lifeline: A connected socket that carries nothing any more. Closed in any case.
            address: The other end's.
            timeout_s: How long it may take.

        Raises:
            RuntimeError: There is no way to the other end.
        """

class Ucx:
    """The library UCX, opened."""

    @property
    def version(self) -> str: ...
    @property
    def resources(self) -> str:
        """The transports and devices that it may use, in UCX's words."""

    def open_port(self) -> UcxPort:
        """Begin a link.

        Raises:
            RuntimeError: The devices refuse.
        """

def ucx_is_built() -> bool:
    """Whether this module was built with UCX."""

def open_ucx(polling: bool) -> Ucx:
    """Load UCX.

    Args:
        polling: Links never sleep in wait for events.

    Raises:
        RuntimeError: It is not built in, not installed, or finds no device.
    """

class Transfer:
    """One round of one tensor."""

    @property
    def status(self) -> int: ...
    @property
    def peer(self) -> int: ...
    @property
    def tensor(self) -> int: ...
    @property
    def round(self) -> int: ...
    @property
    def unresolved(self) -> int:
        """Partitions that are not over yet."""
    def poll(self) -> bool: ...
    def wait(self, timeout_s: float) -> bool:
        """Block, without the GIL, until resolved (True) or the time is over (False)."""

class Worker:
    """The data plane of one worker."""

    def __init__(
        self,
        rank: int,
        lanes: int,
        *,
        policy: int,
        credit_bytes: int,
        heartbeat_s: float,
        epoch: int,
        peer_timeout_s: float = 0.0,
        event_capacity: int = 0,
        busy_servers: int = 1,
    ) -> None:
        """After ``peer_timeout_s`` without a word a server's link is lost; 0: never."""
    def add_link(self, server: int, lane: int, link: Link, /) -> None: ...
    def add_beacon(self, link: Link, /) -> None: ...
    def start(self) -> None: ...
    def join_node(
        self,
        place: int,
        ranks: list[int],
        segments: list[int],
        lanes: int,
        piece_bytes: int,
        first_neighbour: int,
    ) -> None:
        """Map what ranks of this node share, by place. Servers' numbers end before ``first_neighbour``."""
    def add_neighbour(self, place: int, lane: int, link: Link, /) -> None: ...
    def depart(self, rank: int) -> None:
        """A rank left in order: what this node lacks of it will not come."""
    def missing(self, tensor: int) -> list[int]:
        """Ranks of this node that the rounds of a tensor wait for, as far as this rank can tell."""
    def declare(self, tensor: int, parts: list[tuple[int, int, int]], plan: _NodePlan | None = None) -> None:
        """Partitions in order, each as (server, lane, bytes)."""
    def forget(self, tensor: int) -> None: ...
    def submit(self, tensor: int, source: int, destination: int, priority: int) -> Transfer:
        """Begin a round; addresses, 0 for none. The memory must stay valid until it is resolved."""
    def retract(self, tensor: int) -> None: ...
    def fail(self, status: int, peer: int, /) -> None: ...
    def set_credit(self, credit_bytes: int) -> None: ...
    def set_chunk(self, chunk_bytes: int) -> None:
        """Bytes of a frame from now on; 0: by the measured rate."""
    def close(self) -> None: ...
    def abandon(self) -> None: ...
    def in_flight(self) -> list[Transfer]: ...
    def take_events(self) -> tuple[bytes, int]:
        """What was recorded since the last call (`byteps.trace.events`), and how many events were dropped."""
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...
    @property
    def frames_sent(self) -> int: ...
    @property
    def bytes_per_second(self) -> float:
        """Rate of sending as last measured while there was always more to send; 0.0: not yet."""

class Server:
    """The data plane of one server."""

    def __init__(
        self,
        workers: int,
        lanes: int,
        *,
        deterministic: bool,
        heartbeat_s: float,
        epoch: int,
        event_capacity: int = 0,
    ) -> None: ...
    def add_link(self, rank: int, lane: int, link: Link, /) -> None: ...
    def add_beacon(self, link: Link, /) -> None: ...
    def sum_memory(self, lane: int, /) -> SumMemory:
        """What the lane sums in from now on, for links to workers of this host.

        Raises:
            OSError: There is no memory, or no descriptor left, or the kernel is older than Linux 5.1.
        """
    def start(self) -> None: ...
    def install(self, tensors: list[_InstalledTensor]) -> None: ...
    def retire(self, tensors: list[int]) -> None: ...
    def depart(self, rank: int) -> None: ...
    def missing(self, tensor: int) -> list[tuple[int, float]]:
        """(rank, seconds since last heard) of those that the open rounds wait for."""
    def open_rounds(self) -> list[tuple[int, int, int, int, list[int]]]:
        """(tensor, partition, round, bytes, ranks that have not contributed) of all that is being summed."""
    def take_events(self) -> tuple[bytes, int]:
        """What was recorded since the last call (`byteps.trace.events`), and how many events were dropped."""
    def close(self, drain_s: float) -> None: ...
    def abandon(self) -> None: ...
    @property
    def bytes_sent(self) -> int: ...
    @property
    def bytes_received(self) -> int: ...

class Scheduler:
    """Decides which bytes leave next. No clock, no thread, no socket."""

    def __init__(self, policy: int, credit_bytes: int) -> None: ...
    def submit(self, id: int, priority: int, link: int, send_bytes: int, credit_bytes: int) -> None: ...
    def next(self, chunk_bytes: int, busy: bytearray = ...) -> tuple[int, int, int, int, bool] | None:
        """(id, link, offset, bytes, last) of the next chunk, or None. ``busy``: by link, 1: it must wait."""
    def finish(self, id: int) -> None: ...
    def park(self, id: int) -> None: ...
    def drop_link(self, link: int) -> None: ...
    def set_credit(self, credit_bytes: int) -> None: ...
    @property
    def in_flight_bytes(self) -> int: ...
    def __len__(self) -> int: ...
