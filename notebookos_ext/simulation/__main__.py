"""`python -m notebookos_ext.simulation`: runs workloads, replays journals, prints figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from notebookos_ext.clock import SystemClock
from notebookos_ext.cluster.policies import POLICIES
from notebookos_ext.errors import InvalidRequest, NotebookOSError
from notebookos_ext.simulation import plots, report
from notebookos_ext.simulation.cost import Prices
from notebookos_ext.simulation.csv_form import write_csv
from notebookos_ext.simulation.delays import Delays, read_delays
from notebookos_ext.simulation.evaluation import Scope, evaluate
from notebookos_ext.simulation.experiment import Outcome, compare, read_workload, store_of
from notebookos_ext.simulation.faults import PRESETS, Faults, read_faults
from notebookos_ext.simulation.machines import GIB, HostShape
from notebookos_ext.simulation.plans import Plan, changed_options, usual_options
from notebookos_ext.simulation.replay import replay
from notebookos_ext.simulation.soak import soak
from notebookos_ext.simulation.templates import with_store, with_store_failures
from notebookos_ext.simulation.workload import HOUR_S


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; 0 when it worked, 1 after a sentence on stderr."""
    arguments = _parser().parse_args(argv)
    try:
        return int(arguments.do(arguments))
    except NotebookOSError as error:
        print(f"simulation: {error.message}", file=sys.stderr)
        if error.hint:
            print(error.hint, file=sys.stderr)
        return 1
    except OSError as problem:
        print(f"simulation: cannot write {problem.filename}: {problem.strerror}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m notebookos_ext.simulation",
        description="The scheduler in virtual time, on recorded or generated workloads.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    run = commands.add_parser("run", help="one workload under one policy")
    run.add_argument("--policy", default="replicated", choices=sorted(POLICIES))
    run.add_argument("--journal", type=Path, help="write what the scheduler hears and does")
    _add_plan(run)
    run.set_defaults(do=_run)

    several = commands.add_parser("compare", help="one workload under several policies")
    several.add_argument("--policies", default=",".join(sorted(POLICIES)), metavar="A,B")
    _add_plan(several)
    several.set_defaults(do=_compare)

    again = commands.add_parser("replay", help="the journal of a live server")
    again.add_argument("journal", type=Path)
    again.add_argument("--check", action="store_true", help="check the whole state each event")
    again.add_argument("--to-csv", type=Path, metavar="FOLDER", help="write it as a workload")
    again.set_defaults(do=_replay)

    many = commands.add_parser("soak", help="short lives full of faults, all invariants checked")
    many.add_argument("seeds", help="one seed, or FIRST:BEYOND")
    many.add_argument("--policy", choices=sorted(POLICIES), help="instead of the seed's own")
    many.set_defaults(do=_soak)

    generate = commands.add_parser("generate", help="write a profile's workload as CSV files")
    generate.add_argument("profile")
    generate.add_argument("--seed", type=int, default=0)
    generate.add_argument("--out", type=Path, default=Path(), metavar="FOLDER")
    generate.set_defaults(do=_generate)
    page = commands.add_parser("evaluate", help="write the evaluation page (many runs)")
    page.add_argument("--data", type=Path, help="folder of the traces, if at hand")
    page.add_argument("--out", type=Path, default=Path("docs/evaluation.md"))
    page.add_argument("--seeds", type=int, default=30)
    page.add_argument("--without-days", action="store_true", help="leave the 90-day study out")
    page.add_argument("--workers", type=int, default=2, help="processor cores to use")
    page.set_defaults(do=_evaluate)
    return parser


def _add_plan(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("workload", help="a profile's name, or the path of CSV, JSON or a journal")
    parser.add_argument("--seed", type=int, default=0, help="of profile, delays and faults")
    parser.add_argument("--replicas", type=int, default=3, help="replicas of each kernel (3)")
    parser.add_argument("--hosts", default="4:30", metavar="MIN:MAX", help="cluster size (4:30)")
    parser.add_argument("--gpus-per-host", type=int, default=8)
    parser.add_argument("--cores-per-host", type=int, default=64, help="cores (64)")
    parser.add_argument("--gib-per-host", type=int, default=488, help="host memory (488)")
    parser.add_argument("--delays", type=Path, metavar="JSON", help="file that replaces delays")
    parser.add_argument(
        "--faults",
        help=f"{', '.join(PRESETS)} or a JSON object of rates (none but what a template says)",
    )
    parser.add_argument(
        "--options", default="{}", metavar="JSON", help="replace what the scheduler may do"
    )
    parser.add_argument("--prices", default="{}", metavar="JSON", help="prices of the cost study")
    parser.add_argument("--check", action="store_true", help="check the whole state each event")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="write report, CSV and plots")
    parser.add_argument("--plots", choices=plots.FORMATS, help="draw plots, into --out")
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def _plan(arguments: argparse.Namespace, policy: str) -> Plan:
    least, _, most = str(arguments.hosts).partition(":")
    if not _is_number(least) or not _is_number(most or least):
        raise InvalidRequest(f"--hosts is {arguments.hosts!r}; write it as MIN:MAX, such as 4:30")
    delays, faults = Delays(), Faults()
    if (store := store_of(arguments.workload)) is not None:
        delays, faults = with_store(delays, store), with_store_failures(faults, store)
    plan = Plan(
        policy=policy,
        replica_count=arguments.replicas,
        shape=HostShape(
            gpus=arguments.gpus_per_host,
            millicpus=1000 * arguments.cores_per_host,
            memory_bytes=arguments.gib_per_host * GIB,
        ),
        hosts_min=int(least),
        hosts_max=int(most or least),
        delays=read_delays(arguments.delays) if arguments.delays else delays,
        faults=read_faults(arguments.faults) if arguments.faults is not None else faults,
        seed=arguments.seed,
        check_all=arguments.check,
    )
    options = changed_options(usual_options(plan), arguments.options)
    return msgspec.structs.replace(plan, options=options)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 9


def _run(arguments: argparse.Namespace) -> int:
    return _report(arguments, [arguments.policy], arguments.journal)


def _compare(arguments: argparse.Namespace) -> int:
    return _report(arguments, str(arguments.policies).split(","))


def _report(arguments: argparse.Namespace, policies: list[str], journal: Path | None = None) -> int:
    if arguments.plots and arguments.out is None:
        raise InvalidRequest("--plots needs a folder to draw into; add --out FOLDER")
    prices = _prices(arguments.prices)
    workload = read_workload(arguments.workload, seed=arguments.seed)
    plans = {policy: _plan(arguments, policy) for policy in policies}
    print(f"{workload.source}: {len(workload.sessions)} sessions, {workload.cell_count} cells\n")
    clock = SystemClock()
    began = clock.monotonic()

    def progress(name: str, at_s: float, events: int) -> None:
        done = min(1.0, at_s / workload.horizon_s)
        took_s = clock.monotonic() - began
        print(f"\r{name}: {done:.0%}, {events:,} events, {took_s:.0f} s ", end="", file=sys.stderr)

    shown = sys.stderr.isatty() and not arguments.quiet
    outcomes = compare(workload, plans, progress if shown else None, journal)
    took_s = clock.monotonic() - began
    events = sum(outcome.run.events for outcome in outcomes.values())
    if shown:
        print(file=sys.stderr)
    text = _text(outcomes, prices)
    print(text)
    print(f"{events:,} events in {took_s:.1f} s, {events / took_s:,.0f} a second")
    if arguments.out is not None:
        _write(arguments, outcomes, text, workload.horizon_s)
    return 0


def _text(outcomes: Mapping[str, Outcome], prices: Prices) -> str:
    figures = {name: outcome.figures for name, outcome in outcomes.items()}
    costs = {name: outcome.cost(prices) for name, outcome in outcomes.items()}
    problems = [p for outcome in outcomes.values() for p in outcome.run.problems]
    parts = [report.markdown(figures), report.cost_markdown(costs), *problems]
    return "\n".join(parts)


def _write(
    arguments: argparse.Namespace, outcomes: Mapping[str, Outcome], text: str, horizon_s: float
) -> None:
    folder: Path = arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.md").write_text(text, encoding="utf-8")
    figures = {name: outcome.figures for name, outcome in outcomes.items()}
    (folder / "figures.csv").write_text(report.figures_csv(figures), encoding="utf-8")
    for name, outcome in outcomes.items():
        report.cells_csv(outcome.run.recorder, folder / f"cells-{name}.csv")
    if arguments.plots:
        recorders = {name: outcome.run.recorder for name, outcome in outcomes.items()}
        plots.plot_all(recorders, horizon_s, folder, form=arguments.plots)
    print(f"written to {folder}")


def _prices(text: str) -> Prices:
    try:
        return msgspec.json.decode(text, type=Prices)
    except msgspec.DecodeError as problem:
        raise InvalidRequest(
            f"{text!r} gives no prices ({problem}); use a JSON object such as "
            '{"provider_per_gpu_h": 2}'
        ) from problem


def _replay(arguments: argparse.Namespace) -> int:
    lives = replay(arguments.journal, check_all=arguments.check)
    for number, life in enumerate(lives, start=1):
        name = f"{life.head.policy} {number}" if len(lives) > 1 else life.head.policy
        print(f"{life.events:,} events over {life.length_s / HOUR_S:.2f} h\n")
        print(report.markdown({name: life.figures()}))
        if life.differing:
            print(
                f"{len(life.differing)} of the decisions differ from the live ones, "
                f"first at event {life.differing[0]}: this program decides otherwise\n"
            )
    if arguments.to_csv is not None:
        arguments.to_csv.mkdir(parents=True, exist_ok=True)
        for path in write_csv(lives[-1].workload(arguments.journal.stem), arguments.to_csv):
            print(f"written to {path}")
    return 0


def _soak(arguments: argparse.Namespace) -> int:
    first, _, beyond = str(arguments.seeds).partition(":")
    if not _is_number(first) or not _is_number(beyond or first):
        raise InvalidRequest(f"seeds are {arguments.seeds!r}; write 17 or 0:2000")
    seeds = range(int(first), int(beyond) if beyond else int(first) + 1)
    if not seeds:
        raise InvalidRequest(f"there are no seeds in {arguments.seeds}; the second must be larger")
    events = 0
    for seed in seeds:
        events += soak(seed, arguments.policy).events
    print(f"{len(seeds):,} lives, {events:,} events, no rule broken")
    return 0


def _generate(arguments: argparse.Namespace) -> int:
    arguments.out.mkdir(parents=True, exist_ok=True)
    workload = read_workload(arguments.profile, seed=arguments.seed)
    for path in write_csv(workload, arguments.out):
        print(f"written to {path}")
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    data: Path | None = arguments.data
    out: Path = arguments.out
    scope = Scope(
        data=data if data is not None and data.is_dir() else None,
        plots=out.parent / "evaluation",
        seeds=arguments.seeds,
        days_seeds=() if arguments.without_days else (1,),
        workers=arguments.workers,
    )
    text = evaluate(scope, lambda what: print(what, file=sys.stderr))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text, encoding="utf-8")
    print(f"written to {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
