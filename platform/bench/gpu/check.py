"""`make gpu-check`: whether kernels are right on this card and how fast, in under five minutes.

It needs a GPU and Python with torch for it, triton, numpy, and for three of its stages
transformers, safetensors and msgspec. ``--device cpu`` tries the check itself, with tiny sizes and
Triton's interpreter: times mean nothing then, and no target is judged.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import monotonic

BUDGET_S = 285
TRIAL_BUDGET_S = 1800
"""Of the whole and of each stage on a CPU, where nobody waits for a card."""
_LEAST_S = 5
"""With less time left no stage is started."""
_CANNOT_CHECK = 2
_TRIAL = "make gpu-check PYTHON=.venv/bin/python ARGS='--device cpu'"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the check and return its exit status: 1 if anything is wrong or did not end.

    Where nothing can be checked it is 2.
    """
    options = _parse(arguments)
    # Kernels ask for this when they are defined, so it comes before they are imported.
    os.environ["TRITON_INTERPRET"] = "1" if options.device == "cpu" else "0"
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    lack = _lack(options.device)
    if lack is not None:
        sys.stderr.write(f"gpu-check: {lack}\n")
        return _CANNOT_CHECK

    import torch  # noqa: PLC0415  as above, and so are the next

    from loraplex.platform.bench.gpu import report  # noqa: PLC0415  torch may be missing
    from loraplex.platform.bench.gpu.stage import Outcome, Setup, run_stages  # noqa: PLC0415  as above
    from loraplex.platform.bench.gpu.stages import STAGES, in_turns  # noqa: PLC0415  as above

    budget_s = TRIAL_BUDGET_S if options.device == "cpu" else BUDGET_S
    started, outcomes = monotonic(), list[Outcome]()
    chosen = tuple(s for s in STAGES if not options.stages or s.name in options.stages)
    setup = Setup(torch.device(options.device), options.device == "cpu", {})
    if setup.small:
        _say("a trial on a CPU: shapes are tiny, times mean nothing, no target is judged")
        chosen = tuple(replace(stage, budget_s=TRIAL_BUDGET_S) for stage in chosen)
    for group in in_turns(chosen):
        left_s = budget_s - (monotonic() - started)
        if left_s < _LEAST_S:
            why = "not started: the time of the whole check is over"
            outcomes += [Outcome(stage.name, stage.budget_s, 0, (), why) for stage in group]
            continue
        _say(f"[{monotonic() - started:5.1f} s] {', '.join(stage.name for stage in group)} ...")
        for outcome in run_stages(group, setup, left_s):
            outcomes.append(outcome)
            setup.facts.update(outcome.facts)
            _say(f"[{monotonic() - started:5.1f} s] {report.line(outcome)}")
        if group[0].name == STAGES[0].name and not outcomes[0].records:
            _say("nothing else is started: the card cannot be used")
            break
    seconds = monotonic() - started
    page = report.as_markdown(outcomes, seconds, is_trial=setup.small)
    if options.out is None:
        _say(f"\n{page}")
    else:
        document = report.as_json(outcomes, seconds, is_trial=setup.small)
        _write(page, document, options.out / report.file_name(outcomes))
    return 0 if report.is_good(outcomes) else 1


def _write(page: str, document: dict[str, object], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text(page)
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    _say(f"wrote {path}.md and {path}.json")


def _lack(device: str) -> str | None:
    """Tell in one line what is missing here, with the remedy; None if nothing is."""
    missing = [name for name in ("torch", "triton", "numpy") if find_spec(name) is None]
    if missing and device == "cpu":
        return f"{sys.executable} has no {' and no '.join(missing)}; try it by {_TRIAL}"
    remedy = f"for a trial of the script itself on a CPU: {_TRIAL}"
    if missing:
        return (
            f"{sys.executable} has no {' and no '.join(missing)}: give PYTHON=… with torch built "
            f"for the GPU; {remedy}"
        )
    if device == "cpu":
        return None
    import torch  # noqa: PLC0415  first looked for

    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"torch {torch.__version__} of {sys.executable} is not built for a GPU: give PYTHON=… "
            f"whose torch is; {remedy}"
        )
    # In a child: stages are forked, and fork does not go with a process that has used the card.
    child = get_context("fork").Process(target=_exit_well_with_a_card)
    child.start()
    child.join()
    if child.exitcode:
        return f"torch {torch.__version__} of {sys.executable} finds no GPU here; {remedy}"
    return None


def _exit_well_with_a_card() -> None:
    import torch  # noqa: PLC0415  as above

    sys.exit(0 if torch.cuda.is_available() else 1)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu-check", description=__doc__)
    parser.add_argument("--out", type=Path, help="folder for gpu-CARD.json and gpu-CARD.md")
    parser.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help="cpu: try the check itself, tiny"
    )
    parser.add_argument("--stages", nargs="*", default=(), help="those alone, by name")
    return parser.parse_args(arguments)


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
