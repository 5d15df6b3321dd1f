"""A search: members that are proposed one by one, from what came of those before."""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

from bow.members.member import Member, Progress
from bow.members.variant import Variant


@runtime_checkable
class MemberSearch(Protocol):
    """Proposes the members of a sweep as rows become free: `bow.sweep(variants=search)`.

    Example:
        >>> class Doubling:
        ...     lr = 0.01
        ...     def ask(self):
        ...         self.lr *= 2
        ...         return Variant(settings={"lr": self.lr}) if self.lr < 1 else None
        ...     def tell(self, member):
        ...         print(member.name, member.value("loss"))
        >>> isinstance(Doubling(), MemberSearch)
        True
    """

    def ask(self) -> Variant | None:
        """The next member; None: there are no more."""

    def tell(self, member: Member) -> None:
        """A member has ended; `stopped` says whether before its time."""


Ask = Callable[[], Progress | None]
"""Asks a search for a member, checked, with its place and folder."""
