"""Other people's models in every engine: whether they train, and agree with plain PyTorch.

Models of timm, torchvision and Hugging Face, small ones by their configurations, are trained for three steps by plain
PyTorch, in float32 and in float64, and by two learners in each engine, which are not averaged meanwhile. The distance
of plain PyTorch's two results is what float32 arithmetic costs this very training: a learner agrees whose weights are
not further than a few times that from those in float64. A model has a process of its own, and another one after a
crash. One learner of each is also trained, in float64, by partitions: one at random, and one that a search found for
slow devices, so that it splits the operators of a small model.
"""

import contextlib
import copy
import functools
import importlib
import itertools
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils._pytree import tree_map
from torch.utils.data import DataLoader

import bow
from benchmarks import harness
from benchmarks.harness import CaseError, setting
from benchmarks.harness.processes import ROOT, Host, first_words
from bow.engines import own_loss, step_from_loss
from bow.errors import BowError, reason
from bow.models import libraries
from bow.planning.problem.device_topology import Device, DeviceKind, DeviceTopology, Link
from bow.planning.tiles import capture_operators
from bow.runtime.loading import build

ENGINES = ("eager", "graph", "fused")
PARTITIONS = ("partition", "planned")  # instead of an engine: operators split over processes, at random or by a search
WAYS = (*ENGINES, *PARTITIONS)
AIM = 27
"""Models that train in engine `graph`."""

FACTOR = 8.0
"""How many times further than plain PyTorch in float32 a learner may be from the weights in float64."""

EXACT = 1e-9
"""How far from plain PyTorch what a partition trains in float64 may be, in the way moved.

Or `FACTOR` times as far as plain PyTorch is from itself where every weight was first changed by one rounding, if that
is more: batch norm of four samples makes more of a rounding with every step.
"""

MUCH = 0.01
"""Where rounding is more than this of the way moved, the page says that agreement says little."""

PLANNING_S = 2.0
"""Seconds in which a partition is searched for."""

LR = 0.001
"""With 0.01, batch norm of four samples makes three steps of some so chaotic that no two roundings agree."""

LEARNERS, ROUNDS, SAMPLES = 2, 3, 4
CLASSES, WORDS, LENGTH = 10, 50, 12


@dataclass(frozen=True, eq=False)
class Case:
    """A model by its configuration.

    `library` is that of the command line (`timm`, `torchvision`), or the class of transformers that makes the model.
    """

    library: str
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    pixels: int = 64
    label: str = ""  # of a variant

    @property
    def title(self) -> str:
        return f"{self.library if self.library in ('timm', 'torchvision') else 'hf'}:{self.name}{self.label}"


_QUIET = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
_SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_TEXT = {"vocab_size": WORDS, "max_position_embeddings": 32}
_BERT = {**_SMALL, **_TEXT, **_QUIET}
_DROPOUT = {"dropout": 0.0}
_T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
_GPT2 = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 32, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
_DISTILBERT = {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "attention_dropout": 0.0}
_MOE = {"num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "experts_implementation": "eager"}
_GIVEN = "-decoder_input_ids"  # of a model that is given them instead of making them from its labels
_TOKENS, _WORDS_TO_WORDS, _SENTENCES, _PICTURES = (
    f"AutoModelFor{kind}" for kind in ("CausalLM", "Seq2SeqLM", "SequenceClassification", "ImageClassification")
)

CASES = [
    Case("timm", "resnet18", {"layers": (1, 1, 1, 1)}),
    Case("timm", "mobilenetv3_small_050"),
    Case("timm", "regnetx_002"),
    Case("timm", "densenet121", {"growth_rate": 8, "block_config": (2, 2, 2, 2)}),
    Case("timm", "convnext_atto", {"depths": (1, 1, 1, 1), "dims": (8, 16, 24, 32)}),
    Case("timm", "vit_tiny_patch16_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}, 32),
    Case("timm", "deit3_small_patch16_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}, 32),
    Case("timm", "cait_xxs24_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}, 32),
    Case("timm", "xcit_nano_12_p16_224", {"img_size": 32, "embed_dim": 32, "depth": 2, "num_heads": 2}, 32),
    Case(
        "timm",
        "swin_tiny_patch4_window7_224",
        {"img_size": 32, "window_size": 4, "embed_dim": 16, "depths": (2, 2), "num_heads": (2, 2), "drop_path_rate": 0},
        32,
    ),
    Case("timm", "mixer_s32_224", {"img_size": 64}),
    Case("torchvision", "resnet18"),
    Case("torchvision", "squeezenet1_1", _DROPOUT),
    Case("torchvision", "shufflenet_v2_x0_5"),
    Case("torchvision", "mobilenet_v2", {"width_mult": 0.25, **_DROPOUT}),
    Case("torchvision", "mobilenet_v3_small", _DROPOUT),
    Case("torchvision", "mnasnet0_5", _DROPOUT),
    Case("torchvision", "googlenet", {"aux_logits": False, "init_weights": False, **_DROPOUT}),
    Case(_SENTENCES, "bert", _BERT),
    Case(_SENTENCES, "distilbert", {**_TEXT, **_DISTILBERT, **_DROPOUT, "seq_classif_dropout": 0.0}),
    Case(_SENTENCES, "roberta", _BERT),
    Case(_SENTENCES, "albert", {**_BERT, "embedding_size": 8, "classifier_dropout_prob": 0.0}),
    Case(_SENTENCES, "electra", {**_BERT, "embedding_size": 8}),
    Case(_TOKENS, "gpt2", {**_GPT2, "vocab_size": WORDS, "attn_pdrop": 0.0}),
    Case(_TOKENS, "gpt_neox", {**_SMALL, **_TEXT}),
    Case(_TOKENS, "llama", {**_SMALL, **_TEXT, "num_key_value_heads": 1}),
    Case(_TOKENS, "mixtral", {**_SMALL, **_TEXT, **_MOE}),
    Case(_TOKENS, "mixtral", {**_SMALL, **_TEXT, **_MOE, "experts_implementation": "batched_mm"}, label="-batched"),
    Case(_TOKENS, "mistral", {**_SMALL, **_TEXT, "num_key_value_heads": 1}),
    Case(_TOKENS, "qwen2", {**_SMALL, **_TEXT, "num_key_value_heads": 1}),
    Case(_TOKENS, "gemma", {**_SMALL, **_TEXT, "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0}),
    Case(_TOKENS, "phi", {**_SMALL, **_TEXT}),
    Case(_TOKENS, "opt", {**_SMALL, **_TEXT, **_DROPOUT, "ffn_dim": 32, "word_embed_proj_dim": 16}),
    Case(_TOKENS, "bloom", {"hidden_size": 16, "n_layer": 2, "n_head": 2, "vocab_size": WORDS}),
    Case(_WORDS_TO_WORDS, "t5", {**_T5, "vocab_size": WORDS, "decoder_start_token_id": 0}),
    Case(_WORDS_TO_WORDS, "t5", {**_T5, "vocab_size": WORDS, "decoder_start_token_id": 0}, label=_GIVEN),
    Case(_PICTURES, "vit", {**_SMALL, **_QUIET, "image_size": 32, "patch_size": 8}, 32),
    Case(_PICTURES, "resnet", {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"}),
]
BY_TITLE = {case.title: case for case in CASES}
PACKAGES = {"timm": "timm", "torchvision": "torchvision", "hf": "transformers"}


@dataclass(frozen=True)
class Config(harness.Config):
    models: tuple[str, ...] = setting(tuple(BY_TITLE), "what is trained", choices=tuple(BY_TITLE), quick=("hf:vit",))
    engines: tuple[str, ...] = setting(WAYS, "by which engines", choices=WAYS, quick=("eager", "graph", *PARTITIONS))
    processes: tuple[int, ...] = setting((2, 3, 4), "numbers of processes of a partition; the models take turns")
    steps: int = setting(5, "training steps of a partition")
    compiles: bool = setting(False, "whether fused compiles, which takes a minute or two a model")
    workers: int = setting(2, "processes at a time")
    limit_s: float = setting(100.0, "seconds after which an engine is given up")


def measure(config: Config) -> dict[str, Any]:
    """A row for every model, and how many train in each engine."""
    build()
    versions = {name: _version(name) for name in PACKAGES.values()}
    there = [title for title in config.models if versions[PACKAGES[title.partition(":")[0]]] is not None]
    with ThreadPoolExecutor(config.workers) as pool:
        rows = list(pool.map(functools.partial(_row, config), there, itertools.cycle(config.processes)))
    trains = {engine: sum(row[engine]["status"] == "trains" for row in rows) for engine in config.engines}
    left_out = [title for title in config.models if title not in there]
    return {
        "aim": AIM, "factor": FACTOR, "versions": versions, "trains": trains, "left_out": left_out, "rows": rows,
    }  # fmt: skip


def missed(values: Mapping[str, Any]) -> bool:
    """Whether an engine crashed or disagreed somewhere, or too few models train in `graph`."""
    outcomes = [row[engine]["status"] for row in values["rows"] for engine in values["trains"]]
    return not set(outcomes) <= {"trains", "refused"} or values["trains"].get("graph", AIM) < AIM


def page(values: Mapping[str, Any]) -> dict[str, Any]:
    """Cells of the table, and what is to be said about some of them."""
    notes = [
        {"model": row["model"], "engine": engine, "status": outcome["status"], "why": outcome["why"]}
        for row in values["rows"]
        for engine in values["trains"]
        if (outcome := row[engine])["why"]
    ]
    table = [
        [
            row["model"],
            f"{row.get('parameters', 0):,}",
            *([row["processes"]] if "processes" in row else []),
            *(_cell(row[engine]) for engine in values["trains"]),
        ]
        for row in values["rows"]
    ]
    return {"notes": notes, "table": table}


def _cell(outcome: Mapping[str, Any]) -> str:
    if outcome["status"] != "trains":
        return str(outcome["status"])
    how = "" if outcome["ran"] in WAYS else f", {outcome['ran'].partition('(')[2].rstrip(')')}"
    return f"{outcome['distance']:.1e}{how}" if outcome["distance"] else f"equal{how}"


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _row(config: Config, title: str, processes: int) -> dict[str, Any]:
    """What became of a model, in processes of its own."""
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    if not config.compiles:
        environment["TORCHDYNAMO_DISABLE"] = "1"
    row: dict[str, Any] = {"model": title, "processes": processes}
    with contextlib.ExitStack() as stack:
        host: Host | None = None
        for engine in config.engines:
            host = host or stack.enter_context(contextlib.closing(Host(environment)))
            try:
                row[engine] = host.call(_trained, title, engine, processes, config.steps, limit_s=config.limit_s)
            except CaseError as error:
                why = reason(error)
                row[engine] = {"status": "late" if "within" in why else "crashes", "why": why}
                host = None
        if host is not None:
            row["parameters"] = host.call(_parameters, title)
    harness.say(f"{title}: " + ", ".join(f"{engine} {row[engine]['status']}" for engine in config.engines))
    return row


# What follows runs in the process of a model.


def _trained(title: str, engine: str, processes: int, steps: int) -> dict[str, Any]:
    """What became of a model in an engine."""
    torch.set_num_threads(1)
    case = BY_TITLE[title]
    try:
        if engine in PARTITIONS:
            return _by_partition(case, engine, processes, steps)
        plain = _plain(case)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found, ran = _by_learners(case, engine)
    except BowError as error:
        return {"status": "refused", "why": reason(error)}
    except Exception as error:
        return {"status": "fails", "why": first_words(error)}
    told = [
        str(each.message).splitlines()[0]
        for each in said
        if "engine" in str(each.message) or "fused" in str(each.message)
    ]
    distances = [_distances(own, *others) for own, others in zip(found, plain, strict=True)]
    distance, share, own_error = map(max, zip(*distances, strict=True))
    if own_error > MUCH:
        told.append(
            f"plain PyTorch in float32 itself is {own_error:.1%} of the way moved from float64, so this says little"
        )
    outcome = {"ran": ran, "distance": distance, "share": share, "why": "; ".join(told)}
    if share > FACTOR:
        why = f"{share:.3g} times as far from float64 as plain PyTorch in float32, {distance:.1e} of the way moved"
        return {"status": "disagrees", **outcome, "why": "; ".join([why, *told])}
    return {"status": "trains" if ran.startswith(engine) else "refused", **outcome}


def _by_learners(case: Case, engine: str) -> tuple[list[Tensor], str]:
    """The weights of two learners, and what has really run."""
    replicas = bow.Replicas(
        _built(case),
        step=_step(case),
        optimizer=_sgd(),
        learners=LEARNERS,
        sync=bow.SMA(every=ROUNDS + 1),  # until then a learner is plain PyTorch
        engine=engine,  # type: ignore[arg-type]
        device="cpu",
    )
    replicas.run(iter(_batches(case, LEARNERS * ROUNDS)), ROUNDS)
    found, ran = [_state(replicas.learner(index)) for index in range(LEARNERS)], replicas.engine
    replicas.close()
    return found, ran


def _slow_devices(count: int) -> Any:
    """Devices for which it pays to split the operators of a small model."""
    kind = DeviceKind("slow", memory_gib=8, tflops=1e-5, gb_per_s=0.01, overhead_us=1, half_outputs=1)
    names = tuple(f"device{number}" for number in range(count))
    return DeviceTopology("slow", tuple(Device(name, kind) for name in names), (Link(names, 1.0, 10.0, shared=True),))


def _by_partition(case: Case, way: str, processes: int, steps: int) -> dict[str, Any]:
    """What became of one learner that was trained in parts by several processes, in float64."""
    batches = [_cast(batch, torch.float64) for batch in _batches(case, steps)]
    drawn: dict[str, Any] = {"starts": "random", "proposals": 1, "budget_s": None, "descend": False, "temperature": 0}
    searched = drawn if way == PARTITIONS[0] else {"budget_s": PLANNING_S}
    model, step, topology = _built(case).double(), _step(case), _slow_devices(processes)
    planned = bow.plan(model, batches[0], step=step, topology=topology, progress=False, **searched)
    with tempfile.TemporaryDirectory() as folder:
        # Processes of the devices import what models are made of, too.
        Path(folder, "sitecustomize.py").write_text(f"import sys\nsys.path.insert(0, {str(ROOT)!r})\n{_IMPORTS}")
        os.environ["PYTHONPATH"] = folder
        data: Any = DataLoader(batches, batch_size=None)  # type: ignore[arg-type]
        run = bow.Run(Path(folder, "run"), progress=False)
        result = planned.train(data, optimizer=_sgd(), epochs=1, check=False, run=run)
    double, began = _by_pytorch(case, batches, torch.float64), _state(_built(case))
    distance = float((_state(result.model) - double).norm() / (double - began).norm())
    splits = planned.partition.splits
    # Some operators compute in float32, whatever the type of the weights.
    dtypes = capture_operators(model, batches[0], step=step).dtypes.values()
    changed = _by_pytorch(case, batches, torch.float64, torch.float32 if torch.float32 in dtypes else torch.float64)
    spread = float((changed - double).norm() / (double - began).norm())
    exact = max(EXACT, FACTOR * spread)
    return {
        "status": "trains" if distance < exact else "disagrees",
        "ran": way,
        "distance": distance,
        "devices": len({device for split in splits for device in split.devices}),
        "split": sum(split.num_tiles > 1 for split in splits) / len(splits),
        "why": "" if distance < EXACT else f"{distance:.1e} of the way moved, plain PyTorch by a rounding {spread:.1e}",
    }


_IMPORTS = "from benchmarks.models import let_torchvision_be_imported\nlet_torchvision_be_imported()\n"


def _sgd() -> Callable[..., torch.optim.Optimizer]:
    return functools.partial(torch.optim.SGD, lr=LR, momentum=0.9)


def _parameters(title: str) -> int:
    return sum(parameter.numel() for parameter in _made(BY_TITLE[title]).parameters())


def _distances(own: Tensor, single: Tensor, double: Tensor, began: Tensor) -> tuple[float, float, float]:
    """Of a learner from plain PyTorch, in what that has moved; from float64, in plain PyTorch's error; and that."""
    rounded = torch.finfo(torch.float32).eps * double.norm()  # every weight, once
    moved, error = (single - began).norm(), (single - double).norm() + rounded
    return float((own - single).norm() / moved), float((own - double).norm() / error), float(error / moved)


@functools.cache
def _plain(case: Case) -> list[tuple[Tensor, Tensor, Tensor]]:
    """The weights of plain PyTorch, by learner: in float32, in float64, and before training."""
    batches = _batches(case, LEARNERS * ROUNDS)
    own = [batches[index::LEARNERS] for index in range(LEARNERS)]
    return [
        (_by_pytorch(case, each, torch.float32), _by_pytorch(case, each, torch.float64), _state(_built(case)))
        for each in own
    ]


def _by_pytorch(case: Case, batches: Sequence[Any], dtype: Any, rounded: Any = None) -> Tensor:
    """The weights that plain PyTorch makes, with `rounded` of weights that are off by one rounding, less that."""
    model, step = _built(case).to(dtype).train(), _step(case)
    began = _state(model)
    if rounded is not None:
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.parameters():
                ways = torch.randint(0, 2, parameter.shape, generator=generator).to(dtype) * 2 - 1
                parameter.mul_(1 + torch.finfo(rounded).eps * ways)
    change = _state(model) - began
    optimizer = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    for batch in batches:
        step(model, _cast(batch, dtype)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    return _state(model) - change


def _state(model: nn.Module) -> Tensor:
    """All numbers of a model in a row: parameters and statistics."""
    tensors = [each for each in model.state_dict().values() if each.is_floating_point()]
    return torch.cat([each.detach().double().reshape(-1) for each in tensors])


def _cast(batch: Any, dtype: Any) -> Any:
    return tree_map(lambda each: each.to(dtype) if each.is_floating_point() else each, batch)


def _built(case: Case) -> nn.Module:
    return copy.deepcopy(_made(case))


@functools.cache
def _made(case: Case) -> nn.Module:
    let_torchvision_be_imported()
    torch.manual_seed(0)
    if case.library in ("timm", "torchvision"):
        made: nn.Module = getattr(libraries, case.library)(case.name, CLASSES, **case.settings)
        return made
    transformers = importlib.import_module("transformers")
    config = transformers.AutoConfig.for_model(case.name, num_labels=CLASSES, **case.settings)
    model: nn.Module = getattr(transformers, case.library).from_config(config)
    return model


def _step(case: Case) -> Callable[..., Tensor]:
    return step_from_loss(cross_entropy) if case.library in ("timm", "torchvision") else own_loss


def _batches(case: Case, count: int) -> Sequence[Any]:
    generator = torch.Generator().manual_seed(1)
    pictures = [torch.randn(SAMPLES, 3, case.pixels, case.pixels, generator=generator) for _ in range(count)]
    words = [torch.randint(3, WORDS, (SAMPLES, LENGTH), generator=generator) for _ in pictures]
    labels = [torch.randint(0, CLASSES, (SAMPLES,), generator=generator) for _ in pictures]
    if case.library in ("timm", "torchvision"):
        return list(zip(pictures, labels, strict=True))
    if case.library == _PICTURES:
        return [{"pixel_values": inputs, "labels": own} for inputs, own in zip(pictures, labels, strict=True)]
    targets = labels if case.library == _SENTENCES else words
    made = [{"input_ids": inputs, "labels": own} for inputs, own in zip(words, targets, strict=True)]
    return [{**each, "decoder_input_ids": each["labels"].roll(1, 1)} for each in made] if case.label == _GIVEN else made


_STAND_INS: list[Any] = []  # what they are registered by must live


def let_torchvision_be_imported() -> None:
    """Import torchvision where its wheel is of another build than torch: of its operators there are the names alone."""
    with contextlib.suppress(ModuleNotFoundError):
        try:
            importlib.import_module("torchvision")
        except RuntimeError:
            for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
                del sys.modules[name]
            library: Any = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
            for name in ("nms", "qnms"):
                library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
            _STAND_INS.append(library)
            importlib.import_module("torchvision")
