"""Who is alive, and which cores belong to whom: without processes."""

from bow.cluster.heartbeat import Liveness
from bow.cluster.rendezvous import share_of


def test_a_process_without_new_signs_has_stopped() -> None:
    liveness = Liveness([0, 1], missed_s=30)
    for count in range(4):
        liveness.update({0: count, 1: 7}, after_s=10)
    assert liveness.stopped() is None
    liveness.update({0: 4, 1: 7}, after_s=3600)
    assert liveness.stopped() == 1


def test_time_in_which_the_listener_was_stopped_hardly_counts() -> None:
    liveness = Liveness([0], missed_s=30)
    liveness.update({0: 1}, after_s=1)
    liveness.update({0: 1}, after_s=3600)
    assert liveness.stopped() is None


def test_processes_share_cores() -> None:
    assert share_of([0, 1, 2, 3, 4], 0, 2) == [0, 1]
    assert share_of([0, 1, 2, 3, 4], 1, 2) == [2, 3, 4]
    assert share_of([0, 1], 2, 3) == [0]
