"""Learning tasks that are compiled before they are captured, with one learner and with several."""

from benchmarks.gpu.line_up import bow_name
from benchmarks.gpu.parts import Context
from benchmarks.gpu.peers import Spec
from benchmarks.gpu.racing import Race, gain
from benchmarks.gpu.settings import Config
from benchmarks.gpu.throughput import PEERS_S

MODEL, BATCH = "lenet", 16
LEARNERS = (1, 4)


def measure(context: Context) -> None:
    """Let them race."""
    settings = context.settings
    race = Race.of(context, MODEL, BATCH)
    learners = [count for count in LEARNERS if count in settings.learners]
    for count in learners:
        race.bow(bow_name("graph", count), count, engine="graph")
        if not settings.processes:
            race.bow(_compiled(count), count, engine="graph", compile=True)
    if settings.processes:
        race.peers(PEERS_S, {_compiled(count): count for count in learners})
    rates = race.run(settings.repeats, settings.stint_s)
    gains = {str(count): gain(rates, _compiled(count), bow_name("graph", count)) for count in learners}
    context.record(compiled_over_not=gains)
    race.close()


def peers(settings: Config) -> list[Spec]:
    """The compiled ones."""
    return [
        Spec(
            _compiled(count), "compiling", "bow", MODEL, BATCH, {"learners": count, "engine": "graph", "compile": True}
        )
        for count in LEARNERS
        if count in settings.learners
    ]


def _compiled(learners: int) -> str:
    return f"graph compiled, {learners}"
