"""A world to break things in: production nodes, links and stores in virtual time, with everything that goes wrong.

`run(seed)` lives one world to its end and says what was breached; `simulate(seeds)` many, and adds them up. The same
seed is the same world. What is simulated is the outside: time, the network, disks, threads and processes. Inside runs
the code that is shipped.
"""

from anabranch.sim.many import Summary, run, simulate
from anabranch.sim.world import Outcome

__all__ = ["Outcome", "Summary", "run", "simulate"]
