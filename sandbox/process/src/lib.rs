//! Native programs behind walls: the process sandbox.
