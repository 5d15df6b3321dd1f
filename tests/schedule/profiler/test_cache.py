"""Times on disk: found again by what they depend on, and never a reason to fail."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bow
from bow.schedule.profiler import OperatorTime
from bow.schedule.profiler.measuring import ProfileCache, hardware, signature

TIME = OperatorTime(1.5e-6, 1e-7, 20)


class Scaled(nn.Module):
    """An operator with a constant, on what is read."""

    def __init__(self, size: int, constant: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size, dtype=dtype))
        self._constant = constant

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.nn.functional.leaky_relu(inputs * self.weight, self._constant)


def signature_of_leaky_relu(
    size: int = 4, constant: float = 0.1, dtype: torch.dtype = torch.float32, transposed: bool = False
) -> str:
    model = Scaled(size, constant, dtype)
    inputs = torch.ones(3, size, dtype=dtype)
    inputs = inputs.t().contiguous().t() if transposed else inputs
    graph = bow.capture(model, (inputs, torch.zeros(3, size, dtype=dtype)), nn.functional.mse_loss)
    return signature(next(op for op in graph.operators if op.kind == "aten.leaky_relu.default"), graph)


def test_the_same_operator_has_one_signature_whatever_its_place() -> None:
    assert signature_of_leaky_relu() == signature_of_leaky_relu()
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    graph = bow.capture(model, (torch.ones(2, 3), torch.ones(2, 3)), nn.functional.mse_loss)
    first, second = (op for op in graph.operators if op.kind == "aten.addmm.default")
    assert first.reads != second.reads
    assert signature(first, graph) == signature(second, graph)


@pytest.mark.parametrize(
    "change", [{"size": 5}, {"constant": 0.2}, {"dtype": torch.float64}, {"transposed": True}], ids=str
)
def test_another_shape_layout_type_or_constant_is_another_operator(change: dict[str, Any]) -> None:
    assert signature_of_leaky_relu(**change) != signature_of_leaky_relu()


def with_rows(file: Path, rows: bytes) -> bytes:
    """The content of a cache's file, with these rows in the place of its own."""
    content = json.loads(file.read_bytes())
    return json.dumps({**content, "value": "rows"}).encode().replace(b'"value": "rows"', b'"value": ' + rows)


def test_times_are_found_again_and_added_to(tmp_path: Path) -> None:
    cache = ProfileCache("a machine", tmp_path / "new")
    assert cache.read() == {}
    cache.write({("mm", 1): TIME})
    cache.write({("mm", 2): TIME, ("relu", 1): OperatorTime(2e-6, 0.0, 3)})
    cache.write({("relu", 1): TIME})
    assert ProfileCache("a machine", tmp_path / "new").read() == {("mm", 1): TIME, ("mm", 2): TIME, ("relu", 1): TIME}
    (file,) = (tmp_path / "new").iterdir()
    assert file.suffix == ".json"


def test_another_machine_has_times_of_its_own(tmp_path: Path) -> None:
    ProfileCache("a machine", tmp_path).write({("mm", 1): TIME})
    assert ProfileCache("another", tmp_path).read() == {}


def test_what_times_depend_on_besides_operators_is_named() -> None:
    assert f"torch {torch.__version__}" in hardware("native runtime")
    assert hardware("native runtime") != hardware("Python")


def test_a_name_that_is_none_is_no_reason_to_fail(tmp_path: Path) -> None:
    cache = ProfileCache("a machine", tmp_path)
    cache.write({("mm", 1): TIME})
    (file,) = tmp_path.iterdir()
    file.write_bytes(with_rows(file, b"[[7, 1, 0.5, 0.1, 3]]"))
    cache.write({("mm", 1): TIME})
    assert cache.read()["mm", 1] == TIME


def test_other_cores_and_other_ways_to_compute_are_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = hardware("native runtime")
    with monkeypatch.context() as patched:
        patched.setattr("bow.schedule.profiler.measuring.available_cores", lambda: (5, 77))
        cores = hardware("native runtime")
    with monkeypatch.context() as patched:
        patched.setenv("OMP_WAIT_POLICY", "ACTIVE" if "active" not in usual else "PASSIVE")
        waiting = hardware("native runtime")
    with monkeypatch.context() as patched:
        patched.setattr(torch.backends.mkldnn, "enabled", False)
        convolutions = hardware("native runtime")
    assert len({usual, cores, waiting, convolutions}) == 4


def test_caches_lie_in_the_folder_for_everything_that_is_kept(cache: Path) -> None:
    ProfileCache("a machine").write({("mm", 1): TIME})
    assert [path.parent for path in cache.rglob("*.json")] == [cache / "profiles"]


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b"\xff\xfe",
    ],
)
def test_a_damaged_file_is_as_good_as_none_and_is_replaced(tmp_path: Path, text: bytes) -> None:
    cache = ProfileCache("a machine", tmp_path)
    cache.write({("mm", 1): TIME})
    (file,) = tmp_path.iterdir()
    file.write_bytes(text)
    assert cache.read() == {}
    cache.write({("relu", 1): TIME})
    assert cache.read() == {("relu", 1): TIME}


@pytest.mark.parametrize(
    "rows",
    [
        b"3",
        b"[3]",
        b'[["mm"]]',
        b'[["mm", 1, 0.5]]',
        b'[["mm", "many", 0.5, 0.1, 3]]',
        b'[["mm", 1, "long", 0.1, 3]]',
        b'[["mm", 1, -0.5, 0.1, 3]]',
        b'[["mm", 1, null, 0.1, 3]]',
        b'[["mm", 1, 1e999, 0.1, 3]]',
        b'[["mm", 1, 0.5, 0.1, 1e999]]',
        b'[["mm", 1e999, 0.5, 0.1, 3]]',
    ],
)
def test_damaged_rows_are_as_good_as_none(tmp_path: Path, rows: bytes) -> None:
    cache = ProfileCache("a machine", tmp_path)
    cache.write({("mm", 1): TIME})
    (file,) = tmp_path.iterdir()
    file.write_bytes(with_rows(file, b'[["mm", 1, 0.5, 0.1, 3]]'))
    assert cache.read() == {("mm", 1): OperatorTime(0.5, 0.1, 3)}
    file.write_bytes(with_rows(file, rows))
    assert cache.read() == {}


def test_a_folder_that_cannot_be_made_costs_nothing_but_measuring_again(tmp_path: Path) -> None:
    (tmp_path / "occupied").write_text("a file")
    cache = ProfileCache("a machine", tmp_path / "occupied")
    cache.write({("mm", 1): TIME})
    assert cache.read() == {}


def test_what_cannot_be_replaced_leaves_nothing_behind(tmp_path: Path) -> None:
    cache = ProfileCache("a machine", tmp_path)
    cache.write({("mm", 1): TIME})
    (file,) = tmp_path.iterdir()
    file.unlink()
    file.mkdir()
    cache.write({("mm", 1): TIME})
    assert list(tmp_path.iterdir()) == [file]
