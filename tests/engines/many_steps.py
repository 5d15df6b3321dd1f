"""Steps at random in every engine: equal to plain PyTorch, refused with the reason, or in `eager` with a warning.

`python -m tests.engines.many_steps [count [first seed]]` counts what comes of them, and shows the simplest case of what
should not be; 200 take about ten minutes on two cores.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import sys
import warnings
from typing import Any

import torch
from torch import Tensor, nn

import bow
from bow.cluster import ALONE
from bow.planning.problem.partition import Partition, everything_on
from bow.planning.tiles import ProcessGroup
from bow.seeds import derive_seed
from bow.training.checks import check_step
from bow.training.placed import PartitionLearners, Placed, captured_step
from tests.engines.random_steps import Case, Program
from tests.grouped import of_replicas
from tests.training.blueprints import replicas_config

PLACED = "tiles"
"""A placed strategy, of one learner, in the place of an engine."""

ENGINES = ("eager", "streams", "graph", "fused")
KEPT = "graph, kept"
"""Engine graph once more, with the step graphs that the training before it has left."""

UNSEEN = ("in_environment", "in_c", "in_iterator", "in_random")
"""What a capture cannot watch: that it has changed is found and told when the step itself is run beside it."""

ALPHA, MU = 0.4, 0.3
EPSILON, COARSE = 1e-11, 2**-8
"""Relative changes of the first weights, the latter of steps in bfloat16. What they make of a training is the bound of
its differences: rounding is a thousand times smaller, and a wrong gradient a million times larger."""


@dataclasses.dataclass(frozen=True)
class Course:
    """How a training went: losses `[rounds, learners]`, every learner's weights and buffers, the central weights."""

    losses: Tensor
    learners: list[dict[str, Tensor]]
    central: dict[str, Tensor]

    def off(self, other: Course) -> float:
        """The largest difference."""
        pairs = [(self.losses, other.losses)]
        for mine, theirs in zip([*self.learners, self.central], [*other.learners, other.central], strict=True):
            assert mine.keys() == theirs.keys()
            pairs += [(mine[name], theirs[name]) for name in mine]
        return max(
            float((a.detach().double() - b.detach().double()).abs().nan_to_num(nan=torch.inf).max()) for a, b in pairs
        )


def trained(program: Program) -> dict[str, nn.Parameter]:
    """The parameters that a user would give to the optimizer."""
    own = program.loss.named_parameters() if isinstance(program.loss, nn.Module) else ()
    parameters = {**dict(program.model.named_parameters()), **{f"loss.{name}": each for name, each in own}}
    return {name: each for name, each in parameters.items() if each.requires_grad}


def by_pytorch(case: Case, change: float = 0.0) -> Course:
    """The training as a loop, with averaging as in Budea, 2019, algorithm 2; weights begin changed by this share."""
    programs = [case.build() for _ in range(case.learners)]
    weights = [list(trained(program).values()) for program in programs]
    for own in weights:
        generator = torch.Generator().manual_seed(2)
        for each in own:
            each.data *= 1 + change * torch.randn(each.shape, generator=generator, dtype=each.dtype)
    optimizers = [case.optimizer_over(own) for own in weights]
    central = previous = [each.detach().clone() for each in weights[0]]
    losses = []
    for t, batches in enumerate(case.batches(len(case.values))):
        moves = [[ALPHA * (w.detach() - z) for w, z in zip(own, central, strict=True)] for own in weights]
        for j, (program, optimizer, (inputs, labels)) in enumerate(zip(programs, optimizers, batches, strict=True)):
            program.write(case.values[t])
            torch.manual_seed(derive_seed(0, t, j))  # what is dropped
            optimizer.zero_grad()
            made = None if program.loss is None else program.loss(program.model(inputs), labels)
            made = program.step(program.model, (inputs, labels)) if made is None else made
            loss = made[0] if isinstance(made, tuple) else made
            loss.backward()
            for each in weights[j]:  # a row has zeros where nothing was differentiated
                each.grad = torch.zeros_like(each) if each.grad is None else each.grad
            if case.clip_norm is not None:
                nn.utils.clip_grad_norm_(weights[j], case.clip_norm)
            optimizer.step()
            losses.append(loss.detach())
        if case.learners == 1:
            central = [each.detach().clone() for each in weights[0]]
            continue
        for own, move in zip(weights, moves, strict=True):
            for each, correction in zip(own, move, strict=True):
                each.data -= correction
        pulled = [sum(each) for each in zip(*moves, strict=True)]
        steps = [z + p + MU * (z - old) for z, p, old in zip(central, pulled, previous, strict=True)]
        central, previous = steps, central
    states = [program.model.state_dict() for program in programs]
    names = [name for name in trained(programs[0]) if not name.startswith("loss.")]
    return Course(
        torch.stack(losses).view(-1, case.learners),
        states,
        dict(zip(names, central, strict=False)),
    )


def by_bow(case: Case, engine: str, **settings: Any) -> tuple[Course, str]:
    """The training in an engine, and which it was in the end."""
    program = case.build()
    if engine == PLACED:
        return by_strategy(case, program), engine
    sync = bow.SMA() if case.learners == 1 else bow.SMA(alpha=ALPHA, mu=MU)
    replicas = bow.Replicas(
        program.model,
        program.loss,
        **of_replicas(
            step=program.step,
            optimizer=case.optimizer_over,
            learners=case.learners,
            engine=engine,
            sync=sync,
            device="cpu",
            clip_norm=case.clip_norm,
            **settings,
        ),
    )
    with contextlib.closing(replicas):
        losses = []
        for t, batches in enumerate(case.batches(len(case.values))):
            program.write(case.values[t])
            losses.append(replicas.round(batches))
        replicas.loop.check_last()
        states = [replicas.learner(j).state_dict() for j in range(case.learners)]
        central = {name: each for name, each in replicas.central.named_parameters() if each.requires_grad}
        return Course(torch.stack(losses), states, central), replicas.engine


def by_strategy(case: Case, program: Program) -> Course:
    """The training by the operators of a placed strategy, all of them whole and on one device."""
    dealt = [each[0] for each in case.batches(len(case.values))]
    step = check_step(program.loss, program.step)
    made = replicas_config(model=program.model, step=step, optimizer=case.optimizer_over)
    captured = captured_step(made, dealt[0])
    strategy = Partition(captured.graph.hash, everything_on(captured.graph))
    group = ProcessGroup(made.device, is_alone=True)
    learners = PartitionLearners(made, Placed(captured, strategy, True, dealt[0]), group, ALONE, None)
    losses = []
    for value, batch in zip(case.values, dealt, strict=True):
        program.write(value)
        learners.loop._check._check_at = 0.0  # the step is looked at in every round
        losses += [outcome.losses for outcome in learners.rounds_at_once([[batch]])]
    learners.loop.check_last()
    central = learners.export()
    weights = {name: each for name, each in central.named_parameters() if each.requires_grad}
    return Course(torch.stack(losses), [central.state_dict()], weights)


def outcome(case: Case, engine: str, expected: Course, bound: float, **settings: Any) -> str:
    """What came of a training: "equal", "refused: ...", "told: ...", or "wrong: ...", which must not be."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            course, ran = by_bow(case, engine, **settings)
        except bow.BowError as error:
            return f"refused: {type(error).__name__}: {error}"
        except Exception as error:
            return f"wrong: {type(error).__name__}: {error}"
    off = expected.off(course)
    about = (engine, "eager", "captured step")
    told = "; ".join(what for each in caught if any(word in (what := str(each.message)) for word in about))
    takes = case.state == "in_iterator" and "cannot be captured" in told  # what an attempt took is gone
    if not off <= bound and (takes or (case.state in UNSEEN and "the captured step differs from the step" in told)):
        return f"told behind it: {told}"
    if not off <= bound:
        return f"wrong: off by {off:.2g}, bound {bound:.2g}, ran {ran}, told {told!r}"
    if ran.split(" ")[0] != engine:
        return f"told: {told}" if told else f"wrong: ran {ran} without a word"
    return "equal"


def course_and_bound(case: Case) -> tuple[Course, float]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = by_pytorch(case)
        change = COARSE if "rounded" in case.blocks else EPSILON
        return expected, 1e-12 + expected.off(by_pytorch(case, change))


def outcomes(case: Case) -> dict[str, str]:
    """What came of a case, by engine."""
    try:
        expected, bound = course_and_bound(case)
    except RuntimeError:
        return {"plain PyTorch": "no such derivative"}
    engines = ENGINES[:2] if case.is_random else ENGINES  # the others draw numbers of their own
    # Rows decay a parameter that nothing depends on, operators have none.
    decays_idle = "frozen_and_unused" in case.blocks and case.optimizer in ("adamw", "momentum")
    if not case.is_random and case.learners == 1 and case.clip_norm is None and not decays_idle:
        engines = (*engines, PLACED)
    found = {engine: outcome(case, engine, expected, bound) for engine in engines}
    return {**found, KEPT: outcome(case, "graph", expected, bound)} if "graph" in engines else found


def shrunk(case: Case, engine: str) -> Case:
    """The simplest case that is still wrong."""
    for simpler in case.simpler():
        if outcome(simpler, engine, *course_and_bound(simpler)).startswith("wrong"):
            return shrunk(simpler, engine)
    return case


def main(count: int = 200, first: int = 0) -> int:
    counts: collections.Counter[str] = collections.Counter()
    with torch.compiler.set_stance("force_eager"):
        for seed in range(first, first + count):
            case = Case.drawn(seed)
            for engine, what in outcomes(case).items():
                counts[f"{engine}: {what}"[:110]] += 1
                if what.startswith("wrong"):
                    print(seed, engine, what[:300], shrunk(case, engine.partition(",")[0]), flush=True)
    for what, number in sorted(counts.items()):
        print(f"{number:5} {what}")
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(*map(int, sys.argv[1:])))
