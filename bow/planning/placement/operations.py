"""What a policy is told about a graph: what there is to place, and on how many devices."""

from dataclasses import dataclass

from bow.errors import GraphError


@dataclass(frozen=True)
class Operations:
    """Operations, or groups of them, in an order in which they can run.

    The time of a step and the number of devices are all that a policy learns about the hardware.

    Attributes:
        kinds: by operation: what it computes, such as `conv2d`.
        shapes: by operation: the sizes of each tensor that it makes.
        edges: pairs of operations: who makes, and who reads it.
        num_devices: how many there are.
        allowed: by operation: the devices that it may have, such as the CPU alone where there is no other kernel;
            empty: all of them, for all operations.

    Raises:
        GraphError: the parts do not fit each other.

    Example:
        >>> chain = Operations(("embedding", "linear"), (((8, 4),), ((8, 9),)), ((0, 1),), num_devices=2)
        >>> len(chain), chain.devices(0)
        (2, (0, 1))

    References:
        Mirhoseini et al.: Device placement optimization with reinforcement learning, 2017, section 3.2.
    """

    kinds: tuple[str, ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    edges: tuple[tuple[int, int], ...]
    num_devices: int
    allowed: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not self.kinds or self.num_devices < 1:
            raise GraphError(
                f"a placement needs at least 1 operation and 1 device, got {len(self.kinds)} and {self.num_devices}"
            )
        for name in ("shapes", "allowed"):
            count = len(getattr(self, name))
            if count != len(self) and (count or name == "shapes"):
                raise GraphError(f"{count} entries in {name} for {len(self)} operations; give every operation one")
        stray = next((edge for edge in self.edges if not all(0 <= end < len(self) for end in edge)), None)
        if stray is not None:
            raise GraphError(f"an edge joins operations {stray[0]} and {stray[1]}, and there are {len(self)}")
        for operation, devices in enumerate(self.allowed):
            if not devices or not all(0 <= device < self.num_devices for device in devices):
                raise GraphError(
                    f"operation {operation} may have devices {devices}; give at least one of {self.num_devices}"
                )

    def __len__(self) -> int:
        """How many operations there are."""
        return len(self.kinds)

    def devices(self, operation: int) -> tuple[int, ...]:
        """Which devices an operation may have."""
        return self.allowed[operation] if self.allowed else tuple(range(self.num_devices))
