"""What would come of a decision: events in simulated time."""

from bow.schedule.simulator.operators import simulate_operators as simulate_operators
