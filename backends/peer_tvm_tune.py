"""MetaSchedule with a time budget, in this process; results are cached by workload.

A few trials are drawn at random. More than TRIALS are guided by TVM's cost model: an evolutionary
search (Shao et al., Tensor Program Optimization with Probabilistic Programs, section 4) proposes
candidates that XGBoost, trained on the measurements so far, predicts to be fast.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object
from tvm.s_tir import meta_schedule as ms
from tvm.s_tir.meta_schedule.builder import BuilderResult, PyBuilder
from tvm.s_tir.meta_schedule.runner import PyRunner, PyRunnerFuture, RunnerResult

from stack.processors import usable_processors
from stack.run.cache import Cache, cache_folder

SECONDS = 20.0
TRIALS = 64
LIGHT_TRIALS = 4
HEAVY_FLOPS = 1e6
BATCH = 8  # trials between checks of the time
LED_BATCH = 64  # the same for a search guided by the model: candidates per proposal
HEAVY_SHARE = 0.75
HOPELESS = 2.0  # times the best: a candidate that is slower in its first run is not run again


@dataclass
class TunedSchedules:
    """The schedules that were found, and a description of the search."""

    database: Any
    note: str


@derived_object
class _Builder(PyBuilder):
    """Builds in threads, because worker processes would each load torch and TVM again."""

    def build(self, build_inputs: Sequence[Any]) -> list[Any]:
        with ThreadPoolExecutor(usable_processors()) as pool:
            return list(pool.map(_build, build_inputs))


_built: dict[str, Any] = {}


def _build(job: Any) -> Any:
    from tvm.driver import build
    from tvm.s_tir.transform import RemoveWeightLayoutRewriteBlock

    try:
        library = build(RemoveWeightLayoutRewriteBlock(True)(job.mod), target=job.target)
    except Exception as error:
        return BuilderResult(None, str(error)[-500:])
    key = f"{len(_built)}-{id(library)}"
    _built[key] = library
    return BuilderResult(key, None)


@derived_object
class _Done(PyRunnerFuture):
    def __init__(self, seconds: list[float] | None, failure: str | None) -> None:
        super().__init__()
        self.seconds, self.failure = seconds, failure

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return RunnerResult(self.seconds, self.failure)


@derived_object
class _Runner(PyRunner):
    """Measures in this process, one candidate at a time, on random data."""

    def __init__(self) -> None:
        super().__init__()
        self.best = math.inf  # seconds
        self.drawn: dict[tuple[tuple[int, ...], str], Any] = {}

    def run(self, runner_inputs: Sequence[Any]) -> list[Any]:
        return [self._measure(job) for job in runner_inputs]

    def _measure(self, job: Any) -> Any:
        library = _built.pop(str(job.artifact_path))
        try:
            args = [self._argument(info) for info in job.args_info]
            start = time.perf_counter()
            library["main"](*args)
            first = time.perf_counter() - start
            if first > HOPELESS * self.best:
                return _Done([first], None)
            timer = library.time_evaluator("main", tvm.cpu(), number=1, repeat=3, min_repeat_ms=5)
            seconds = [float(s) for s in timer(*args).results]
        except Exception as error:
            return _Done(None, str(error)[-500:])
        self.best = min(self.best, *seconds)
        return _Done(seconds, None)

    def _argument(self, info: Any) -> Any:
        """Random numbers of the given shape and type, the same for all candidates."""
        key = tuple(int(s) for s in info.shape), str(info.dtype)
        if key not in self.drawn:
            self.drawn[key] = _random(*key)
        return self.drawn[key]


def _random(shape: tuple[int, ...], kind: str) -> Any:
    rng = np.random.default_rng(0)
    drawn = rng.standard_normal(shape) if "float" in kind else rng.integers(0, 2, shape)
    if kind == "bfloat16":
        import ml_dtypes

        return tvm.runtime.tensor(drawn.astype(ml_dtypes.bfloat16))
    return tvm.runtime.tensor(np.asarray(drawn).astype(kind))


# ---- cached records


def _key(task: Any, target: Any) -> str:
    text = "\n".join((tvm.__version__, str(target), task.dispatched[0].script(show_meta=True)))
    return hashlib.sha256(text.encode()).hexdigest()


class Records:
    """The best schedule found for each workload (tuning task), on disk and in TVM's database."""

    def __init__(self, cache: Cache | None, target: Any) -> None:
        self.cache, self.target = cache, target
        self.database = ms.database.Database.create("memory")
        self.trials: dict[str, int] = {}

    def load(self, task: Any, most: int, seconds: float) -> bool:
        """Loads the stored schedule of a workload to TVM's database.

        Returns True if its search had at least as many trials, or as much time. Otherwise the
        search continues from it. One that cannot be loaded is ignored.
        """
        found = self.cache.get(_key(task, self.target)) if self.cache is not None else None
        if found is None:
            return False
        try:
            held = json.loads(found)
            workload = self.database.commit_workload(task.dispatched[0])
            record = ms.database.TuningRecord.from_json(held["record"], workload)
            self.database.commit_tuning_record(record)
            self.trials[task.task_name] = int(held["trials"])
            return int(held["trials"]) >= most or float(held["seconds"]) >= seconds
        except Exception:
            return False

    def best(self, task: Any) -> Any:
        return self.database.query_tuning_record(task.dispatched[0], self.target, task.task_name)

    def save(self, task: Any, trials: int, seconds: float = 0.0) -> None:
        """Saves the best schedule of a task so far, and the trials and seconds of its search.

        `seconds` is 0 if the search is not finished.
        """
        record = self.best(task)
        self.trials[task.task_name] = trials
        if record is None or self.cache is None:
            return
        held = {"record": _plain(record.as_json()), "trials": trials, "seconds": seconds}
        self.cache.put(_key(task, self.target), json.dumps(held).encode())


def _plain(value: Any) -> Any:
    """Converts TVM's containers to Python's."""
    if isinstance(value, str):
        return str(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value
    if hasattr(value, "items"):
        return {str(k): _plain(v) for k, v in value.items()}
    if hasattr(value, "__iter__"):
        return [_plain(v) for v in value]
    if hasattr(value, "value"):
        return _plain(value.value)
    raise TypeError(f"a tuning record contains a {type(value).__name__}")


# ---- the search


def tune(module: Any, target: Any, options: dict[str, Any]) -> TunedSchedules:
    """Schedules for the functions of a module: cached ones, then a search within the budget."""
    seconds = float(options.get("seconds", SECONDS))
    most = int(options.get("trials", TRIALS))
    seed = int(options.get("seed", 0))
    records = Records(_cache(options.get("cache", True)), target)
    if seconds <= 0 or most <= 0:
        return TunedSchedules(records.database, "default CPU schedules, untuned")
    tasks = ms.relax_integration.extract_tasks(module, target)
    flops = {id(t): _flops(t) for t in tasks}
    cost = {id(t): flops[id(t)] * max(int(t.weight), 1) for t in tasks}
    wanted = {k: most if v >= HEAVY_FLOPS else min(most, LIGHT_TRIALS) for k, v in flops.items()}
    todo = [t for t in tasks if not records.load(t, wanted[id(t)], seconds)]
    light = [t for t in todo if flops[id(t)] < HEAVY_FLOPS]
    heavy = sorted((t for t in todo if flops[id(t)] >= HEAVY_FLOPS), key=lambda t: -cost[id(t)])
    start = time.perf_counter()
    left = sum(cost[id(t)] for t in heavy)
    end = start + seconds * (HEAVY_SHARE if light else 1.0)
    for task in heavy:
        now = time.perf_counter()
        until = now + max(end - now, 0.0) * cost[id(task)] / left
        left -= cost[id(task)]
        records.save(task, _search(task, records, most, until, seed), seconds)
    for task in light:
        # if time is up, one candidate is still far better than naive loops
        count = wanted[id(task)] if time.perf_counter() - start < seconds else 1
        records.save(task, _search(task, records, count, start + seconds, seed), seconds)
    took = time.perf_counter() - start
    return TunedSchedules(records.database, _note(records, tasks, todo, took))


def _cache(option: bool | str) -> Cache | None:
    if isinstance(option, str):
        return Cache(Path(option))
    return Cache(cache_folder() / "tvm") if option else None


def _note(records: Records, tasks: Sequence[Any], todo: Sequence[Any], took: float) -> str:
    total = sum(records.trials.values())
    text = f"{total} MetaSchedule trials, {len(tasks)} distinct functions"
    missing = sum(records.best(t) is None for t in tasks)
    if todo:
        text += f", {took:.0f} seconds"
    if len(todo) < len(tasks):
        text += f", {len(tasks) - len(todo)} of them found in the cache"
    if missing:
        text += f", {missing} left at default schedules"
    return text


def _flops(task: Any) -> float:
    from tvm.s_tir.analysis import estimate_tir_flops

    try:
        return float(estimate_tir_flops(task.dispatched[0]))
    except Exception:
        return 0.0


@dataclass(frozen=True)
class _Way:
    """Parameters of a MetaSchedule search: strategy, cost model, candidates per batch."""

    strategy: Any
    model: Any
    batch: int


def _way(most: int) -> _Way:
    """Returns random search for few trials, else a search guided by a cost model.

    Up to TRIALS trials are too few for the model to learn from.
    """
    if most <= TRIALS:
        return _Way(ms.search_strategy.ReplayTrace(), "random", min(BATCH, most))
    return _Way(
        ms.search_strategy.EvolutionarySearch(),
        ms.cost_model.XGBModel(num_tuning_cores=usable_processors()),
        LED_BATCH,
    )


def _search(task: Any, records: Records, most: int, until: float, seed: int) -> int:
    """Measures candidate schedules of a task in batches, until a time or `most` trials.

    Saves the best schedule after each batch. Returns the number of trials, with those of earlier
    searches.
    """
    logger = logging.getLogger("stack.tvm")
    logger.setLevel(logging.ERROR)
    way = _way(most)
    builder: Any = _Builder()
    runner: Any = _Runner()
    known = tried = records.trials.get(task.task_name, 0)
    while tried < most and (time.perf_counter() < until or tried == known):
        before, count = len(records.database), min(way.batch, most - tried)
        context = ms.TuneContext(
            mod=task.dispatched[0],
            target=records.target,
            space_generator="post-order-apply",
            search_strategy=way.strategy,
            task_name=task.task_name,
            logger=logger,
            rand_state=seed * 1000 + tried + 1,
            num_threads=usable_processors(),
        ).clone()
        ms.tune.tune_tasks(
            tasks=[context],
            task_weights=[1.0],
            work_dir="",
            max_trials_global=count,
            num_trials_per_iter=count,
            database=records.database,
            builder=builder,
            runner=runner,
            cost_model=way.model,
            measure_callbacks=[
                ms.measure_callback.AddToDatabase(),
                ms.measure_callback.UpdateCostModel(),
            ],
        )
        found = len(records.database) - before
        if not found:
            break  # the space has no further candidates
        tried += found
        records.save(task, tried)
    return tried
