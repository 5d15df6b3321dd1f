"""A world of several processes, on torch.distributed: NCCL between GPUs, Gloo or shared memory between CPUs."""

import datetime
import importlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore, Store  # type: ignore[attr-defined]

from bow.cluster.heartbeat import advice
from bow.cluster.world import DONE, PATIENCE, PendingSum, World
from bow.errors import ClusterError, reason
from bow.values import number

if TYPE_CHECKING:
    from bow.cluster.shared_sums import SharedSums

T = TypeVar("T")

BYTES_PER_MB = 2**20

CPU = torch.device("cpu")

# After a failure: seconds that a process waits for the others, which notice it in their next sum.
REUNION = datetime.timedelta(seconds=30)
POLL_S = 0.02

Bucket: TypeAlias = float | Literal["variable"] | None  # MiB per bucket of a sum; None: one bucket for all


def check_bucket(bucket_mb: object) -> None:
    if bucket_mb is not None and bucket_mb != "variable":
        number("bucket_mb", bucket_mb, above=0, also='"variable", or None for one AllReduce')


def backend_for(device: torch.device) -> str:
    return "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"


class CheckedSum(PendingSum):
    """A sum on CPUs, in buckets: of Gloo, which computes in its own threads, or in shared memory."""

    def __init__(self, parts: Sequence[dist.Work | PendingSum], call: Callable[..., Any]) -> None:
        self._parts = parts
        self._call = call

    def wait(self) -> None:
        parts, self._parts = self._parts, ()  # a connection stays open as long as its sums are kept
        for part in parts:
            self._call(part.wait)

    def withdraw(self) -> None:
        shared = [part for part in self._parts if isinstance(part, PendingSum)]
        for part in shared:
            part.withdraw()
        if not shared:  # of Gloo: the next sum would be matched with this one
            super().withdraw()


class Ranks(NamedTuple):
    """Rank of a process among all and on its machine, and number of its machine."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int = 0
    nodes: int = 1


class Processes(World):
    """The processes of a torch.distributed process group, one for each device."""

    is_one = False  # a cluster of one process takes the same code path

    def __init__(
        self,
        device: torch.device,
        ranks: Ranks,
        store: Store | None,  # None: the processes have met, and their default group is kept open
        *,
        bucket_mb: Bucket = None,
        group: dist.ProcessGroup | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__()
        self._remedy = remedy
        self.rank, self.size, self.local_rank, self.local_size, self.node, self.nodes = self._ranks = ranks
        self._bucket_mb = bucket_mb
        self._group = group
        self._device = device
        self._store = store
        self._has_lost_one = False
        self._may_share = device.type == "cpu" and self.nodes == 1 < self.size and bucket_mb is None
        self._shared: SharedSums | None = None
        self._near: list[Processes] = []  # worlds of this machine's processes
        if store is not None:
            self._connect(store, PATIENCE)

    def sum(self, tensor: Tensor) -> PendingSum:
        self.sums += 1
        if tensor.is_cuda:  # on the current stream, so other streams need not wait
            for part in self._buckets(tensor):
                self._call(dist.all_reduce, part, group=self._group)
            return DONE
        if self._shares(tensor):
            assert self._shared is not None
            return CheckedSum([self._call(self._shared.begin, tensor)], self._call)
        works = [self._call(dist.all_reduce, part, group=self._group, async_op=True) for part in self._buckets(tensor)]
        return CheckedSum(works, self._call)

    def sum_with_prefix(self, tensor: Tensor) -> Tensor | None:
        self.sums += 1
        all_of_them = tensor.new_empty(self.size, *tensor.shape)
        self._call(dist.all_gather, list(all_of_them), tensor, group=self._group)
        torch.sum(all_of_them, 0, out=tensor)
        return all_of_them[: self.rank].sum(0) if self.rank else None

    def sum_numbers(self, values: Sequence[float]) -> list[float]:
        tensor = torch.tensor(values, dtype=torch.float64)
        self._call(dist.all_reduce, tensor, group=self._group)
        return tensor.tolist()

    def all_gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        self._call(dist.all_gather_object, values, value, group=self._group)
        return values

    def broadcast(self, value: T) -> T:
        values = [value]
        self._call(dist.broadcast_object_list, values, group=self._group, group_src=0, device=CPU)
        return values[0]

    def gather(self, value: T) -> list[T] | None:
        values: list[Any] | None = [None] * self.size if self.leads else None
        self._call(dist.gather_object, value, values, group=self._group, group_dst=0)
        return values

    def scatter(self, values: Sequence[T] | None) -> T:
        got: list[Any] = [None]
        given = None if values is None else list(values)
        self._call(dist.scatter_object_list, got, given, group=self._group, group_src=0)
        return got[0]  # type: ignore[no-any-return]

    def broadcast_tensors(self, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            # Gloo takes any memory for contiguous, NCCL refuses other, and both lack some types.
            strides = zip(tensor.stride(), tensor.shape, strict=True)
            own = tensor[tuple(slice(None if stride else 1) for stride, _ in strides)]  # what `expand` repeats, once
            whole = own.contiguous()
            flat = whole.as_strided((whole.numel(),), (1,)).view(torch.uint8)
            self._call(dist.broadcast, flat, group=self._group, group_src=0)
            if whole is not own:
                own.copy_(whole)

    def node_world(self) -> World:
        if self.nodes == 1:
            return self
        own: World = World()
        of_ranks = self.all_gather(self.node)
        for node in sorted(set(of_ranks)):
            ranks = [rank for rank, of in enumerate(of_ranks) if of == node]
            group = self._call(dist.new_group, ranks, timeout=PATIENCE)  # a collective call: by members and others
            if node == self.node and len(ranks) > 1:
                place = self._ranks._replace(rank=ranks.index(self.rank), size=len(ranks), node=0, nodes=1)
                own = Processes(self._device, place, None, bucket_mb=self._bucket_mb, group=group, remedy=self._remedy)
                own.variables = self.variables
                self._near.append(own)
        return own

    def __exit__(self, kind: type[BaseException] | None, *rest: Any) -> None:
        """Leave; if all went well, only together with the others: rank 0 may still be writing."""
        try:
            if kind is None:
                self._call(dist.barrier)
        finally:
            self.close()

    def reunite(self, place: int | None) -> bool:
        # Sums on a GPU that were issued before the failure would leave invalid weights.
        if self._store is None or self._device.type == "cuda" or self.nodes > 1:
            return False
        self.close()  # what others are waiting for fails
        try:
            self._store.set(f"at/{self.rank}", str(place))
            if place is None:
                return False
            places = [f"at/{rank}" for rank in range(self.size)]
            give_up = time.monotonic() + REUNION.total_seconds()
            while not self._store.check(places):
                if self._has_lost_one or time.monotonic() > give_up:
                    self._store.set(f"at/{self.rank}", str(None))
                    return False
                time.sleep(POLL_S)
            if len({self._store.get(each) for each in places}) > 1:
                return False
            self._connect(PrefixStore("again", self._store), REUNION)
        except (RuntimeError, ClusterError):
            return False
        return True

    def abort(self) -> None:
        """Abort sums of NCCL; those of Gloo fail when a process ends."""
        self._has_lost_one = True
        group = self._group or dist.group.WORLD
        if self._device.type == "cuda" and group is not None:
            self.was_aborted = True
            group.abort()

    def close(self) -> None:
        for near in self._near:
            near.close()
        if self._shared is not None:
            self._shared.close()
            self._shared = None
        self._near = []
        if self._store is not None and dist.is_initialized():
            dist.destroy_process_group()

    def _connect(self, store: Store, patience: datetime.timedelta) -> None:
        # Where it is imported later, its default arguments are the process group, whose connections then stay open.
        importlib.import_module("torch.distributed.nn.functional")
        # torch names groups by a counter per process, which a failed initialisation leaves advanced. Ranks whose
        # names differ would wait for each other until the timeout.
        dist.distributed_c10d._world.group_count = 0
        self._call(
            dist.init_process_group,
            backend_for(self._device),
            store=store,
            rank=self.rank,
            world_size=self.size,
            timeout=patience,
            device_id=self._device if self._device.type == "cuda" else None,
        )

    def _shares(self, tensor: Tensor) -> bool:
        """Whether a sum uses shared memory; allocates more if necessary."""
        if not self._may_share or tensor.dim() != 1:
            return False
        from bow.cluster.shared_sums import MOST_BYTES, SharedSums  # not needed by one process

        if not 0 < tensor.nbytes <= MOST_BYTES:
            return False
        if self._shared is None or self._shared.row_bytes < tensor.nbytes:
            self._shared = SharedSums.agreed(tensor.nbytes, self.rank, self.size, self.broadcast, self.all_gather)
            self._may_share = self._shared is not None
        return self._may_share

    def _buckets(self, tensor: Tensor) -> Sequence[Tensor]:
        if self._bucket_mb is None:
            return [tensor]
        if self._bucket_mb == "variable":
            if not 0 <= tensor.numel() - sum(self.variables) <= 1:  # neither a row nor a row with one extra number
                return [tensor]
            *others, last = self.variables
            return torch.split(tensor, [*others, last + tensor.numel() - sum(self.variables)])
        return torch.split(tensor, max(1, int(self._bucket_mb * BYTES_PER_MB) // tensor.element_size()))

    def _call(self, function: Callable[..., T], *args: Any, **options: Any) -> T:
        """Call a collective; translate its error to "another process has ended"."""
        try:
            return function(*args, **options)
        except (RuntimeError, ValueError) as error:  # dist.DistBackendError etc. are RuntimeErrors
            raise ClusterError(
                f"another process has ended or cannot be reached ({reason(error)}); {advice(self._remedy)}"
            ) from error
