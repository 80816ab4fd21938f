"""MLPerf Endpoints: the planned curve, the reference client, the authored files, the bundle and its checker."""
