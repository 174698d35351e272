"""The passes. `PASSES` is the one table of them; nothing registers itself by being imported."""

from __future__ import annotations

from collections.abc import Mapping

from weft.passes.base import Context, Pass, Plan, Remark, Step
from weft.passes.bucket import BucketPass
from weft.passes.bucket_auto import BucketAuto
from weft.passes.ddp_fuse import DdpFuse
from weft.passes.dedupe import Dedupe
from weft.passes.gather_once import GatherOnce
from weft.passes.halve import Halve
from weft.passes.hoist_starts import HoistStarts
from weft.passes.merge_sums import MergeSums
from weft.passes.micro_pipeline import MicroPipeline
from weft.passes.options import make_pass, parse_pipeline, pass_text
from weft.passes.put_off import PutOff
from weft.passes.schedule import SchedulePass
from weft.passes.sink_waits import SinkWaits

__all__ = ["PASSES", "Context", "Pass", "Plan", "Remark", "Step", "make_pass", "parse_pipeline", "pass_text"]

PASSES: Mapping[str, type[Pass]] = {
    SinkWaits.name: SinkWaits,
    HoistStarts.name: HoistStarts,
    BucketPass.name: BucketPass,
    BucketAuto.name: BucketAuto,
    Dedupe.name: Dedupe,
    GatherOnce.name: GatherOnce,
    PutOff.name: PutOff,
    DdpFuse.name: DdpFuse,
    MergeSums.name: MergeSums,
    Halve.name: Halve,
    MicroPipeline.name: MicroPipeline,
    SchedulePass.name: SchedulePass,
}
