"""Where members of a sweep are compared with each other, and which of them go on."""

import math
from collections.abc import Iterable, Sequence

from bow.members.member import Member, Progress
from bow.members.stopping import Halving
from bow.training.stopping import value_of


class Rungs:
    """The values of members at each rung, and the members that wait there; `members` are all, with their epochs."""

    def __init__(self, rule: Halving, members: Sequence[Member]) -> None:
        self.paused: dict[int, Progress] = {}
        self._rule = rule
        self._values: dict[int, dict[int, float]] = {}  # by rung and member
        for member in members:
            self._recall(member)

    def admit(self, waiting: Iterable[Progress]) -> list[Progress]:
        """Members that are to train, without those that wait at a rung: so they did when a sweep was interrupted."""
        admitted = []
        for each in waiting:
            each.rung = each.rung or self._rule.first
            if each.epoch < each.rung:
                admitted.append(each)
            else:
                self.paused[each.member.number] = each
        return admitted

    def note(self, member: Member, rung: int) -> None:
        """Remember what a member is worth at a rung; one that has ended before counts there as well."""
        is_lost = member.stopped == "diverged" or not member.history
        value = math.nan if is_lost else value_of(member.history[-1], self._rule.metric)
        self._values.setdefault(rung, {})[member.number] = value

    def pause(self, progress: Progress) -> list[Progress]:
        """A member has come to its rung; returns those that go on at once."""
        self.note(progress.member, progress.rung)
        self.paused[progress.member.number] = progress
        if not self._rule.asynchronous:
            return []
        values = self._values[progress.rung]
        best = self._rule.best(values, self._rule.num_kept(len(values)))
        return [self._go_on(n) for n in best if n in self.paused and self.paused[n].rung == progress.rung]

    def decide(self) -> tuple[list[Progress], list[Progress]]:
        """With all members at the lowest rung that some wait at: those that go on, and those that end."""
        rung = min(each.rung for each in self.paused.values())
        values = self._values[rung]
        count = 0 if self._rule.asynchronous else self._rule.num_kept(len(values))
        best = self._rule.best(values, count)
        here = [number for number, each in self.paused.items() if each.rung == rung]
        going_on = [self._go_on(number) for number in here if number in best]
        return going_on, [self.paused.pop(number) for number in here if number not in best]

    def _go_on(self, number: int) -> Progress:
        progress = self.paused.pop(number)
        progress.rung = self._rule.next_rung(progress.epoch)
        return progress

    def _recall(self, member: Member) -> None:
        """What a member of a sweep that is resumed was worth at its rungs."""
        rung, is_at_rung = self._rule.first, False
        for record in member.history:
            is_at_rung = record["epoch"] >= rung
            if is_at_rung:
                self._values.setdefault(rung, {})[member.number] = value_of(record, self._rule.metric)
                rung = self._rule.next_rung(record["epoch"])
        if member.stopped == "diverged" or (member.stopped not in (None, "halving") and not is_at_rung):
            self.note(member, rung)
