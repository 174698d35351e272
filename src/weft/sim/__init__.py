"""What happens when a Program runs on a machine: `simulate`, and how good any other schedule could be."""

from weft.sim.bounds import Bound, lower_bound
from weft.sim.intervals import Interval
from weft.sim.reasons import Cause, Exposure
from weft.sim.simulate import simulate
from weft.sim.timeline import Timeline

__all__ = ["Bound", "Cause", "Exposure", "Interval", "Timeline", "lower_bound", "simulate"]
