"""`weft opt`: put a program through passes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from weft import pipeline
from weft.cli.common import read_text, reported, say
from weft.cost import Machine
from weft.errors import OptionError
from weft.ir.parser import parse
from weft.ir.text import print_program
from weft.passes import PASSES, parse_pipeline
from weft.verify import verify


@click.command(name="opt")
@click.option("-p", "--passes", metavar="PIPELINE", help="The passes, e.g. 'sink_waits,hoist_starts{group=dp}'.")
@click.option("-m", "--machine", help="For passes that decide by cost: a preset, or a file.")
@click.option("-o", "--output", type=click.Path(dir_okay=False), help="Write the program here instead of printing it.")
@click.option("--print-after-all", is_flag=True, help="Print the program after each pass to standard error.")
@click.option("--verify/--no-verify", "verify_each", default=True, help="Check each pass's result. On by default.")
@click.option("--quiet", is_flag=True, help="Print no remarks.")
@click.option("--json", "as_json", is_flag=True, help="Print program, plans, remarks and timings as JSON.")
@click.argument("file")
def command(
    passes: str | None,
    machine: str | None,
    output: str | None,
    print_after_all: bool,
    verify_each: bool,
    quiet: bool,
    as_json: bool,
    file: str,
) -> None:
    """Put the program in FILE (or on standard input, for -) through passes and print what comes out.

    Remarks, which say what each pass did and refused, go to standard error. A reproducer that Weft wrote names its
    passes itself: `weft opt FILE` replays it.

    \b
    Example:
        weft opt -p sink_waits,hoist_starts step.weft
        weft opt -p 'hoist_starts{group="dp"}' --json step.weft
    \b
    Exit codes: 0 done, 1 a program is not safe or a pass failed, 2 the input cannot be used.
    """
    with reported(as_json):
        text = read_text(file)
        wanted = passes if passes is not None else pipeline.read_replay(text)
        if wanted is None:
            raise OptionError(f"which passes? Give -p with some of: {', '.join(PASSES)}")
        program = parse(text, source=file)
        verify(program)
        result = pipeline.run(
            program,
            parse_pipeline(wanted, PASSES),
            cost=Machine.load(machine) if machine is not None else None,
            verify_each=verify_each,
            watch=_print_stage if print_after_all else lambda stage: None,
        )
        _write(result, output, as_json, quiet)


def _print_stage(stage: pipeline.Stage) -> None:
    click.echo(f"# after {stage.plan.pass_text}\n{print_program(stage.program)}", err=True)


def _write(result: pipeline.Result, output: str | None, as_json: bool, quiet: bool) -> None:
    text = json.dumps(_as_json(result), indent=1) + "\n" if as_json else print_program(result.program)
    if not as_json and not quiet:
        for remark in result.remarks:
            say(str(remark))
    if output is None:
        sys.stdout.write(text)
        return
    try:
        Path(output).write_text(text, encoding="utf-8")
    except OSError as error:
        raise OptionError(f"cannot write {output}: {error.strerror}") from None


def _as_json(result: pipeline.Result) -> dict[str, object]:
    return {
        "program": print_program(result.program),
        "passes": [
            {
                "pass": stage.plan.pass_text,
                "plan": json.loads(stage.plan.to_json()),
                "hash": stage.plan.hash,
                "seconds": {"plan": stage.plan_s, "apply": stage.apply_s, "verify": stage.verify_s},
            }
            for stage in result.stages
        ],
        "remarks": [
            {"pass": remark.pass_name, "op": remark.op, "verdict": remark.verdict, "message": remark.message}
            for remark in result.remarks
        ],
    }
