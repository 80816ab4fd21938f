"""MLPerf Inference for large language models served by vLLM, as one Collective Mind command."""

__version__ = "0.1.0"

#: The line that every page and every record of a run that is not a result carries.
REHEARSAL_NOTICE = "REHEARSAL, NOT A RESULT"

#: The line that every page and every record of a run with the tiny model carries, whatever name it is served under.
STAND_IN_NOTICE = "STAND-IN WEIGHTS"

#: The line that every page and every record of a run with random weights carries.
DUMMY_NOTICE = "DUMMY WEIGHTS"

#: The line that every page and every record of a run on a simulated server carries.
SIMULATED_NOTICE = "SIMULATED"
#: The line on every page with power figures from the simulated analyzer.
SIMULATED_POWER_NOTICE = "SIMULATED POWER: no analyzer was read"

#: The submitter's folder where the user named none: the tree must have one, and no name may be made up.
NO_SUBMITTER = "not-stated"
